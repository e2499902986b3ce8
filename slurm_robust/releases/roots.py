"""Which folders are the code of a job, unless the configuration names them.

Nothing is executed but, where the nodes run another Python than this process, that one for a list of folders.
"""

from __future__ import annotations

import ast
import os
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

import slurm_robust
from slurm_robust.model.job import CommandKind
from slurm_robust.releases.select import CannotTakeCode
from slurm_robust.util.files import names_in, read_regular
from slurm_robust.util.modules import is_installed_file
from slurm_robust.util.program import run_program
from slurm_robust.util.text import one_line

_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")
_PACKAGES = ("site-packages", "dist-packages")
_BYTES = 1 << 20
_PYTHON_S = 20.0
_PYTHON_BYTES = 1 << 16
_FOLDERS = msgspec.json.Decoder(list[str])
_LIST_PATH = "import json, sys; print(json.dumps(sys.path))"


def code_folders(
    kind: CommandKind,
    command: Sequence[str],
    cwd: str,
    named: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> tuple[str, ...]:
    """Return the folders with the job's own code, absolute and without symbolic links; none if it has none.

    ``named``: those of the configuration (``code.paths``), relative to ``cwd``; they replace the rule. Raises
    :class:`CannotTakeCode` where the rule leads to a folder that is more than code.
    """
    if named:
        return tuple(_named(os.path.join(cwd, path)) for path in named)
    if kind is CommandKind.SCRIPT:
        found = os.path.dirname(os.path.realpath(os.path.join(cwd, command[0])))
        if _is_installed(found):
            return ()
    elif kind is CommandKind.MODULE:
        found = _of_module(command[0].partition(".")[0], cwd, environ.get("PYTHONPATH", ""))
    else:
        found = _of_program(command, cwd)
    if found and _is_too_much(found):
        raise CannotTakeCode(
            f"{one_line(found)} holds more than the code",
            fix="move the code to a folder of its own, or name its folders in code.paths",
        )
    return (found,) if found else ()


def packages_in_place(python: str | None = None) -> tuple[str, ...]:
    """Return the folders of this user that packages installed in place (``pip install -e``) are in.

    ``python``: the interpreter of the ranks, None for this one. slurm_robust is none of them. Raises nothing.
    """
    ours = os.path.dirname(os.path.realpath(os.path.dirname(slurm_robust.__file__)))
    found: dict[str, None] = {}
    for folder in _site_folders(python):
        for path in _in_place(folder):
            place = os.path.realpath(path)
            if not os.path.isdir(place) or _is_installed(place) or _is_too_much(place):
                continue
            if place == ours or place.startswith(f"{ours}/slurm_robust") or not _is_own(place):
                continue
            found[place] = None
    return tuple(found)


def without_nested(folders: Sequence[str]) -> tuple[str, ...]:
    """Leave out folders below others, which are part of these; a folder takes the place of what it has."""
    kept: list[str] = []
    for folder in folders:
        if any(_is_within(folder, one) for one in kept):
            continue
        inner = [one for one in kept if _is_within(one, folder)]
        at = kept.index(inner[0]) if inner else len(kept)
        kept = [one for one in kept if one not in inner]
        kept.insert(at, folder)
    return tuple(kept)


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _named(path: str) -> str:
    place = os.path.realpath(path)
    if not os.path.isdir(place):
        raise CannotTakeCode(f"{one_line(path)} is no folder", fix="correct code.paths")
    return place


def _of_module(top: str, cwd: str, python_path: str) -> str:
    """Return the folder from which ``python -m`` imports the package, "" if it is installed."""
    for folder in (cwd, *(path or cwd for path in python_path.split(os.pathsep) if python_path)):
        place = os.path.realpath(os.path.join(cwd, folder))
        if _is_installed(place):
            continue
        if os.path.isfile(os.path.join(place, f"{top}.py")) or os.path.isdir(os.path.join(place, top)):
            return place
    return ""


def _of_program(command: Sequence[str], cwd: str) -> str:
    """Return the folder of the first word that is a file of the user's below the working directory."""
    top = os.path.realpath(cwd)
    for word in command:
        try:
            place = os.path.realpath(os.path.join(cwd, word))
        except ValueError:
            continue
        folder = os.path.dirname(place)
        if (
            os.path.isfile(place)
            and _is_within(folder, top)
            and _is_own(folder)
            and not _is_installed(folder)
        ):
            return folder
    return ""


def _is_too_much(folder: str) -> bool:
    """Return whether this is a folder for all kinds of things, such as a home, or one around it."""
    homes = {os.path.realpath(os.path.expanduser("~")), os.path.realpath(os.environ.get("HOME") or "/")}
    return folder in _TEMPORARY or any(_is_within(home, folder) for home in homes)


def _is_own(folder: str) -> bool:
    try:
        return os.stat(folder).st_uid == os.geteuid()
    except OSError:
        return False


def _is_installed(folder: str) -> bool:
    """Return whether programs or packages are installed there, also in a virtual environment."""
    if is_installed_file(f"{folder}/x") or folder == os.path.realpath(sysconfig.get_path("scripts")):
        return True
    parts = folder.split("/")
    above = ["/".join(parts[: number + 1]) for number in range(1, len(parts))]
    return any(part in _PACKAGES for part in parts) or (
        parts[-1] == "bin" and any(os.path.lexists(f"{one}/pyvenv.cfg") for one in above)
    )


def _site_folders(python: str | None) -> tuple[str, ...]:
    """Return the folders with installed packages that an interpreter searches."""
    if python is None:
        paths = [*sys.path, *site.getsitepackages()]
    else:
        try:
            done = run_program(
                [python, "-c", _LIST_PATH], limit_s=_PYTHON_S, max_bytes=_PYTHON_BYTES, cwd="/"
            )
            paths = _FOLDERS.decode(done.output.strip())
        except (OSError, ValueError, msgspec.MsgspecError):
            return ()  # then no package is copied, and ranks read them in their place
    found = dict.fromkeys(os.path.realpath(path) for path in paths if path)
    return tuple(path for path in found if os.path.basename(path) in _PACKAGES)


def _in_place(folder: str) -> Iterator[str]:
    """Return the folders that ``.pth`` files add to the path, or finders of setuptools map a name to."""
    for name in sorted(_names(folder)):
        path = Path(folder, name)
        if name.endswith(".pth"):
            for line in _text(path).splitlines():
                entry = line.strip()
                if entry and not entry.startswith(("#", "import ", "import\t")):
                    yield os.path.join(folder, entry)
        elif name.startswith("__editable___") and name.endswith("_finder.py"):
            yield from _mapped(_text(path))


def _mapped(source: str) -> Iterator[str]:
    """Return the folders in the MAPPING of a finder of setuptools, and those of single modules."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in tree.body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        value = getattr(node, "value", None)
        if names == ["MAPPING"] and isinstance(value, ast.Dict):
            for one in value.values:
                if isinstance(one, ast.Constant) and isinstance(one.value, str):
                    is_module = os.path.isfile(f"{one.value.removesuffix('.py')}.py")  # it may lack that
                    yield os.path.dirname(one.value) if is_module else one.value


def _names(folder: str) -> list[str]:
    try:
        return names_in(Path(folder))
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return read_regular(path, _BYTES).decode(errors="surrogateescape")
    except OSError:
        return ""
