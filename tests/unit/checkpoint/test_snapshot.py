"""A snapshot holds the state after its step, whatever happens while it is copied, and whoever is killed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import resource
import threading
from pathlib import Path

import pytest
import torch

from slurm_robust.checkpoint.budget import MemoryPlan, Room
from slurm_robust.checkpoint.errors import NotWritten, UnsupportedState
from slurm_robust.checkpoint.image import Buffer
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.checkpoint.snapshot import sum_threads
from slurm_robust.model.copies import CheckpointId
from tests.forked_python import run_python
from tests.unit.checkpoint.snapshot_training import UNUSUAL, Example, is_right, state_at, steps_in
from tests.waiting import wait_for


@pytest.fixture
def example(folder: MemoryFolder) -> Example:
    return Example(folder)


def test_snapshots_hold_what_was_there_after_their_step(example: Example, folder: MemoryFolder) -> None:
    example.train(range(7))
    assert example.steps() == [4, 5, 6]
    assert all(is_right(state_at(folder, step), step) for step in (4, 5, 6))
    assert example.snapshotter.skipped == 0
    example.snapshotter.close()


def test_what_the_next_step_may_change_is_copied_before_step_returns(
    example: Example, folder: MemoryFolder
) -> None:
    """Buffers, and parameters of no optimizer: changed while the thread has copied nothing yet."""
    example.train(range(3))
    gate = example.hold_thread()
    example.compute()
    example.update()
    example.take(3)
    example.compute()
    with torch.no_grad():
        example.average.weights[0].fill_(-1)
    torch.randn(5)
    gate.set()
    assert 3 in example.steps()
    assert is_right(state_at(folder, 3), 3)


def test_the_update_waits_for_the_copy_and_nothing_else_does(example: Example, folder: MemoryFolder) -> None:
    example.train(range(3))
    gate = example.hold_thread()
    example.take(3)
    assert steps_in(folder) == [1, 2]
    example.compute()  # goes on beside
    updating = threading.Thread(target=example.optimizer.step)
    updating.start()
    updating.join(0.1)
    assert updating.is_alive()
    assert float(example.model.weights[0].detach()[0]) == 3.0
    gate.set()
    updating.join(60.0)
    assert float(example.model.weights[0].detach()[0]) == 4.0
    example.snapshotter.settle()
    assert example.snapshotter.blocked_s > 0.05
    assert float(state_at(folder, 3).own["model"]["weights.0"][0]) == 3.0


def test_generators_are_those_of_the_step(example: Example) -> None:
    torch.manual_seed(7)
    example.take(0)
    expected = torch.randn(3)
    torch.set_rng_state(state_at_end(example, 0).rng["torch"])
    assert torch.equal(torch.randn(3), expected)


def state_at_end(example: Example, step: int):  # type: ignore[no-untyped-def]
    example.snapshotter.settle()
    return state_at(example.folder, step)


# -- the guard ------------------------------------------------------------------------------------


def test_a_change_while_copying_is_seen_and_reported(
    example: Example, caplog: pytest.LogCaptureFixture
) -> None:
    example.train(range(3))
    for step in (3, 4):
        example.snapshotter.settle()
        gate = example.hold_thread()
        example.take(step)
        with torch.no_grad():
            example.model.weights[1].mul_(2)
        gate.set()
        assert example.steps()[-1] == 2
    assert example.snapshotter.skipped == 2
    assert caplog.text.count("is discarded") == 1
    assert "['own']['model']['weights.1'] was changed" in caplog.text
    assert "overlap=False" in caplog.text


def test_the_guard_does_not_see_changes_of_data(example: Example) -> None:
    """PyTorch gives ``.data`` a version counter of its own: the documented limit of the guard."""
    example.train(range(3))
    gate = example.hold_thread()
    example.take(3)
    example.model.weights[0].data.fill_(-5)
    gate.set()
    assert float(state_at_end(example, 3).own["model"]["weights.0"][0]) == -5


def test_without_overlap_everything_is_copied_before_step_returns(folder: MemoryFolder) -> None:
    example = Example(folder, overlap=False)
    example.train(range(3))
    example.snapshotter.settle()
    gate = example.hold_thread()
    example.compute()
    example.update()
    example.take(3)
    example.model.weights[0].data.fill_(-5)
    gate.set()
    assert is_right(state_at_end(example, 3), 3)


# -- the ring, seen from outside ------------------------------------------------------------------


def test_a_restored_generation_keeps_the_step_it_came_from(folder: MemoryFolder) -> None:
    Example(folder).train(range(6))
    wait_for(lambda: steps_in(folder) == [3, 4, 5])
    again = Example(folder, generation=2, restored=CheckpointId(generation=1, step=4))
    again.take(5)
    again.snapshotter.settle()
    held = {(copy.generation, copy.step) for copy in folder.inventory()}
    assert held == {(1, 3), (1, 4), (2, 5)}


def test_multiples_of_the_stride_stay(example: Example) -> None:
    for step in range(30):
        example.take(step, stride=8)
    assert example.steps() == [16, 24, 27, 28, 29]


def test_a_step_is_skipped_when_all_buffers_are_read(example: Example, folder: MemoryFolder) -> None:
    for step in range(20):
        example.take(step, stride=8)
    example.snapshotter.settle()
    readers = [path.open() for path in folder.path.glob("own-*")]
    for reader in readers:
        fcntl.flock(reader, fcntl.LOCK_SH)
    assert len(readers) == 5
    with pytest.raises(NotWritten, match="being read"):
        example.take(20)
    assert example.snapshotter.skipped == 1
    assert example.steps() == [8, 16, 17, 18, 19]
    for reader in readers:
        reader.close()
    example.take(21)
    assert example.steps()[-1] == 21


# -- memory ---------------------------------------------------------------------------------------


def test_no_memory_costs_one_snapshot_and_the_older_ones_stay(example: Example) -> None:
    """The limit on the size of files stands for a full /dev/shm."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    example.take(0)
    example.snapshotter.settle()
    example.model.register_buffer("more", torch.zeros(1_000_000))
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, hard))
    try:
        for _ in range(2):
            with pytest.raises(NotWritten, match=r"own-00000.1: File too large; give the job more memory"):
                example.take(1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert example.steps() == [0]
    example.take(3)
    assert example.steps() == [0, 3]
    assert example.snapshotter.skipped == 2


def test_the_next_buffer_is_reserved_beside_the_training(example: Example, folder: MemoryFolder) -> None:

    def reserved() -> int:
        return len([path for path in folder.path.glob("own-*") if path.stat().st_size])

    for step, buffers in enumerate((2, 3, 3, 3)):
        example.take(step)
        example.snapshotter.settle()
        wait_for(lambda: not example.snapshotter.reserving)
        assert reserved() == buffers


def plan_of(folder: MemoryFolder) -> MemoryPlan:
    return MemoryPlan(**json.loads((folder.path / "plan-00000.json").read_text()))


def test_less_memory_means_fewer_buffers(folder: MemoryFolder, caplog: pytest.LogCaptureFixture) -> None:
    small = Room(name="a small node", total=0, free=5_000_000)
    example = Example(folder, gather=lambda _: (small,))
    example.train(range(6))
    assert example.steps() == [4, 5]
    assert plan_of(folder).own_buffers == 2
    assert "a small node has 5.0 MB free" in caplog.text
    assert example.snapshotter.active


def test_no_memory_at_all_switches_snapshots_off(folder: MemoryFolder) -> None:
    example = Example(folder, gather=lambda _: (Room(name="tiny", total=0, free=10),))
    example.train(range(3))
    assert not example.snapshotter.active
    assert example.steps() == []
    assert plan_of(folder).own_buffers == 0


def test_where_others_take_the_memory_it_goes_on_with_the_buffers_that_are_there(
    folder: MemoryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    example, real = Example(folder), Buffer.reserve
    example.train(range(2))
    made = len(list(folder.path.glob("own-*")))

    def refuse(buffer: Buffer, total: int) -> None:
        if buffer.mapped < total:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(buffer, total)

    monkeypatch.setattr(Buffer, "reserve", refuse)
    for step in range(2, 9):
        with contextlib.suppress(NotWritten):
            example.train(range(step, step + 1))
    assert example.snapshotter.active
    assert example.snapshotter.buffers == made
    assert example.steps()[-1] == 8


def test_where_others_have_taken_all_memory_nothing_is_kept(
    folder: MemoryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(buffer: Buffer, total: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Buffer, "reserve", refuse)
    example = Example(folder)
    with pytest.raises(NotWritten, match="No space left on device"):
        example.train(range(3))
    assert not example.snapshotter.active
    assert list(folder.path.glob("own-*")) == []


def test_buffers_beyond_the_plan_are_given_back(example: Example, folder: MemoryFolder) -> None:
    for step in range(20):
        example.take(step, stride=8)
    example.snapshotter.close()
    two = Room(name="less than before", total=0, free=4_000_000)
    restored = CheckpointId(generation=1, step=19)
    again = Example(folder, generation=2, restored=restored, gather=lambda _: (two,))
    again.take(20)
    again.snapshotter.settle()
    assert {(copy.generation, copy.step) for copy in folder.inventory()} == {(1, 19), (2, 20)}


# -- what is in the state -------------------------------------------------------------------------


def test_other_tensors_than_before_are_taken_and_told_once(
    example: Example, folder: MemoryFolder, caplog: pytest.LogCaptureFixture
) -> None:
    example.train(range(3))
    for step in (3, 4):
        example.model.register_buffer(f"new{step}", torch.full((1000,), float(step)))
        example.compute()
        example.update()
        example.take(step)
    assert example.steps() == [2, 3, 4]
    assert state_at(folder, 4).own["model"]["new4"].tolist() == [4.0] * 1000
    assert is_right(state_at(folder, 4), 4)
    assert caplog.text.count("other tensors after step 3 than before") == 1
    assert "after step 4" not in caplog.text


def test_a_tensor_that_cannot_be_stored_names_its_entry(example: Example) -> None:
    example.model.register_buffer("odd", torch.eye(3).to_sparse())
    with pytest.raises(UnsupportedState, match=r"\['model'\]\['odd'\] is a sparse_coo tensor"):
        example.take(0)


@pytest.mark.parametrize("kind", UNUSUAL)
@pytest.mark.parametrize("overlap", [True, False])
def test_unusual_tensors_are_copied_right(folder: MemoryFolder, kind: str, overlap: bool) -> None:
    tensor = UNUSUAL[kind]
    example = Example(folder, overlap=overlap)
    example.train(range(1))
    example.optimizer.state[example.model.weights[0]]["odd"] = tensor
    example.take(1)
    back = state_at_end(example, 1).own["optimizer"]["state"][0]["odd"]
    assert back.dtype == tensor.dtype
    assert torch.equal(back, tensor)


# -- killed ---------------------------------------------------------------------------------------


def killed(*arguments: object) -> list[dict[str, object]]:
    done = run_python(
        "-m", "tests.unit.checkpoint.snapshot_training", *map(str, arguments), cwd=Path(__file__).parents[3]
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_rank_killed_at_any_moment_leaves_one_of_the_last_two_steps(folder: MemoryFolder) -> None:
    rounds = killed("random", folder.path, 30, 17)
    assert len(rounds) == 30
    for one in rounds:
        begun, whole = one["begun"], one["whole"]
        assert one["right"]
        assert isinstance(begun, int)
        assert isinstance(whole, list)
        # Of the two steps whose step() had returned, begun - 1 and begun - 2, the older one is whole in any
        # case: step(N + 1) first waits until N is, and leaves N and N - 1 alone.
        assert begun - 2 in whole
        assert whole[-1] - whole[-2] == 1


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["copying", "committing"])
def test_a_rank_killed_in_the_middle_of_a_copy_leaves_the_two_before(
    folder: MemoryFolder, stage: str
) -> None:
    assert killed(stage, folder.path) == [{"begun": 5, "whole": [3, 4], "right": True}]


@pytest.mark.parametrize(
    ("gigabytes", "spare", "threads"), [(8, 30.0, 8), (8, 9.5, 4), (8, 1.9, 1), (8, 0.0, 1), (0.13, 30.0, 2)]
)
def test_sums_take_half_of_the_spare_cpus(gigabytes: float, spare: float, threads: int) -> None:
    assert sum_threads(int(gigabytes * 2**30), spare) == threads


def test_times_of_snapshots_are_known_once_memory_is_there(example: Example) -> None:
    example.train(range(12))
    typical = example.snapshotter.timings.typical
    assert typical is not None
    assert 0 < typical.whole_s < 10
    assert 0 < typical.blocked_s < 10
    assert 0 < typical.step_s < 10


def test_only_one_step_waits_for_memory_that_takes_long(
    example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    real = Buffer.reserve

    def reserve(buffer: Buffer, total: int) -> None:
        gate.wait(60.0)
        real(buffer, total)

    monkeypatch.setattr(Buffer, "reserve", reserve)
    monkeypatch.setattr("slurm_robust.checkpoint.snapshot.RESERVE_S", 0.3)
    example.take(0)
    assert example.snapshotter.blocked_s >= 0.3
    for step in (1, 2, 3):
        example.take(step)
        assert example.snapshotter.blocked_s < 0.3
    assert example.snapshotter.skipped == 4
    gate.set()
    wait_for(lambda: not example.snapshotter.reserving, 30.0, "memory")
    example.train(range(4, 6))
    assert example.steps()[-1] == 5
