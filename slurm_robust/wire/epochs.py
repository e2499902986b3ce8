"""Epochs: which controller is the newest, decided by exclusively creating a numbered file."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from slurm_robust.model.record import UNREADABLE, Record
from slurm_robust.util.files import publish_once

_NAME = re.compile(r"(\d{6,})\.json")


class EpochRecord(Record):
    """One controller that took the job, and its address. Agents obey the highest epoch."""

    epoch: int
    host: str
    addresses: tuple[str, ...]
    port: int
    pid: int
    run_id: str
    node: str = ""
    """Slurm's name of ``host``."""

    @property
    def endpoints(self) -> tuple[str, ...]:
        """All places to try, in ZeroMQ's form; the host's name last, as a resolver may not know it."""
        names = dict.fromkeys((*self.addresses, self.host))
        return tuple(f"tcp://[{n}]:{self.port}" if ":" in n else f"tcp://{n}:{self.port}" for n in names)


# Made while there is one thread; see Record.
_records = msgspec.json.Decoder(EpochRecord)


def take_epoch(
    folder: Path, *, host: str, addresses: tuple[str, ...], port: int, pid: int, run_id: str, node: str = ""
) -> EpochRecord:
    """Take the next epoch in ``folder``; the record is whole from its first moment.

    Goes upward when another controller wins the race. Raises ``OSError``.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    epoch = max(_numbers(folder), default=0) + 1
    while True:
        record = EpochRecord(
            epoch=epoch, host=host, addresses=addresses, port=port, pid=pid, run_id=run_id, node=node
        )
        if publish_once(folder / f"{epoch:06d}.json", msgspec.json.encode(record)):
            return record
        epoch += 1


def is_overtaken(folder: Path, epoch: int) -> bool:
    """Return whether a controller with a higher epoch has taken the job. Raises ``OSError``."""
    newest = newest_epoch(folder)
    return newest is not None and newest.epoch > epoch


def newest_epoch(folder: Path) -> EpochRecord | None:
    """Return the highest epoch that was taken; None when there is none (yet).

    Files that are no epoch's (torn by a broken file system, or put there from outside) are passed over.
    Raises ``OSError`` other than a missing folder.
    """
    for number in sorted(_numbers(folder), reverse=True):
        try:
            content = (folder / f"{number:06d}.json").read_bytes()
            record = _records.decode(content)
        except (FileNotFoundError, IsADirectoryError, *UNREADABLE):
            continue
        if record.epoch == number:
            return record
    return None


def _numbers(folder: Path) -> list[int]:
    try:
        names = [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        return []
    found = (_NAME.fullmatch(name) for name in names)
    return [int(m.group(1)) for m in found if m is not None and m.group(0) == f"{int(m.group(1)):06d}.json"]
