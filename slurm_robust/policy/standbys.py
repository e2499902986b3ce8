"""Which standby to take first, and what quick tests and rehearsals say of standbys. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from slurm_robust.model.findings import Outcome
from slurm_robust.model.standby import StandbyStage
from slurm_robust.model.state import JobState
from slurm_robust.policy.cliques import domains, match, without_imex
from slurm_robust.policy.repeats import suspected

SETTLED_S = 30.0
"""Training has made steps for this long before standbys rehearse: a job that fails immediately needs none."""

ALIKE_S = 3600.0
"""Quick tests within this time that all fail for one reason say nothing of the nodes."""

_ORDER = (StandbyStage.REHEARSED, None, StandbyStage.REHEARSAL_FAILED)
_TEST_ORDER = (Outcome.PASS, Outcome.UNKNOWN, Outcome.FAIL)


def in_order(state: JobState, nodes: Iterable[str]) -> list[str]:
    """Sort ``nodes`` in the order in which to take them.

    Standbys that have rehearsed come first. Behind all others come standbys whose rehearsal has failed, from
    which ranks were moved away since a fault had come there again, whose quick test gave no answer, and that
    failed it, in this order, unless all have failed alike.
    """
    return sorted(nodes, key=_preference(state))


def pair(
    state: JobState, nodes: Sequence[str], standbys: Sequence[str], leaves: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Return each of ``nodes`` with the standby that takes its slot, until no standby is left.

    ``standbys`` are in the order in which to take them. Of those against which nothing speaks (they answer,
    no test and no rehearsal failed), one of the node's NVLink domain comes first, then one that has
    rehearsed, then one behind the node's leaf switch: ``leaves`` has that of each node, if it is known.
    """
    preference, where = _preference(state), domains(state, leaves)
    wanted, pairs = nodes[: len(standbys)], dict[str, str]()
    in_use = frozenset(where[node] for node in state.world.slots if node in where)

    def order(node: str, standby: str) -> tuple[int, bool]:
        leaf = leaves.get(node)
        return preference(standby)[-1], leaf is None or leaves.get(standby) != leaf

    for fitness in sorted({preference(standby)[:-1] for standby in standbys}):
        equal = [standby for standby in standbys if preference(standby)[:-1] == fitness]
        pairs |= match([node for node in wanted if node not in pairs], equal, where, order, in_use)
    return [(node, pairs[node]) for node in wanted]


def without_blemish(state: JobState, standbys: Iterable[str]) -> list[str]:
    """Return the standbys against which nothing speaks, in their order."""
    preference = _preference(state)
    return [standby for standby in standbys if not any(preference(standby)[:-1])]


def _preference(state: JobState) -> Callable[[str], tuple[bool, int, bool, bool, bool, int]]:
    """Return the key by which standbys are sorted before they are taken; all but the last tells the fit."""
    alike, test_alike = failed_alike(state), tests_fail_alike(state)
    cut_off, suspects = without_imex(state), suspected(state)

    def key(node: str) -> tuple[bool, int, bool, bool, bool, int]:
        known, test = state.standbys.get(node), state.standby_tests.get(node)
        stage = known.stage if known is not None else None
        if stage is StandbyStage.REHEARSAL_FAILED and alike:
            stage = None
        outcome = test.outcome if test is not None and not test_alike else Outcome.PASS
        rehearsed = _ORDER.index(stage) if stage in _ORDER else _ORDER.index(None)
        tested = _TEST_ORDER.index(outcome)
        failed = stage is StandbyStage.REHEARSAL_FAILED
        return node in state.aside, tested, node in suspects, node in cut_off, failed, rehearsed

    return key


def tests_fail_alike(state: JobState) -> str:
    """Say why all quick tests of standbys failed lately, if it is one reason on several nodes; else ""."""
    tests = [test for test in state.standby_tests.values() if test.outcome is not Outcome.UNKNOWN]
    newest = max((test.t for test in tests), default=0.0)
    lately = [test for test in tests if newest - test.t <= ALIKE_S]
    failed = all(test.outcome is Outcome.FAIL for test in lately)
    reasons = {_words(test.text, test.node) for test in lately}
    return lately[0].text if len(lately) > 1 and failed and len(reasons) == 1 else ""


def failed_tests(state: JobState, now: float) -> dict[str, str]:
    """Return the standbys to evict, with what they failed in the quick test.

    ``now``: wall clock. A failure counts once another standby has passed, or has failed otherwise: then the
    test is sound. While another one still has to be tested, it waits, for :data:`ALIKE_S` at most.
    """
    if tests_fail_alike(state):
        return {}
    tests = state.standby_tests
    to_come = [node for node in state.spares if node not in tests and node not in state.aside]
    ended = sum(test.outcome is not Outcome.UNKNOWN for test in tests.values())
    return {
        node: test.text
        for node, test in tests.items()
        if node in state.spares
        and test.outcome is Outcome.FAIL
        and (ended > 1 or not to_come or not 0 <= now - test.t <= ALIKE_S)
    }


def failed_alike(state: JobState) -> str:
    """Say why all rehearsals of this run failed, if it is one reason on several nodes; else ""."""
    ended = [s for s in state.standbys.values() if s.stage in (_ORDER[0], _ORDER[-1])]
    reasons = {_words(s.reason, s.node) for s in ended}
    failed = all(s.stage is StandbyStage.REHEARSAL_FAILED for s in ended)
    return ended[0].reason if len(ended) > 1 and failed and len(reasons) == 1 else ""


def _words(reason: str, node: str) -> str:
    """Return the reason without what differs from node to node."""
    return re.sub(r"\d+(\.\d+)?", "#", reason.replace(node, ""))
