"""What our hooks need in slurm.conf, as a change of its text that can be undone to the last byte. Pure.

Facts that shape it, measured on Slurm 22.05: a key that is there twice counts by its last line, so a second
``Prolog=`` would silence the site's own; a pattern runs all that it matches, in reverse order of the names;
and a pattern that matches nothing, or something that cannot be executed, is a prolog that failed: Slurm
drains the node. So a site's folder gets a link, and a site's single script moves, by a link, into a folder
of ours; neither is lost.
"""

from __future__ import annotations

import difflib
import fnmatch
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import PurePosixPath

from slurm_robust.model.record import Record
from slurm_robust.slurm.values import NEVER_S, PROLOG_AT_ALLOCATION

LINK = "50-slurm-robust"
SITE_LINK = "90-site"
"""Above ours by its name, so it runs before: the site's own script may prepare what we check."""

_MARK = "# slurm-robust: in place of "
_MARK_OPEN = "# slurm-robust: after a line without an end, in place of "
_END = "# slurm-robust: end"
_BLOCK = re.compile(
    rf'(?:^{_MARK}|\n{_MARK_OPEN})(?P<was>".*")\n(?:.*\n)*?{_END}\n',  # with the break that _MARK_OPEN needed
    re.MULTILINE,
)
_STATEMENT = re.compile(r'\s*(?P<key>[A-Za-z0-9_.]+)\s*=\s*(?P<value>"[^"]*"|\S+)\s*')
_INCLUDE = re.compile(r"\s*include\s+(?P<file>\S+)\s*", re.IGNORECASE)
_OBJECTS = ("nodename", "partitionname", "nodeset", "downnodes", "frontendname")
_MAX_INCLUDES = 64


class Statement(Record):
    """``Key=value`` in a file."""

    file: str
    begin: int
    """Its first line, from 0."""

    end: int
    """The line behind its last one."""

    key: str
    value: str


_INTERVAL_S = 61
"""Interval of the HealthCheckProgram: 26.05 wants it above HealthCheckTimeout, by default 60."""


class HookSettings(Record):
    """What slurm.conf must say."""

    prolog: str
    epilog: str
    health_check: str
    """Empty if a timer runs the checks."""

    budget_s: float = 20.0
    """The longest that one of our hooks takes."""


WHY = {
    "Prolog": "without it nothing is checked at the start of a job",
    "Epilog": "without it nothing is checked at the end of a job",
    "HealthCheckProgram": "without it nodes are checked only as jobs start and end, and drained nodes never "
    "come back",
    "HealthCheckInterval": "the seconds between two periodic checks; 0 runs none",
    "HealthCheckNodeState": "nodes in every state are checked, also drained ones, spread over the interval",
    "SchedulerParameters": "else a job whose prolog failed on a bad node is requeued held, until a person "
    "releases it",
    "PrologFlags": "else the prolog of a node runs with the first step there, after the batch script has "
    "begun",
    "PrologEpilogTimeout": "without a limit a hook that hangs holds its node for ever; one below ours "
    "drains it",
}
"""Why the hooks need a key of slurm.conf."""


class SlurmConfChange(Record):
    """A change of slurm.conf. Texts and links are by path."""

    before: dict[str, str]
    """The files as they are."""

    after: dict[str, str]
    """The files as they should be."""

    links: dict[str, str] = {}
    """Targets of the links to make."""

    notes: tuple[str, ...] = ()
    """What a person must know."""

    def diff(self) -> str:
        """Return the unified difference of all files; empty if nothing has to change."""
        lines: list[str] = []
        for name, old in self.before.items():
            pieces = difflib.unified_diff(_lines(old), _lines(self.after[name]), name, name)
            lines += [
                line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in pieces
            ]
        return "".join(lines)


def whys(difference: str) -> list[tuple[str, str]]:
    """Return the keys that a difference sets, with the reasons."""
    keys = dict.fromkeys(re.findall(r"^\+\s*(\w+)\s*=", difference, re.MULTILINE))
    names = {name.lower(): name for name in WHY}
    return [(key, WHY[names[key.lower()]]) for key in keys if key.lower() in names]


def read_all(main: str, read: Callable[[str], str]) -> dict[str, str]:
    """Read slurm.conf and the files that it includes. Raises what ``read`` raises."""
    found: dict[str, str] = {}
    queue = [main]
    while queue and len(found) < _MAX_INCLUDES:
        name = queue.pop(0)
        if name not in found:
            found[name] = read(name)
            queue += [
                _beside(main, match["file"])
                for _, _, line in _logical(found[name])
                if (match := _INCLUDE.fullmatch(line))
            ]
    return found


def make_plan(files: Mapping[str, str], wish: HookSettings) -> SlurmConfChange:
    """Plan the change of ``files``: main one first, as by :func:`read_all`. Our own change is made anew."""
    main = next(iter(files))
    plain = {name: revert(text) for name, text in files.items()}
    known = {statement.key.lower(): statement for statement in statements(plain, main)}
    changes = _Changes(known)
    hooks: dict[str, str] = {}
    for key, pattern in (("Prolog", wish.prolog), ("Epilog", wish.epilog)):
        hooks |= changes.hook(key, pattern)
    changes.health_check(wish)
    changes.add("SchedulerParameters", "nohold_on_prolog_fail", ("nohold_on_prolog_fail",))
    changes.add("PrologFlags", "Alloc", PROLOG_AT_ALLOCATION)
    changes.timeout(wish.budget_s)
    after = {
        name: _edited(text, [c for c in changes.replaced if c[0].file == name], ())
        for name, text in plain.items()
    }
    after[main] = _edited(after[main], [], changes.added)
    return SlurmConfChange(before=dict(files), after=after, links=hooks, notes=tuple(changes.notes))


def without_ours(files: Mapping[str, str]) -> SlurmConfChange:
    """Return the change back to what the site had."""
    return SlurmConfChange(before=dict(files), after={name: revert(text) for name, text in files.items()})


def revert(text: str) -> str:
    """Return the text as it was before any change of ours."""
    return _BLOCK.sub(lambda block: str(json.loads(block["was"])), text)


def statements(files: Mapping[str, str], main: str) -> list[Statement]:
    """Return all ``Key=value`` lines in the order in which Slurm reads them, without nodes and partitions."""
    return _statements(files, main, main, frozenset())


def _statements(files: Mapping[str, str], main: str, name: str, above: frozenset[str]) -> list[Statement]:
    found: list[Statement] = []
    for begin, end, text in _logical(files.get(name, "")):
        if include := _INCLUDE.fullmatch(text):
            inner = _beside(main, include["file"])
            if inner not in above | {name}:
                found += _statements(files, main, inner, above | {name})
        elif (match := _STATEMENT.fullmatch(text)) and match["key"].lower() not in _OBJECTS:
            value = match["value"].strip('"')
            found.append(Statement(file=name, begin=begin, end=end, key=match["key"], value=value))
    return found


class _Changes:
    """Collects replaced and added lines."""

    def __init__(self, known: Mapping[str, Statement]) -> None:
        self.known = known
        self.replaced: list[tuple[Statement, str]] = []
        self.added: list[str] = []
        self.notes: list[str] = []

    def set(self, key: str, value: str) -> None:
        was = self.known.get(key.lower())
        if was is None:
            self.added.append(f"{key}={value}")
        elif was.value != value:
            self.replaced.append((was, value))

    def value(self, key: str) -> str:
        was = self.known.get(key.lower())
        return "" if was is None or was.value.lower() in ("(null)", "none") else was.value

    def hook(self, key: str, pattern: str) -> dict[str, str]:
        """Let ``key`` run ours beside what it runs; returns links to make, to our own by its mere name."""
        ours = f"{key.lower()}.sh"
        own = self.value(key)
        folder = PurePosixPath(pattern).parent
        if any(letter in own for letter in "*?["):
            link = link_in(own)
            if link is None:
                self.notes.append(
                    f"{key}={own}: no name for ours fits that pattern; link {folder / LINK} there by hand"
                )
            return {} if link is None else {link: ours}
        if own != pattern:
            self.set(key, pattern)
        links = {str(folder / LINK): ours}
        return links | {str(folder / SITE_LINK): own} if own and own != pattern else links

    def health_check(self, wish: HookSettings) -> None:
        own = self.value("HealthCheckProgram")
        if not wish.health_check:
            return
        if own and own != wish.health_check:
            self.notes.append(
                f"HealthCheckProgram={own} is the site's and stays: run the periodic checks by systemd "
                f"(--systemd-timer), or link {own} into /etc/slurm-robust/periodic.d "
                f"and set {wish.health_check}"
            )
            return
        self.set("HealthCheckProgram", wish.health_check)
        if self.value("HealthCheckInterval") in ("", "0"):
            self.set("HealthCheckInterval", str(_INTERVAL_S))
        if not self.value("HealthCheckNodeState"):
            self.set("HealthCheckNodeState", "ANY,CYCLE")

    def add(self, key: str, word: str, same: Collection[str]) -> None:
        """Add a word to a list unless it, or one that implies it, is there."""
        own = [part.strip() for part in self.value(key).split(",") if part.strip()]
        if not {part.lower() for part in own}.intersection(same):
            self.set(key, ",".join([*own, word]))

    def timeout(self, budget_s: float) -> None:
        """Set a limit for all hooks. If the site's own run too, it is one that no sound prolog reaches."""
        alone = not (self.value("Prolog") or self.value("Epilog"))
        text = self.value("PrologEpilogTimeout")
        least = int(budget_s) + 10
        if not text.isdecimal() or int(text) >= NEVER_S:
            self.set("PrologEpilogTimeout", str(max(120 if alone else 600, least)))
        elif int(text) < least:
            self.set("PrologEpilogTimeout", str(least))


def link_in(pattern: str) -> str | None:
    """Return a path for our link that a site's pattern matches; None if none can be found."""
    path = PurePosixPath(pattern)
    if any(letter in str(path.parent) for letter in "*?["):
        return None
    name = re.sub(r"\*+", LINK, path.name, count=1).replace("*", "")
    return str(path.parent / name) if fnmatch.fnmatchcase(name, path.name) and "?" not in name else None


def _edited(text: str, replaced: Sequence[tuple[Statement, str]], added: Sequence[str]) -> str:
    lines = _lines(text)
    for statement, value in sorted(replaced, key=lambda change: -change[0].begin):
        was = "".join(lines[statement.begin : statement.end])
        new = f"{statement.key}={value}\n"
        # A line that is whole keeps its blanks and its comment.
        head = re.match(r"\s*[A-Za-z0-9_.]+\s*=\s*", was)
        if statement.end - statement.begin == 1 and head:
            rest = was[head.end() :]
            quoted = f'"{statement.value}"'
            old = quoted if rest.startswith(quoted) else statement.value
            new = f"{head[0]}{value}{rest.removeprefix(old).rstrip()}\n"
        lines[statement.begin : statement.end] = [f"{_MARK}{json.dumps(was)}\n", new, f"{_END}\n"]
    text = "".join(lines)
    if not added:
        return text
    mark = _MARK if not text or text.endswith("\n") else f"\n{_MARK_OPEN}"
    return f'{text}{mark}""\n' + "".join(f"{line}\n" for line in added) + f"{_END}\n"


def _logical(text: str) -> list[tuple[int, int, str]]:
    """Return the lines as Slurm joins them: first and last physical line, and the text without comments."""
    found = []
    begin, joined = 0, ""
    for index, raw in enumerate(_lines(text)):
        # A comment ends before the continuation is: "# x \" does not go on.
        line = re.sub(r"(?<!\\)#.*", "", raw.rstrip("\r\n"))
        slashes = re.search(r"(\\+)\s*$", line)
        if slashes and len(slashes[1]) % 2:
            joined += line[: slashes.end(1) - 1]
            continue
        found.append((begin, index + 1, joined + line))
        begin, joined = index + 1, ""
    return found


def _beside(main: str, name: str) -> str:
    return str(PurePosixPath(main).parent / name)


def _lines(text: str) -> list[str]:
    """Split only at line feeds: other line breaks of Unicode may be part of a comment."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
