"""The spool: a folder of root's with one file for each job that has ended, or had an incident."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from slurm_robust.fleet.errors import NoIndex
from slurm_robust.model.jobsummary import (
    MAX_BYTES,
    SPOOLED_NAME,
    SpooledSummary,
    SummaryOfTheFuture,
    SummaryRefused,
    decode_spooled,
)
from slurm_robust.model.record import Record
from slurm_robust.util.files import names_in, sync
from slurm_robust.util.text import one_line

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAX_BYTES = MAX_BYTES + 256 * 1024  # the summary, and what the epilog has put beside it
_PROBLEM = 300


class SpooledFile(Record):
    """A file of the spool that can be read."""

    path: Path
    identity: tuple[int, int, int]
    spooled: SpooledSummary


class Unusable(Record):
    """A file that cannot be used."""

    path: Path
    why: str
    keep: bool
    """A later release may read it, or a person should look; else it is worth nothing."""


def waiting_in(folder: Path) -> Iterator[SpooledFile | Unusable]:
    """Yield what the spool holds, one after the other; files of other names are none of it.

    Raises :class:`NoIndex` if there is no spool, ``OSError`` if it cannot be listed.
    """
    if not folder.is_dir():
        raise NoIndex(
            f"there is no spool at {folder}",
            fix="set fleet.collect in the nodes' configuration, and fleet.spool_dir to a folder that this "
            "node sees; or name the folder with --spool",
        )
    for name in sorted(names_in(folder)):
        if re.fullmatch(SPOOLED_NAME, name) and (found := _read(folder / name)) is not None:
            yield found


def remove(waiting: SpooledFile | Unusable) -> None:
    """Remove a file that the index has, unless an epilog has put a newer one in its place meanwhile.

    Raises ``OSError``.
    """
    path = waiting.path
    taken = path.with_name(f".{path.name}.{os.getpid()}.taken")
    try:
        os.rename(path, taken)
    except FileNotFoundError:
        return  # another collection has
    try:
        is_newer = isinstance(waiting, SpooledFile) and _identity(os.lstat(taken)) != waiting.identity
        if is_newer:
            os.link(taken, path)
    except FileExistsError:
        pass  # and now there is one that is newer still
    os.unlink(taken)
    sync(path.parent)


def _read(path: Path) -> SpooledFile | Unusable | None:
    try:
        fd = os.open(path, _FLAGS)
    except FileNotFoundError:
        return None  # another collection has taken it
    except OSError as error:
        return Unusable(path=path, why=error.strerror or str(error), keep=True)
    with open(fd, "rb") as file:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_uid not in (0, os.geteuid()):
            return Unusable(path=path, why="not a plain file of root", keep=True)
        try:
            data = file.read(_MAX_BYTES + 1)
            if len(data) > _MAX_BYTES:
                raise SummaryRefused("longer than any summary")
            return SpooledFile(path=path, identity=_identity(info), spooled=decode_spooled(data))
        except SummaryOfTheFuture as error:
            return Unusable(path=path, why=str(error), keep=True)
        except SummaryRefused as error:
            return Unusable(path=path, why=one_line(str(error), _PROBLEM), keep=False)
        except OSError as error:
            return Unusable(path=path, why=error.strerror or str(error), keep=True)


def _identity(info: os.stat_result) -> tuple[int, int, int]:
    return info.st_ino, info.st_mtime_ns, info.st_size
