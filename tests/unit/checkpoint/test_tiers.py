"""Every tier passes the contract of its kind; the shared tiers of a job are seen as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.checkpoint.disk import DiskTier
from slurm_robust.checkpoint.image import open_image
from slurm_robust.checkpoint.local import LocalCopies
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.checkpoint.rank_tiers import rank_tiers
from slurm_robust.checkpoint.state import Snapshot
from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.checkpoint.tiers import SharedTiers, kept_tiers, shared_tiers
from slurm_robust.model.copies import SHARED, CheckpointId, Tier
from tests.contracts.tiers import FIRST, SECOND, NodeTierContract, SharedTierContract, save
from tests.unit.agent.copy_nodes import MIB, fill

RUN = "7-abcd"


class Memory:
    """A node's memory, filled as ranks fill it."""

    def __init__(self, folder: Path) -> None:
        self.tier = MemoryFolder.create(RUN, folder)
        self._taken: dict[int, int] = {}

    def put(self, rank: int, checkpoint: CheckpointId, run_id: str | None = None) -> Path:
        number = self._taken[rank] = self._taken.get(rank, -1) + 1
        path = self.tier.own(rank, number)
        return fill(path, rank, checkpoint.step, checkpoint.generation, MIB, run_id=run_id or RUN)


class Local:
    """A node's disk, filled from an image that is held open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (self.tier,) = kept_tiers({Tier.LOCAL: str(folder / "disk")}, RUN, bytes(32))

    def put(self, rank: int, checkpoint: CheckpointId, run_id: str | None = None) -> Path:
        source = self._folder / "source"
        fill(source, rank, checkpoint.step, checkpoint.generation, MIB, run_id=run_id or RUN)
        image = open_image(source)
        try:
            return self.tier.publish(image, keep=4)
        finally:
            image.close()
            source.unlink()


class TestMemory(NodeTierContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> Memory:
        return Memory(tmp_path)


class TestLocal(NodeTierContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> Local:
        return Local(tmp_path)


class Storage:
    """A folder on shared storage."""

    def __init__(self, folder: Path) -> None:
        self._places = {Tier.STORAGE: str(folder / "checkpoints")}
        self.tier = shared_tiers(self._places)[Tier.STORAGE]

    def of_rank(self, rank: int, run_id: str = "run") -> DiskTier:
        tiers = rank_tiers(self._places, job_dir="/job", run_id=run_id, rank=rank, world_size=2, layout="")
        found = tiers[Tier.STORAGE]
        assert isinstance(found, DiskTier)
        return found

    def damage(self, checkpoint: CheckpointId, rank: int) -> None:
        path = CheckpointStore(self._places[Tier.STORAGE]).data_path(checkpoint, rank)
        content = bytearray(path.read_bytes())
        for at in range(len(content)):
            content[at] ^= 1
        path.write_bytes(content)


class TestStorage(SharedTierContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> Storage:
        return Storage(tmp_path)


def test_of_several_shared_tiers_the_nearest_one_counts(tmp_path: Path) -> None:
    near, far = Storage(tmp_path / "near"), Storage(tmp_path / "far")
    save(near, SECOND)
    save(far, FIRST, SECOND)
    tiers = SharedTiers({Tier.STORAGE: near.tier, Tier.LOCAL: far.tier})
    assert tiers.complete(2) == {SECOND: Tier.STORAGE, FIRST: Tier.LOCAL}
    tiers.prune(1, (), 2, None)
    assert (near.tier.complete(2), far.tier.complete(2)) == ([SECOND], [SECOND])


def test_only_what_has_a_place_is_a_tier(tmp_path: Path) -> None:
    assert kept_tiers({Tier.STORAGE: str(tmp_path)}, RUN, bytes(32)) == ()
    (local,) = kept_tiers({Tier.LOCAL: str(tmp_path)}, RUN, bytes(32))
    assert isinstance(local, LocalCopies)
    assert local.find(SHARED, FIRST) is None


def test_where_others_write_only_a_jobs_own_are_listed_and_pruned(tmp_path: Path) -> None:
    """Two trainings in one folder: neither may count what the other has, nor remove it."""
    world, snapshot = Storage(tmp_path), Snapshot(own={}, shared={}, rng={})
    store = CheckpointStore(tmp_path / "checkpoints")

    def written(run_id: str, *refs: CheckpointId) -> list[CheckpointId]:
        for ref in refs:
            for rank in range(2):
                world.of_rank(rank, run_id).save(ref, snapshot)
        return sorted(refs, reverse=True)

    theirs = written("other", *(CheckpointId(generation=1, step=step) for step in (1, 5)))
    ours = written("run", *(CheckpointId(generation=2, step=step) for step in (1, 2, 3, 4)))
    halves = CheckpointId(generation=1, step=3)
    world.of_rank(0, "other").save(halves, snapshot)
    (store.path / "gen-0001" / "step-00000009").mkdir()
    tier = shared_tiers({Tier.STORAGE: str(store.path)}, ("before", "run"))[Tier.STORAGE]
    assert tier.complete() == ours
    tier.prune(1, (), 3, None)
    assert tier.complete() == ours[:1]
    assert store.complete() == [theirs[0], ours[0], theirs[1]]
    assert halves in store.present()
