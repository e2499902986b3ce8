"""Protected jobs in a sandbox, as the tests see them: submit, watch the journal, wait."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from slurm_robust.model import events as ev
from slurm_robust.model.journal import fold, read
from slurm_robust.model.state import JobState
from slurm_robust.sandbox import Sandbox
from tests.waiting import wait_for

E = TypeVar("E")
SCRIPTS = Path(__file__).parent / "scripts"
USER = "alice"
SBATCH = """#!/bin/bash
#SBATCH --no-kill --requeue --open-mode=append --signal=B:USR1@60 --time=30 --cpus-per-task=2
export OMP_NUM_THREADS=1
export SROBUST_CONFIG_CHECKPOINT_MAX_BLOCKED_SHARE={share}
{settings}
exec srobust run {options}
"""
WITHOUT_PREPARATIONS = """export SROBUST_CONFIG_STANDBY_TEST_S=0
export SROBUST_CONFIG_STANDBY_REHEARSE=false
"""
_numbers = itertools.count()
MADE: list[ProtectedJob] = []
"""The jobs of the test that runs; if it fails, its report shows their logs."""


class ProtectedJob:
    """One submitted ``srobust run``. Paths are those of this machine, not of the sandbox."""

    def __init__(
        self,
        sandbox: Sandbox,
        options: str,
        *,
        nodes: int,
        sbatch: tuple[str, ...] = (),
        preparations: bool = False,
        keeps_every_step: bool = True,
        before: str = "",
    ) -> None:
        """``preparations``: standbys do all that makes them ready, which takes processors from the rest.

        ``keeps_every_step``: however long that takes, on a machine that is as busy as tests make it.
        ``before``: a line of the batch script before ``srobust run``.
        """
        self.sandbox = sandbox
        self.home = sandbox.home(USER)
        self.name = f"job{next(_numbers)}"
        for script in SCRIPTS.iterdir():
            if script.suffix == ".py":
                shutil.copy(script, self.home / script.name)
        self.out = self.home / f"{self.name}.sha"
        settings = "" if preparations else WITHOUT_PREPARATIONS
        options = options.replace("OUT", self.out.name)
        share = "null" if keeps_every_step else "0.01"
        text = SBATCH.format(options=options, share=share, settings=settings + before)
        (self.home / f"{self.name}.sbatch").write_text(text)
        command = ["sbatch", "--parsable", f"--nodes={nodes}", f"--job-name={self.name}"]
        command += [f"--output={self.name}.log", *sbatch, f"{self.name}.sbatch"]
        done = sandbox.exec(command, user=USER, timeout_s=30.0, check=True)
        self.id = int(done.stdout.strip().partition(";")[0])
        self.folder = self.home / "srobust-jobs" / str(self.id)
        MADE.append(self)

    @property
    def log(self) -> str:
        path = self.home / f"{self.name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def events(self, kind: type[E]) -> list[E]:
        return [e for e in read(self.folder / "journal.jsonl") if isinstance(e, kind)]

    @property
    def state(self) -> JobState:
        return fold(read(self.folder / "journal.jsonl"))

    def step(self) -> int:
        """Newest step that rank 0 has printed, -1 before the first."""
        found = -1
        for log in self.folder.glob("logs/gen-*/rank-00000.out"):
            lines = [line for line in log.read_text().splitlines() if line.startswith("step ")]
            found = max(found, int(lines[-1].split()[1])) if lines else found
        return found

    def wait_step(self, step: int, timeout: float = 120.0) -> None:
        self.wait(lambda: self.step() >= step, timeout, f"step {step}")

    def wait_recovered(self, incidents: int = 1, timeout: float = 120.0) -> list[ev.IncidentClosed]:
        self.wait(lambda: len(self.events(ev.IncidentClosed)) >= incidents, timeout, "incident closed")
        return self.events(ev.IncidentClosed)

    def hurry(self) -> None:
        """Have ``tiny.py`` pause no more, unless it was told ``--no-hurry``."""
        self.out.with_suffix(".hurry").touch()

    def wait_end(self, timeout: float = 180.0) -> int:
        """Wait in a hurry until the batch script has ended; return the exit code that the run gave itself.

        Slurm holds the job for longer, in COMPLETING, until it gives up a node that is off.
        """
        self.hurry()
        self.wait(lambda: self.state.ended is not None, timeout, "end of the run")
        self.wait(lambda: self.slurm_state() != "RUNNING", 60.0, "end of the job")
        ended = self.state.ended
        assert ended is not None
        return ended.code

    def wait(self, condition: Callable[[], object], timeout: float, what: str) -> None:
        try:
            wait_for(condition, timeout, what)
        except AssertionError as error:
            raise AssertionError(f"{error}; job {self.id} is {self.slurm_state()}") from None

    def wait_said(self, words: str) -> None:
        """The job's log has these words, which come a moment after the event in the journal."""
        self.wait(lambda: words in self.log, 10.0, words)

    def slurm_state(self) -> str:
        done = self.sandbox.exec(
            ["squeue", "-h", "-t", "all", "-j", str(self.id), "-o", "%T"], timeout_s=30.0
        )
        return done.stdout.strip()

    def wait_queued(self, timeout: float = 90.0) -> None:
        """Wait until the job is queued again, and as long as no person is faster.

        Where it starts within the second in which it ended, on a node that it had, Slurm takes its credential
        for a revoked one, and ends it for good, as FAILED (22.05).
        """
        self.wait(lambda: self.slurm_state() == "PENDING", timeout, "the job is queued again")
        ended = int(time.time())
        wait_for(lambda: int(time.time()) > ended, 2.0, "the next second")

    def exit_code(self) -> str:
        """Exit code and signal as Slurm shows them, ``0:0``."""
        done = self.sandbox.exec(["scontrol", "-o", "show", "job", str(self.id)], timeout_s=30.0)
        return next(w for w in done.stdout.split() if w.startswith("ExitCode=")).partition("=")[2]

    def wait_left(self) -> str:
        """Wait until the job has left its nodes for good; its exit code."""
        alive = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
        self.wait(lambda: self.slurm_state() not in alive, 60.0, "end of the job")
        return self.exit_code()


def find_process(sandbox: Sandbox, node: str, *words: str) -> int:
    """The machine's pid of the one process on ``node`` whose command line has these words in a row."""
    wanted = "\0".join(words).encode() + b"\0"
    found = [pid for pid in sandbox.host_pids(node) if wanted in Path(f"/proc/{pid}/cmdline").read_bytes()]
    (only,) = found
    return only
