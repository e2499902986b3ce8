"""An exception that ends a worker's script: shown as Python shows it, and kept for the agent."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

import msgspec
from msgspec import structs

from slurm_robust.kernel.host import Host
from slurm_robust.kernel.mountinfo import without_room
from slurm_robust.model.exits import NO_ROOM, WorkerError
from slurm_robust.model.nodefolders import within_release
from slurm_robust.model.record import UNREADABLE

_MESSAGE_CHARS = 2_000
_TRACEBACK_CHARS = 16_000
_ROOM, _ROOM_BYTES = ".room", 32 * 1024
_CAUSES = 8  # exceptions that are followed back from the last

# Made while there is one thread; see Record.
_errors = msgspec.json.Decoder(WorkerError)


def own_traceback(error: BaseException, hidden: frozenset[str]) -> TracebackType | None:
    """Return the traceback of ``error`` without the leading frames whose files are in ``hidden``."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in hidden:
        trace = trace.tb_next
    return trace


def show(error: BaseException, trace: TracebackType | None) -> None:
    """Print to stderr by ``sys.excepthook``, which a script may have replaced."""
    error.__traceback__ = trace
    try:
        sys.excepthook(type(error), error, trace)
    except BaseException as in_hook:  # noqa: BLE001 - it must not hide the error it was called for
        print("Error in sys.excepthook:", file=sys.stderr)
        traceback.print_exception(in_hook)
        print("\nOriginal exception was:", file=sys.stderr)
        traceback.print_exception(error)


def describe(error: BaseException, trace: TracebackType | None, cwd: str) -> WorkerError:
    """Return the facts of ``error``; its place is the innermost frame of the user's own code.

    A place below ``cwd`` is given relative to it, one in a release relative to the folder that was copied.
    """
    file, line = _place(error, trace)
    file = within_release(file)
    if file and os.path.isabs(file) and file.startswith(cwd.rstrip("/") + "/"):
        file = os.path.relpath(file, cwd)
    text = "".join(traceback.format_exception(type(error), error, trace))
    return WorkerError(
        type=_type_name(error),
        message=within_release(_message(error))[:_MESSAGE_CHARS],
        file=file,
        line=line,
        traceback=_shortened(within_release(text)),
        full=_full(error, cwd),
    )


def keep_room(path: str) -> None:
    """Take the memory that :func:`leave` needs, while there is some: a full ``/dev/shm`` may be the error."""
    with contextlib.suppress(OSError), open(f"{path}{_ROOM}", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, _ROOM_BYTES)


def leave(error: WorkerError, path: str) -> None:
    """Write ``error`` for the agent; a node whose memory is full loses only this, not the exit code.

    The traceback is left out first, see :func:`keep_room`.
    """
    beside = f"{path}.{os.getpid()}"
    with contextlib.suppress(OSError):
        os.rename(f"{path}{_ROOM}", beside)
    for told in (error, structs.replace(error, traceback="")):
        try:
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT, 0o640), "wb") as file:
                file.write(msgspec.json.encode(told))
                file.truncate()
            os.replace(beside, path)
        except OSError as problem:
            print(f"slurm_robust: cannot leave the error for the agent: {problem}", file=sys.stderr)
        else:
            return


def collect(path: str) -> WorkerError | None:
    """Return what a worker left by :func:`leave`; None when there is nothing whole."""
    try:
        return _errors.decode(Path(path).read_bytes())
    except (OSError, *UNREADABLE):
        return None


def _full(error: BaseException, cwd: str) -> str:
    """Return the node's own file system that a write found full; "" for another one or another error.

    torch raises RuntimeError, also when a worker of its DataLoader gets SIGBUS.
    """
    for _ in range(_CAUSES):
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            break
        if not isinstance(error, OSError) and NO_ROOM.search(_message(error)):
            break
        earlier = error.__cause__ or error.__context__
        if earlier is None:
            return ""
        error = earlier
    else:
        return ""
    name = getattr(error, "filename", None)
    # A write to a file that is open does not say which one it is.
    names = [os.environ.get("TMPDIR", "/tmp"), "/dev/shm", cwd]
    if isinstance(name, (str, bytes)):
        names = [os.fsdecode(name)]
    paths = [os.path.normpath(os.path.join(cwd, name)) for name in names]
    return next(iter(without_room(Host(), paths)), "")


def _place(error: BaseException, trace: TracebackType | None) -> tuple[str, int]:
    frames = [(f.f_code.co_filename, line) for f, line in traceback.walk_tb(trace)]
    own = [place for place in frames if _is_users(place[0])]
    if isinstance(error, SyntaxError) and error.filename and _is_users(error.filename):
        own.append((error.filename, error.lineno or 0))
    if own:
        return own[-1]
    return frames[-1] if frames else ("", 0)


def _is_users(file: str) -> bool:
    if file.startswith("<"):
        return False
    paths = sysconfig.get_paths()
    folders = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"]}
    folders |= {entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))}
    folders.add(str(Path(__file__).parent.parent))
    return not file.startswith(tuple(folder.rstrip("/") + "/" for folder in folders))


def _type_name(error: BaseException) -> str:
    kind = type(error)
    if kind.__module__ in ("builtins", "__main__"):
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the user's __str__ may do anything
        return "<message cannot be shown: its __str__ failed>"


def _shortened(text: str) -> str:
    if len(text) <= _TRACEBACK_CHARS:
        return text
    half = _TRACEBACK_CHARS // 2
    return f"{text[:half]}\n  ... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
