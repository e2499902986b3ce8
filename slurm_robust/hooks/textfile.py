"""What hooks tell Prometheus, by files that node_exporter's textfile collector reads.

Each hook has a file of its own for what it found; all write the one of the node's drain. Imported only if a
site has configured a folder.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from slurm_robust.config.node import NodeConfig
from slurm_robust.hooks.record import DAY_S, DrainFile, OwnDrain
from slurm_robust.model.findings import Outcome
from slurm_robust.nodes.verdict import Report
from slurm_robust.telemetry.metric import Family, render
from slurm_robust.telemetry.table import NodeMetric
from slurm_robust.util.files import write_atomically
from slurm_robust.util.isolate import call
from slurm_robust.util.trust import ROOT, distrust
from slurm_robust.version import __version__

WRITE_S = 1.0
"""How long it may take; then the files stay as they were."""

_FOR_ALL = 0o644


def of_run(hook: str, report: Report, exit_code: int) -> Iterator[Family]:
    """Yield what a full run of a hook found. Pure."""
    yield NodeMetric.FIT, (((hook,), report.fit),)
    yield NodeMetric.LAST_RUN, (((hook,), report.at),)
    yield NodeMetric.DURATION, (((hook,), report.wall_s),)
    yield NodeMetric.EXIT_CODE, (((hook,), exit_code),)
    yield NodeMetric.ERRORS, (((hook,), len(report.errors)),)
    yield NodeMetric.LEFT_OUT, (((hook,), len(report.left_out)),)
    if hook == "periodic":
        found = Counter((finding.check, finding.outcome) for finding in report.findings)
        checks = dict.fromkeys(finding.check for finding in report.findings)
        yield (
            NodeMetric.FINDINGS,
            [((check, outcome.value), found[check, outcome]) for check in checks for outcome in Outcome],
        )


def of_node(own: OwnDrain, mode: str, now: float) -> Iterator[Family]:
    """Yield how the node stands with Slurm by our doing. Pure."""
    yield NodeMetric.INFO, (((__version__, mode), 1),)
    yield NodeMetric.DRAINED, (((), bool(own.reason)),)
    yield NodeMetric.DRAIN_START, (((), own.since),) if own.reason else ()
    yield NodeMetric.DRAINS, (((), own.drains_since(now - DAY_S)),)


def publish(config: NodeConfig, hook: str, report: Report, exit_code: int, *, whole: bool) -> str:
    """Write the files; why they could not be written, "" if they were. Never blocks for long.

    ``whole``: it was a run of all checks; else only the drain is written.
    """
    folder = config.metrics.textfile_dir

    def task() -> bytes:
        try:
            if why := distrust(folder, (*ROOT, os.geteuid())):
                return f"{why}: give the folder and those above it to root alone".encode()
            own = DrainFile(Path(config.paths.state)).load()
            _write(folder, "srobust_node.prom", render(of_node(own, config.drain.mode, report.at)))
            if whole:
                _write(folder, f"srobust_{hook}.prom", render(of_run(hook, report, exit_code)))
        except OSError as error:
            return f"{folder}: {error.strerror}".encode()
        return b""

    answer = call({"textfile": task}, {"textfile": WRITE_S}, WRITE_S)["textfile"]
    return answer.error if answer.value is None else answer.value.decode(errors="replace")


def _write(folder: str, name: str, content: bytes) -> None:
    # Renamed, so that the collector never reads half a file; what is unfinished does not end in .prom.
    write_atomically(Path(folder, name), content, durable=False, mode=_FOR_ALL)
