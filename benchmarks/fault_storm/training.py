"""The training in the storm, and who watches its steps."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from slurm_robust.model import events as ev
from slurm_robust.model.journal import read
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, ProtectedJob

NODES, SPARES, STEP_S = 4, 2, 0.2
STEPS = 1_000_000
END_AFTER = 25
SETTINGS = (
    "limits.per_hour=100000",
    "limits.total=100000",
    "checkpoint.every_s=20",
    "companions.partition=true",
    # The machine has other work, which makes all steps longer from time to time.
    "detect.slow_factor=10",
)


class Training(ProtectedJob):
    """Ends when told to, and leaves a hash of its weights after each step."""

    def __init__(self, sandbox: Sandbox, *, steps: int = STEPS, minutes: float = 30.0) -> None:
        self.orders = sandbox.home(USER) / "faults"
        self.orders.mkdir(exist_ok=True)
        self.orders.chmod(0o777)
        for left in self.orders.iterdir():
            left.unlink()
        storm = steps == STEPS
        spares = SPARES if storm else 0
        words = [f"--spares {spares} --nproc-per-node 1", *(f"--set {setting}" for setting in SETTINGS)]
        words += [f"faulty.py --out OUT --faults faults --each --steps {steps}"]
        words += [f"--step-s {STEP_S if storm else 0}"]
        sbatch = (f"--time={int(minutes) + 60}", "--exclusive")
        super().__init__(sandbox, " ".join(words), nodes=NODES + spares, sbatch=sbatch)
        self.steps_file = self.out.with_suffix(".steps")

    def journal(self) -> list[ev.AnyEvent]:
        """All events so far."""
        return read(self.folder / "journal.jsonl")

    def hashes(self) -> dict[int, set[str]]:
        """Hashes of rank 0's weights after each step, all that were ever computed."""
        found: dict[int, set[str]] = {}
        for line in self.steps_file.read_text().splitlines():
            step, _, text = line.partition(" ")
            found.setdefault(int(step), set()).add(text)
        return found

    def end_soon(self) -> None:
        """Let it end by itself."""
        beside = self.orders / ".last"
        beside.write_text(str(self.newest() + END_AFTER))
        beside.chmod(0o644)
        beside.rename(self.orders / "last")

    def newest(self) -> int:
        """The newest step that was ever made."""
        return max((step for step, _ in _steps(self.steps_file)), default=-1)


class Watch:
    """Notes when each step was made for the first time."""

    LOOK_EVERY_S = 0.05

    def __init__(self, path: Path) -> None:
        self._path, self._at, self._position, self._rest = path, dict[int, float](), 0, ""
        self.best = -1
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def made(self, step: int) -> float | None:
        """When ``step``, or a later one, was made; None before."""
        return self._at.get(step) if step <= self.best else None

    def end(self) -> None:
        """Watch no more."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self.LOOK_EVERY_S):
            if not self._path.exists():
                continue
            with self._path.open() as file:
                file.seek(self._position)
                text = file.read()
                self._position = file.tell()
            now = time.time()
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                for step in range(self.best + 1, int(line.partition(" ")[0]) + 1):
                    self._at[step] = now
                    self.best = step


def _steps(path: Path) -> list[tuple[int, str]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(step), text) for step, _, text in (line.partition(" ") for line in lines)]
