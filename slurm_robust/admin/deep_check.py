"""The deep run of a node, and what a repair desk needs: ``python -m slurm_robust.admin.deep_check``.

Runs on the node itself, prints one :class:`Examination` as JSON and ends with 0, whatever it found.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from slurm_robust.config.node import NodeConfig
from slurm_robust.config.nodefile import FILE, load
from slurm_robust.hooks.record import DrainCause, DrainFile, OwnDrain, has_passed
from slurm_robust.kernel.host import Host
from slurm_robust.model.record import Record
from slurm_robust.nodes.check import CheckContext
from slurm_robust.nodes.gpus.gather import gather_gpus
from slurm_robust.nodes.memory import Memory
from slurm_robust.nodes.reasons import TAG, as_one_part
from slurm_robust.nodes.runner import inspect
from slurm_robust.nodes.verdict import REASON_BYTES, Report, conclude
from slurm_robust.util.isolate import call
from slurm_robust.util.text import ascii_line

TEST_S = 120.0
LOCK_S = 30.0
_GPUS_S = 20.0
_DMI = ("sys_vendor", "product_name", "product_serial", "board_serial", "bios_version")


class Examination(Record):
    """What one deep test found."""

    fit: bool
    """Never left out, so that no answer of another version looks like a node that has passed."""

    report: Report
    reasons: tuple[str, ...] = ()
    """Reasons of drains that the node knows to be of its hooks or of an earlier test."""

    remembered: bool = False
    """Whether the node still knows what it was drained for."""

    open: tuple[DrainCause, ...] = ()
    """The causes of its drain that have not passed now."""

    serials: dict[str, str] = {}
    """Names of parts and what is written on them."""

    @property
    def fault(self) -> str:
        """Why the node must not be in service; empty when it has passed, with all that it was drained for."""
        if not self.fit:
            return self.report.reason.removeprefix(TAG)
        # A node that forgot what drained it could be returned with that very thing unknown.
        unproven = self.open if self.remembered else self.report.unknown
        names = ", ".join(f"{found.check} {found.subject}".rstrip() for found in unproven)
        return f"not proven: {names}" if unproven else ""

    @property
    def reason(self) -> str:
        """Reason of the drain of a node that is kept."""
        return TAG + as_one_part(ascii_line(f"quarantine: {self.fault}", REASON_BYTES - len(TAG)))


def examine(config: NodeConfig, host: Host, now: float) -> Examination:
    """Run everything, with nothing from the cache. ``now``: seconds since 1970."""
    run = inspect(
        config,
        CheckContext.DEEP,
        host=host,
        memory=Memory(Path(config.paths.state)),
        now=now,
        budget_s=TEST_S,
        job_gone=True,
    )
    report = conclude(run, config, {})
    file = DrainFile(Path(config.paths.state))
    with file.locked(LOCK_S):
        record = file.load()
        found = Examination(
            fit=report.fit,
            report=report,
            reasons=tuple(filter(None, (record.reason, record.former, record.kept))),
            remembered=bool(record.causes),
            open=tuple(cause for cause in record.causes if not has_passed(cause, report.findings)),
            serials=serials(config, host),
        )
        if found.fault:
            _remember(file, msgspec.structs.replace(record, kept=found.reason))
    return found


def _remember(file: DrainFile, record: OwnDrain) -> None:
    """Remember it, so that the next test knows this reason from a person's."""
    try:
        file.save(record)
    except OSError:
        pass  # It takes them for a person's then, and the node stays drained.


def serials(config: NodeConfig, host: Host) -> dict[str, str]:
    """Return vendor, model and serial numbers of the machine, and of each GPU whose driver answers."""
    found = {name: host.read_or(f"/sys/class/dmi/id/{name}") for name in _DMI}
    answer = call({"gpus": partial(_gpus, host, config)}, {"gpus": _GPUS_S}, _GPUS_S)["gpus"]
    found |= msgspec.json.decode(answer.value or b"{}", type=dict[str, str])
    return {name: value for name, value in found.items() if value}


def _gpus(host: Host, config: NodeConfig) -> bytes:
    gpus: Mapping[str, str] = {
        f"gpu{gpu.index}": " ".join(filter(None, (gpu.name, gpu.uuid, gpu.serial and f"serial {gpu.serial}")))
        for gpu in gather_gpus(host, config).gpus
    }
    return msgspec.json.encode(gpus)


def main() -> int:
    """Test this node."""
    parser = argparse.ArgumentParser(
        prog="slurm_robust.admin.deep_check", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--config", type=Path, default=FILE)
    config = load(parser.parse_args().config)
    sys.stdout.buffer.write(msgspec.json.encode(examine(config, Host(), time.time())) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
