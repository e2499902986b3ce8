"""Real jobs played again under their own settings: how far their ETTR is from reality.

``python -m benchmarks.replays [FOLDER ...] [--lives 10]``: every job below the folders, by default those that
``benchmarks.code_matrix`` and ``benchmarks.fault_storm`` have kept, and the journals among the tests' data.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks import common
from slurm_robust.config.plan import load_plan
from slurm_robust.model.errors import PreflightError
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.journal import read
from slurm_robust.simulator.compare import FAITHFUL
from slurm_robust.simulator.like import Likeness, NothingToReplay, like
from slurm_robust.simulator.runs import live
from slurm_robust.terminal.console import track

FOLDERS = (
    common.OUT / "code_matrix",
    common.OUT / "fault_storm",
    common.ROOT / "tests" / "data" / "journals",
)


@dataclass(frozen=True)
class Replay:
    """The ETTR of one job, and of its lives."""

    job: str
    real: float
    replay: float

    @property
    def apart(self) -> float:
        """By how much the replay is higher."""
        return self.replay - self.real


def main(argv: Sequence[str] | None = None) -> int:
    """Play, print, write build/bench/replays.json."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("folders", nargs="*", type=Path, default=FOLDERS, help="with jobs' folders")
    options.add_argument("--lives", type=int, default=10, help="of each job (default: %(default)s)")
    chosen = options.parse_args(argv)
    journals = sorted(path for folder in chosen.folders for path in folder.rglob("journal.jsonl"))
    rows, left_out = list[Replay](), 0
    for path in track(journals, "replaying", "jobs"):
        found = _likeness(path)
        if found is None:
            left_out += 1
            continue
        played = [live(found.spec, seed).ettr for seed in range(chosen.lives)]
        rows.append(Replay(job=path.parent.name, real=found.real.ettr, replay=sum(played) / len(played)))
    apart = sorted(abs(row.apart) for row in rows)
    table = common.table("ETTR of real jobs and of their replays, %", "job", "real", "replay", "points")
    for row in rows:
        cells = (f"{100 * row.real:.1f}", f"{100 * row.replay:.1f}", f"{100 * row.apart:+.1f}")
        table.add_row(row.job, *cells)
    common.console().print(table)
    half, near = median(apart), sum(one <= FAITHFUL for one in apart)
    jobs = [asdict(row) for row in rows]
    facts = {"jobs": jobs, "left_out": left_out, "median": half, "near": near, "most": apart[-1]}
    print(f"{len(rows)} jobs, median {100 * half:.1f} points apart, {near} within {100 * FAITHFUL:g}")
    print(common.write("replays", facts))
    return 0


def _likeness(path: Path) -> Likeness | None:
    """The job as a spec; None if there is nothing to play again."""
    try:
        config = load_plan(JobDirectory(path.parent)).config
    except PreflightError:
        config = None
    try:
        return like(read(path), config)
    except NothingToReplay:
        return None


if __name__ == "__main__":
    raise SystemExit(main())
