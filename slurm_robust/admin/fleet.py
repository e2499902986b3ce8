"""``srobust admin fleet``: fill the fleet index from the spool, and remove what is old from it."""

from __future__ import annotations

import time
from pathlib import Path

from slurm_robust.config.node import NodeConfig
from slurm_robust.fleet.collect import Collected
from slurm_robust.fleet.collect import collect as collect_from
from slurm_robust.fleet.opening import open_index
from slurm_robust.hooks.summaries import spool_folder
from slurm_robust.slurm.cli_client import CliSlurmClient
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.terminal.console import show
from slurm_robust.util.text import count, one_line

COLLECT_PATIENCE_S = 120.0
"""A collection waits so long for a database that is away: longer than its restart takes."""

SLURM_S = 30.0
DAY_S = 86400.0


def collect(
    url: str,
    config: NodeConfig,
    *,
    spool: Path | None,
    json: bool,
    slurm: SlurmClient | None = None,
) -> int:
    """Move the spool into the index and say what was done; 1 if something could not be read, else 0.

    Raises the errors of :mod:`slurm_robust.fleet.errors`, and ``OSError``.
    """
    folder = spool or Path(spool_folder(config))
    slurm = slurm or CliSlurmClient(SLURM_S)
    with open_index(url, create=True, patience_s=COLLECT_PATIENCE_S) as index:
        done = collect_from(folder, index, slurm, rack=config.fleet.rack, now=time.time())
    show(done, collected_text, json=json)
    return int(bool(done.kept or done.dropped))


def forget(url: str, days: float) -> int:
    """Remove what ended before the four weeks of the day ``days`` days ago; 0. Raises as :func:`collect`."""
    with open_index(url, patience_s=COLLECT_PATIENCE_S) as index:
        many = index.forget(time.time() - days * DAY_S)
    print(f"removed {count(many, 'job')} that ended before the four weeks of {days:g} days ago")
    return 0


def collected_text(done: Collected) -> str:
    """Return what a collection did, in a few lines."""
    facts = [
        (done.new, "new"),
        (done.renewed, "renewed"),
        (done.unchanged, "known already"),
        (done.older, "older than what is known"),
        (done.waiting, "wait for Slurm's accounting"),
        (done.kept, "left, since they cannot be read here"),
        (done.dropped, "removed, since no release can read them"),
    ]
    text = ", ".join(f"{many} {what}" for many, what in facts if many) or "the spool is empty"
    lines = [text]
    if done.unverified:
        lines.append(
            f"Slurm's accounting has not confirmed nodes and times of {count(done.unverified, 'job')}"
        )
    return "\n".join([*lines, *(f"  {one_line(problem)}" for problem in done.problems)])
