"""Real stacks, taken by py-spy from trainings of four ranks of which rank 2 came to a halt.

scripts/record.py makes them again.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from slurm_robust.analysis.stacks import fingerprint, localise
from slurm_robust.evidence.stacks import group
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.stacks import RankStacks

DATA = Path(__file__).resolve().parents[3] / "data" / "stacks"
FOUR = ParallelLayout.fit(4, 2, {}, "dp")
SAYS = {
    "c": "sleeps in forward hanging.py:",
    "lock": "sleeps in train hanging.py:",
    "io": "read_forever hanging.py:",
    "loader": "its data loader is in __getitem__ hanging.py:",
    "p2p": "sleeps in pass_on hanging.py:",
    "stop": "is stopped",
}


def recorded(name: str) -> tuple[RankStacks, ...]:
    return msgspec.json.decode((DATA / f"{name}.json").read_bytes(), type=tuple[RankStacks, ...])


@pytest.mark.parametrize("native", ["", "-native"])
@pytest.mark.parametrize("kind", SAYS)
def test_the_rank_that_hangs_is_named(kind: str, native: str) -> None:
    found = localise(recorded(kind + native), FOUR)
    assert (found.ranks, found.exact) == ((2,), True)
    assert SAYS[kind] in found.reason


@pytest.mark.parametrize("native", ["", "-native"])
def test_a_rank_in_the_wrong_collective_is_the_only_outlier(native: str) -> None:
    """Without the flight recorder it is a wait like another; half of two nodes is too much for that."""
    found = localise(recorded("skip" + native), FOUR)
    assert (found.outliers, found.ranks, found.healthy) == ((2,), (), 3)


@pytest.mark.parametrize("path", sorted(DATA.glob("*.json")), ids=lambda path: path.stem)
def test_healthy_ranks_of_real_trainings_are_in_one_place(path: Path) -> None:
    stacks = recorded(path.stem)
    waiting = {fingerprint(stack) for stack in stacks if stack.rank in (0, 1)}
    assert len(waiting) == 1
    assert fingerprint(stacks[2]) not in waiting


def test_real_stacks_are_grouped_as_a_person_sees_them() -> None:
    stacks = recorded("loader")
    outlier, others = group(stacks, localise(stacks, FOUR))
    assert (outlier.ranks, outlier.is_outlier) == ((2,), True)
    assert outlier.doing.startswith("waits for data: ")
    assert "its data loader is in __getitem__" in outlier.doing
    assert (others.ranks, others.is_outlier) == ((0, 1, 3), False)
    assert others.doing.startswith("waits in backward or for its device: _engine_run_backward ")
