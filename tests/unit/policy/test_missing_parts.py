"""A newer step that is not whole is named with the parts that are missing and the nodes that have them."""

from __future__ import annotations

import pytest

from slurm_robust.model.copies import SHARED, CheckpointId, Copy, Tier
from slurm_robust.model.layout import Placement
from slurm_robust.policy.missing_parts import MissingParts, are_worth_making, missing_parts
from slurm_robust.policy.restore import Holding
from tests.there import there

THREE = Placement(slots=("n1", "n2", "n3"), nproc_per_node=1)


def held(node: str, *parts: tuple[int, int]) -> Holding:
    """``parts``: rank and step of each."""
    copies = tuple(Copy(rank=rank, generation=1, step=step, tier=Tier.MEMORY) for rank, step in parts)
    return Holding(node=node, copies=copies, address=node, port=1)


def found(
    *holdings: Holding, shared: bool = True, after: int = -1, newest: int | None = None
) -> MissingParts | None:
    reach = {h.node for h in holdings}
    gone = [node for node in THREE.slots if node not in reach]
    return missing_parts(1, holdings, THREE, shared=shared, after=after, newest=newest, gone=gone)


def test_the_newest_step_of_all_nodes_in_reach_is_named() -> None:
    missing = found(held("n1", (0, 24), (SHARED, 24), (0, 23), (SHARED, 23)))
    assert missing == MissingParts(
        ref=CheckpointId(step=24, generation=1), ranks=(1, 2), nodes=("n2", "n3"), source=0
    )
    assert missing.describe() == "step 24 is not whole: the parts of ranks 1-2 are on n[2-3]"


def test_new_parts_are_made_where_rank_0s_can_be_written() -> None:
    """With it goes the shared part."""
    missing = there(found(held("n1", (0, 24), (1, 24)), held("n2", (1, 24), (SHARED, 24))))
    assert (missing.ranks, missing.anew) == ((2,), {2: 1})


@pytest.mark.parametrize(
    ("whole", "step_s", "worth"), [(-1, 0.0, True), (23, 1.0, False), (23, 90.0, True), (4, 4.0, True)]
)
def test_what_memory_has_whole_is_better_unless_it_is_long_ago(
    whole: int, step_s: float, worth: bool
) -> None:
    missing = there(found(held("n1", (0, 24), (SHARED, 24))))
    assert are_worth_making(missing, whole, step_s) is worth


def test_a_step_that_only_some_of_them_have_is_not_the_newest() -> None:
    missing = there(
        found(held("n1", (0, 24), (SHARED, 24), (0, 23), (SHARED, 23)), held("n2", (1, 23), (SHARED, 23)))
    )
    assert (missing.ref.step, missing.ranks, missing.nodes) == (23, (2,), ("n3",))
    assert missing.describe() == "step 23 is not whole: the part of rank 2 is on n3"


def test_a_copy_on_a_peer_is_not_missing_and_no_step_after_the_newest_that_counts_is_named() -> None:
    assert there(found(held("n1", (0, 24), (1, 24), (SHARED, 24)))).ranks == (2,)
    older = found(held("n1", (0, 24), (SHARED, 24), (0, 23), (SHARED, 23)), newest=23)
    assert there(older).ref.step == 23


@pytest.mark.parametrize("after", [24, 30])
def test_what_can_be_restored_is_newer(after: int) -> None:
    assert found(held("n1", (0, 24), (SHARED, 24)), after=after) is None


def test_without_the_shared_part_nothing_can_go_on_from_it() -> None:
    missing = there(found(held("n1", (0, 24))))
    assert (missing.shared, missing.anew) == (True, {})
    assert (
        missing.describe() == "step 24 is not whole: the parts of ranks 1-2 and the shared part are on n[2-3]"
    )
    sharded = there(found(held("n1", (0, 24)), shared=False))
    assert (sharded.shared, sharded.anew) == (False, {})


def test_the_shared_part_is_on_each_node_that_is_out_of_reach() -> None:
    missing = there(found(held("n1", (0, 24), (1, 24), (2, 24))))
    assert (missing.ranks, missing.shared, missing.nodes) == ((), True, ("n2", "n3"))
    assert missing.describe() == "step 24 is not whole: the shared part is on n[2-3]"


def test_of_a_step_that_only_the_rank_there_has_the_parts_of_all_others_are_missing() -> None:
    """Copies to peers are of fewer steps, and come later."""
    missing = there(found(held("n1", (0, 25), (SHARED, 25), (0, 24), (SHARED, 24), (2, 24))))
    assert (missing.anew, missing.nodes) == ({1: 0, 2: 0}, ("n2", "n3"))
    assert missing.describe() == "step 25 is not whole: the parts of ranks 1-2 are on n[2-3]"


def test_what_is_whole_or_nowhere_is_not_missing() -> None:
    assert found(*(held(n, (rank, 5), (SHARED, 5)) for rank, n in enumerate(THREE.slots))) is None
    assert found() is None
    assert found(held("n1")) is None
