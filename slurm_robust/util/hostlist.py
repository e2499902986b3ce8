"""Slurm's hostlists: ``n[1-3,7],gpu[01-04]``, as src/common/hostlist.c of 22.05 to 26.05 reads them.

:func:`expand` keeps the order in which the list is written, because order carries meaning if Slurm states an
allocation (task 0 runs on the first node). :func:`fold` sorts and removes duplicates, which is right wherever
a set of nodes is meant (excluded nodes, a drain, ``--nodelist``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_NAMES = 64 * 1024
"""The most nodes of one cluster, and of one range (Slurm's MAX_RANGE, MAX_SLURM_NODES)."""

# What Slurm prints if there is no node.
_NONE = frozenset({"", "(null)", "None", "None assigned", "N/A", "n/a"})

# As text: re compiles them when they are first needed, and every hook imports this.
_WORD = r"[A-Za-z0-9._@-]*"
_PLAIN = r"[A-Za-z0-9._@,\s-]*"
_ITEM = r"(?:[^\s,\[\]{}]|\[[^\[\]]*\]|\{[^{}]*\})+|[^\s,]"
_RANGE = r"([0-9]{1,40})(?:-([0-9]{1,40}))?"
_FUNCTION = r"[a-z]+\{[^{}\s]*\}"
_ENDS_IN_NUMBER = r"([A-Za-z._@][A-Za-z0-9._@-]*?)([0-9]{1,18})"
# No name of a host and no list of that many hosts is longer; a variable of the environment holds 128 KiB.
_MAX_CHARS, _MAX_TEXT = 255, 2**20
_MAX_IN_NAME, _MAX_BRACKETS, _MAX_BRACKETED = 16, 4096, 2**17


class InvalidHostlist(ValueError):
    """Not a hostlist, or not one that says which nodes it means; the message shows it."""


def expand(hostlist: str, *, functions: bool = False) -> tuple[str, ...]:
    """Expand a list in the order written; ``()`` for what Slurm prints for no nodes. Raises InvalidHostlist.

    Commas, blanks, tabs and line breaks separate names. Several brackets in one name are allowed, the last
    runs fastest: ``r[1-2]n[1-2]`` is r1n1, r1n2, r2n1, r2n2. All numbers of a range are as wide as its lower
    end, and duplicates stay. More than :data:`MAX_NAMES` names are refused before any is made.

    ``switch{leaf3}`` stands for nodes that only slurmctld knows (topology.html, 23.11 on). It is refused;
    with ``functions`` it stays as it is written, for lists that go back to Slurm.
    """
    text = hostlist.strip()
    if text in _NONE:
        return ()
    if len(text) > _MAX_TEXT:
        raise InvalidHostlist(f"a hostlist of {len(text)} characters is too long: {_shown(text)}")
    if re.fullmatch(_PLAIN, text):
        names = text.replace(",", " ").split()
        if len(names) > MAX_NAMES or any(name[0] == "-" or len(name) > _MAX_CHARS for name in names):
            raise InvalidHostlist(f"not a list of at most {MAX_NAMES} nodes: {_shown(text)}")
    else:
        names = _names(text, functions)
    _refuse_sentence(text)
    return tuple(names)


def fold(names: Iterable[str]) -> str:
    """Fold names into a short list, sorted, without duplicates; ``""`` for none. Every release reads it.

    So only a number at the end of a name is folded: before 23.11 Slurm reads no list with a suffix after a
    bracket (``n[1-3]-ib``).
    """
    numbers: dict[str, list[str]] = {}
    others: set[str] = set()
    for name in set(names):
        # What is no name of a node (a journal can say anything) is no pattern either.
        if found := re.fullmatch(_ENDS_IN_NUMBER, name):
            numbers.setdefault(found[1], []).append(found[2])
        else:
            others.add(name)
    folded = {prefix: f"{prefix}{_ranges(given)}" for prefix, given in numbers.items()}
    return ",".join(text for _, text in sorted([*folded.items(), *zip(others, others, strict=True)]))


def _ranges(numbers: Iterable[str]) -> str:
    """Fold ``["1", "2", "3", "07"]`` to ``[1-3,07]``."""
    runs: list[list[str]] = []
    for number in sorted(numbers, key=lambda digits: (int(digits), len(digits))):
        if runs and number == f"{int(runs[-1][-1]) + 1:0{len(runs[-1][0])}d}":
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return text if text.isdecimal() else f"[{text}]"


def _refuse_sentence(text: str) -> None:
    """Refuse ``Nodes required for job are DOWN, DRAINED or reserved``, which squeue prints, too."""
    words = [word for word in re.split(r"[,\t\r\n]+", text) if " " in word.strip()]
    if any(not re.search(r"[0-9]", word) for part in words for word in part.split()):
        raise InvalidHostlist(
            f"not a hostlist but a sentence, or names without numbers that no comma separates: {_shown(text)}"
        )


def expand_if_valid(hostlist: str) -> tuple[str, ...]:
    """Return what :func:`expand` does, and ``()`` for what is no hostlist."""
    try:
        return expand(hostlist)
    except ValueError:
        return ()


def _names(text: str, functions: bool) -> list[str]:
    """Expand a list that holds more than plain names."""
    if len(text) > _MAX_BRACKETED or text.count("[") > _MAX_BRACKETS:
        raise InvalidHostlist(f"a hostlist of {len(text)} characters is too long: {_shown(text)}")
    found: list[str] = []
    for item in re.findall(_ITEM, text):
        if "{" in item or "}" in item:
            if not re.fullmatch(_FUNCTION, item):
                raise InvalidHostlist(f"braces do not match in hostlist {_shown(text)}")
            if not functions:
                raise InvalidHostlist(
                    f"only Slurm knows the nodes of {_shown(item)} in hostlist {_shown(text)}"
                )
            found.append(item)
        else:
            literals, brackets = _pieces(item, text)
            count = 1
            for numbers in brackets:
                count *= sum(last - first + 1 for first, last, _ in numbers)
            if len(found) + count > MAX_NAMES:
                raise InvalidHostlist(f"more than {MAX_NAMES} nodes in hostlist {_shown(text)}")
            found += _expanded(literals, brackets)
    return found


def _expanded(literals: list[str], brackets: list[list[tuple[int, int, int]]]) -> list[str]:
    names = literals[:1]
    for numbers, literal in zip(brackets, literals[1:], strict=True):
        tails = [
            f"{str(number).zfill(width)}{literal}"
            for first, last, width in numbers
            for number in range(first, last + 1)
        ]
        names = [name + tail for name in names for tail in tails]
    return names


def _pieces(item: str, text: str) -> tuple[list[str], list[list[tuple[int, int, int]]]]:
    """Split ``r[1-2]n[01,3]`` into its literals ``r``, ``n``, "" and the numbers of its brackets."""
    literals = re.split(r"\[[^\[\]]*\]", item)
    if any("[" in literal or "]" in literal for literal in literals):
        raise InvalidHostlist(f"brackets do not match in hostlist {_shown(text)}")
    is_name = re.fullmatch(_WORD, "".join(literals)) and not literals[0].startswith("-")
    if not is_name or len("".join(literals)) > _MAX_CHARS or len(literals) > _MAX_IN_NAME:
        raise InvalidHostlist(f"{_shown(item)} is no node in hostlist {_shown(text)}")
    return literals, [
        [_range(part, text) for part in bracket.split(",")] for bracket in re.findall(r"\[([^\[\]]*)\]", item)
    ]


def _range(part: str, text: str) -> tuple[int, int, int]:
    """Split ``01-10`` into its ends and its width."""
    found = re.fullmatch(_RANGE, part)
    if found is None:
        raise InvalidHostlist(f"cannot read {_shown(part)} in hostlist {_shown(text)}")
    first, last = int(found[1]), int(found[2] or found[1])
    if first > last:
        raise InvalidHostlist(f"{_shown(part)} runs backwards in hostlist {_shown(text)}")
    if last - first >= MAX_NAMES:
        raise InvalidHostlist(f"{_shown(part)} are more than {MAX_NAMES} nodes in hostlist {_shown(text)}")
    return first, last, len(found[1])


def _shown(text: str) -> str:
    return repr(text if len(text) <= 100 else f"{text[:100]}...")
