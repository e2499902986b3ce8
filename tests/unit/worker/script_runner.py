"""Runs scripts as workers of a real zygote, for tests that compare them with plain Python."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TypeVar

from slurm_robust.agent.launcher import ZygoteLauncher
from slurm_robust.model.job import CommandKind
from slurm_robust.worker.copied import CopiedCode
from slurm_robust.worker.outside import read_outside
from slurm_robust.worker.spawning import Exited, Prepare, Ready, Spawn, WorkerSpec
from slurm_robust.worker.step_record import StepRecord

M = TypeVar("M")


class ScriptRunner:
    """One zygote; each :meth:`run` is a worker of it."""

    def __init__(
        self,
        *,
        preload: tuple[str, ...] = (),
        cwd: Path,
        launcher: type[ZygoteLauncher] = ZygoteLauncher,
        results: Path | None = None,
        code: CopiedCode | None = None,
    ) -> None:
        """``results``: the folder for what workers leave, by default where they run. ``code``: a release."""
        self._results = results
        self._launcher = launcher(
            Prepare(
                command_kind=CommandKind.SCRIPT,
                command=(str(cwd / "script.py"),),
                cwd=str(cwd),
                nproc_per_node=1,
                preload=preload,
                code=code,
            )
        )
        self._launcher.start()
        self._generation = 0
        self.notes = self._wait(Ready).notes

    def run(
        self,
        command: tuple[str, ...],
        cwd: Path,
        *,
        kind: CommandKind = CommandKind.SCRIPT,
        env: dict[str, str] | None = None,
        listener: socket.socket | None = None,
        code: CopiedCode | None = None,
        release_env: dict[str, str] | None = None,
    ) -> WorkerResult:
        """Run one worker to its end."""
        self._generation += 1
        folder = (self._results or cwd) / f"worker-{self._generation}"
        folder.mkdir()
        record = StepRecord.create(folder / "record", generation=self._generation, rank=0)
        worker = WorkerSpec(
            rank=0,
            env=env or {},
            out=str(folder / "out"),
            err=str(folder / "err"),
            error=str(folder / "error"),
            record=str(folder / "record"),
            outside=str(folder / "outside"),
        )
        order = Spawn(
            generation=self._generation,
            command_kind=kind,
            command=command,
            cwd=str(cwd),
            workers=(worker,),
            code=code,
            env=release_env or {},
        )
        self._launcher.spawn(order, listener)
        if listener is not None:
            listener.close()  # as an agent does
        exited = self._wait(Exited)
        self._launcher.sweep()
        steps, phases = record.progress(time.monotonic()).step, record.start_phases
        record.close()
        out, err = (folder / "out").read_text(), (folder / "err").read_text()
        return WorkerResult(exited, out, err, steps, phases, read_outside(folder / "outside"))

    def close(self) -> None:
        """End the zygote."""
        self._launcher.close()

    def _wait(self, kind: type[M]) -> M:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            select.select([self._launcher.fileno()], [], [], 60)
            for message in self._launcher.read():
                if isinstance(message, kind):
                    return message
        raise AssertionError(f"no {kind.__name__} within 60 s")


class WorkerResult:
    """How a worker ended, what it printed, the optimizer steps that were counted (-1: none), its start.

    ``outside``: the code that it has read outside of its release until its first step.
    """

    def __init__(
        self,
        exited: Exited,
        out: str,
        err: str,
        steps: int,
        phases: dict[str, float],
        outside: tuple[str, ...] | None,
    ) -> None:
        self.exited = exited
        self.code = exited.code
        self.out = out
        self.err = err
        self.steps = steps
        self.phases = phases
        self.outside = outside


def plain_python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """What the interpreter itself does with the same command."""
    return subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False)
