"""The sources of a node's configuration: ``/etc/slurm-robust/config.yaml``, then ``conf.d/*.yaml``.

Parsing YAML costs more than all checks of a prolog together, so root keeps what it has read compiled in
``/run/slurm-robust``. The compiled copy holds the merged values and the identity of each file that they came
from. It is converted to records like the YAML itself, so that no version of this package can misread it.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Any

import msgspec

from slurm_robust.config.errors import InvalidSettings, Problem
from slurm_robust.config.node import NodeConfig
from slurm_robust.model.record import Record
from slurm_robust.util.files import is_there, names_in, read_regular
from slurm_robust.util.trust import distrust

FILE = Path("/etc/slurm-robust/config.yaml")
DROP_INS = "conf.d"
COMPILED = Path("/run/slurm-robust/config.msgpack")
FORMAT = 2

# A file that is written again within the clock tick of its first version would keep its identity.
_SETTLED_S = 1.0
_MAX_BYTES = 2**20


class _Identity(Record, array_like=True):
    path: str
    mtime_ns: int
    size: int
    inode: int


class _Compiled(Record, array_like=True):
    format: int
    sources: tuple[_Identity, ...]
    values: dict[str, Any]


def load(path: Path = FILE, compiled: Path | None = None) -> NodeConfig:
    """Return the configuration of the files, the defaults if the usual files do not exist.

    ``compiled`` is the path of the compiled copy; None: the usual path for the usual file, none for others.
    Root accepts the usual files only if no other user can change them: they name commands that root runs.
    Raises :class:`InvalidSettings`.
    """
    known = load_compiled(path, compiled)
    if known is not None:
        return known
    sources, identities, compiled = _find(path, compiled)
    # Imported here: hooks need neither yaml nor the reader if the compiled copy is good.
    from slurm_robust.config.reader import MAX_BYTES, Layers

    layers = Layers(NodeConfig)
    mode = 0o644
    for source in sources:
        try:
            found = source.stat()
            text = read_regular(source, MAX_BYTES)
        except OSError as error:
            raise _unreadable(error) from error
        mode &= found.st_mode
        if _is_strict(path) and (why := refusal(source)):
            layers.problems.append(Problem(why))
        layers.add_yaml(text, str(source))
    config = layers.build()
    if compiled and os.geteuid() == 0:
        _write_compiled(compiled, identities, layers.values, mode)
    return config


def load_compiled(path: Path = FILE, compiled: Path | None = None) -> NodeConfig | None:
    """Return the configuration if that takes no YAML; None if the files are not those compiled last.

    Raises :class:`InvalidSettings`.
    """
    sources, identities, compiled = _find(path, compiled)
    if not sources:
        return NodeConfig()
    if _is_strict(path) and any(map(refusal, sources)):
        return None  # reading the files gives the reasons
    values = _read_compiled(compiled, identities) if compiled else None
    try:
        return None if values is None else msgspec.convert(values, NodeConfig)
    except msgspec.ValidationError:
        return None  # written by another version of this package: reading the YAML gives the reasons


def files(path: Path = FILE) -> tuple[Path, ...]:
    """Return the files that exist; later ones override earlier ones. Raises :class:`InvalidSettings`."""
    folder = path.parent / DROP_INS
    found: list[Path] = []
    try:
        if is_there(path):
            found.append(path)
        if is_there(folder):
            names = (name for name in sorted(names_in(folder)) if name.endswith(".yaml"))
            found += (folder / name for name in names if not name.startswith("."))
    except OSError as error:
        raise _unreadable(error) from error
    return tuple(found)


def _find(path: Path, compiled: Path | None) -> tuple[tuple[Path, ...], tuple[_Identity, ...], Path | None]:
    """Return the files, their identities, and the path of their compiled copy."""
    sources = files(path)
    try:
        identities = tuple(_identity(source) for source in sources)
    except OSError as error:
        raise _unreadable(error) from error
    if not sources and path != FILE:
        raise InvalidSettings((f"{path}: there is no such file",), fix="name a file that exists")
    return sources, identities, COMPILED if compiled is None and path == FILE else compiled


def _identity(path: Path) -> _Identity:
    found = path.stat()
    return _Identity(path=str(path), mtime_ns=found.st_mtime_ns, size=found.st_size, inode=found.st_ino)


def is_usual(path: Path) -> bool:
    """Return whether the hooks read this file."""
    return path == FILE or path.parent == FILE.parent / DROP_INS


def refusal(path: Path) -> str:
    """Return why root must not take commands from this file, with the fix; "" if it may."""
    why = distrust(str(path))
    fix = "chown root and chmod go-w what is named"
    return why and f"{path}: {why}, and the file names commands that root runs\n  fix: {fix}"


def _is_strict(path: Path) -> bool:
    return path == FILE and os.geteuid() == 0


def _read_compiled(path: Path, identities: tuple[_Identity, ...]) -> dict[str, Any] | None:
    """Return the compiled copy's values; None if it is missing, damaged, not root's, or of other files."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            found = os.fstat(fd)
            own = found.st_uid == 0 and not found.st_mode & 0o022
            if not stat.S_ISREG(found.st_mode) or not own or found.st_size > _MAX_BYTES:
                return None
            text = os.read(fd, _MAX_BYTES)
        finally:
            os.close(fd)
        known = msgspec.msgpack.decode(text, type=_Compiled)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return known.values if known.format == FORMAT and known.sources == identities else None


def _write_compiled(path: Path, identities: tuple[_Identity, ...], values: dict[str, Any], mode: int) -> None:
    """Keep what was read. Without the copy everything works, only slower, so no failure here is an error."""
    if any(abs(time.time() - source.mtime_ns / 1e9) < _SETTLED_S for source in identities):
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        text = msgspec.msgpack.encode(_Compiled(format=FORMAT, sources=identities, values=values))
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(text)
            os.fchmod(fd, mode & 0o644)  # A configuration that not all users may read stays so.
        os.replace(beside, path)
    except (OSError, TypeError, ValueError):
        beside.unlink(missing_ok=True)


def _unreadable(error: OSError) -> InvalidSettings:
    reason = error.strerror or str(error)
    fix = "check its owner and mode"
    if not isinstance(error, PermissionError):
        fix = "make it a plain file of YAML; what a link leads to must be there, and mounted"
    return InvalidSettings((f"{error.filename} cannot be read: {reason}",), fix=fix)
