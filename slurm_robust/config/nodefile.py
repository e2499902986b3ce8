"""Where the node's configuration comes from: ``/etc/slurm-robust/config.yaml``, then ``conf.d/*.yaml``.

Parsing YAML costs more than all checks of a prolog together, so what root has read once is kept compiled in
``/run/slurm-robust``. The compiled copy holds the merged YAML and the identity of each file that it was read
from; it is converted to records like the YAML itself, so that no version of this package can misread it.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from slurm_robust.config.errors import ConfigError, InvalidSettings
from slurm_robust.config.node import NodeConfig
from slurm_robust.model.record import Record

if TYPE_CHECKING:
    from slurm_robust.config.nodeyaml import Layers

FILE = Path("/etc/slurm-robust/config.yaml")
DROP_INS = "conf.d"
COMPILED = Path("/run/slurm-robust/config.msgpack")
FORMAT = 1

# A file that is written again within the clock tick of its first version would keep its identity.
_SETTLED_S = 1.0
_MOST_BYTES = 2**20


class NodeConfigError(InvalidSettings):
    """The node's configuration cannot be used; ``problems`` says why, one line each."""


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
    """The configuration of the files; defaults where the usual ones are not. Raises :class:`NodeConfigError`.

    ``compiled`` is where the compiled copy lies; None: the usual place for the usual file, none for others.
    Root takes the usual file only if nobody else may write to it, because it names commands that root runs.
    """
    known = load_compiled(path, compiled)
    if known is not None:
        return known
    sources, identities, compiled = _find(path, compiled)
    return _read(sources, identities, compiled, strict=path == FILE)


def load_compiled(path: Path = FILE, compiled: Path | None = None) -> NodeConfig | None:
    """The same as far as it takes no YAML: None where the files are other ones than those compiled last.

    Raises :class:`NodeConfigError`.
    """
    sources, identities, compiled = _find(path, compiled)
    if not sources:
        return NodeConfig()
    values = _read_compiled(compiled, identities) if compiled else None
    try:
        return None if values is None else msgspec.convert(values, NodeConfig)
    except msgspec.ValidationError:
        return None  # Of another version of this package: the YAML tells more.


def check_file(path: Path) -> int:
    """Look at one file by itself; the number of its sections. Raises :class:`NodeConfigError`."""
    from slurm_robust.config.nodeyaml import Layers

    layers = Layers()
    layers.add(path.read_bytes(), str(path))
    _build(layers)
    return len(layers.values)


def files(path: Path = FILE) -> tuple[Path, ...]:
    """The files that there are, the ones that win last."""
    try:
        drop_ins = sorted(
            name
            for name in os.listdir(path.parent / DROP_INS)
            if name.endswith(".yaml") and not name.startswith(".")
        )
    except OSError:
        drop_ins = []
    main = (path,) if path.exists() else ()
    return (*main, *(path.parent / DROP_INS / name for name in drop_ins))


def _find(path: Path, compiled: Path | None) -> tuple[tuple[Path, ...], tuple[_Identity, ...], Path | None]:
    """The files, what they are known by, and where their compiled copy is."""
    try:
        sources = files(path)
        identities = tuple(_identity(source) for source in sources)
    except OSError as error:
        raise _unreadable(error) from error
    if not sources and path != FILE:
        raise NodeConfigError((f"{path}: there is no such file",), "name one that is there")
    return sources, identities, COMPILED if compiled is None and path == FILE else compiled


def _identity(path: Path) -> _Identity:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(0, "it is no regular file", str(path))  # a pipe would be waited for
    return _Identity(path=str(path), mtime_ns=found.st_mtime_ns, size=found.st_size, inode=found.st_ino)


def _read(
    sources: tuple[Path, ...], identities: tuple[_Identity, ...], compiled: Path | None, *, strict: bool
) -> NodeConfig:
    # Here, because hooks do without yaml whenever the compiled copy is good.
    from slurm_robust.config.nodeyaml import Layers

    layers = Layers()
    mode = 0o644
    for source in sources:
        try:
            found = source.stat()
            text = source.read_bytes()
        except OSError as error:
            raise _unreadable(error) from error
        mode &= found.st_mode
        if strict and os.geteuid() == 0:
            layers.problems += open_to_others(source, found)
        layers.add(text, str(source))
    config = _build(layers)
    if compiled and os.geteuid() == 0:
        _write_compiled(compiled, identities, layers.values, mode)
    return config


def _build(layers: Layers) -> NodeConfig:
    from slurm_robust.config.nodeyaml import contradictions, dotted

    if layers.problems:
        raise NodeConfigError(tuple(layers.problems))
    config = msgspec.convert(layers.values, NodeConfig)
    problems = []
    for key, wrong in contradictions(config):
        known = (key[:end] for end in range(len(key), 0, -1) if key[:end] in layers.places)
        place = layers.places.get(next(known, ()), "default")
        problems.append(f"{place}: {dotted(key)} {wrong}")
    if problems:
        raise NodeConfigError(tuple(problems))
    return config


def open_to_others(path: Path, found: os.stat_result) -> list[str]:
    """Why root must not take commands from this file; nothing for a good one."""
    if found.st_uid != 0:
        return [f"{path}: belongs to uid {found.st_uid}; root runs what it says: chown root {path}"]
    if found.st_mode & 0o022:
        return [f"{path}: others may write to it; root runs what it says: chmod go-w {path}"]
    return []


def _read_compiled(path: Path, identities: tuple[_Identity, ...]) -> dict[str, Any] | None:
    """What the compiled copy holds; None if it is not there, not root's, damaged, or of other files."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            found = os.fstat(fd)
            own = found.st_uid == 0 and not found.st_mode & 0o022
            if not stat.S_ISREG(found.st_mode) or not own or found.st_size > _MOST_BYTES:
                return None
            text = os.read(fd, _MOST_BYTES)
        finally:
            os.close(fd)
        known = msgspec.msgpack.decode(text, type=_Compiled)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return known.values if known.format == FORMAT and known.sources == identities else None


def _write_compiled(path: Path, identities: tuple[_Identity, ...], values: dict[str, Any], mode: int) -> None:
    """Keep what was read. Without it everything works as well, only slower, so nothing here is an error."""
    if any(abs(time.time() - source.mtime_ns / 1e9) < _SETTLED_S for source in identities):
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        text = msgspec.msgpack.encode(_Compiled(format=FORMAT, sources=identities, values=values))
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(text)
            os.fchmod(fd, mode & 0o644)  # A configuration that not everybody may read stays so.
        os.replace(beside, path)
    except (OSError, TypeError, ValueError):
        beside.unlink(missing_ok=True)


def _unreadable(error: OSError) -> ConfigError:
    reason = error.strerror or str(error)
    return NodeConfigError((f"{error.filename} cannot be read: {reason}",), "check its owner and mode")
