"""What follows a hang that is placed at ranks of which nothing is heard: it convicts nobody."""

from __future__ import annotations

from itertools import product

import pytest

from slurm_robust.model import incident as inc
from slurm_robust.model.events import Decided
from slurm_robust.model.incident import Blame, StackLocation, Symptom
from slurm_robust.model.stacks import Localisation
from slurm_robust.policy import decide
from tests.builders.rules import rules
from tests.builders.state import changed, job_state

RULES = rules(diagnose=True)
NODES = ("n1", "n2", "n3", "n4")
STATE = job_state(job_id=7, slots=NODES, held=NODES, generation=3, best_step=5, reports=True, spares=("n9",))
STEP = max(STATE.world.steps_here, STATE.world.restored_step)


def before(*ranks: int, node: str = "n2", silent: bool = True) -> StackLocation:
    """An earlier hang at these ranks, which were on ``node`` then."""
    return StackLocation(
        symptom=Symptom.HANG, step=STEP, ranks=ranks, nodes=(node,), stack="shows no stacks", silent=silent
    )


def answer(*places: StackLocation, silent: bool = True) -> Decided:
    """What follows a hang of rank 1, which is on n2."""
    found = Localisation(ranks=(1,), group="node 1", reason="r", stack="shows no stacks", silent=silent)
    fault = inc.Fault(symptom=Symptom.HANG, detail="hang", localisation=found, generation=3, alive=NODES)
    return decide(changed(STATE, places=places), fault, 0.0, RULES)


def as_heard(place: StackLocation) -> StackLocation:
    return before(*place.ranks, node=place.nodes[0], silent=False)


def kinds(found: Decided) -> list[type]:
    return [type(action) for action in found.actions]


def test_the_first_time_all_are_restarted_in_place() -> None:
    assert kinds(answer()) == [inc.Restart]


def test_the_second_time_on_a_node_a_standby_takes_its_slot_and_it_stands_by() -> None:
    found = answer(before(1))
    assert kinds(found) == [inc.Replace, inc.Restart]
    assert found.verdict.blame is Blame.NOBODY


@pytest.mark.parametrize(
    ("place", "heard"), [(before(0), inc.Evict), (before(1, node="n3"), inc.GiveUp)], ids=["node", "code"]
)
def test_where_stacks_would_convict_the_node_or_the_code_silence_has_the_nodes_tested(
    place: StackLocation, heard: type
) -> None:
    assert kinds(answer(place)) == [inc.Diagnose]
    assert heard in kinds(answer(as_heard(place), silent=False))


def test_what_is_heard_is_not_counted_with_what_was_silent() -> None:
    for place in (before(0), before(1, node="n3")):
        assert not {inc.Evict, inc.GiveUp} & set(kinds(answer(place, silent=False)))
        assert not {inc.Evict, inc.GiveUp} & set(kinds(answer(as_heard(place))))


def test_silence_alone_evicts_nobody_and_ends_no_job_whatever_came_before() -> None:
    earlier = [before(*ranks, node=node) for ranks, node in product([(0,), (1,), (0, 1)], NODES)]
    for places in product(earlier, repeat=2):
        assert not {inc.Evict, inc.GiveUp} & set(kinds(answer(*places))), places
