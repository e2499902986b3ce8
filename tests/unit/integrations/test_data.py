"""The position in the data is part of a checkpoint: every sample once per epoch, whatever happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler

import slurm_robust as sr
from tests.ranks import surroundings

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
stateful = pytest.importorskip("torchdata.stateful_dataloader")

COUNT, BATCH, STEPS = 24, 4, 14


class Numbers(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        return index


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in surroundings():
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def build(kind: str, workers: int, rank: int = 0, ranks: int = 1) -> Any:
    """A loader, seeded as a script is that starts anew."""
    torch.manual_seed(7)
    from slurm_robust.integrations.data import ResumableLoader

    if kind == "shuffle":
        return ResumableLoader(Numbers(), BATCH, shuffle=True, num_workers=workers)
    sampler = DistributedSampler(Numbers(), ranks, rank, shuffle=True)
    if kind == "resumable":
        return ResumableLoader(Numbers(), BATCH, sampler=sampler, num_workers=workers)
    own = torch.Generator()
    return stateful.StatefulDataLoader(Numbers(), BATCH, sampler=sampler, num_workers=workers, generator=own)


def run(loader: Any, folder: str, until: int) -> dict[int, tuple[list[int], float]]:
    """By step: the samples, and a random number that stands for dropout."""
    checkpointer = sr.Checkpointer({"loader": loader}, path=folder)
    done: dict[int, tuple[list[int], float]] = {}
    step = checkpointer.restore()
    while step < until:
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(step // len(loader))
        for batch in loader:
            done[step] = (batch.tolist(), torch.rand(()).item())
            checkpointer.step(step)
            step += 1
            if step == until:
                break
    return done


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stateful", "resumable", "shuffle"])
def test_a_restart_after_any_step_goes_on_with_the_next_sample(kind: str) -> None:
    straight = run(build(kind, 0), "straight", STEPS)
    for until in (1, 3, 5, 6, 7, 12):  # the middle, the end and the begin of an epoch of 6 steps
        folder = f"broken-{until}"
        done = run(build(kind, 0), folder, until)
        done |= run(build(kind, 0), folder, STEPS)
        assert done == straight


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stateful", "resumable"])
def test_loader_processes_change_nothing(kind: str) -> None:
    straight = run(build(kind, 0), "straight", STEPS)
    done: dict[int, tuple[list[int], float]] = {}
    for until in (4, 6, STEPS):  # the middle and the end of an epoch
        done |= run(build(kind, 2), "broken", until)
    assert done == straight


def test_ranks_share_an_epoch_without_overlap() -> None:
    used: list[int] = []
    for rank in range(2):
        folder = f"rank-{rank}"
        per_rank: dict[int, tuple[list[int], float]] = {}
        for until in (1, 2, 3):
            per_rank |= run(build("resumable", 0, rank, 2), folder, until)
        used += [number for numbers, _ in per_rank.values() for number in numbers]
    assert sorted(used) == list(range(COUNT))


def test_the_order_is_that_of_the_epoch_when_the_first_batch_is_asked_for() -> None:
    """Lightning asks for the iterator first and tells the epoch then."""
    loader = build("resumable", 0)
    loader.sampler.set_epoch(3)
    expected = [batch.tolist() for batch in loader]
    other = build("resumable", 0)
    iterator = iter(other)
    other.sampler.set_epoch(3)
    assert [batch.tolist() for batch in iterator] == expected
