"""Python programs that need not import PyTorch: forks of a process that has, in place of new interpreters.

For programs that cannot tell the difference. To import PyTorch takes 3 s of a CPU.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import reduction
from pathlib import Path
from typing import Any

from tests.ranks import processes

ROOT = Path(__file__).resolve().parents[1]

# For what takes microseconds, on a machine with much else to do.
_RESOLVE_S = 5


class ForkedPython:
    """``python WORDS``, used as a ``subprocess.Popen``. Interpreters that it starts itself are forks, too.

    A stream that is not given is the null device; ``others`` are more descriptors, by their numbers there.
    ``begin`` is called in the new process before all else.
    """

    def __init__(
        self,
        *words: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        others: Mapping[int, int] | None = None,
        begin: Callable[[], object] | None = None,
    ) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        try:
            given = dict(enumerate(null if end is None else end for end in (stdin, stdout, stderr)))
            ends = {number: _Descriptor(end) for number, end in {**given, **(others or {})}.items()}
            environ = dict(os.environ if env is None else env)
            arguments = (list(map(str, words)), environ, str(cwd or Path.cwd()), ends, begin)
            self._process = processes().Process(target=_run, args=arguments)
            self._process.start()
        finally:
            os.close(null)
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_python(
    *words: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """``python WORDS`` to its end, with its output."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = ForkedPython(*words, env=env, cwd=cwd, stdout=out.fileno(), stderr=err.fileno())
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(words, code, out.read().decode(), err.read().decode())


class _Descriptor:
    """A file descriptor that a new process gets."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __getstate__(self) -> object:
        return reduction.DupFd(self.number)

    def __setstate__(self, copy: Any) -> None:
        self.number = copy.detach()


def _run(
    words: Sequence[str],
    environ: Mapping[str, str],
    cwd: str,
    ends: Mapping[int, _Descriptor],
    begin: Callable[[], object] | None,
) -> None:
    for number, end in ends.items():
        os.dup2(end.number, number)
        os.close(end.number)
    if begin is not None:
        begin()
    popen, subprocess.Popen = subprocess.Popen, ForkingPopen  # type: ignore[misc]
    for module in list(sys.modules.values()):
        if vars(module).get("Popen") is popen:  # as torchrun's, imported from there
            module.Popen = ForkingPopen  # type: ignore[attr-defined]
    _become(words, environ, cwd)


class ForkingPopen(subprocess.Popen):  # type: ignore[type-arg]
    """Where the program is this interpreter, the child is a fork and goes on with all that is imported."""

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *more: Any) -> None:
        words = [args] if isinstance(args, str) else [os.fspath(word) for word in args]
        if words[1:2] == ["-u"]:
            del words[1]
        if words[0] != sys.executable or (words[1].startswith("-") and words[1] not in ("-m", "-c")):
            super()._execute_child(args, executable, preexec_fn, *more)  # type: ignore[misc]
            return
        _, pass_fds, cwd, env, *_ = more
        ends, start_new_session = more[7:13], more[18]
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = _fork()
        if self.pid == 0:
            code = 1
            try:
                if start_new_session:
                    os.setsid()
                for number, end in enumerate((ends[0], ends[3], ends[5])):
                    if end != -1:
                        os.dup2(end, number)
                _close_all_but({0, 1, 2, *pass_fds})
                _default_signals()
                atexit._clear()
                code = _exit_code(words[1:], dict(os.environ if env is None else env), cwd or os.getcwd())
            finally:
                os._exit(code)
        self._child_created = True
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined]


def _fork() -> int:
    """As ``os.fork``, but of a process with threads: what one of them has locked, nobody opens in the child.

    The C library sees to its memory, not to its resolver. A child that cannot resolve is replaced.
    """
    while True:
        reads, writes = os.pipe()
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_RESOLVE_S)
            socket.getaddrinfo("127.0.0.1", 1)
            signal.alarm(0)
            os.write(writes, b"x")
        os.close(writes)
        well = pid == 0 or os.read(reads, 1)
        os.close(reads)
        if well:
            return pid
        os.waitpid(pid, 0)


def _close_all_but(kept: set[int]) -> None:
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in kept:
            try:
                os.close(number)
            except OSError:
                continue  # the folder's own, closed by now


def _default_signals() -> None:
    """As an exec leaves them: those with a handler have none."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit_code(words: Sequence[str], environ: Mapping[str, str], cwd: str) -> int:
    try:
        _become(words, environ, cwd)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001 - as an interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _become(words: Sequence[str], environ: Mapping[str, str], cwd: str) -> None:
    """Go on as ``python WORDS``, to the end of the interpreter."""
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(cwd)
    # Not as the process by which this one was started.
    multiprocessing.set_start_method("fork", force=True)
    # PyTorch reads it when it is imported, which was before: sums differ in their last bits by the threads.
    threads, torch = environ.get("OMP_NUM_THREADS", ""), sys.modules.get("torch")
    if torch is not None and threads.isdecimal() and int(threads) != torch.get_num_threads():
        torch.set_num_threads(int(threads))
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    what, *rest = words
    folder = cwd if what in ("-m", "-c") else str(Path(what).resolve().parent)
    first = [folder, *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:] = [*first, *(entry for entry in sys.path if entry not in (*first, "", str(ROOT)))]
    try:
        match what:
            case "-m":
                sys.argv[:] = rest
                runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
            case "-c":
                sys.argv[:] = ["-c", *rest[1:]]
                main = sys.modules["__main__"] = types.ModuleType("__main__")
                exec(compile(rest[0], "<string>", "exec"), main.__dict__)
            case _:
                sys.argv[:] = words
                runpy.run_path(what, run_name="__main__")
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
