"""Text for people: what logs, drivers and users wrote is made safe to print, and lists are made short.

The only place that cleans text, for a terminal, for a table, for matching, and for Slurm's reasons.
"""

from __future__ import annotations

import itertools
import re
import textwrap
import time
from collections.abc import Collection, Iterable, Sequence

import msgspec

MAX_TEXT = 600
"""Characters of one text that a line shows; the journal and ``--json`` have the whole text."""

_ALIKE = 0.7
"""Words of which less is alike are not taken for each other (``difflib``)."""

_MAX_NAMES = 8

# What a terminal obeys: sequences that begin with ESC or with their one-byte forms (ECMA-48). Sequences that
# carry text are bounded: one without an end must not swallow the rest of a line. As text: re compiles it when
# it is first needed, and every hook imports this.
_ESCAPES = (
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]{0,200}(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)

_NOT_ASCII = r"[^\n -~]"

# Control characters but tab and line ends. The last two ranges turn the direction of text, a disguise.
_CONTROLS = dict.fromkeys(
    [*range(9), 11, 12, *range(14, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
)
# What would end a quoted word, a column or a line in Slurm's output or in a shell.
_QUOTES = str.maketrans(dict.fromkeys("\"'`|\\$", " "))


def without_escapes(text: str) -> str:
    """Return ``text`` without a terminal's control sequences; single control characters stay."""
    return re.sub(_ESCAPES, "", text)


def without_controls(text: str) -> str:
    """Return ``text`` without anything that a terminal acts on; tabs and ends of lines stay."""
    return without_escapes(text).translate(_CONTROLS)


def visible(text: str) -> str:
    """Make ``text`` fit for a terminal: lines stay lines, escape sequences go, ``?`` stands for the rest.

    What turns the direction of writing, and bytes that were no text, count among the rest.
    """
    if text.isprintable():
        return text
    return "\n".join(map(_visible_line, text.split("\n")))


def _visible_line(line: str) -> str:
    if line.isprintable():
        return line
    chars = without_escapes(line.removesuffix("\r")).replace("\t", "    ")
    return "".join(char if char.isprintable() else "?" for char in chars)


def one_line(text: str, most: int | None = MAX_TEXT) -> str:
    """Return the words of ``text``, visible, in one line of at most ``most`` characters; ``…`` marks a cut.

    None: no limit, for what must be whole, such as a command or its arguments.
    """
    line = visible(" ".join(without_escapes(text).split()))
    return line if most is None or len(line) <= most else line[: most - 1].rstrip() + "…"


def first_sentence(text: str, about: str = "", most: int = 120) -> str:
    """Return the first sentence of a reason, or the first that names ``about``; ``…`` stands for the rest.

    Sentences are lines and what semicolons and full stops part; a node's reason may hold those of others and
    whole outputs of commands, which the report of its incident has.
    """
    parts = [
        part for line in text.splitlines() for part in re.split(r"; |\. (?=[A-Z])", line) if part.strip()
    ]
    if not parts:
        return ""
    named = re.compile(rf"(?<![\w.-]){re.escape(about)}(?![\w-])") if about else None
    found = next((part for part in parts if named is not None and named.search(part)), parts[0])
    line = one_line(found, most)
    return line if len(parts) == 1 or line.endswith("…") else f"{line} …"


def ascii_line(text: str, most: int) -> str:
    """Make one line of printable ASCII without quotes, at most ``most`` long: safe in Slurm's outputs."""
    plain = "".join(letter if " " <= letter <= "~" else "?" for letter in " ".join(text.split()))
    plain = " ".join(plain.translate(_QUOTES).split())
    return plain if len(plain) <= most else plain[: most - 3].rstrip() + "..."


def message(text: str) -> str:
    """Indent every line of ``text`` after the first, so that none can be taken for one of ours."""
    return re.sub(r"\n(?=\S)", "\n  ", visible(text))


def folded(line: str, width: int, indent: str = "  ") -> list[str]:
    """Return a line as those of a screen: broken between words, each after the first behind ``indent``.

    A command in quotes stays in one of them, since it is copied more easily so.
    """
    kept = _COMMAND.sub(lambda quoted: quoted.group().replace(" ", _UNBROKEN), line)
    lines = textwrap.wrap(
        kept, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [part.replace(_UNBROKEN, " ") for part in lines] or [line]


_COMMAND = re.compile(r"(?<!\w)'[^'\n]+'(?!\w)")
"""A command in a sentence; apostrophes begin none."""
_UNBROKEN = "\N{NO-BREAK SPACE}"


def without_urls(text: str) -> str:
    """Return ``text`` in which each URL ends after its host, since the rest may be a secret."""
    return re.sub(r"(\w+://)(?:[^\s/@'\"]*@)?([^\s/?#'\"]*)[^\s'\",]*", r"\1\2/…", text)


def settled(log: str) -> str:
    """Return a log without what was written over: each line of a progress bar in its last state."""
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in log.split("\n"))


def clean_log(log: str) -> str:
    """Return a log as a terminal may get it: lines stay lines, a progress bar shows its last state."""
    return visible(settled(log))


def as_json(value: object, indent: int | None = 2) -> str:
    """Return ``value`` as JSON in ASCII, which says the same and holds nothing that a terminal obeys.

    Half a character (a byte that was no UTF-8 is read as one), which JSON cannot say, is a ``?``.
    """
    import json  # not for hooks, which begin many times an hour

    plain = msgspec.to_builtins(value, str_keys=True)
    separators = (",", ":") if indent is None else None
    text = json.dumps(plain, indent=indent, separators=separators, ensure_ascii=False)
    whole = text.encode(errors="replace").decode()
    return re.sub(_NOT_ASCII, lambda found: json.dumps(found[0])[1:-1], whole)


def clock(t: float) -> str:
    """Format the local time of day of ``t`` (seconds since 1970): ``10:50:00``."""
    return time.strftime("%H:%M:%S", time.localtime(t))


def date_and_time(t: float) -> str:
    """Format the local date and time of ``t`` (seconds since 1970): ``2026-01-01 10:50:00``."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t))


def duration(seconds: float) -> str:
    """Format seconds: ``4.4 s``, ``103 s``, ``12 min``, ``3 h 20 min``, ``5 d 4 h``: two units at most."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 180:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def count(number: int, thing: str) -> str:
    """Format a number of things: ``1 rank``, ``2 ranks``."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def some_of(names: Collection[str], most: int = _MAX_NAMES) -> str:
    """Join names: ``n1, n2``; if there are more than ``most``, ``n1, n2 and 7 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(itertools.islice(names, most)) + more


def fold_ranks(ranks: Iterable[int]) -> str:
    """Fold ranks or other numbers: ``0-11,16``."""
    return _folded(_runs(ranks))


def named_ranks(ranks: Collection[int]) -> str:
    """Name ranks: ``rank 3``, ``ranks 0-3,8``; with more than eight runs ``ranks 0,2,… and 56 more``."""
    runs = _runs(ranks)
    left = sum(last - first + 1 for first, last in runs[_MAX_NAMES:])
    more = f" and {left} more" if left else ""
    return f"rank{'' if len(ranks) == 1 else 's'} {_folded(runs[:_MAX_NAMES])}{more}"


def _runs(ranks: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last of each run of consecutive ranks, in order."""
    groups = itertools.groupby(enumerate(sorted(set(ranks))), lambda pair: pair[1] - pair[0])
    runs = [[rank for _, rank in group] for _, group in groups]
    return [(run[0], run[-1]) for run in runs]


def _folded(runs: Iterable[tuple[int, int]]) -> str:
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


def near(word: str, known: Iterable[str], *, alike: float = _ALIKE) -> list[str]:
    """Return the one or two of ``known`` that somebody who writes ``word`` may mean, the likelier first."""
    import difflib  # hooks need none of it

    names = sorted(known)
    longer = [name for name in names if word and name.startswith(word)]
    return longer if len(longer) in (1, 2) else difflib.get_close_matches(word, names, 2, alike)


def did_you_mean(names: Sequence[str]) -> str:
    """Return ``did you mean status or stacks?``; "" without names."""
    return f"did you mean {' or '.join(names)}?" if names else ""


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the major and minor version as numbers, which compare: (2, 13) of ``2.13.0+cpu``."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def size_text(nbytes: float) -> str:
    """Format bytes: ``12.3 GB``."""
    for unit in ("kB", "MB", "GB"):
        nbytes /= 1000
        if nbytes < 999.5:
            return f"{nbytes:.{0 if nbytes >= 100 else 1}f} {unit}"
    return f"{nbytes / 1000:.1f} TB"
