"""From the user's folders to a release's copy of them on this node: paths, commands, what Python searches.

A path that leads into one of the copied folders, whatever links it takes, is replaced by the same place in
the copy, if the copy has it. All else stays.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any

import msgspec

from slurm_robust.model.job import CommandKind
from slurm_robust.model.nodefolders import within_release
from slurm_robust.model.record import UNREADABLE, Record
from slurm_robust.model.release import CodeRoot
from slurm_robust.util.modules import is_installed_file

LINKS = ".editable"
"""Folder of a copy with a link to each package that setuptools finds by a table and not by a path."""

_READ_SUFFIXES = (
    ".py",
    ".pyz",
    ".sh",
    ".bash",
    ".yaml",
    ".yml",
    ".toml",
    ".json",
    ".cu",
    ".cuh",
    ".cpp",
    ".h",
)
"""Files that are read and not written."""

_OURS = f"{os.path.dirname(os.path.dirname(__file__))}/"


class CopiedCode(Record):
    """A release on this node."""

    release: str
    place: str
    """The folder with the copies of all roots."""
    roots: tuple[CodeRoot, ...]
    entry: str = ""
    """The script, ``<folder>/<path>``; "" for none."""
    workdir: bool = False
    """Ranks run in the copy of their working directory."""

    @property
    def links(self) -> str:
        """Return the folder of :data:`LINKS`; it need not exist."""
        return f"{self.place}/{LINKS}"

    def copy_of(self, path: str) -> str | None:
        """Return the place of the absolute ``path`` in the copy; None if it is in no root."""
        real = os.path.realpath(path)
        for root in self.roots:
            if real == root.path or real.startswith(f"{root.path.rstrip('/')}/"):
                return os.path.join(self.place, root.folder, os.path.relpath(real, root.path)).removesuffix(
                    "/."
                )
        return None

    def or_copy(self, path: str) -> str:
        """Return the place of the absolute ``path`` in the copy; ``path`` itself if the copy has no such."""
        copy = self.copy_of(path)
        return copy if copy is not None and os.path.lexists(copy) else path

    def origin_of(self, path: str) -> str | None:
        """Return where in the user's folders the absolute, normal ``path`` belongs; None if nowhere.

        The folders of the roots themselves belong nowhere else.
        """
        folder, _, below = path.removeprefix(f"{self.place}/").partition("/")
        if not below or not path.startswith(f"{self.place}/"):
            return None
        return next((os.path.join(root.path, below) for root in self.roots if root.folder == folder), None)

    def command(self, kind: CommandKind, command: tuple[str, ...], cwd: str) -> tuple[str, ...]:
        """Return ``command`` with the script, or the files of a program, in the copy.

        Of a program only what is read, by its name's ending, or can be executed: other files may be written.
        """
        if kind is CommandKind.MODULE or not command:
            return command
        if kind is CommandKind.SCRIPT:
            entry = os.path.join(self.place, self.entry)
            is_known = bool(self.entry) and os.path.lexists(entry)
            mapped = entry if is_known else self.or_copy(os.path.join(cwd, command[0]))
            return (mapped if mapped.startswith(f"{self.place}/") else command[0], *command[1:])
        first, *others = command
        # Without a slash it is searched for in PATH.
        program = self._word(first, cwd) if "/" in first else first
        return (program, *(self._word(word, cwd) for word in others))

    def _word(self, word: str, cwd: str) -> str:
        copy = self.copy_of(os.path.join(cwd, word)) if word else None
        return copy if copy is not None and _is_read_only(copy) else word

    def search_path(self, entries: Iterable[str], cwd: str) -> list[str]:
        """Return the ``entries`` of a search path, relative ones to ``cwd``, in the copy."""
        return [self._entry(entry, cwd) for entry in entries]

    def _entry(self, entry: str, cwd: str) -> str:
        place = os.path.join(cwd, entry)
        mapped = self.or_copy(place)
        return entry if mapped == place else mapped

    def python_path(self, inherited: str | None, entries: Iterable[str], cwd: str) -> str:
        """Return ``PYTHONPATH`` for interpreters that a worker starts.

        ``inherited``: the user's own. ``entries``: what Python searches here; of these what is in the copy
        must come before the places that files in ``site-packages`` name.
        """
        own = self.search_path(inherited.split(os.pathsep), cwd) if inherited else []
        added = [mapped for entry in entries if (mapped := self.or_copy(entry)) != entry]
        return os.pathsep.join(dict.fromkeys((*own, *added, self.links)))

    def workdir_of(self, cwd: str) -> str:
        """Return the working directory of ranks."""
        return self.or_copy(cwd) if self.workdir else cwd

    def has(self, path: str | None) -> bool:
        """Return whether a file's path is in this copy."""
        return path is not None and path.startswith(f"{self.place}/")


class CopyContent(Record):
    """What a copy had when it was made, so that what is new or changed can be told without the archive."""

    copy: CopiedCode
    files: dict[bytes, tuple[int, int]]
    """Size and time of change, in seconds since 1970, by path."""
    links: dict[bytes, bytes]


CONTENT = ".content"
"""Suffix of the file with the content, which is beside the copy."""

_contents = msgspec.msgpack.Decoder(CopyContent)


def content_of(place: str) -> CopyContent | None:
    """Return what the copy in ``place`` had when it was made; None if it was never whole."""
    try:
        with open(place + CONTENT, "rb") as file:
            return _contents.decode(file.read())
    except (OSError, *UNREADABLE):
        return None


def _is_read_only(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    if stat.S_ISDIR(mode):
        return os.path.isfile(f"{path}/__main__.py")
    return stat.S_ISREG(mode) and (path.endswith(_READ_SUFFIXES) or bool(mode & stat.S_IXUSR))


# The places of what search_in() has replaced, by what it is now; and its own entry.
_places: dict[str, str] = {}
_added: set[str] = set()


def search_in(copy: CopiedCode | None, cwd: str) -> None:
    """Have this process import the user's modules from the ``copy`` alone, or as ever for None.

    ``cwd``: the user's working directory. What has been imported before stays.
    """
    entries = [_places.get(entry, entry) for entry in sys.path if entry not in _added]
    tables = editable_tables(sys.modules)
    for table in tables:
        table.update({name: _places.get(path, path) for name, path in table.items()})
    _places.clear()
    _added.clear()
    if copy is not None:
        mapped = copy.search_path(entries, cwd)
        _places.update(zip(mapped, entries, strict=True))
        for table in tables:
            for name, path in table.items():
                table[name] = _in_table(copy, path)
                _places[table[name]] = path
        _added.add(copy.links)
        entries = [*mapped, copy.links]
    sys.path[:] = entries


@contextlib.contextmanager
def search_kept() -> Iterator[None]:
    """Have this process search afterwards as before, also in a copy that has been removed since."""
    path, places, added = list(sys.path), dict(_places), set(_added)
    tables = [(table, dict(table)) for table in editable_tables(sys.modules)]
    try:
        yield
    finally:
        sys.path[:] = path
        _places.clear()
        _places.update(places)
        _added.clear()
        _added.update(added)
        for table, was in tables:
            table.clear()
            table.update(was)


def _in_table(copy: CopiedCode, path: str) -> str:
    """Return the place of a package in the copy, or of a module, whose path may lack ``.py``."""
    mapped = copy.or_copy(path)
    module = f"{path}.py"
    if mapped == path and (found := copy.or_copy(module)) != module:
        return found.removesuffix(".py")
    return mapped


def own_modules(copy: CopiedCode | None) -> list[str]:
    """Return the names of modules that were imported from a copy, or from the places that ``copy`` is of."""
    roots = tuple(f"{root.path.rstrip('/')}/" for root in copy.roots) if copy is not None else ()
    files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    return [
        name
        for name, file in files.items()
        if isinstance(file, str)
        and not is_installed_file(file)
        and not file.startswith(_OURS)
        and (file.startswith(roots) or within_release(file) != file)
    ]


def shadowed(copy: CopiedCode) -> frozenset[str]:
    """Return the modules imported in this process in whose place a fresh one would import the copy's own."""
    tops = {name for name in sys.modules if "." not in name}
    found: set[str] = set()
    for entry in filter(copy.has, sys.path):
        with contextlib.suppress(OSError):
            for name in os.listdir(entry):
                stem = name.partition(".")[0]
                if stem in tops and (
                    name.endswith((".py", ".so")) or os.path.isfile(f"{entry}/{name}/__init__.py")
                ):
                    found.add(stem)
    return frozenset(found - set(sys.builtin_module_names) - {"__main__"} - set(own_modules(copy)))


def editable_tables(modules: MutableMapping[str, Any]) -> list[dict[str, str]]:
    """Return the tables by which setuptools finds packages installed in place (``pip install -e``)."""
    finders = (module for name, module in list(modules.items()) if name.startswith("__editable___"))
    tables = (getattr(finder, "MAPPING", None) for finder in finders)
    return [table for table in tables if isinstance(table, dict)]


def editable_links(copy: CopiedCode, tables: Iterable[dict[str, str]]) -> dict[str, str]:
    """Return the links of :data:`LINKS`: for each name the path in the copy that it leads to."""
    found: dict[str, str] = {}
    for table in tables:
        for name, path in table.items():
            mapped = _in_table(copy, path)
            if mapped != path and "." not in name:
                mapped += "" if os.path.lexists(mapped) else ".py"
                found[name + (".py" if mapped.endswith(".py") else "")] = mapped
    return found
