"""From a fork of the zygote to the user's program: one worker, as if it had been started afresh."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from msgspec import structs

from slurm_robust.checkpoint.errors import UnusableCopy
from slurm_robust.model.errors import UNUSABLE_COPY
from slurm_robust.model.exits import WorkerError
from slurm_robust.model.job import CommandKind
from slurm_robust.model.progress import RETURNED
from slurm_robust.util import process
from slurm_robust.util.files import make_folder
from slurm_robust.worker import (
    crash,
    drilling,
    dump,
    optimizer_steps,
    rendezvous,
    returning,
    script,
    spawning,
)
from slurm_robust.worker.creations import Creations
from slurm_robust.worker.environment import JOB_DIR
from slurm_robust.worker.imports import ImportRecorder
from slurm_robust.worker.outside import OutsideReads
from slurm_robust.worker.spawning import Spawn, WorkerSpec
from slurm_robust.worker.step_record import Mark, RankPhase, RecordError, StepRecord

_HIDDEN = script.RUNNER_FILES | {__file__}
# The shell's codes for a program that is not there, or is not a program.
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_FLUSH_FAILED = 120  # Python's own


def become_worker(
    spawn: Spawn,
    worker: WorkerSpec,
    zygote: int,
    agent: int,
    blocked: Iterable[int],
    *,
    is_fit: bool,
    listener: int | None = None,
) -> NoReturn:
    """Turn this process, a fresh fork of process ``zygote``, into the worker; never returns.

    Process ``agent`` and its children may trace it. A fork that is not ``is_fit`` to run a script does so in
    an interpreter of its own. ``listener``: see :func:`~slurm_robust.worker.rendezvous.listen_on`.

    All signals are blocked when it is called and those in ``blocked`` stay so: a signal that comes in
    between must find the worker's handlers, not the zygote's.
    """
    code = 1
    try:
        os.setpgid(0, 0)
        process.die_with_parent(zygote)
        process.set_title(worker.rank)
        process.prefer_for_oom()
        process.bind(worker.cpus, worker.memory_node)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        dump.allow_tracing(agent)
        if _enter_environment(spawn, worker):
            crash.keep_room(worker.error)
            if spawn.command_kind is CommandKind.EXEC:
                code = _execute(spawn, worker)
            elif is_fit:
                code = run(spawn, worker, listener)
            else:
                # Do the rest in a new interpreter (worker/fresh.py).
                descriptor = os.memfd_create("worker", 0)
                order = spawning.encode(structs.replace(spawn, workers=(worker,)))
                os.write(descriptor, order)
                arguments = ["-m", "slurm_robust.worker.fresh", str(descriptor), str(agent)]
                if listener is not None:
                    os.set_inheritable(listener, True)
                    arguments.append(str(listener))
                os.execv(sys.executable, [sys.executable, *arguments])
    except BaseException as error:  # noqa: BLE001 - nothing that ends a worker goes unreported
        if crash.collect(worker.error) is None:
            leave_error(error, spawn, worker)
    finally:
        # Not sys.exit: the interpreter's teardown belongs to the zygote, and torch's sometimes aborts.
        os._exit(code)


def _enter_environment(spawn: Spawn, worker: WorkerSpec) -> bool:
    """Enter the worker's environment, output files and working directory; False if that is not possible.

    The files are opened here, not in the agent or the zygote: a hung file system holds only this
    rank, and the controller sees that it does not progress.
    """
    os.environ.update(worker.env)
    place = worker.out
    try:
        for path, target in ((worker.out, 1), (worker.err, 2)):
            place = path
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            try:
                descriptor = os.open(path, flags, 0o640)
            except FileNotFoundError:
                # The agent, which makes the folder for all ranks of the node, is not so far yet.
                job = os.environ.get(JOB_DIR)
                make_folder(Path(path).parent, below=Path(job) if job else None)
                descriptor = os.open(path, flags, 0o640)
            os.dup2(descriptor, target)
            os.close(descriptor)
        place = spawn.cwd if spawn.code is None else spawn.code.workdir_of(spawn.cwd)
        os.chdir(place)
    except OSError as error:
        message = f"{place}: {error.strerror}; rank {worker.rank} cannot start without it on this node"
        print(f"slurm_robust: {message}", file=sys.stderr)
        crash.leave(WorkerError(type=type(error).__name__, message=message), worker.error)
        return False
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return True


def _execute(spawn: Spawn, worker: WorkerSpec) -> int:
    """Become another program; returns only when that fails."""
    command = spawn.command
    if spawn.code is not None:
        command = spawn.code.command(CommandKind.EXEC, command, spawn.cwd)
    # Python ignores these two, and an ignored signal stays so in the program.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvpe(command[0], list(command), os.environ)
    except OSError as error:
        message = f"cannot execute {command[0]}: {error.strerror}; PATH is {os.environ.get('PATH')}"
        print(f"slurm_robust: {message}", file=sys.stderr)
        crash.leave(WorkerError(type=type(error).__name__, message=message), worker.error)
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE


def run(spawn: Spawn, worker: WorkerSpec, listener: int | None = None) -> int:
    """Run the script with all that Python does after its last line; gives the exit code."""
    # A fork gets its own randomness wherever a fresh process would draw it. Python's random renews itself
    # after a fork. torch's CPU generator and NumPy's would otherwise be those of the zygote, the same on
    # all ranks, if anything imported there has used them.
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed()
    if torch is not None:
        torch.default_generator.seed()
    kind = spawn.command_kind
    command = script.search_for(kind, spawn.command, spawn.cwd, spawn.code)
    leave_notes: list[Callable[[], None]] = []  # at the first step
    if spawn.code is not None:
        Creations(spawn.code).begin()
        if worker.outside:
            reads = OutsideReads(spawn.code, worker.outside)
            reads.begin()
            leave_notes.append(reads.leave)
    if worker.modules:
        own = command[0].partition(".")[0] if kind is CommandKind.MODULE else ""
        imports = ImportRecorder(worker.modules, own)
        imports.begin()
        leave_notes.append(imports.leave)

    def leave_all() -> None:
        for leave in leave_notes:
            leave()

    follow(worker.record, leave_all if leave_notes else None)
    dump.prepare(worker.record)
    drilling.prepare(worker.record)
    if listener is not None:
        rendezvous.listen_on(listener)
    rendezvous.await_rank_zero()
    ended: BaseException | None = None
    try:
        script.run(kind, command)
    except BaseException as error:  # noqa: BLE001 - what ends a script is reported, whatever it is
        ended = error  # and nothing is called here: a signal handler of the script's could raise in it
    _forget_children()
    code = _exit_code(ended)
    if code == 0:
        returning.returned()
    if ended is not None and not isinstance(ended, SystemExit):
        leave_error(ended, spawn, worker)
    code = _finish(code, worker.record)
    if isinstance(ended, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return code


def _forget_children() -> None:
    """Stop telling the script of ends of its children.

    torch's DataLoader raises at each end that is not one of its workers', wherever the program is then.
    """
    while signal.getsignal(signal.SIGCHLD) is not signal.SIG_DFL:
        with contextlib.suppress(BaseException):  # the handler's, if one has ended just now
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def leave_error(error: BaseException, spawn: Spawn, worker: WorkerSpec) -> None:
    """Leave what ended the script for the agent, then show it as Python does."""
    trace = crash.own_traceback(error, _HIDDEN)
    crash.leave(crash.describe(error, trace, spawn.cwd), worker.error)
    crash.show(error, trace)


def _finish(code: int, record: str) -> int:
    """Wait for the script's threads, run its exit handlers, flush: what Python does at its end."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        if code == 0:
            # Show that the script has returned: a library that aborts while it is taken down costs nothing
            with contextlib.suppress(OSError, RecordError):
                steps = StepRecord.open(record)
                steps.set_phase(RankPhase(name=RETURNED, begin=time.monotonic()))
                steps.close()
        atexit._run_exitfuncs()
    except BaseException as error:  # noqa: BLE001 - as in Python, too late to change the exit code
        crash.show(error, error.__traceback__)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:  # noqa: BLE001 - a full disk, or a stream object of the script's own
            code = code or _FLUSH_FAILED
    return code


def _exit_code(error: BaseException | None) -> int:
    if isinstance(error, UnusableCopy):
        return UNUSABLE_COPY
    if error is not None and not isinstance(error, SystemExit):
        return 1
    if error is None or error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def follow(record: str, on_step: Callable[[], None] | None = None) -> None:
    """Have the step record show how far the script is, whether it uses our API or not.

    ``on_step`` is called once, after the first step of an optimizer; it raises nothing. If the record cannot
    be opened, nothing is shown: training comes first.
    """
    try:
        steps = StepRecord.open(record)
    except (OSError, RecordError) as error:
        print(f"slurm_robust: steps are not counted: {error}", file=sys.stderr)
        return
    if "torch" in sys.modules:

        def count() -> None:
            nonlocal on_step
            if on_step is not None:
                first, on_step = on_step, None
                first()
            try:
                steps.count_optimizer_step()
            except Exception:  # noqa: BLE001 - nothing here may end weeks of training
                pass

        optimizer_steps.call_after_each(count)
        _mark_process_group(steps)
    steps.mark(Mark.SCRIPT)


def _mark_process_group(steps: StepRecord) -> None:
    """Mark when the script asks for its first process group, and when it has it."""
    module: Any = sys.modules.get("torch.distributed.distributed_c10d")
    original = getattr(module, "init_process_group", None)
    if original is None:
        return

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        steps.mark(Mark.JOINS)
        group = original(*args, **kwargs)
        steps.mark(Mark.JOINED)
        return group

    # Wherever it was imported to: init_device_mesh() calls it by a name of its own.
    for holder in list(sys.modules.values()):
        if getattr(holder, "__dict__", {}).get("init_process_group") is original:
            vars(holder)["init_process_group"] = init_process_group
