"""A process that has imported what the workers need and forks them: ``python -m slurm_robust.worker.zygote``.

Importing torch takes seconds, a fork milliseconds; this is most of a restart. The price: what a
script sets in ``os.environ`` to influence an import (of torch or a ``preload`` module) comes too
late; such a script is run as a program of its own (``-- python train.py``).

It must stay one thread and not start the GPU's driver, since neither survives a fork. If a module does start
the driver, each worker is an interpreter of its own.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import importlib.util
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from slurm_robust.checkpoint import flush
from slurm_robust.model.job import CommandKind
from slurm_robust.model.nodefolders import within_release
from slurm_robust.util.modules import is_installed
from slurm_robust.util.process import adopt_orphans, raise_file_limit, signal_group
from slurm_robust.util.text import one_line
from slurm_robust.util.wakeup import WakeUp
from slurm_robust.worker import crash, script, spawning
from slurm_robust.worker.bootstrap import become_worker
from slurm_robust.worker.copied import own_modules, search_kept, shadowed
from slurm_robust.worker.orphans import children, end_orphans
from slurm_robust.worker.spawning import (
    Exited,
    Fatal,
    FromZygote,
    Prepare,
    Ready,
    Serve,
    Spawn,
    Spawned,
    SpawnFailed,
    Sweep,
    WorkerSpec,
)

_IMPORTING = frozenset(
    {__file__, importlib.__file__, "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>"}
)
_TRACEBACK_CHARS = 8_000
_MAX_MODULES, _MAX_NAME = 8000, 100  # so that their names fit into a packet
_MAX_CHARS = 300  # characters of an error's message in the reason, which is one line

# What a first DDP step, torch.save and torch.use_deterministic_algorithms() would import on the way.
# Releases of torch differ in the inner ones; a missing one is imported by whoever needs it.
_TORCH_MODULES = (
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim",
    "torch._dynamo",
    "torch._inductor.config",
    "torch.utils.data",
    "torch.utils.serialization.config",
    "encodings.idna",
)


class CannotPrepare(Exception):
    """The workers' imports are impossible or not fit for a fork: the message is for the user."""

    def __init__(self, reason: str, traceback: str = "") -> None:
        """``traceback``: of an import that failed."""
        super().__init__(reason)
        self.traceback = traceback


class UnfitModule(Exception):
    """A learned or needed module must not be imported here; ``module`` is "" if none may be."""

    def __init__(self, module: str, reason: str, traceback: str = "") -> None:
        """``traceback``: of a needed module that cannot be imported."""
        super().__init__(reason)
        self.module, self.traceback = module, traceback


@dataclass
class _Child:
    generation: int
    worker: WorkerSpec
    ended: bool = False


class Zygote:
    """Serves the agent at the other end of ``channel`` until that ends."""

    def __init__(self, channel: socket.socket, began: float) -> None:
        """``began``: when its agent started it, by the monotonic clock."""
        self._channel = channel
        self._began = began
        self._children: dict[int, _Child] = {}
        self._wakeup = WakeUp()
        self._is_fit = True
        self._prepared_for: Prepare | None = None
        self._shadowed: frozenset[str] = frozenset()
        self._helpers: frozenset[int] = frozenset()  # children that imports have started

    def serve(self) -> None:
        """Answer the agent's messages and report the ends of workers; returns when the agent is gone."""
        self._wakeup.on_signals()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Whether and how workers end is the agent's decision; the end of the channel is ours.
        # A warning of the run's end is the controller's; workers ignore it, too, unless they want it.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        poller.register(self._wakeup, select.POLLIN)
        try:
            while True:
                ready = {descriptor for descriptor, _ in poller.poll()}
                if self._wakeup.fileno() in ready:
                    self._wakeup.clear()
                    self._report_exits()
                if self._channel.fileno() in ready:
                    packet, passed, _, _ = socket.recv_fds(
                        self._channel, spawning.MAX_PACKET_BYTES, 1, socket.MSG_CMSG_CLOEXEC
                    )
                    if not packet or not self._obey(spawning.decode_to_zygote(packet), passed):
                        return
        except (BrokenPipeError, ConnectionResetError):
            return  # the agent died while we sent it something
        finally:
            for pid in self._children:
                signal_group(pid, signal.SIGKILL)
            end_orphans()

    def _obey(self, message: spawning.ToZygote, passed: list[int]) -> bool:
        match message:
            case Prepare():
                return self._prepare(message)
            case Spawn():
                is_fit = self._is_fit and self._is_fit_for(message)
                for worker in message.workers:
                    self._fork(message, worker, passed, is_fit=is_fit)
            case Serve():
                # Fork a storage writer. The socket shows when it ends, or that it could not be forked.
                try:
                    if passed and os.fork() == 0:
                        self._forget_parent()
                        flush.serve_on(passed[0])
                except OSError:
                    pass
            case Sweep():
                for pid in [pid for pid, child in self._children.items() if child.ended]:
                    signal_group(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    del self._children[pid]
                if not self._children:  # else it is not known whose they are
                    end_orphans(self._helpers)
        for descriptor in passed:
            os.close(descriptor)
        return True

    def _prepare(self, order: Prepare) -> bool:
        try:
            prepared = prepare(order)
        except CannotPrepare as error:
            self._send(Fatal(reason=str(error), traceback=error.traceback[-_TRACEBACK_CHARS:]))
            return False
        except UnfitModule as error:
            trace = error.traceback[-_TRACEBACK_CHARS:]
            self._send(Fatal(module=error.module, reason=str(error), traceback=trace))
            return False
        # Objects made so far will not be touched by the workers' garbage collections, so that their
        # memory stays shared.
        gc.collect()
        gc.freeze()
        self._is_fit, self._prepared_for = prepared.is_fit, order
        if order.code is not None:
            self._shadowed = shadowed(order.code)
        self._helpers = children()
        self._send(
            Ready(
                import_s=time.monotonic() - self._began,
                notes=tuple(prepared.notes),
                is_bound=order.code is not None and bool(own_modules(order.code)),
                modules=_imported(),
            )
        )
        return True

    def _is_fit_for(self, spawn: Spawn) -> bool:
        """Return whether a fork, maybe made for another release, imports what a fresh interpreter would."""
        before = self._prepared_for
        if before is None or spawn.command_kind is CommandKind.EXEC:
            return True
        if (spawn.code, spawn.env) == (before.code, before.env):
            return True
        if spawn.env != before.env or own_modules(spawn.code):
            return False
        with search_kept():
            script.search_for(spawn.command_kind, spawn.command, spawn.cwd, spawn.code)
            return spawn.code is None or shadowed(spawn.code) <= self._shadowed

    def _fork(self, spawn: Spawn, worker: WorkerSpec, passed: list[int], *, is_fit: bool) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        zygote, agent = os.getpid(), os.getppid()
        blocked = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                self._forget_parent()
                if worker.rank != 0:  # the listener of the rendezvous is rank 0's
                    while passed:
                        os.close(passed.pop())
                listener = passed[0] if passed else None
                become_worker(spawn, worker, zygote, agent, blocked, is_fit=is_fit, listener=listener)
        except OSError as error:
            reason = f"fork: {error.strerror}; see ulimit -u and the memory of the node"
            self._send(SpawnFailed(generation=spawn.generation, rank=worker.rank, reason=reason))
            return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        try:
            # The child does it as well: whoever is first, the group exists before any process signals it.
            os.setpgid(pid, pid)
        except (PermissionError, ProcessLookupError):
            pass  # it was first and has executed another program, or has ended
        self._children[pid] = _Child(spawn.generation, worker)
        self._send(Spawned(generation=spawn.generation, rank=worker.rank, pid=pid))

    def _forget_parent(self) -> None:
        signal.set_wakeup_fd(-1)
        self._channel.close()
        self._wakeup.close()

    def _report_exits(self) -> None:
        now = time.monotonic()
        for pid, child in self._children.items():
            if child.ended:
                continue
            # WNOWAIT: it stays a zombie until the sweep, see Sweep.
            result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if result is None:
                continue
            child.ended = True
            by_itself = result.si_code == os.CLD_EXITED
            self._send(
                Exited(
                    generation=child.generation,
                    rank=child.worker.rank,
                    pid=pid,
                    ended=now,
                    code=result.si_status if by_itself else None,
                    signal=None if by_itself else result.si_status,
                    error=crash.collect(child.worker.error),
                )
            )

    def _send(self, message: FromZygote) -> None:
        self._channel.send(spawning.encode(message))


@dataclass
class Prepared:
    """What came of the imports."""

    notes: list[str]  # for the journal
    is_fit: bool = True  # a fork may run the script


def prepare(order: Prepare) -> Prepared:
    """Import what the workers need. Raises :class:`CannotPrepare`, :class:`UnfitModule`."""
    prepared = Prepared([])
    if order.command_kind is CommandKind.EXEC:
        return prepared
    # Python's own first entry is this process's folder, as it was started by -m.
    script.search_for(order.command_kind, order.command, order.cwd, order.code)
    try:
        os.chdir(order.cwd if order.code is None else order.code.workdir_of(order.cwd))
    except OSError as error:
        raise CannotPrepare(
            f"cannot enter the working directory {order.cwd}: {error.strerror}; "
            "it must be the same on all nodes"
        ) from error
    if order.nproc_per_node > 1 and "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = "1"
        prepared.notes.append(
            "OMP_NUM_THREADS is set to 1 for each worker, as torchrun does; set it yourself for more"
        )
    # Imports make objects that stay: collections amid them find nothing, and took a quarter of the time of
    # torch 2.13.
    gc.disable()
    try:
        with added(os.environ, order.env), asking_nvml(os.environ):
            _import_all(order, prepared)
            import_needed(order.needed)
            if (order.learned or order.needed) and not prepared.is_fit:
                raise UnfitModule("", "workers are interpreters of their own")
            import_learned(order.learned)
    finally:
        gc.enable()
    return prepared


def _import_all(order: Prepare, prepared: Prepared) -> None:
    if importlib.util.find_spec("torch") is not None:
        _import("torch", "torch cannot be imported")
        for name in _TORCH_MODULES:
            try:
                importlib.import_module(name)
            except ImportError:
                continue
        # The library's own half, so that importing it costs a restart nothing.
        _import("slurm_robust.worker.api", "slurm_robust cannot be imported")
        _check_driver(prepared, "torch", "use another build of torch")
    threads = _threads()
    for name in order.preload:
        _import(name, f"'{name}' of 'preload' cannot be imported")
        if (found := _threads()) > threads:
            prepared.notes.append(
                f"importing '{name}' started {found - threads} threads, which workers will lack"
            )
            threads = found
        _check_driver(prepared, name, "take it out of 'preload'")


def import_learned(names: Iterable[str]) -> None:
    """Import the installed modules among those that workers were seen to import. Raises :class:`UnfitModule`.

    What an import leaves behind besides modules is the process's own, or does not survive a fork.
    """
    missing = [name for name in names if name not in sys.modules]
    before = _traces() if missing else {}
    for name in missing:
        try:
            # Here the name may mean another module than there.
            top = name.partition(".")[0]
            if not is_installed(importlib.util.find_spec(top)):
                continue
            importlib.import_module(name)
        except BaseException as error:  # a module may also call sys.exit()
            said = one_line(f"{type(error).__name__}: {error}", _MAX_CHARS)
            raise UnfitModule(name, f"its import fails: {said}") from error
        _check_traces(name, before)


def import_needed(names: Iterable[str]) -> None:
    """Import what a release needs. Raises :class:`UnfitModule`, with a traceback if one cannot be imported.

    Modules of the user's own are left to the workers, which have them from their release.
    """
    for name in names:
        if name in sys.modules:
            continue
        try:
            spec = importlib.util.find_spec(name.partition(".")[0])
        except (ImportError, ValueError, AttributeError):
            spec = None
        if spec is not None and spec.origin not in ("built-in", "frozen") and not is_installed(spec):
            continue
        before = _traces()
        try:
            importlib.import_module(name)
        except BaseException as error:  # a module may also call sys.exit()
            said = one_line(f"{type(error).__name__}: {error}", _MAX_CHARS)
            raise UnfitModule(name, said, _traceback_of(error)) from error
        _check_traces(name, before)


def _imported() -> tuple[str, ...]:
    """Return the names of the modules that this process has, as many as fit into a packet."""
    names = (name for name in list(sys.modules) if len(name) <= _MAX_NAME and name.isascii())
    return tuple(islice(names, _MAX_MODULES))


def _traceback_of(error: BaseException) -> str:
    """Return that of a failed import, without the frames of this and of the import machinery."""
    own = crash.own_traceback(error, _IMPORTING)
    return within_release("".join(traceback.format_exception(type(error), error, own)))


def _check_traces(name: str, before: dict[str, object]) -> None:
    if changed := [what for what, value in _traces().items() if value != before[what]]:
        raise UnfitModule(name, f"its import leaves or changes {', '.join(changed)}")


def _traces() -> dict[str, object]:
    """Return what an import may leave that a fork lacks, or shares with others."""
    handlers = [str(signal.getsignal(number)) for number in signal.valid_signals()]
    return {
        "threads": _threads(),
        "child processes": _children(),
        "sockets": sum(target.startswith("socket:") for target in _descriptors()),
        "signal handlers": handlers,
        "the working directory": os.getcwd(),
        "the GPU's driver": has_started_driver(),
    }


def _children() -> str:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return file.read()
    except OSError:
        return ""  # a kernel without CONFIG_PROC_CHILDREN


def _descriptors() -> Iterator[str]:
    """Yield what this process has open."""
    folder = "/proc/self/fd"
    for entry in os.listdir(folder):
        try:
            yield os.readlink(f"{folder}/{entry}")
        except OSError:
            continue  # the folder's own descriptor, closed by now


def _check_driver(prepared: Prepared, name: str, fix: str) -> None:
    if prepared.is_fit and has_started_driver():
        prepared.is_fit = False
        prepared.notes.append(
            f"importing '{name}' starts the GPU's driver, which no fork can use then: each worker is an "
            f"interpreter of its own, so every start takes the seconds that imports take; {fix}"
        )


def _import(name: str, problem: str) -> None:
    try:
        importlib.import_module(name)
    except BaseException as error:  # a module may also call sys.exit()
        # The reason goes into tables and logs, a line each; the agent's log has room for the rest.
        traceback.print_exception(error)
        print(f"sys.path was {sys.path}", file=sys.stderr, flush=True)
        frames = [
            f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")
        ]
        at = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames[2:] else ""
        said = one_line(f"{type(error).__name__}: {error}", _MAX_CHARS)
        where = "its traceback is in agents/ of the job's folder"
        raise CannotPrepare(f"{problem}: {said}{at}; {where}", _traceback_of(error)) from error


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def main() -> None:
    """Serve on the socket whose descriptor is given by ``--channel``."""
    parser = argparse.ArgumentParser(prog="python -m slurm_robust.worker.zygote", description=__doc__)
    parser.add_argument("--channel", type=int, required=True, help="descriptor of a SOCK_SEQPACKET socket")
    parser.add_argument("--began", type=float, help="monotonic time at which this was started")
    arguments = parser.parse_args()
    raise_file_limit()
    adopt_orphans()
    Zygote(socket.socket(fileno=arguments.channel), arguments.began or time.monotonic()).serve()


_CUDA = "libcuda.so.1"
_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED
# Opened by HIP's runtime. NVIDIA's files say nothing: NVML, which a fork survives, opens nvidia-uvm too
# (driver 580, measured).
_HIP_DEVICE = "/dev/kfd"

ASK_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""If it is set, ``torch.cuda.is_available()`` asks NVML instead of starting the driver (PyTorch, notes on
CUDA).
"""


def has_started_driver() -> bool:
    """Return whether this process has called ``cuInit``, or started HIP's runtime: no fork could then.

    torch's own flag does not show it: ``torch.cuda.is_available()`` and libraries that search for a device
    while they are imported call ``cuInit`` and leave it false.
    """
    try:
        # Only if it is loaded: otherwise nothing has called it.
        cuda = ctypes.CDLL(_CUDA, mode=os.RTLD_NOLOAD)
    except OSError:
        return _HIP_DEVICE in _descriptors()
    error: int = cuda.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))
    return error != _NOT_INITIALIZED


@contextmanager
def added(environ: MutableMapping[str, str], values: Mapping[str, str]) -> Iterator[None]:
    """Have ``values`` in the environment meanwhile."""
    before = {name: environ.get(name) for name in values}
    environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                environ.pop(name, None)
            else:
                environ[name] = value


@contextmanager
def asking_nvml(environ: MutableMapping[str, str]) -> Iterator[None]:
    """Have torch ask NVML for GPUs meanwhile; what the user has set stays."""
    if ASK_NVML in environ:
        yield
        return
    environ[ASK_NVML] = "1"
    try:
        yield
    finally:
        environ.pop(ASK_NVML, None)


if __name__ == "__main__":
    # By the module's own name: this copy of it gives way to the user's __main__.
    from slurm_robust.worker import zygote

    zygote.main()
