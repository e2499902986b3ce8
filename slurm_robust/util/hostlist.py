"""Slurm's hostlists: ``n[1-3,7],gpu[01-04]``.

:func:`expand` keeps the order in which the list is written, because order carries meaning where
Slurm states an allocation (task 0 runs on the first node). :func:`fold` sorts and removes
duplicates, which is right wherever a set of nodes is meant (excluded nodes, a drain, ``--nodelist``).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from ClusterShell.RangeSet import RangeSet, RangeSetParseError

# What Slurm prints where there is no node.
_NONE = frozenset({"", "(null)", "None", "None assigned", "N/A", "n/a"})

_NAME = re.compile(r"[A-Za-z0-9._@-]+")


class InvalidHostlist(ValueError):
    """Not a hostlist; the message shows it."""


def expand(hostlist: str) -> tuple[str, ...]:
    """Names in the order written; ``()`` for what Slurm prints for no nodes. Raises InvalidHostlist.

    Several brackets in one name are allowed, the last runs fastest, as in Slurm:
    ``r[1-2]n[1-2]`` is r1n1, r1n2, r2n1, r2n2. Leading zeros are kept.
    """
    if hostlist.strip() in _NONE:
        return ()
    return tuple(itertools.chain.from_iterable(_expand_name(part) for part in _split(hostlist.strip())))


def fold(names: Iterable[str]) -> str:
    """The shortest list for a set of names, sorted, without duplicates; ``""`` for none.

    Only the last number of a name is folded, which every Slurm release reads.
    """
    given = tuple(names)
    if not given:
        return ""
    if not all(map(_NAME.fullmatch, given)):
        # What is no name of a node (a journal can say anything) is no pattern either.
        return ",".join(sorted(set(given)))
    # A name may hold '@', which ClusterShell reads as a group unless it is given no resolver.
    nodes = NodeSet.fromlist(list(given), resolver=RESOLVER_NOGROUP)
    nodes.fold_axis = (-1,)
    return str(nodes)


def _split(hostlist: str) -> Iterator[str]:
    """Cut at commas outside brackets."""
    depth = 0
    part = ""
    for char in hostlist:
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            raise InvalidHostlist(f"brackets do not match in hostlist {hostlist!r}")
        if char == "," and depth == 0:
            if part.strip():
                yield part.strip()
            part = ""
        else:
            part += char
    if depth:
        raise InvalidHostlist(f"brackets do not match in hostlist {hostlist!r}")
    if part.strip():
        yield part.strip()


def _expand_name(name: str) -> Iterator[str]:
    """``r[1-2]n[1,3]`` to its names."""
    before, bracket, rest = name.partition("[")
    if not bracket:
        yield name
        return
    ranges, _, after = rest.partition("]")
    for number in _numbers(ranges, name):
        for tail in _expand_name(after):
            yield f"{before}{number}{tail}"


def _numbers(ranges: str, name: str) -> Iterator[str]:
    """``1-3,7`` to 1 2 3 7, in the order written (ClusterShell would sort across the commas)."""
    for part in ranges.split(","):
        try:
            yield from RangeSet(part).striter()
        except RangeSetParseError as error:
            raise InvalidHostlist(f"cannot read {part!r} in hostlist {name!r}: {error}") from error
