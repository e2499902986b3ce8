"""Snapshots of a state on a GPU that lags behind: never torn, whatever the driver refuses."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import torch

from slurm_robust.checkpoint import devices, snapshot
from slurm_robust.checkpoint.errors import NotWritten
from slurm_robust.checkpoint.image import open_image
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.checkpoint.state import Training
from slurm_robust.model.copies import CheckpointId
from slurm_robust.testing.lagging_gpus import PAGE, LaggingGpus
from tests.unit.checkpoint.snapshot_training import Example, is_right, state_at
from tests.waiting import wait_for


class PlusOneThere(torch.optim.Optimizer):
    """PlusOne, whose update the GPU makes when it gets there."""

    def __init__(self, parameters: Any, gpus: LaggingGpus) -> None:
        super().__init__(parameters, {})
        self.gpus = gpus

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if "count" not in state:
                    state["count"] = self.gpus.adopt(torch.zeros_like(parameter))
                plus_one(self.gpus, parameter)
                plus_one(self.gpus, state["count"])


class OnGpu(Example):
    """The example with all of its tensors on a GPU; the host waits for none of its work."""

    def __init__(self, folder: MemoryFolder, gpus: LaggingGpus, **options: Any) -> None:
        super().__init__(folder, gpus=gpus, **options)
        self.gpus = gpus
        for module in (self.model, self.average):
            for tensor in (*module.parameters(), *module.buffers()):
                gpus.adopt(tensor)
        self.optimizer = PlusOneThere(self.model.parameters(), gpus)  # type: ignore[assignment]
        self.training = Training(entries={**self.training.entries, "optimizer": self.optimizer})

    def compute(self) -> None:
        plus_one(self.gpus, self.model.seen)

    def update(self) -> None:
        self.optimizer.step()
        plus_one(self.gpus, self.average.weights[0])


def plus_one(gpus: LaggingGpus, tensor: torch.Tensor) -> None:
    gpus.launch(lambda: tensor.data.add_(1), tensor)


@pytest.fixture
def gpus() -> Iterator[LaggingGpus]:
    gpus = LaggingGpus()
    yield gpus
    gpus.release()
    gpus.close()


@pytest.fixture
def example(folder: MemoryFolder, gpus: LaggingGpus) -> Iterator[OnGpu]:
    example = OnGpu(folder, gpus)
    yield example
    gpus.release()
    example.snapshotter.close()


def whole(example: OnGpu, step: int) -> bool:
    """The image of ``step`` is there, and it is right."""
    return step in example.steps() and is_right(state_at(example.folder, step), step)


# -- order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_snapshots_hold_their_step_in_whatever_order_the_streams_go_on(
    folder: MemoryFolder, seed: int
) -> None:
    gpus = LaggingGpus(seed)
    example = OnGpu(folder, gpus)
    example.train(range(8))
    assert example.steps() == [5, 6, 7]
    assert all(is_right(state_at(folder, step), step) for step in (5, 6, 7))
    assert example.snapshotter.skipped == 0
    example.snapshotter.close()
    gpus.close()


@pytest.mark.parametrize("seed", range(5))
def test_the_host_runs_a_step_ahead_of_a_gpu_that_does_nothing(folder: MemoryFolder, seed: int) -> None:
    """Neither step() nor the update waits: the GPU puts the copies before what changes their sources."""
    gpus = LaggingGpus(seed)
    example = OnGpu(folder, gpus)
    example.train(range(3))
    example.snapshotter.settle()
    gpus.hold()
    waits = gpus.calls["wait"]
    example.compute()
    example.update()
    example.take(3)
    example.compute()  # changes what is copied early
    example.update()  # and what is copied late
    assert gpus.calls["wait"] <= waits + 1  # that of the thread
    gpus.release()
    assert whole(example, 3)
    example.take(4)
    assert whole(example, 4)
    example.snapshotter.close()
    gpus.close()


def test_a_change_by_nobody_s_update_is_seen(example: OnGpu, caplog: pytest.LogCaptureFixture) -> None:
    example.train(range(3))
    example.snapshotter.settle()
    example.gpus.hold()
    example.take(3)
    plus_one(example.gpus, example.model.weights[1])
    example.gpus.release()
    assert example.steps() == [1, 2]
    assert "['own']['model']['weights.1'] was changed" in caplog.text


def test_without_overlap_nothing_is_left_to_copy_when_step_returns(
    folder: MemoryFolder, gpus: LaggingGpus
) -> None:
    example = OnGpu(folder, gpus, overlap=False)
    example.train(range(3))
    for weight in example.model.weights:
        weight.data.fill_(-5)  # not even in the GPU's order
    assert whole(example, 2)
    example.snapshotter.close()


# -- memory ---------------------------------------------------------------------------------------


def pieces_of(monkeypatch: pytest.MonkeyPatch, pages: int) -> int:
    monkeypatch.setattr(devices, "PIECE_BYTES", pages * PAGE)
    return pages * PAGE


def test_memory_is_registered_once_per_buffer_and_by_another_thread(
    example: OnGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    piece = pieces_of(monkeypatch, 50)
    example.train(range(9))
    assert whole(example, 8)
    sizes = [path.stat().st_size for path in example.folder.path.glob("own-*")]
    assert len(sizes) == 3
    assert example.gpus.calls["register"] == sum(-(-size // piece) for size in sizes)
    assert example.gpus.registrars == {"srobust-reserve"}
    assert sum(example.gpus.registered().values()) == sum(sizes)
    example.snapshotter.close()
    assert example.gpus.registered() == {}


def test_a_tensor_across_two_pieces_is_copied_into_each(
    example: OnGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA refuses a copy into memory that is registered in part, or twice."""
    pieces_of(monkeypatch, 7)  # a weight takes 49 pages
    example.train(range(6))
    assert example.steps() == [3, 4, 5]
    assert whole(example, 5)


def test_a_refusal_counts_for_its_piece(
    folder: MemoryFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Copies into the others still run by themselves."""
    piece, asked = pieces_of(monkeypatch, 50), []

    def every_third(address: int, nbytes: int) -> bool:
        asked.append(address)
        return len(asked) % 3 == 0

    gpus = LaggingGpus(refuses=every_third)
    example = OnGpu(folder, gpus)
    example.train(range(6))
    assert whole(example, 5)
    assert len(gpus.registered()) == len(asked) - len(asked) // 3
    assert all(nbytes <= piece for nbytes in gpus.registered().values())
    assert caplog.text.count("does not register") == 1
    assert "cudaError 2" in caplog.text
    example.snapshotter.close()
    assert gpus.registered() == {}
    gpus.close()


def test_snapshots_begin_when_their_memory_is_registered(
    example: OnGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "RESERVE_S", 0.01)
    example.gpus.may_register.clear()
    example.train(range(3))
    assert example.snapshotter.reserving
    assert example.steps() == []
    assert example.snapshotter.skipped == 3
    example.gpus.may_register.set()
    wait_for(lambda: not example.snapshotter.reserving)
    example.train(range(3, 4))
    assert whole(example, 3)


def test_memory_is_registered_while_a_state_is_restored(example: OnGpu, folder: MemoryFolder) -> None:
    example.train(range(6))
    example.snapshotter.settle()
    example.snapshotter.close()
    restored = folder.find(0, CheckpointId(generation=1, step=5))
    assert restored is not None
    again = OnGpu(folder, example.gpus, generation=2)
    with closing(open_image(restored)) as image:
        again.snapshotter.expect([image], again.training)
    wait_for(lambda: not again.snapshotter.reserving)
    registered = example.gpus.registered()
    assert len(registered) == 1
    assert example.steps() == [3, 4, 5]  # what is being restored stays
    again.train(range(1))
    assert again.snapshotter.skipped == 0
    assert registered.items() <= example.gpus.registered().items()
    again.snapshotter.close()


# -- failures -------------------------------------------------------------------------------------


def test_a_copy_that_raises_costs_its_snapshot_and_nothing_else(example: OnGpu) -> None:
    """The part that was begun has ended before the buffer is used again."""
    example.train(range(3))
    example.gpus.refuses_copies = True
    with pytest.raises(NotWritten, match="step 3 cannot be copied: CUDA error: invalid argument"):
        example.train(range(3, 4))
    assert example.steps() == [1, 2]
    example.gpus.refuses_copies = False
    example.train(range(4, 6))
    assert example.steps() == [2, 4, 5]
    assert whole(example, 4)


def test_a_device_that_fails_leaves_no_image(example: OnGpu) -> None:
    example.train(range(3))
    example.snapshotter.settle()
    example.gpus.failure = "CUDA error: an illegal memory access was encountered"
    example.train(range(3, 4))
    with pytest.raises(NotWritten, match="step 3 cannot be copied: CUDA error: an illegal"):
        example.snapshotter.settle()
    assert example.steps() == [1, 2]
    example.gpus.failure = ""


# -- graphs ---------------------------------------------------------------------------------------


def captured(example: OnGpu) -> Callable[[], None]:
    with example.gpus.capture() as replay:
        example.update()
    return replay


def test_a_captured_update_ends_the_overlap(example: OnGpu, caplog: pytest.LogCaptureFixture) -> None:
    example.train(range(3))
    example.snapshotter.settle()
    example.gpus.hold()
    example.take(3)  # the copy is under way, and no hook will tell of a replay
    replay = captured(example)
    for step in range(3, 8):
        example.compute()
        replay()
        example.gpus.release()
        example.take(step + 1)
    assert 3 not in example.steps()
    assert example.snapshotter.skipped == 1
    assert caplog.text.count("captured in a CUDA graph") == 1
    for step in example.steps():
        own = state_at(example.folder, step).own
        values = {float(x) for n, t in own["model"].items() if n != "seen" for x in (t.min(), t.max())}
        assert values == {step}  # update 3 was not made but captured


def test_a_replay_changes_no_snapshot_that_step_has_returned_from(example: OnGpu) -> None:
    example.train(range(3))
    replay = captured(example)
    replay()
    example.take(3)
    example.gpus.hold()
    for _ in range(3):
        replay()
    example.gpus.release()
    example.gpus.synchronize()
    assert 3 in example.steps()
    own = state_at(example.folder, 3).own
    assert {float(x) for t in own["optimizer"]["state"].values() for x in t["count"]} == {4.0}


def test_updates_after_a_capture_cost_no_snapshot(example: OnGpu) -> None:
    """There may be several optimizers, of which one is captured."""
    example.train(range(3))
    example.snapshotter.settle()
    captured(example)
    gate = example.hold_thread()
    example.compute()
    example.update()
    example.take(3)
    example.update()
    gate.set()
    assert whole(example, 3)


def test_a_capture_before_the_first_snapshot_is_known(folder: MemoryFolder, gpus: LaggingGpus) -> None:
    """The snapshotter is made when the first snapshot is due."""
    captures = devices.Captures(gpus)
    before = OnGpu(folder, gpus)
    before.update()
    replay = captured(before)
    example = OnGpu(folder, gpus, captures=captures)
    waits = gpus.calls["wait"]
    example.update()
    example.take(0)
    assert gpus.calls["wait"] > waits
    replay()
    assert not example.snapshotter._overlap
    for one in (before, example):
        one.snapshotter.close()


# -- cost -----------------------------------------------------------------------------------------


def calls_in(body: Callable[[], object]) -> int:
    """Calls of functions, in Python and in C, that this thread makes in it."""
    count = 0

    def see(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        body()
    finally:
        sys.setprofile(None)
    return count


def test_ten_times_the_tensors_cost_ten_times_the_calls(folder: MemoryFolder, gpus: LaggingGpus) -> None:
    found = {}
    for tensors in (30, 300):
        example = OnGpu(folder, gpus, generation=tensors, elements=4, tensors=tensors)
        example.train(range(4))
        example.snapshotter.settle()
        gpus.synchronize()
        found[tensors] = calls_in(lambda example=example: example.take(4))  # type: ignore[misc]
        example.snapshotter.close()
    assert found[300] < 12 * found[30]


def test_threads_end_with_the_snapshots(folder: MemoryFolder, gpus: LaggingGpus) -> None:
    before = set(threading.enumerate())
    example = OnGpu(folder, gpus)
    example.train(range(3))
    example.snapshotter.close()
    assert set(threading.enumerate()) <= before
