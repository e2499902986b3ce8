"""Eviction needs a replacement.

It is sought in this order: a standby in the allocation, a node of the reservation by a companion, an evicted
but unproven node that passes a quick test, a free node of the partition by a companion, a requeue without the
node.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from types import MappingProxyType

from slurm_robust.model.errors import ExitCode
from slurm_robust.model.incident import (
    Action,
    Borrow,
    Evict,
    Fault,
    GiveUp,
    QuickTest,
    Replace,
    Requeue,
    Restart,
    Swap,
    Verdict,
    is_final,
)
from slurm_robust.model.state import JobState
from slurm_robust.policy.cliques import (
    domains,
    keeps_to_cliques,
    match,
    move_together,
    shares_cliques,
    spread,
)
from slurm_robust.policy.rules import Rules
from slurm_robust.policy.standbys import in_order, pair, without_blemish
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import count, one_line, some_of


def assign(
    nodes: tuple[str, ...],
    slots: int,
    evicted: Container[str],
    before: tuple[str, ...] = (),
    where: Mapping[str, str] = MappingProxyType({}),
    segment: int = 0,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the slots and spares from an allocation, in its order.

    A node that was in a slot ``before`` gets it again, because its memory holds the copies of these
    ranks, and a node of the same NVLink domain (``where``) gets the slot of one that is gone. One that this
    job has evicted is taken only when the slots cannot be filled without it, and never counts as a spare.
    Without such nodes whole segments get slots, so that each domain has spares (:func:`~.cliques.spread`).
    """
    good = dict.fromkeys(n for n in nodes if n not in evicted)
    back = dict.fromkeys(n for n in before[:slots] if n in good)
    if not back and len(good) >= slots:
        filled = spread(list(good), slots, where, segment)
    else:
        free = [n for n in good if n not in back]
        gone = [n for n in before[:slots] if n not in back]
        chosen = match(gone, free, where, lambda node, other: 0) | {n: n for n in back}
        taken = set(chosen.values())
        fill = iter([n for n in free if n not in taken] + [n for n in nodes if n in evicted])
        filled = tuple(
            chosen[n] if n in chosen else next(fill) for n in (*before[:slots], *[""] * (slots - len(before)))
        )
    placed = set(filled)
    return filled, tuple(n for n in good if n not in placed)


def fit_spares(state: JobState) -> tuple[str, ...]:
    """Return the standbys in the order in which to take them: silent ones last, or not at all."""
    late = tuple(node for node in state.spares if node in state.aside and state.aside[node].usable)
    return (*_heard(state, ()), *late)


def replace_nodes(
    state: JobState, verdict: Verdict, fault: Fault, rules: Rules
) -> tuple[tuple[Action, ...], str]:
    """Return the actions that take the suspects out of the job and bring training back, and why these.

    Nothing is done about them as long as tests or borrowed nodes are awaited: another decision follows. A
    suspect that a quick test has cleared keeps its slot if standbys are too few for all.
    """
    suspects = verdict.suspects
    standbys = [node for node in fit_spares(state) if node not in suspects]
    exclude = tuple(dict.fromkeys((*state.evicted, *suspects)))  # in the order in which they were evicted
    unproven = suspects if verdict.unproven else ()
    actions, how = _replace(state, suspects, standbys, exclude, fault, rules, unproven)
    if not is_final(actions):
        return actions, how
    taken = [action.node for action in actions if isinstance(action, Replace)]
    kept = (
        [] if isinstance(actions[-1], Requeue | GiveUp) else [n for n in suspects if n in state.world.slots]
    )
    evictions = tuple(Evict(node=node) for node in suspects if node not in kept or node in taken)
    return (*evictions, *actions), how


def leave_drained(
    state: JobState, actions: tuple[Action, ...], rules: Rules
) -> tuple[tuple[Action, ...], str]:
    """Return ``actions`` plus those that leave drained nodes at a restart that happens anyway; a text of
    them.

    None is evicted: it stands by, and gets no slot again as long as it is drained.
    """
    if not any(isinstance(action, Restart) for action in actions):
        return actions, ""
    taken = {action.standby for action in actions if isinstance(action, Replace)}
    moved = {action.node for action in actions if isinstance(action, Replace | Evict)}
    slots = [node for node in state.world.slots if node in state.drained and node not in moved]
    standbys = [node for node in _heard(state, state.drained) if node not in taken]
    # A drained node works, and its NVLink to others is worth more than to leave it now.
    where = domains(state, rules.leaves) if shares_cliques(state) else {}
    near = [node for node in slots if any(where.get(one) == where.get(node) for one in standbys)]
    found = pair(state, near, standbys, rules.leaves)
    pairs = [(node, standby) for node, standby in found if where.get(node) == where.get(standby)]
    added = tuple(Replace(node=node, standby=standby) for node, standby in pairs)
    at = next(i for i, action in enumerate(actions) if isinstance(action, Restart))
    texts = [
        f"{standby} takes the slot of {node}, which is drained by {state.drained[node]}"
        for node, standby in pairs
    ]
    return (*actions[:at], *added, *actions[at:]), ", ".join(texts)


def go_on_without(
    state: JobState, nodes: tuple[str, ...], fault: Fault, rules: Rules
) -> tuple[tuple[Action, ...], str]:
    """Go on without nodes that cannot be reached: none is evicted; they stand by once they are heard."""
    # A node that was lent or cleared just now has no agent yet.
    new = (*state.lenders, *(fault.cleared or ()))
    fresh = [node for node in fit_spares(state) if node in new and node not in nodes]
    standbys = list(dict.fromkeys((*_heard(state, nodes), *fresh)))
    return _replace(state, nodes, standbys, tuple(state.evicted), fault, rules)


def _replace(
    state: JobState,
    nodes: tuple[str, ...],
    standbys: list[str],
    exclude: tuple[str, ...],
    fault: Fault,
    rules: Rules,
    unproven: tuple[str, ...] = (),
) -> tuple[tuple[Action, ...], str]:
    cleared = fault.cleared or ()
    # Nodes that may not keep their slot get a standby first, then the most suspect.
    places = [node for node in nodes if node in state.world.slots]
    must = [node for node in places if node not in cleared]
    own = match(must, standbys, domains(state, rules.leaves), lambda node, one: 0, only_own=True)
    places.sort(key=lambda node: (node in cleared, node in must and node not in own))
    standbys = _within_cliques(state, places, standbys, rules)
    stay = places[len(standbys) :]
    if set(stay) <= set(cleared):
        where = domains(state, rules.leaves)
        moves = move_together(state, places, without_blemish(state, standbys), where)
        moved = {node: standby for unit, taken, _ in moves for node, standby in zip(unit, taken, strict=True)}
        others = [node for node in places if node not in moved]
        pairs = pair(state, others, [one for one in standbys if one not in moved.values()], rules.leaves)
        swaps = tuple(Replace(node=node, standby=standby) for node, standby in (*moved.items(), *pairs))
        taken = [text for *_, text in moves] + [_takes(state, node, one, where) for node, one in pairs]
        kept = [f"{fold(stay)} passed a quick test and goes on"] if stay else []
        return (*swaps, Restart()), ", ".join((*taken, *kept)) or "no slot is touched"
    short = f"{count(len(places), 'node')} to replace, {count(len(standbys), 'standby')} left{_unfit(state)}"
    found_out = _find_nodes(state, unproven, stay, short, fault, rules)
    if found_out is not None:
        return found_out
    short = "; ".join((short, *(fault.not_lent or ())))
    if not rules.config.slurm.requeue:
        reason = f"{short}, and slurm.requeue is off"
        return (GiveUp(code=ExitCode.DO_NOT_REQUEUE, reason=reason),), reason
    without = f" without {fold(exclude)}" if exclude else ""
    return (Requeue(exclude=exclude, reason=short),), f"{short}: requeue{without}"


def _within_cliques(state: JobState, places: list[str], standbys: list[str], rules: Rules) -> list[str]:
    """Return ``standbys`` without those that other jobs lend and that would leave their NVLink clique."""
    if not keeps_to_cliques(state, rules):
        return standbys
    where = domains(state, rules.leaves)
    while True:
        pairs = pair(state, places, standbys, rules.leaves)
        lent = [(node, one) for node, one in pairs if one in state.lenders and {node, one} <= where.keys()]
        far = [one for node, one in lent if where[node] != where[one]]
        if not far:
            return standbys
        standbys = [one for one in standbys if one not in far]


def _takes(state: JobState, node: str, standby: str, where: Mapping[str, str]) -> str:
    """Say that ``standby`` takes the slot of ``node``, and if NVLink does not reach it there."""
    text = f"{standby} takes the slot of {node}"
    old, new = where.get(node), where.get(standby)
    if not shares_cliques(state) or old is None or new is None or old == new:
        return text
    return f"{text}, which is of another NVLink clique ({old}, not {new}): its groups go over the network"


def _unfit(state: JobState) -> str:
    """Return the standbys that are there and cannot be taken, with the reason, in brackets; "" for none."""
    known = {node: state.aside[node] for node in state.spares if node in state.aside}
    unfit = [f"{node}: {one_line(aside.reason)}" for node, aside in known.items() if not aside.usable]
    return f" (not fit: {some_of(unfit)})" if unfit else ""


def _find_nodes(
    state: JobState, unproven: tuple[str, ...], stay: list[str], short: str, fault: Fault, rules: Rules
) -> tuple[tuple[Action, ...], str] | None:
    """Return what is tried next to get nodes for the slots of ``stay``; None if all was tried.

    The reservation, then a quick test of nodes that suspicion alone speaks against, then the partition.
    """
    candidates = _to_test(state, unproven, fault) if rules.detect.quick_test_s else ()
    left = [source for source in rules.sources if source not in fault.asked]
    now = [source for source in left if source.reservation or not candidates]
    if now:
        whence = ", then ".join(map(str, now))
        some = bool(candidates) or len(now) < len(left)
        how = f"{short}: ask for {count(len(stay), 'node')} from {whence}"
        near = tuple(stay) if keeps_to_cliques(state, rules) else ()
        borrow = Borrow(nodes=len(stay), reason=short, sources=tuple(now), some=some, near=near)
        return (borrow,), how
    if candidates:
        how = f"{short}: test {fold(candidates)}, which only suspicion speaks against"
        return (QuickTest(nodes=candidates, reason=short),), how
    return None


def _to_test(state: JobState, unproven: tuple[str, ...], fault: Fault) -> tuple[str, ...]:
    """Return nodes that may pass a quick test: suspects, and those evicted before that the job still holds.

    None against which more speaks than suspicion, and none a second time.
    """
    if fault.cleared is not None:
        return ()
    held = {*state.held, *state.lenders}
    before = (node for node in state.unproven if node in state.evicted)
    worse = {*fault.lost, *fault.stuck, *fault.named, *fault.unable, *state.quick_tested}
    return tuple(node for node in dict.fromkeys((*unproven, *before)) if node in held and node not in worse)


def move_ranks(state: JobState, suspects: tuple[str, ...], rules: Rules) -> tuple[tuple[Action, ...], str]:
    """Return the actions that have the ranks of ``suspects`` run on other nodes, and a text of them.

    None is evicted. A standby takes the slot and the suspect stands by; without one, two nodes exchange their
    slots.
    """
    standbys = dict(pair(state, suspects, _heard(state, suspects), rules.leaves))
    partners = [node for node in state.world.slots if node not in suspects]
    where = domains(state, rules.leaves) if shares_cliques(state) else {}
    moves: list[Replace | Swap] = []
    for node in suspects:
        near = [one for one in partners if where.get(one) == where.get(node)]
        standby = standbys.get(node)
        is_far = standby is not None and where.get(standby) != where.get(node)
        if standby is not None and not (is_far and near):
            moves.append(Replace(node=node, standby=standby))
        elif partners:
            partner = (near or partners)[0]
            partners.remove(partner)
            moves.append(Swap(first=node, second=partner))
    texts = [
        f"{m.standby} takes the slot of {m.node}, which stands by"
        if isinstance(m, Replace)
        else f"{m.first} and {m.second} exchange their slots"
        for m in moves
    ]
    return (*moves, Restart()), "; ".join(texts) or "restart in place, since there is no other node"


def _heard(state: JobState, nodes: Collection[str]) -> list[str]:
    """Return the standbys that answer, without ``nodes``, in the order in which to take them."""
    return in_order(state, (n for n in state.spares if n not in nodes and n not in state.aside))
