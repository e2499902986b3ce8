"""Runs trainings of the matrix, several at a time, each a job of its own on nodes of its own."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.code_matrix.cases import ACT, EVALUATION_S, ONCE, REPORTED, STEPS, Case
from benchmarks.code_matrix.outcomes import Outcome, read
from benchmarks.common import OUT, USER
from benchmarks.fault_matrix.outcomes import OBSERVE
from slurm_robust.model.journal import read as read_journal
from slurm_robust.sandbox import Sandbox, SandboxConfig
from tests.cluster.protected_job import ProtectedJob

SCRIPT = Path(__file__).parent / "train.py"
NODES, SPARES = 2, 1
LEFT_OVER = 3
"""Nodes beyond those of all jobs, for a job that was requeued without some."""

PATIENCE_S = {ACT: 360.0, OBSERVE: 240.0}
"""By mode. What ends takes less than four minutes on a machine with nothing else to do."""

LOOK_S, ASK_S = 1.0, 10.0
ALIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
KEPT = OUT / "code_matrix"
"""Journals and logs of the jobs, one folder for each case."""


def config(jobs: int) -> SandboxConfig:
    """A sandbox with room for ``jobs`` trainings at a time."""
    return SandboxConfig(
        nodes=jobs * (NODES + SPARES) + LEFT_OVER, cpus=4, cred_expire_s=5, accounting=False, shm_mb=256
    )


class Training(ProtectedJob):
    """One case under way."""

    def __init__(self, sandbox: Sandbox, case: Case) -> None:
        self.case, self._patience_s = case, PATIENCE_S[case.mode]
        shutil.copy(SCRIPT, sandbox.home(USER) / SCRIPT.name)
        super().__init__(sandbox, _options(case), nodes=NODES + SPARES, sbatch=("--exclusive",))
        self.submitted = self._asked = time.monotonic()

    def outcome(self, commit: str) -> Outcome | None:
        """How it went, once it has ended or its time is over; it is cancelled then."""
        events = read_journal(self.folder / "journal.jsonl")
        faults = [float(line) for line in _text(self.out.with_suffix(".faults")).split()]
        found = read(self.case, self.id, commit, events, now=time.time(), faults=faults)
        if found.code is None and self._may_go_on():
            return None
        slurm = "" if found.code is not None else self.slurm_state()
        if slurm in ALIVE:
            slurm = f"still {slurm} after {self._patience_s:g} s"
            self.sandbox.exec(["scancel", str(self.id)], user=USER, check=False)
        self._keep()
        return replace(found, slurm=slurm, weights=_text(self.out))

    def _may_go_on(self) -> bool:
        now = time.monotonic()
        if now - self.submitted > self._patience_s:
            return False
        if now - self._asked < ASK_S:
            return True
        self._asked = now
        return self.slurm_state() in ALIVE

    def _keep(self) -> None:
        folder = KEPT / self.case.name.replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "journal.jsonl").write_text(_text(self.folder / "journal.jsonl"))
        (folder / "log").write_text(self.log)


@dataclass
class Matrix:
    """Runs cases, ``jobs`` of them at a time; ``done`` gets each outcome at once."""

    sandbox: Sandbox
    jobs: int
    commit: str
    done: Callable[[Outcome], None]
    _running: list[Training] = field(default_factory=list)

    def run(self, cases: Sequence[Case]) -> None:
        """All of them, in this order."""
        waiting = list(cases)
        while waiting or self._running:
            while waiting and len(self._running) < self.jobs:
                self._running.append(Training(self.sandbox, waiting.pop(0)))
            self._running = list(self._look())
            time.sleep(LOOK_S)

    def _look(self) -> Iterable[Training]:
        for training in self._running:
            outcome = training.outcome(self.commit)
            if outcome is None:
                yield training
            else:
                self.done(outcome)


def _options(case: Case) -> str:
    at, steps = STEPS[case.step_s]
    words = [f"--nodes {NODES} --spares {SPARES} --set mode={case.mode}"]
    words += [f"{SCRIPT.name} --out OUT --fault {case.fault} --at {at}"]
    words += [f"--steps {steps} --step-s {case.step_s:g} --evaluation-s {EVALUATION_S:g}"]
    words += ["--once"] if case.occurs == ONCE else []
    words += ["--report"] if case.script == REPORTED else []
    return " ".join(words)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
