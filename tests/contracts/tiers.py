"""The contracts of checkpoint tiers as tests: every node tier and every shared tier must pass its own.

Derive a class from :class:`NodeTierContract` or :class:`SharedTierContract` in a pytest module and give it a
fixture ``world``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest
import torch

from slurm_robust.checkpoint.errors import CheckpointError, EntryMismatch, ForeignPart, MissingCheckpoint
from slurm_robust.checkpoint.image import MAGIC, open_image
from slurm_robust.checkpoint.rank_tiers import RankTier
from slurm_robust.checkpoint.state import Snapshot, Training
from slurm_robust.checkpoint.tiers import NodeTier, SharedTier
from slurm_robust.model.copies import SHARED, CheckpointId
from tests.builders.checkpoints import named, ref

FIRST, SECOND = ref(1, 5), ref(2, 9)


class NodeTierWorld(Protocol):
    """A node tier, and a way to put a copy there as training or the agent does."""

    tier: NodeTier

    def put(self, rank: int, checkpoint: CheckpointId, run_id: str | None = None) -> Path:
        """A whole image of one part, of another run with ``run_id``; where it lies."""
        ...


class NodeTierContract:
    """What agents, the controller's choice and restoring workers rely on."""

    def test_a_tier_without_checkpoints_is_empty(self, world: NodeTierWorld) -> None:
        assert world.tier.inventory() == ()
        assert world.tier.find(0, FIRST) is None

    def test_whole_copies_are_reported_and_found(self, world: NodeTierWorld) -> None:
        """Own parts and the shared one, each checkpoint for itself."""
        expected = {(0, FIRST), (0, SECOND), (3, FIRST), (SHARED, FIRST)}
        for rank, checkpoint in expected:
            world.put(rank, checkpoint)
        assert {(c.rank, c.checkpoint) for c in world.tier.inventory()} == expected
        for rank, checkpoint in expected:
            path = world.tier.find(rank, checkpoint)
            assert path is not None
            image = open_image(path)
            image.verify()
            assert (image.header.rank, image.header.checkpoint) == (rank, checkpoint)
            image.close()
        assert world.tier.find(3, SECOND) is None

    def test_a_torn_copy_does_not_exist(self, world: NodeTierWorld) -> None:
        path = world.put(0, FIRST)
        assert path.read_bytes().startswith(MAGIC)
        with path.open("r+b") as file:
            file.write(bytes(len(MAGIC)))
        assert world.tier.inventory() == ()
        assert world.tier.find(0, FIRST) is None

    def test_copies_of_another_run_do_not_exist(self, world: NodeTierWorld) -> None:
        world.put(0, FIRST, run_id="another")
        assert world.tier.inventory() == ()
        assert world.tier.find(0, FIRST) is None


class SharedTierWorld(Protocol):
    """A shared tier as the controller sees it, and as the ranks of a run do."""

    tier: SharedTier

    def of_rank(self, rank: int, run_id: str = "run") -> RankTier:
        """The view of one of two ranks."""
        ...

    def damage(self, checkpoint: CheckpointId, rank: int) -> None:
        """Change one byte of what this rank's state consists of."""
        ...


class SharedTierContract:
    """What the controller, the storage writer and restoring workers rely on."""

    def test_a_step_is_complete_when_all_ranks_have_published(self, world: SharedTierWorld) -> None:
        assert world.tier.complete(2) == []
        world.of_rank(1).save(FIRST, state(1, FIRST))
        assert world.tier.complete(2) == []
        world.of_rank(0).save(FIRST, state(0, FIRST))
        assert world.tier.complete(2) == [FIRST]
        assert world.tier.complete(4) == []

    def test_what_does_not_fit_is_found_without_the_data(self, world: SharedTierWorld) -> None:
        save(world, FIRST)
        world.damage(FIRST, 1)
        world.of_rank(1).check(FIRST, named("model"))
        with pytest.raises(EntryMismatch):
            world.of_rank(1).check(FIRST, named("model", "loader"))
        with pytest.raises(EntryMismatch):
            world.of_rank(1).check(FIRST, Training(entries={"model": torch.nn.Linear(3, 3)}))

    def test_each_rank_gets_back_bitwise_what_it_saved(self, world: SharedTierWorld) -> None:
        save(world, FIRST, SECOND)
        for rank in range(2):
            for checkpoint in (FIRST, SECOND):
                found, saved = world.of_rank(rank).load(checkpoint, named("model")), state(rank, checkpoint)
                assert torch.equal(found.own["model"]["buffer"], saved.own["model"]["buffer"])
                assert torch.equal(found.shared["model"]["weight"], saved.shared["model"]["weight"])
                assert found.rng == saved.rng

    def test_a_part_that_is_there_stays_as_it_is(self, world: SharedTierWorld) -> None:
        save(world, FIRST)
        world.of_rank(1).save(FIRST, state(1, FIRST))
        assert world.tier.complete(2) == [FIRST]
        assert world.of_rank(1).load(FIRST, named("model")).rng == {"rank": 1}

    def test_a_missing_foreign_or_damaged_part_is_refused(self, world: SharedTierWorld) -> None:
        save(world, FIRST)
        with pytest.raises(MissingCheckpoint):
            world.of_rank(0).load(SECOND, named("model"))
        with pytest.raises(ForeignPart):
            world.of_rank(1, run_id="another").load(FIRST, named("model"))
        world.damage(FIRST, 1)
        with pytest.raises(CheckpointError):
            world.of_rank(1).load(FIRST, named("model"))

    def test_the_newest_and_the_protected_are_kept(self, world: SharedTierWorld) -> None:
        checkpoints = [ref(1, step) for step in (1, 2, 3, 4)]
        save(world, *checkpoints)
        world.tier.prune(2, (checkpoints[0],), 1, None)
        assert world.tier.complete(2) == [checkpoints[3], checkpoints[2], checkpoints[0]]


def save(world: SharedTierWorld, *checkpoints: CheckpointId) -> None:
    """All parts of some checkpoints."""
    for checkpoint in checkpoints:
        for rank in range(2):
            world.of_rank(rank).save(checkpoint, state(rank, checkpoint))


def state(rank: int, checkpoint: CheckpointId) -> Snapshot:
    """A rank's state, that no other rank or checkpoint has."""
    return Snapshot(
        own={"model": {"buffer": torch.full((64,), 100.0 * checkpoint.step + rank)}},
        shared={"model": {"weight": torch.arange(5) + checkpoint.step}},
        rng={"rank": rank},
    )
