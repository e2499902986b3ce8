"""Which nodes reach each other over NVLink, and which node takes a place so that they go on to. Pure.

A rack of GB200 or GB300 is one NVLink *clique*: its GPUs reach each other over NVLink from node to node, and
others over the network. A tensor or expert parallel group that is larger than a node is slow, or fails, once
one of its nodes is of another clique.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurm_robust.model.state import JobState
from slurm_robust.policy.rules import Rules
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import count


def domains(
    state: JobState, leaves: Mapping[str, str] | None = None, blocks: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the NVLink domain of each node, as far as it is known.

    That is the clique of which its agent has told; else that of all nodes of its block, or behind its leaf
    switch (``leaves``), if they are of one; else its block. ``blocks``: Slurm's blocks, where agents do not
    tell them.
    """
    told = {node: seen.block for node, seen in state.fabrics.items() if seen.block}
    within = {**(blocks or {}), **told}
    near = {**(leaves or {}), **within}
    cliques: dict[str, set[str]] = {}
    for node, seen in state.fabrics.items():
        if seen.clique and node in near:
            cliques.setdefault(near[node], set()).add(seen.clique)
    found = {node: f"block {block}" for node, block in within.items()}
    found |= {node: next(iter(cliques[at])) for node, at in near.items() if len(cliques.get(at, ())) == 1}
    return found | {node: seen.clique for node, seen in state.fabrics.items() if seen.clique}


def shares_cliques(state: JobState) -> bool:
    """Return whether nodes in slots reach each other over NVLink."""
    fabrics = (state.fabrics.get(node) for node in state.world.slots)
    sizes = Counter(seen.clique for seen in fabrics if seen is not None and seen.clique)
    return any(size > 1 for size in sizes.values())


def without_imex(state: JobState) -> frozenset[str]:
    """Return nodes whose GPUs cannot share memory with those of other nodes, although the job's may need it:
    their IMEX daemon is not ready.
    """
    if not shares_cliques(state):
        return frozenset()
    return frozenset(node for node, seen in state.fabrics.items() if seen.imex not in ("", "READY"))


def keeps_to_cliques(state: JobState, rules: Rules) -> bool:
    """Return whether a node that another job lends must be of the clique of the node that it replaces."""
    return shares_cliques(state) and not rules.config.companions.without_nvlink


def short_of_standbys(state: JobState, rules: Rules, missing: int) -> tuple[str, ...]:
    """Return nodes of whose cliques ``missing`` standbys must be: those that have the fewest.

    None if it does not matter where they are.
    """
    if not keeps_to_cliques(state, rules):
        return ()
    where = domains(state, rules.leaves)
    slots = {domain: node for node in state.world.slots if (domain := where.get(node)) is not None}
    have = Counter(where[node] for node in state.spares if node in where and node not in state.aside)
    found = []
    for _ in range(missing):
        fewest = min(slots, key=lambda domain: have[domain])
        found.append(slots[fewest])
        have[fewest] += 1
    return tuple(found)


def match(
    nodes: Sequence[str],
    others: Sequence[str],
    where: Mapping[str, str],
    order: Callable[[str, str], Any],
    in_use: frozenset[str] = frozenset(),
    *,
    only_own: bool = False,
) -> dict[str, str]:
    """Return which of ``others`` takes the place of each of ``nodes``, until either is used up.

    One of the same domain comes first. The nodes of a domain that has too few of them go to as few other
    domains as possible: those that are not ``in_use`` first, then those with the most left. Among equal ones
    ``order`` of the node and the other decides, then the order of ``others``. ``only_own``: none goes to
    another domain.
    """
    left, found = list(others), {}

    def take(node: str, domain: str | None) -> None:
        fit = [one for one in left if domain is None or where.get(one, "") == domain]
        found[node] = min(fit, key=lambda other: order(node, other))
        left.remove(found[node])

    for node in nodes:
        if node in where and any(where.get(other) == where[node] for other in left):
            take(node, where[node])
    alone = [node for node in nodes if node not in found and not only_own]
    for home in dict.fromkeys(where.get(node, "") for node in alone):
        group = [node for node in alone if where.get(node, "") == home]
        for number, node in enumerate(group):
            if not left:
                return found
            size, missing = Counter(where.get(one, "") for one in left), len(group) - number
            best = min(size, key=lambda domain: (size[domain] < missing, domain in in_use, -size[domain]))
            take(node, best if home else None)
    return found


def move_together(
    state: JobState,
    nodes: Sequence[str],
    standbys: Sequence[str],
    where: Mapping[str, str],
) -> list[tuple[tuple[str, ...], tuple[str, ...], str]]:
    """Return the nodes in slots that move with some of ``nodes`` to another clique as a whole.

    Each is a segment of which more nodes are to be replaced than its clique has ``standbys``, with the
    standbys that take its slots, all of one clique, and a text. Only where nodes share cliques.
    """
    if not shares_cliques(state):
        return []
    left, found = list(standbys), []
    spare = len(standbys) - len(nodes)  # those that no lost node needs
    for unit in (unit for unit in segments(state, where) if len(unit) > 1):
        lost = [node for node in unit if node in nodes]
        own = [one for one in left if where.get(one) == where[unit[0]]]
        if len(lost) <= len(own):
            left = [one for one in left if one not in own[: len(lost)]]
            continue
        sizes = Counter(where[one] for one in left if one in where)
        fit = [domain for domain, size in sizes.items() if size >= len(unit)]
        if not fit or len(unit) - len(lost) > spare:
            continue
        best = min(fit, key=lambda domain: sizes[domain])
        taken = tuple(one for one in left if where.get(one) == best)[: len(unit)]
        spare -= len(unit) - len(lost)
        left = [one for one in left if one not in taken]
        text = (
            f"{fold(taken)} take the slots of {fold(unit)} as a whole: their NVLink clique has "
            f"{count(len(own), 'standby')} for {fold(lost)}"
        )
        found.append((unit, taken, text))
    return found


def segments(state: JobState, where: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Return the nodes in slots that belong together: those of a domain, by ``--segment`` if it was given."""
    found = []
    for domain in dict.fromkeys(where[node] for node in state.world.slots if node in where):
        nodes = tuple(node for node in state.world.slots if where.get(node) == domain)
        size = state.segment if state.segment and len(nodes) % state.segment == 0 else len(nodes)
        found += [nodes[at : at + size] for at in range(0, len(nodes), size)]
    return found


def spread(nodes: Sequence[str], slots: int, where: Mapping[str, str], segment: int = 0) -> tuple[str, ...]:
    """Return which of ``nodes`` get slots, so that segments are whole and their domains have the spares.

    A segment has ``segment`` nodes, or as many as divide the slots evenly among the most domains. If they
    do not divide, or the domain of a node is not known, the first nodes get the slots.
    """
    first = tuple(nodes[:slots])
    if any(node not in where for node in nodes):
        return first
    groups = [[n for n in nodes if where[n] == domain] for domain in dict.fromkeys(where[n] for n in nodes)]
    sizes = [segment] if segment and slots % segment == 0 else []
    sizes += [slots // number for number in range(len(groups), 1, -1) if slots % number == 0]
    for size in sizes:
        whole = [node for group in groups for node in group[: len(group) // size * size]]
        once = [node for group in groups if len(group) >= size for node in group[:size]]
        for chosen in (once, whole):
            if len(chosen) >= slots:
                return tuple(chosen[:slots])
    return first
