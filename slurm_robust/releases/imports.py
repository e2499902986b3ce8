"""What a release imports, read from its source: which modules a node must have beside the copy.

Nothing is executed. Only what is imported in any case counts: at the level of the module, and not where an
``ImportError`` is caught, a condition decides, or a function is called first.
"""

from __future__ import annotations

import ast
import os
import sys
import warnings
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from slurm_robust.model.job import CommandKind
from slurm_robust.releases.contents import ReleaseContents
from slurm_robust.util.modules import clean_names

_MOST_FILES = 5000
_MOST_BYTES = 2_000_000  # of one file; more is data in the form of code
_CATCH = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
_NOT_IMPORTED = frozenset(sys.stdlib_module_names) | {"slurm_robust"}


class Imported(NamedTuple):
    """What follows from the entry of a release."""

    files: tuple[str, ...]
    """Files of the copy that are executed in any case, the entry first."""
    modules: tuple[str, ...]
    """Modules that are not in the copy, nor in the standard library: a node must be able to import them."""


def imported(contents: ReleaseContents, cwd: str) -> Imported:
    """Follow the imports from the entry; ``cwd``: the job's working directory."""
    code, first = _Code(contents), entries(contents, cwd)
    waiting = deque(first)
    reached = dict.fromkeys(waiting)
    names: dict[str, None] = {}
    while waiting and len(reached) < _MOST_FILES:
        path = waiting.popleft()
        for one in _imports(_tree(contents, path), is_entry=path in first):
            found = code.relative(path, one) if one.level else code.absolute(one, beside=path)
            if found is None:
                names.setdefault(one.module)
                continue
            waiting.extend(file for file in found if file not in reached)
            reached.update(dict.fromkeys(found))
    wanted = (name for name in names if name.partition(".")[0] not in _NOT_IMPORTED)
    return Imported(tuple(reached), clean_names(wanted))


def entries(contents: ReleaseContents, cwd: str) -> tuple[str, ...]:
    """Return the Python files of the copy that the command names: those that are executed first."""
    release = contents.release
    if release.entry:
        return (release.entry,) if release.entry.endswith(".py") else ()
    if release.kind is CommandKind.MODULE:
        code, name = _Code(contents), release.command[0]
        within = code.absolute(_Import(name), beside="") or ()
        main = code.absolute(_Import(f"{name}.__main__"), beside="") or ()
        return tuple(dict.fromkeys((*within, *main)))
    found: list[str] = []
    for word in release.command:
        place = os.path.normpath(os.path.join(cwd, word))
        for root in release.roots:
            path = f"{root.folder}/{os.path.relpath(place, root.path)}"
            if path.endswith(".py") and path in contents.files:
                found.append(path)
    return tuple(found)


class _Import(NamedTuple):
    """``import module`` or ``from module import names``, with ``level`` leading dots."""

    module: str
    names: tuple[str, ...] = ()
    level: int = 0


class _Code:
    """Finds modules in a copy."""

    def __init__(self, contents: ReleaseContents) -> None:
        self._files = contents.files
        release = contents.release
        # A folder of sys.path is a root, or a package is one itself.
        self._search = [root.folder for root in release.roots]
        self._packages = {os.path.basename(root.path): root.folder for root in release.roots}
        self._folders = {parent for path in contents.files if path.endswith(".py") for parent in _above(path)}
        self._anywhere: dict[str, str] = {}
        modules = {path.removesuffix(".py") for path in contents.files if path.endswith(".py")}
        for place in sorted(modules | self._folders, key=lambda place: (place.count("/"), place)):
            folder, _, name = place.rpartition("/")
            self._anywhere.setdefault(name, folder)

    def absolute(self, one: _Import, beside: str) -> tuple[str, ...] | None:
        """Return the files that the import executes; None if the module is not in the copy."""
        top, _, rest = one.module.partition(".")
        for folder in dict.fromkeys([os.path.dirname(beside), *self._search]):
            if (found := self._within(folder, one)) is not None:
                return found
        if f"{self._packages.get(top)}/__init__.py" in self._files:
            package = self._packages[top]
            return (f"{package}/__init__.py", *(self._within(package, one._replace(module=rest)) or ()))
        # Whatever puts its folder into sys.path: what may be there is not asked of a node.
        return self._within(self._anywhere[top], one) if top in self._anywhere else None

    def relative(self, path: str, one: _Import) -> tuple[str, ...]:
        """Return the files that a relative import in the file ``path`` executes."""
        folder = path
        for _ in range(one.level):
            folder = os.path.dirname(folder)
        return self._within(folder, one) or ()

    def _within(self, folder: str, one: _Import) -> tuple[str, ...] | None:
        """Return the packages on the way, the module, and what of the names are modules.

        None if not even the first of them is in the folder.
        """
        found, place = [], folder
        parts = one.module.split(".") if one.module else []
        for number, part in enumerate(parts):
            place = f"{place}/{part}"
            file = self._module(place)
            if file is not None:
                found.append(file)
            elif place not in self._folders:
                return tuple(found) if number else None
        within = (self._module(f"{place}/{name}") for name in one.names)
        return (*found, *(file for file in within if file is not None))

    def _module(self, place: str) -> str | None:
        for path in (f"{place}/__init__.py", f"{place}.py"):
            if path in self._files:
                return path
        return None


def _above(path: str) -> Iterator[str]:
    """Return the folders above ``path`` within its root."""
    folder = os.path.dirname(path)
    while "/" in folder:
        yield folder
        folder = os.path.dirname(folder)


def _tree(contents: ReleaseContents, path: str) -> ast.Module:
    if contents.files[path].nbytes > _MOST_BYTES:
        return ast.Module([], [])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(contents.read(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])  # whether it compiles is asked elsewhere


def _imports(tree: ast.Module, *, is_entry: bool) -> Iterator[_Import]:
    """Return what executing the body imports in any case."""
    waiting: list[ast.stmt] = list(reversed(tree.body))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (_Import(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield _Import(node.module or "", tuple(alias.name for alias in node.names), node.level)
        elif isinstance(node, ast.With | ast.ClassDef) or (
            isinstance(node, ast.If) and is_entry and _is_main(node.test)
        ):
            waiting += reversed(node.body)
        elif isinstance(node, ast.Try):
            caught = any(_catches(handler.type) for handler in node.handlers)
            waiting += reversed(node.finalbody if caught else [*node.body, *node.orelse, *node.finalbody])


def _catches(kind: ast.expr | None) -> bool:
    """Return whether an ``ImportError`` may be caught: also by a name that is not known here."""
    if kind is None:
        return True
    names = [node.id for node in ast.walk(kind) if isinstance(node, ast.Name)]
    return not names or any(name in _CATCH or not name.endswith("Error") for name in names)


def _is_main(test: ast.expr) -> bool:
    """Return whether this is ``__name__ == "__main__"``."""
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and test.left.id == "__name__"
        and isinstance(test.ops[0], ast.Eq)
    )
