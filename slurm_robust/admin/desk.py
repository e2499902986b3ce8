"""The deep test of a node and what a repair desk needs: ``python -m slurm_robust.admin.desk``, on the node.

Prints one :class:`Examination` as JSON and ends with 0, whatever it found.
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
from slurm_robust.health.check import Context
from slurm_robust.health.host import Host
from slurm_robust.health.isolate import call
from slurm_robust.health.memory import Memory
from slurm_robust.health.report import Conclusion, Report
from slurm_robust.health.runner import inspect
from slurm_robust.health.verdict import conclude
from slurm_robust.model.record import Record
from slurm_robust.node.record import Cause, DrainFile, has_passed

TEST_S = 120.0
_GPUS_S = 20.0
_DMI = ("sys_vendor", "product_name", "product_serial", "board_serial", "bios_version")


class Examination(Record):
    """What one deep test found. ``serials``: names of parts and what is written on them.

    ``remembered``: whether the node still knows what it was drained for; ``open``: those causes that have not
    passed now.
    """

    report: Report
    conclusion: Conclusion
    remembered: bool = False
    open: tuple[Cause, ...] = ()
    serials: dict[str, str] = {}


def examine(config: NodeConfig, host: Host, now: float) -> Examination:
    """Run everything, with nothing from the cache. ``now``: seconds since 1970."""
    report = inspect(
        config,
        Context.DEEP,
        host=host,
        memory=Memory(Path(config.paths.state)),
        now=now,
        budget_s=TEST_S,
        job_gone=True,
    )
    causes = DrainFile(Path(config.paths.state)).load().causes
    return Examination(
        report=report,
        conclusion=conclude(report, config, {}),
        remembered=bool(causes),
        open=tuple(cause for cause in causes if not has_passed(cause, report.findings)),
        serials=serials(config, host),
    )


def serials(config: NodeConfig, host: Host) -> dict[str, str]:
    """Vendor, model and serial numbers of the machine, and of each GPU as far as its driver answers."""
    found = {name: host.read_or(f"/sys/class/dmi/id/{name}") for name in _DMI}
    answer = call({"gpus": partial(_gpus, host, config)}, {"gpus": _GPUS_S}, _GPUS_S)["gpus"]
    found |= msgspec.json.decode(answer.value or b"{}", type=dict[str, str])
    return {name: value for name, value in found.items() if value}


def _gpus(host: Host, config: NodeConfig) -> bytes:
    from slurm_robust.health.gpus.gather import gather_gpus  # loads the driver's library: in the child only

    gpus: Mapping[str, str] = {
        f"gpu{gpu.index}": " ".join(filter(None, (gpu.name, gpu.uuid, gpu.serial and f"serial {gpu.serial}")))
        for gpu in gather_gpus(host, config).gpus
    }
    return msgspec.json.encode(gpus)


def main() -> int:
    """Test this node."""
    parser = argparse.ArgumentParser(
        prog="slurm_robust.admin.desk", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--config", type=Path, default=FILE)
    config = load(parser.parse_args().config)
    sys.stdout.buffer.write(msgspec.json.encode(examine(config, Host(), time.time())) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
