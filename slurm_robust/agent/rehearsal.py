"""Starts a rehearsal on this node, bounds its time and memory, and ends it when the node is needed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import structs

from slurm_robust.agent import rankenv
from slurm_robust.agent.deaths import OomKills
from slurm_robust.agent.stimuli import RehearsalOver
from slurm_robust.model.errors import SrobustError
from slurm_robust.model.exits import signal_name
from slurm_robust.model.job import CommandKind, JobDirectory, JobSpec
from slurm_robust.model.standby import Rehearsal, RehearsalState
from slurm_robust.util import numa, proc
from slurm_robust.util.files import make_folder
from slurm_robust.util.program import kill_tree
from slurm_robust.util.text import one_line
from slurm_robust.util.threads import Executor
from slurm_robust.wire.messages import Rehearse
from slurm_robust.worker import crash
from slurm_robust.worker.copied import CopiedCode
from slurm_robust.worker.environment import OF_A_RUN
from slurm_robust.worker.rehearsal import IMPOSSIBLE, DryRunTask
from slurm_robust.worker.spawning import RankProgram

POLL_S = 0.25
"""How often its memory is looked at."""

MIN_FREE = 0.05
"""Share of the node's memory, or of what the job may use of it, that a rehearsal leaves."""

MIN_FREE_BESIDE = 0.1
"""The same for one beside workers: it does not begin with less, either."""

_REASON_CHARS = 300
_TRACEBACK_CHARS = 8_000
# What torch and its libraries do about GPUs and threads.
_BESIDE = {
    **dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), ""),
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
}
_NO_PROGRAMS = "only Python scripts and modules are rehearsed, not programs"


def free_share() -> float:
    """Return the smallest share that is free of the node's memory and of each limit of the job's cgroups."""
    memory = numa.read_memory()
    shares = [1.0]
    if memory is not None and memory.total:
        shares.append(memory.available / memory.total)
    for group in proc.memory_cgroups():
        limit, free = group.limit(), group.free()
        if limit and free is not None:
            shares.append(free / limit)
    return min(shares)


class _Started(NamedTuple):
    """What came of a start."""

    number: int
    process: subprocess.Popen[bytes] | None
    error: str = ""


class Rehearsals:
    """One rehearsal at a time. No call blocks. Times are monotonic seconds."""

    def __init__(
        self,
        spec: JobSpec,
        job: JobDirectory,
        node: str,
        folder: Path,
        free: Callable[[], float] = free_share,
        copy_code: Callable[[CopiedCode, Path], CopiedCode] | None = None,
    ) -> None:
        """``folder``: in memory, for what it leaves; it is made anew for each. ``free``: share of memory.

        ``copy_code``: gives a rehearsal a copy of the code in which it may do as it likes.
        """
        self._free = free
        self._copy_code = copy_code
        self._program = RankProgram(command_kind=spec.kind, command=spec.command)
        self._spec, self._job, self._folder = spec, job, folder
        self._log = job.rehearsals / f"{node}.log"
        # Starting a program, and opening its log, waits for storage.
        self._starter: Executor[_Started] | None = None
        self._order: Rehearse | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._oom_kills = OomKills()
        self._ending: list[subprocess.Popen[bytes]] = []

    def start(self, order: Rehearse, now: float, program: RankProgram | None = None) -> None:
        """Begin; :meth:`read` tells of its end. ``program``: of its release, if it has one."""
        self._order, self._process, self._began = order, None, now
        self._program = program or RankProgram(command_kind=self._spec.kind, command=self._spec.command)
        self._oom_kills.begin()
        if self._impossible:
            return  # read() says so
        if self._starter is None:
            self._starter = Executor("rehearse")
        self._starter.submit(partial(self._run, order, self._program))

    @property
    def _impossible(self) -> str:
        """Why there can be no rehearsal."""
        if self._program.command_kind is CommandKind.EXEC:
            return _NO_PROGRAMS
        if self._order is not None and self._order.beside and self._process is None:
            share = self._free()
            if share < MIN_FREE_BESIDE:
                return f"{share:.1%} of the node's or the job's memory is left"
        return ""

    def end(self) -> int:
        """Kill the rehearsal and all that it has started. Returns its process id, 0 if none ran."""
        process, self._order, self._process = self._process, None, None
        if process is None:
            return 0
        self._kill(process)
        if self._starter is not None:  # what it left is memory
            self._starter.submit(partial(shutil.rmtree, self._folder, ignore_errors=True))
        return process.pid

    def read(self, now: float) -> RehearsalOver | None:
        """Say how it ended, when it has."""
        self._ending = [process for process in self._ending if process.poll() is None]
        # Take over what the thread has started
        error = ""
        for started in self._starter.results() if self._starter is not None else ():
            is_wanted = self._order is not None and started.number == self._order.number
            if is_wanted:
                self._process, error = started.process, started.error
            elif started.process is not None:
                self._kill(started.process)
        order, process = self._order, self._process
        if order is None:
            return None
        if process is None and not error and (why := self._impossible):
            return self._over(RehearsalState.IMPOSSIBLE, why, now)
        # Beside workers it gets only what they leave, so that it was not done says nothing of the release.
        short = RehearsalState.IMPOSSIBLE if order.beside else RehearsalState.FAILED
        if error:
            return self._over(short, error, now)
        if process is not None and (code := _exit_code(process.pid)) is not None:
            return self._ended(*self._outcome(code, short), now)
        if now - self._began > order.limit_s:
            what = "was not done" if process is not None else "did not start"
            return self._over(short, f"it {what} within {order.limit_s:.0f} s", now)
        least = MIN_FREE_BESIDE if order.beside else MIN_FREE
        if process is not None and (share := self._free()) < least:
            reason = f"it was ended for want of memory: {share:.1%} of the node's or the job's was left"
            return self._over(short, reason, now)
        return None

    def close(self) -> None:
        """End it."""
        self.end()
        if self._starter is not None:
            self._starter.close()  # what it has started meanwhile dies with it

    def _run(self, order: Rehearse, program: RankProgram) -> _Started:
        try:
            return _Started(order.number, self._spawn(order, program))
        except (OSError, SrobustError) as error:
            return _Started(order.number, None, one_line(f"it could not be started: {error}", _REASON_CHARS))

    def _spawn(self, order: Rehearse, program: RankProgram) -> subprocess.Popen[bytes]:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(mode=0o700)
        make_folder(self._log.parent, below=self._job.path)
        code = program.code
        if code is not None and self._copy_code is not None:
            code = self._copy_code(code, self._folder)
        task = DryRunTask(
            kind=program.command_kind,
            command=program.command,
            cwd=self._spec.cwd,
            steps=order.steps,
            parent=os.getpid(),
            scratch=str(self._folder),
            error=str(self._error),
            writes=order.writes,
            code=code,
            beside=order.beside,
        )
        inherited = {name: value for name, value in os.environ.items() if name not in OF_A_RUN}
        with self._log.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "slurm_robust.worker.rehearsal", msgspec.json.encode(task).decode()],
                env={
                    **inherited,
                    **rankenv.rehearsal_env(self._spec, order.slots),
                    **rankenv.fitting_env(self._spec, self._job, order),
                    **rankenv.release_env(structs.replace(program, code=code), order.release, self._spec.cwd),
                    **(_BESIDE if order.beside else {}),
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def _error(self) -> Path:
        return self._folder / "error.json"

    def _outcome(self, code: int, short: RehearsalState) -> tuple[RehearsalState, str, str]:
        """Return the state, the reason and the traceback. ``short``: the state if something was lacking."""
        if code == 0:
            return RehearsalState.PASSED, "", ""
        error = crash.collect(str(self._error))
        said = one_line(error.message, _REASON_CHARS) if error is not None else ""
        if code == IMPOSSIBLE and error is not None:
            return RehearsalState.IMPOSSIBLE, said, ""
        if error is not None:
            where = f" at {error.file}:{error.line}" if error.file else ""
            hint = f"; {_WRITES}" if error.type == "PermissionError" else ""
            trace = error.traceback[-_TRACEBACK_CHARS:]
            state = short if error.type == "MemoryError" else RehearsalState.FAILED
            return state, f"{error.type}{where}: {said}{hint}", trace
        how = signal_name(-code) if code < 0 else f"exit code {code}"
        if code == -signal.SIGKILL and (oom := self._oom_kills.reason()):
            how = f"{how}, {oom}"
        return short if code == -signal.SIGKILL else RehearsalState.FAILED, how, ""

    def _over(self, state: RehearsalState, reason: str, now: float) -> RehearsalOver:
        return self._ended(state, reason, "", now)

    def _ended(self, state: RehearsalState, reason: str, trace: str, now: float) -> RehearsalOver:
        assert self._order is not None
        rehearsal = Rehearsal(
            number=self._order.number,
            state=state,
            reason=reason,
            took_s=round(now - self._began, 1),
            traceback=trace,
            confined=_WRITES in reason,
        )
        return RehearsalOver(rehearsal=rehearsal, pid=self.end())

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        kill_tree(process.pid)  # its id is no other's: it is reaped later
        self._ending.append(process)


_WRITES = "in a rehearsal only caches and the folders of standby.rehearse_writes can be changed"


def _exit_code(pid: int) -> int | None:
    """Return the exit code, negative for a signal, None while it runs; reap nothing, so its group can be
    killed.
    """
    result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
