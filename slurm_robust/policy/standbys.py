"""Which standby is to be taken first, and what rehearsals say of standbys. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from slurm_robust.model.events import StandbyChanged
from slurm_robust.model.standby import StandbyStage
from slurm_robust.model.state import JobState

SETTLED_S = 30.0
"""Training has made steps for this long before standbys rehearse: a job that fails at once needs none."""

_ORDER = (StandbyStage.REHEARSED, None, StandbyStage.REHEARSAL_FAILED)


def in_order(state: JobState, nodes: Iterable[str]) -> list[str]:
    """``nodes`` in the order in which they are to be taken.

    First those that have rehearsed, last those whose rehearsal has failed, unless all have failed alike.
    """
    return sorted(nodes, key=_preference(state))


def pair(
    state: JobState, nodes: Sequence[str], standbys: Sequence[str], leaves: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Each of ``nodes`` with the standby that takes its slot, as far as there are standbys.

    ``standbys`` are in the order in which they are to be taken. Of those that are equal, one behind the leaf
    switch of the node comes first: ``leaves`` has the leaf switch of each node, as far as it is known.
    """
    preference, left, pairs = _preference(state), list(standbys), []
    for node in nodes[: len(standbys)]:
        equal = [standby for standby in left if preference(standby) == preference(left[0])]
        leaf = leaves.get(node)
        near = (standby for standby in equal if leaf is not None and leaves.get(standby) == leaf)
        standby = next(near, left[0])
        left.remove(standby)
        pairs.append((node, standby))
    return pairs


def _preference(state: JobState) -> Callable[[str], tuple[bool, int]]:
    """Standbys are taken in the order of this key."""
    alike = failed_alike(state)

    def key(node: str) -> tuple[bool, int]:
        known = state.standbys.get(node)
        stage = known.stage if known is not None else None
        if stage is StandbyStage.REHEARSAL_FAILED and alike:
            stage = None
        return node in state.aside, _ORDER.index(stage) if stage in _ORDER else _ORDER.index(None)

    return key


def failed_alike(state: JobState) -> str:
    """Why all rehearsals of this run have failed, if that is one reason on two nodes or more; else ""."""
    ended = [s for s in state.standbys.values() if s.stage in (_ORDER[0], _ORDER[-1])]
    reasons = {_words(s) for s in ended}
    failed = all(s.stage is StandbyStage.REHEARSAL_FAILED for s in ended)
    return ended[0].reason if len(ended) > 1 and failed and len(reasons) == 1 else ""


def _words(event: StandbyChanged) -> str:
    """The reason without what differs from node to node."""
    return re.sub(r"\d+(\.\d+)?", "#", event.reason.replace(event.node, ""))
