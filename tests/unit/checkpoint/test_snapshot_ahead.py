"""A snapshot that is begun before its state is known is right all the same, or made anew."""

from __future__ import annotations

import concurrent.futures
import fcntl
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from slurm_robust.checkpoint.errors import UnsupportedState
from slurm_robust.checkpoint.image import open_image
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.checkpoint.snapshot import Snapshotter
from slurm_robust.checkpoint.state import Training, capture
from slurm_robust.checkpoint.tree import flatten
from slurm_robust.model.copies import SHARED, CheckpointId
from tests.there import there
from tests.unit.checkpoint.snapshot_training import UNUSUAL, Example, is_right, state_at, steps_in
from tests.waiting import wait_for


class Watch:
    """An entry that is asked for its state first, and sees whether a copy is under way already."""

    def __init__(self, snapshotter: Snapshotter) -> None:
        self._snapshotter = snapshotter
        self._seen: Any = None
        self.ahead = False
        self.then: Callable[[], Any] = lambda: None

    def state_dict(self) -> Any:
        self._seen = self._snapshotter._pending
        self.ahead = self._seen is not None
        return {"answer": self.then()}

    def load_state_dict(self, state_dict: Any) -> None:
        raise NotImplementedError

    @property
    def adopted(self) -> bool:
        """The copy that was under way then has become the snapshot."""
        return self.ahead and self._snapshotter._pending is self._seen


class Watched(Example):
    """Every tensor of it changes with every step, and what it was is known."""

    def __init__(self, folder: MemoryFolder, *, ahead: bool = True, **options: Any) -> None:
        super().__init__(folder, ahead=ahead, **options)
        self.watch = Watch(self.snapshotter)
        self.training = Training(entries={"watch": self.watch, **self.training.entries})

    def state(self) -> list[torch.Tensor]:
        """A copy of the state, in the order of an image; :attr:`watch` has no tensors and is not asked."""
        entries = {name: entry for name, entry in self.training.entries.items() if name != "watch"}
        snapshot = capture(entries)
        return [tensor.clone() for tensor in flatten({"own": snapshot.own, "rng": snapshot.rng})[1]]

    def image(self, step: int) -> list[torch.Tensor]:
        snapshot = state_at(self.folder, step, self.generation)
        return flatten({"own": snapshot.own, "rng": snapshot.rng})[1]

    def foresee(self) -> None:
        """Train until snapshots are begun ahead."""
        self.train(range(5))
        assert self.watch.adopted


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(
        x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(a, b, strict=True)
    )


@pytest.fixture
def example(folder: MemoryFolder) -> Iterator[Watched]:
    example = Watched(folder)
    yield example
    example.snapshotter.close()


# -- right ----------------------------------------------------------------------------------------


def test_a_state_like_the_last_is_copied_before_it_is_asked_for(example: Watched) -> None:
    adopted = []
    for step in range(6):
        example.train(range(step, step + 1))
        adopted.append(example.watch.adopted)
    assert adopted == [False, False, True, True, True, True]
    assert example.steps() == [3, 4, 5]
    assert all(is_right(state_at(example.folder, step), step) for step in (3, 4, 5))


def copied(example: Watched) -> None:
    job = there(example.snapshotter._pending)
    concurrent.futures.wait([job.copying], 10.0)


def test_a_copy_is_ahead_only_after_an_update_that_had_to_wait(folder: MemoryFolder) -> None:
    example = Watched(folder, ahead=False)
    for step in range(4):
        example.take(step)
        assert not example.watch.ahead
        copied(example)
        example.update()
    gate = example.hold_thread()
    example.take(4)
    job = there(example.snapshotter._pending)
    updating = threading.Thread(target=example.update)
    updating.start()
    wait_for(lambda: job.held_up, message="the update waits")
    gate.set()
    updating.join(60.0)
    example.take(5)
    assert example.watch.adopted
    copied(example)
    example.update()
    example.take(6)
    assert not example.watch.ahead
    example.snapshotter.close()


@pytest.mark.parametrize("kind", UNUSUAL)
def test_unusual_tensors_are_copied_ahead_like_otherwise(example: Watched, kind: str) -> None:
    example.train(range(1))
    tensor = UNUSUAL[kind].clone() if kind == "bfloat16" else UNUSUAL[kind]
    example.optimizer.state[example.model.weights[0]]["odd"] = tensor
    for step in range(1, 6):
        example.compute()
        example.update()
        if not kind.startswith("expanded"):
            tensor.add_(1)
        example.take(step)
        expected = example.state()
    assert example.watch.adopted
    assert example.steps() == [3, 4, 5]
    assert same(example.image(5), expected)


def test_without_overlap_nothing_is_copied_ahead(folder: MemoryFolder) -> None:
    example = Watched(folder, overlap=False)
    example.train(range(5))
    assert not example.watch.ahead
    assert example.steps() == [2, 3, 4]


@pytest.mark.parametrize("length", [0, 10_000])
def test_a_tree_may_grow_and_shrink_a_little(example: Watched, length: int) -> None:
    example.watch.then = lambda: bytes(5_000)
    example.foresee()
    example.watch.then = lambda: bytes(length)
    example.train(range(5, 6))
    assert example.watch.adopted
    assert example.steps() == [3, 4, 5]
    assert state_at(example.folder, 5).own["watch"] == {"answer": bytes(length)}
    assert is_right(state_at(example.folder, 5), 5)


# -- wrong ----------------------------------------------------------------------------------------


def another_layout(example: Watched) -> None:
    example.model.register_buffer("more", torch.ones(10))


def another_memory(example: Watched) -> None:
    weight = example.model.weights[1]
    weight.data = weight.data.clone()


def exchanged_memory(example: Watched) -> None:
    a, b = example.model.weights[0], example.model.weights[1]
    a.data, b.data = b.data, a.data


def more_optimizer_state(example: Watched) -> None:
    example.optimizer.state[example.model.weights[2]]["new"] = torch.ones(7)


def another_optimizer_state(example: Watched) -> None:
    state = example.optimizer.state[example.model.weights[2]]
    state["count"] = state["count"].clone()


def another_object(example: Watched) -> None:
    """The same memory, but its versions are counted elsewhere."""
    state = example.optimizer.state[example.model.weights[2]]
    state["count"] = state["count"].data


def moved_storage(example: Watched) -> None:
    weight = example.model.weights[0]
    content = weight.detach().clone()
    weight.untyped_storage().resize_(0)
    taken = torch.empty_like(content)  # the memory that was given up may be given out again
    weight.untyped_storage().resize_(content.nbytes)
    with torch.no_grad():
        weight.copy_(content)
    del taken


def a_change(example: Watched) -> None:
    with torch.no_grad():
        example.model.weights[1].mul_(2)


def an_update(example: Watched) -> None:
    example.optimizer.step()


def long_tree(example: Watched) -> bytes:
    return bytes(500_000)


WRONG = [
    another_layout,
    another_memory,
    exchanged_memory,
    more_optimizer_state,
    another_optimizer_state,
    another_object,
    a_change,
    an_update,
    long_tree,
]


@pytest.mark.parametrize("change", WRONG)
def test_another_state_than_expected_is_taken_anew(
    example: Watched, change: Callable[[Watched], Any]
) -> None:
    """The change comes while the state is being asked for, when copying has begun."""
    example.foresee()
    example.snapshotter.settle()
    buffers = sorted(example.folder.path.glob("own-*"))
    example.watch.then = lambda: change(example)
    example.take(5)
    expected = example.state()
    assert example.watch.ahead
    assert not example.watch.adopted
    assert example.steps() == [3, 4, 5]
    assert same(example.image(5), expected)
    assert sorted(example.folder.path.glob("own-*")) == buffers
    assert example.snapshotter.skipped == 0


@pytest.mark.parametrize("change", [*WRONG, moved_storage])
def test_another_state_than_before_is_taken(example: Watched, change: Callable[[Watched], Any]) -> None:
    """The change comes between two snapshots; after two of the new kind they are begun ahead again."""
    example.foresee()
    example.snapshotter.settle()
    answer = change(example)
    example.watch.then = lambda: answer
    for step in range(5, 9):
        example.take(step)
        expected = example.state()
        example.snapshotter.settle()
        assert same(example.image(step), expected)
        example.compute()
        example.update()
    example.take(9)
    assert example.watch.adopted
    assert example.snapshotter.skipped == 0


def test_the_same_memory_may_belong_elsewhere(folder: MemoryFolder) -> None:
    """Entries in another order: tensors of the same shapes, of which others are late."""
    example = Watched(folder, tensors=1)
    example.foresee()
    for step in range(5, 9):
        model, average = example.training.entries["model"], example.training.entries["average"]
        swapped = {"average": average, "model": model} if step % 2 else {"model": model, "average": average}
        example.training = Training(entries={**swapped, "optimizer": example.optimizer})
        example.average.weights[0].data.fill_(-step)
        example.take(step)
        expected = example.state()
        example.snapshotter.settle()
        assert same(example.image(step), expected)
    example.snapshotter.close()


def test_memory_that_is_away_between_snapshots_is_not_touched(example: Watched) -> None:
    example.foresee()
    example.snapshotter.settle()
    storage, content = example.model.weights[0].untyped_storage(), example.model.weights[0].detach().clone()
    storage.resize_(0)

    def back() -> None:
        storage.resize_(content.nbytes)
        example.model.weights[0].data.copy_(content)

    example.watch.then = back
    example.take(4)
    assert not example.watch.ahead
    assert 4 in example.steps()
    assert is_right(state_at(example.folder, 4), 4)


def test_who_is_never_right_stops_guessing(example: Watched) -> None:
    example.foresee()
    guesses = 0
    for step in range(5, 15):
        example.watch.then = lambda: a_change(example)
        example.take(step)
        guesses += example.watch.ahead
        assert not example.watch.adopted
    assert guesses == 1


def test_a_state_that_cannot_be_kept_ends_the_copy(example: Watched) -> None:
    example.foresee()
    example.watch.then = object
    for _ in range(2):
        with pytest.raises(UnsupportedState, match="entry 'watch'"):
            example.take(5)
        assert example.steps() == [3, 4]
        for path in example.folder.path.glob("own-*"):
            with path.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    example.watch.then = lambda: None
    example.train(range(5, 9))
    assert example.watch.adopted
    assert example.steps() == [6, 7, 8]
    assert is_right(state_at(example.folder, 8), 8)


def test_a_change_after_the_state_was_taken_discards_it(
    example: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    example.foresee()
    example.snapshotter.settle()
    gate = example.hold_thread()
    example.take(5)
    assert example.watch.adopted
    a_change(example)
    gate.set()
    assert example.steps() == [3, 4]
    assert "['own']['model']['weights.1'] was changed" in caplog.text


def test_an_update_of_another_thread_waits_for_a_copy_begun_ahead(example: Watched) -> None:
    example.foresee()
    example.snapshotter.settle()
    gate = example.hold_thread()
    updating = threading.Thread(target=example.optimizer.step)
    example.watch.then = updating.start
    expected = example.state()
    example.take(4)
    assert example.watch.adopted
    updating.join(0.05)
    assert updating.is_alive()
    gate.set()
    updating.join(60.0)
    assert 4 in example.steps()
    assert same(example.image(4), expected)


# -- shared ---------------------------------------------------------------------------------------


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_shared_part_is_copied_ahead_too(one_rank: None, example: Watched) -> None:
    wrapped = DistributedDataParallel(example.model)
    entries = {**example.training.entries, "model": wrapped}
    example.training = Training(entries=entries)
    example.foresee()
    assert shared_values(example, 4) == [5.0] * 3
    example.training = Training(entries=entries, deduplicate=False)
    example.train(range(5, 7))
    assert is_right(state_at(example.folder, 5), 5)
    example.training = Training(entries=entries)
    example.train(range(7, 12))
    assert example.watch.adopted
    assert shared_values(example, 11) == [12.0] * 3


def shared_values(example: Watched, step: int) -> list[float]:
    example.snapshotter.settle()
    path = there(example.folder.find(SHARED, CheckpointId(generation=1, step=step)))
    image = open_image(path)
    image.verify()
    data = [torch.frombuffer(view, dtype=torch.float32) for view in image.data()]
    values = [float(tensor[0]) for tensor in data[:3]]
    assert all(bool((tensor == step + 1).all()) for tensor in data)
    del data
    image.close()
    return values


# -- busy -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_every_snapshot_of_a_busy_training_is_right(folder: MemoryFolder, seed: int) -> None:
    dice = random.Random(seed)
    adopted = 0
    for generation in range(1, 4):
        example = Watched(
            folder, generation=generation, elements=dice.randrange(1, 200_000), tensors=dice.randrange(2, 6)
        )
        expected: list[torch.Tensor] = []
        for step in range(50):
            sum(range(dice.randrange(20_000)))  # holds the interpreter lock
            example.compute()
            example.update()
            if dice.random() < 0.05:
                dice.choice([another_memory, another_optimizer_state])(example)
            example.take(step)
            adopted += example.watch.adopted
            if step:
                assert same(example.image(step - 1), expected)
            expected = example.state()
        example.snapshotter.close()
    assert adopted > 60
    assert steps_in(folder) == [47, 48, 49]
