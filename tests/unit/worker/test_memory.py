"""Under srobust run checkpoints are snapshots in memory, and training goes on from them bitwise the same."""

from __future__ import annotations

import copy
import json
import logging
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import slurm_robust as sr
from slurm_robust.checkpoint import snapshot
from slurm_robust.checkpoint.budget import Room
from slurm_robust.checkpoint.errors import (
    CheckpointError,
    CorruptPart,
    EntryMismatch,
    ForeignPart,
    MissingCheckpoint,
    WrongUse,
)
from slurm_robust.checkpoint.image import Buffer, open_image
from slurm_robust.checkpoint.local import LocalCopies
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.checkpoint.part import read_sidecar
from slurm_robust.checkpoint.state import Training
from slurm_robust.model.copies import SHARED, CheckpointId, Tier, transfer_s
from slurm_robust.model.progress import FINISHED, RESERVE, UPDATE
from slurm_robust.testing.lagging_gpus import LaggingGpus
from slurm_robust.wire.messages import Progress
from slurm_robust.worker import returning, runs
from slurm_robust.worker.environment import REHEARSAL, Fitting, WorkerEnvironment
from slurm_robust.worker.images import ImageReader
from tests.ranks import run_ranks
from tests.there import there
from tests.torch_features import needs_fsdp2
from tests.unit.worker import small_training
from tests.unit.worker.worker_node import RUN, Node
from tests.waiting import wait_for


@pytest.fixture
def memory() -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix="test-memory-", dir="/dev/shm"))
    yield base
    shutil.rmtree(base)


@pytest.fixture
def node(tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    for name in list(os.environ):
        if name.startswith("SROBUST_") or name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return Node(tmp_path, memory)


class Launcher:
    """Runs this process as rank 0 of a generation."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = node
        self._monkeypatch = monkeypatch

    def __call__(self, generation: int, **options: Any) -> None:
        for name, value in self.node.environ(generation, **options).items():
            self._monkeypatch.setenv(name, value)


@pytest.fixture
def launch(node: Node, monkeypatch: pytest.MonkeyPatch) -> Launcher:
    return Launcher(node, monkeypatch)


class Model:
    """A model with its optimizer and what else a script has, small."""

    def __init__(self, width: int = 64) -> None:
        torch.manual_seed(3)
        self.module = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width))
        self.optimizer = torch.optim.AdamW(self.module.parameters())
        self.entries = {"model": self.module, "optimizer": self.optimizer}

    def train(self, steps: int, *, on: LaggingGpus | None = None, **options: Any) -> sr.Checkpointer:
        if on is not None:
            for tensor in self.module.state_dict().values():
                on.adopt(tensor)
        checkpointer = self.begin(steps, **options)
        checkpointer.close()
        return checkpointer

    def begin(self, steps: int, **options: Any) -> sr.Checkpointer:
        """Train and do not close the Checkpointer."""
        checkpointer = sr.Checkpointer(self.entries, **options)
        for step in range(checkpointer.restore(), steps):
            self.update()
            checkpointer.step(step)
        return checkpointer

    def update(self) -> None:
        self.module(torch.randn(4, 64)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def token(step: int, generation: int = 1) -> str:
    return str(CheckpointId(generation=generation, step=step))


def steps_of(folder: MemoryFolder, rank: int = 0) -> list[int]:
    return sorted(copy.step for copy in folder.inventory() if copy.rank == rank)


# -- taking ---------------------------------------------------------------------------------------


def test_snapshots_go_to_memory_and_none_to_storage(node: Node, launch: Launcher) -> None:
    launch(1)
    checkpointer = Model().train(6)
    assert steps_of(node.copies) == [3, 4, 5]
    assert node.store.complete() == []
    assert node.records[0].progress(0.0).checkpoint == -1
    assert checkpointer.skipped == 0
    assert 0.0 < checkpointer.blocked_s < 60.0


def test_every_counts_in_multiples_so_that_strides_meet_it(node: Node, launch: Launcher) -> None:
    launch(1)
    node.records[0].set_stride(4)
    Model().train(40, every=3)
    assert steps_of(node.copies) == [24, 30, 33, 36, 39]


def test_only_multiples_of_the_local_stride_are_taken_and_every_stays_a_floor(
    node: Node, launch: Launcher
) -> None:
    launch(1)
    node.records[0].set_stride(8, 4)
    Model().train(70, every=3)
    *steps, last = steps_of(node.copies)
    assert {48, 60} <= set(steps)
    assert all(step % 12 == 0 for step in steps)
    assert last == 69


def test_the_last_step_is_kept_whatever_the_local_stride(node: Node, launch: Launcher) -> None:
    launch(1)
    node.records[0].set_stride(8, 8)
    model = Model()
    model.train(22)
    assert steps_of(node.copies)[-2:] == [16, 21]
    launch(2, restore=token(21), tier="memory")
    again = Model()
    again.train(22)
    assert same_state(again, model)


def test_a_script_that_does_not_close_keeps_its_last_step_when_it_has_returned(
    node: Node, launch: Launcher
) -> None:
    launch(1)
    node.records[0].set_stride(8, 8)
    checkpointer = Model().begin(13)
    wait_for(lambda: steps_of(node.copies) == [0, 8], 30.0, "the snapshot of step 8 is not whole")
    returning.returned()
    assert steps_of(node.copies) == [0, 8, 12]
    checkpointer.close()
    assert steps_of(node.copies) == [0, 8, 12]


def test_a_state_of_after_the_last_step_is_not_kept_as_that_step(node: Node, launch: Launcher) -> None:
    launch(1)
    node.records[0].set_stride(8, 8)
    model = Model()
    checkpointer = model.begin(13)
    model.optimizer.step()
    checkpointer.close()
    launch(2)
    node.records[0].set_stride(8, 8)
    checkpointer = model.begin(13)
    try:
        raise ValueError("in the middle of a step")
    except ValueError:
        checkpointer.close()
    assert set(steps_of(node.copies)) == {0, 8}


def test_what_snapshots_take_is_shown_by_the_step_record(node: Node, launch: Launcher) -> None:
    launch(1)
    node.records[0].set_stride(2, 2)
    Model().train(80, every=3)
    shown = there(node.records[0].snapshots)
    assert shown.stride == 2
    assert shown.apart_s > 0
    assert shown.whole_s > 0


def test_the_step_wanted_on_storage_is_taken_whatever_every_says(node: Node, launch: Launcher) -> None:
    launch(1)
    node.records[0].set_flush(7)
    Model().train(12, every=5)
    assert steps_of(node.copies) == [5, 7, 10]


def test_what_the_controller_asks_for_goes_to_storage_at_once(node: Node, launch: Launcher) -> None:
    launch(1)
    node.records[0].request_checkpoint(3)
    Model().train(6, every=4)
    assert [ref.step for ref in node.store.complete()] == [3]
    assert node.records[0].progress(0.0).checkpoint == 3
    assert steps_of(node.copies) == [0, 4]


# -- stopped at a step ----------------------------------------------------------------------------


class Held:
    """Training in a thread, which the controller wants to begin no step after 13."""

    def __init__(self, node: Node, launch: Launcher, *, hold_s: float = 60.0, **options: Any) -> None:
        launch(1)
        self.node = node
        node.records[0].set_stride(8, 8)
        node.records[0].request_checkpoint(13, hold_s)
        self.model = Model()
        self._thread = threading.Thread(target=lambda: self.model.train(20, **options))
        self._thread.start()

    def wait(self) -> None:
        """Wait until step 13 is kept."""
        kept = wait_for(lambda: self.progress().checkpoint == 13 and self.progress(), 30.0, "it is not kept")
        assert (kept.step, kept.phase) == (13, UPDATE)

    def progress(self) -> Progress:
        return self.node.records[0].progress(0.0)

    def end(self) -> None:
        """See that it goes on to its end."""
        self._thread.join(30.0)
        assert (self.progress().step, self.progress().phase) == (19, FINISHED)


def test_a_held_rank_keeps_exactly_the_step_asked_for_and_begins_no_other(
    node: Node, launch: Launcher
) -> None:
    held = Held(node, launch)
    held.wait()
    assert steps_of(node.copies)[-1] == 13
    assert node.store.complete() == []
    assert held.progress().step == 13
    at_13 = Model()
    for entry, own in zip(at_13.entries.values(), held.model.entries.values(), strict=True):
        entry.load_state_dict(copy.deepcopy(own.state_dict()))
    node.records[0].request_checkpoint(-1)  # withdrawn
    held.end()
    launch(2, restore=token(13), tier="memory")
    restored = Model()
    assert sr.Checkpointer(restored.entries).restore() == 14
    assert same_state(restored, at_13)


def test_a_rank_is_not_held_for_longer_than_it_was_ordered(node: Node, launch: Launcher) -> None:
    held = Held(node, launch, hold_s=0.2)
    held.end()
    assert 0.1 < node.records[0].spent[UPDATE] < 30.0
    assert 13 in steps_of(node.copies)


def test_a_rank_without_room_for_snapshots_puts_the_step_on_storage_and_is_held(
    node: Node, launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_room(monkeypatch)
    held = Held(node, launch, every=1000)
    held.wait()
    assert [ref.step for ref in node.store.complete()] == [13]
    node.records[0].request_checkpoint(13)  # without being held
    held.end()


def test_a_held_rank_waits_for_the_memory_of_its_first_snapshot(
    node: Node, launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "RESERVE_S", 0.0)
    may_reserve, reserve = threading.Event(), Buffer.reserve

    def slow(self: Buffer, *arguments: Any) -> None:
        may_reserve.wait(30.0)
        reserve(self, *arguments)

    monkeypatch.setattr(Buffer, "reserve", slow)
    held = Held(node, launch, every=1000)
    wait_for(lambda: held.progress().phase == UPDATE, 30.0, "it is not held")
    assert steps_of(node.copies) == []
    may_reserve.set()
    held.wait()
    assert steps_of(node.copies) == [13]
    node.records[0].request_checkpoint(-1)
    held.end()


def test_a_snapshot_on_a_gpu_is_completed_while_its_rank_is_held(
    node: Node, launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = LaggingGpus()

    class Lagging(runs.Snapshotter):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "gpus": gpus, "captures": None})

    monkeypatch.setattr(runs, "Snapshotter", Lagging)
    held = Held(node, launch, on=gpus)
    held.wait()
    assert steps_of(node.copies)[-1] == 13
    node.records[0].request_checkpoint(-1)
    held.end()
    gpus.close()


def without_room(monkeypatch: pytest.MonkeyPatch) -> list[Room]:
    """Have no memory for snapshots, until the list is empty that this returns."""
    full = [Room(name="it", total=0, free=9)]
    empty = Room(name="it", total=10**9, free=10**9)

    class Cramped(runs.Snapshotter):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options, gather=lambda _: (*full, empty))

    monkeypatch.setattr(runs, "Snapshotter", Cramped)
    return full


def test_without_room_a_rank_writes_the_steps_that_all_put_on_storage_and_no_others(
    node: Node, launch: Launcher, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without_room(monkeypatch)
    launch(1)
    node.records[0].set_flush(6)
    with caplog.at_level(logging.WARNING):
        Model().train(10, every=4)
    assert [ref.step for ref in node.store.present()] == [6]
    assert steps_of(node.copies) == []
    assert node.records[0].buffers == 0
    assert caplog.text.count("no snapshots in memory; a fault goes back to the newest checkpoint") == 1


def test_when_there_is_room_again_snapshots_come_back_with_the_next_step_for_storage(
    node: Node, launch: Launcher, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = without_room(monkeypatch)
    launch(1)
    model = Model()
    checkpointer = sr.Checkpointer(model.entries)
    checkpointer.restore()
    with caplog.at_level(logging.WARNING):
        for step in range(10):
            if step == 4:
                full.clear()
                node.records[0].set_flush(6)
            model.update()
            checkpointer.step(step)
    checkpointer.close()
    assert [ref.step for ref in node.store.present()] == [6], "as the agent was told that this rank would"
    assert steps_of(node.copies)[-2:] == [8, 9]
    assert node.records[0].buffers == 5
    assert "there is memory again: snapshots are taken from step 6 on" in caplog.text


def test_a_folder_of_snapshots_that_is_not_there_is_no_room(node: Node, launch: Launcher) -> None:
    launch(1)
    shutil.rmtree(node.copies.path)
    node.records[0].set_flush(6)
    Model().train(10)
    assert [ref.step for ref in node.store.present()] == [6]
    assert node.records[0].buffers == 0


# -- restoring ------------------------------------------------------------------------------------


def parts(node: Node, step: int) -> Path:
    return there(node.copies.find(0, CheckpointId(generation=1, step=step)))


@pytest.fixture
def trained(node: Node, launch: Launcher) -> Model:
    launch(1)
    model = Model()
    model.train(6)
    return model


def same_state(a: Model, b: Model) -> bool:
    hashes = [
        small_training.state_hash(m.module.state_dict(), m.optimizer.state_dict()["state"]) for m in (a, b)
    ]
    return hashes[0] == hashes[1]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_one_process_continues_bitwise(node: Node, launch: Launcher, optimizer: str) -> None:
    launch(1)
    straight = small_training.train("single", optimizer, 12, every=1)
    broken: dict[int, float] = {}
    launch(2)
    broken |= small_training.train("single", optimizer, 6, every=1)["losses"]
    launch(3, restore=token(4, 2), tier="memory")  # not the newest: one step is run again
    broken |= small_training.train("single", optimizer, 8, every=1)["losses"]
    launch(4, restore=token(7, 3), tier="memory")
    result = small_training.train("single", optimizer, 12, every=1)
    assert list(result["losses"]) == [8, 9, 10, 11]
    assert broken | result["losses"] == straight["losses"]
    assert result["sha256"] == straight["sha256"]


def test_nothing_lies_in_a_copy_after_it_was_restored(trained: Model, node: Node, launch: Launcher) -> None:
    launch(2, restore=token(5), tier="memory")
    fresh = Model()
    checkpointer = sr.Checkpointer(fresh.entries)
    assert checkpointer.restore() == 6
    assert same_state(trained, fresh)
    checkpointer.close()  # of the buffer that is reserved for the next snapshot
    assert str(node.copies.path) not in Path("/proc/self/maps").read_text()
    assert not any(str(node.copies.path) in os.readlink(f"/proc/self/fd/{n}") for n in descriptors())


def descriptors() -> list[str]:
    own = os.listdir("/proc/self/fd")
    return [number for number in own if os.path.islink(f"/proc/self/fd/{number}")]


def test_a_part_that_is_being_fetched_is_waited_for(trained: Model, node: Node, launch: Launcher) -> None:
    elsewhere = node.folder / "elsewhere"
    shutil.move(parts(node, 5), elsewhere)
    launch(2, restore=token(5), tier="peer")
    fresh = Model()
    restoring = threading.Thread(target=sr.Checkpointer(fresh.entries).restore)
    restoring.start()
    restoring.join(0.05)
    assert restoring.is_alive()
    shutil.copy(elsewhere, node.copies.fetched(0).with_name("beside"))
    os.replace(node.copies.fetched(0).with_name("beside"), node.copies.fetched(0))
    restoring.join(60.0)
    assert not restoring.is_alive()
    assert same_state(trained, fresh)


def test_a_part_that_cannot_be_fetched_is_reported(trained: Model, node: Node, launch: Launcher) -> None:
    parts(node, 5).unlink()
    node.copies.fetch_error(0).write_text("node n2 does not answer\n")
    launch(2, restore=token(5), tier="peer")
    with pytest.raises(MissingCheckpoint, match=r"rank 0 of checkpoint gen-0001/step-00000005 .*n2 does not"):
        Model().train(7)


def test_a_fetch_that_takes_too_long_for_its_size_is_reported(node: Node) -> None:
    """The larger the part, the longer it may take: 480 GB at 3 GB/s take 160 s."""
    assert transfer_s(0) == 60.0
    assert transfer_s(60 * 10**9) == 660.0
    environment = there(WorkerEnvironment.from_env(node.environ(2, restore=token(5), tier="peer")))
    node.copies.fetch_size(0).write_text("1000")
    asked: list[int] = []

    def patience(nbytes: int) -> float:
        asked.append(nbytes)
        return 0.1

    with pytest.raises(MissingCheckpoint, match=f"is not in {re.escape(str(node.copies.path))}"):
        ImageReader(environment, 0, 1, patience=patience).load(
            CheckpointId(generation=1, step=5), Training(entries={})
        )
    assert set(asked) == {1000}


def test_a_copy_on_the_local_disk_is_read(trained: Model, node: Node, launch: Launcher) -> None:
    image = open_image(parts(node, 4))
    place = LocalCopies(node.local, RUN, node.copies.seal_key.read_bytes()).publish(image, keep=1)
    image.close()
    image.path.unlink()
    launch(2, restore=token(4), tier="local")
    assert sr.Checkpointer(Model().entries).restore() == 5
    damage(place)
    launch(3, restore=token(4), tier="local")
    with pytest.raises(CorruptPart, match=place.name):
        sr.Checkpointer(Model().entries).restore()
    assert not place.exists()


def damage(path: Path) -> None:
    image = open_image(path)
    at = image.nbytes - 10
    image.close()
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_a_damaged_copy_is_told_and_removed(trained: Model, node: Node, launch: Launcher) -> None:
    path = parts(node, 5)
    damage(path)
    launch(2, restore=token(5), tier="memory")
    with pytest.raises(CorruptPart, match=f"{path.name} is damaged"):
        Model().train(7)
    assert steps_of(node.copies) == [3, 4]
    launch(3, restore=token(5), tier="memory")
    with pytest.raises(MissingCheckpoint, match="not in"):
        Model().train(7)
    launch(4, restore=token(4), tier="memory")
    assert sr.Checkpointer(Model().entries).restore() == 5


def test_half_of_a_state_is_not_trained_on(trained: Model, node: Node, launch: Launcher) -> None:
    damage(parts(node, 5))
    launch(2, restore=token(5), tier="memory")
    checkpointer = sr.Checkpointer(Model().entries)
    with pytest.raises(CorruptPart):
        checkpointer.restore()
    with pytest.raises(WrongUse, match="start the process again"):
        checkpointer.restore()
    with pytest.raises(WrongUse):
        checkpointer.step(6)
    launch(3, restore=token(4), tier="memory")
    other = sr.Checkpointer(Model(width=32).entries)
    with pytest.raises(EntryMismatch):
        other.restore()
    with pytest.raises(WrongUse):
        other.step(5)


def test_what_does_not_fit_is_told_and_stays(
    trained: Model, node: Node, launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def error(match: str, kind: type[CheckpointError], entries: Any = None) -> None:
        with pytest.raises(kind, match=match):
            sr.Checkpointer(entries or Model().entries).restore()
        assert steps_of(node.copies) == [3, 4, 5]

    launch(2, restore=token(5), tier="memory", layout="tp2")
    error("layout tp1.*expected.*layout tp2.*remove the file", ForeignPart)
    launch(2, restore=token(5), tier="memory")
    monkeypatch.setenv("WORLD_SIZE", "2")
    error("rank 0 of 1; expected.*rank 0 of 2", ForeignPart)
    launch(2, restore=token(5), tier="memory")
    error(
        "holds the entries model, optimizer, the script names model", EntryMismatch, {"model": Model().module}
    )
    error("entry 'model' does not fit.*'0.weight' has shape", EntryMismatch, Model(width=32).entries)
    launch(2, restore=token(9), tier="memory")
    error("step-00000009 is not in", MissingCheckpoint)


@pytest.mark.parametrize("tier", ["memory", "storage"])
def test_an_optimizer_is_left_out_if_its_owner_asks_for_that(
    node: Node, launch: Launcher, tier: str, caplog: pytest.LogCaptureFixture
) -> None:
    launch(1)
    node.records[0].request_checkpoint(5)
    before = Model()
    before.train(6)
    launch(2, restore=token(5), tier=tier, discard_optimizer=True)
    now = Model()
    now.optimizer = torch.optim.SGD(now.module.parameters(), lr=0.1)
    now.entries["optimizer"] = now.optimizer
    assert sr.Checkpointer(now.entries).restore() == 6
    assert all(map(torch.equal, now.module.state_dict().values(), before.module.state_dict().values()))
    assert not now.optimizer.state
    assert "--discard-optimizer: the state of 'optimizer'" in caplog.text


def test_a_checkpoint_knows_the_release_that_wrote_it(node: Node, launch: Launcher) -> None:
    launch(1, release="3f2a91c04b7d")
    node.records[0].request_checkpoint(5)
    Model().train(6)
    image = open_image(parts(node, 5))
    sidecar = read_sidecar(node.store.part_path(CheckpointId(generation=1, step=5), 0, 1))
    assert image.header.release == sidecar.header.release == "3f2a91c04b7d"
    image.close()
    launch(2, restore=token(5), tier="memory", release="0000000000ff")
    assert sr.Checkpointer(Model().entries).restore() == 6


def rehearse(
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    *,
    step: int = 5,
    generation: int = 1,
    discard_optimizer: bool = False,
) -> None:
    """Be a rehearsal that has to fit this checkpoint."""
    fitting = Fitting(
        checkpoint=CheckpointId(generation=generation, step=step),
        job_dir=str(node.folder),
        run_id=RUN,
        places={Tier.STORAGE: str(node.store.path)},
        discard_optimizer=discard_optimizer,
    )
    for name, value in {REHEARSAL: "1", **fitting.to_env()}.items():
        monkeypatch.setenv(name, value)


def test_a_rehearsal_says_what_does_not_fit_and_restores_nothing(
    node: Node, launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch(1)
    node.records[0].request_checkpoint(5)
    Model().train(6)
    rehearse(node, monkeypatch)
    same = Model()
    assert sr.Checkpointer(same.entries).restore() == 0
    assert not same.optimizer.state
    with pytest.raises(EntryMismatch, match=r"entry 'model' does not fit.*'0\.weight' has shape"):
        sr.Checkpointer(Model(width=32).entries).restore()
    grown = Model()
    grown.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
    with pytest.raises(EntryMismatch, match="entry 'optimizer' does not fit"):
        sr.Checkpointer(grown.entries).restore()
    rehearse(node, monkeypatch, step=4)  # it was pruned meanwhile
    with pytest.raises(
        EntryMismatch, match="entry 'optimizer' does not fit checkpoint gen-0001/step-00000005"
    ):
        sr.Checkpointer(grown.entries).restore()
    rehearse(node, monkeypatch, discard_optimizer=True)
    assert sr.Checkpointer(grown.entries).restore() == 0


def test_a_rehearsal_says_nothing_of_a_checkpoint_that_it_cannot_read(
    node: Node, launch: Launcher, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    launch(1)
    node.records[0].request_checkpoint(5)
    Model().train(6)
    rehearse(node, monkeypatch, generation=2)
    assert sr.Checkpointer(Model(width=32).entries).restore() == 0
    rehearse(node, monkeypatch)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert sr.Checkpointer(Model(width=32).entries).restore() == 0
    assert caplog.text.count("fits cannot be said") == 2


def test_what_the_shared_part_says_is_not_waited_for_in_vain(
    trained: Model, node: Node, launch: Launcher
) -> None:
    assert node.copies.find(SHARED, CheckpointId(generation=1, step=5)) is None
    launch(2, restore=token(5), tier="peer")
    assert sr.Checkpointer(Model().entries).restore() == 6


def test_a_restored_generation_goes_on_with_the_buffers(trained: Model, node: Node, launch: Launcher) -> None:
    launch(2, restore=token(4), tier="memory")
    Model().train(7)
    assert {(copy.generation, copy.step) for copy in node.copies.inventory()} == {(1, 4), (2, 5), (2, 6)}


# -- several processes ----------------------------------------------------------------------------


def trained_by_ranks(
    node: Node, kind: str, steps: int, generation: int, *, stride: int = 1, **options: Any
) -> list[dict[str, Any]]:
    result = node.folder / f"result-{generation}"
    environs = [node.environ(generation, rank, **options) for rank in range(node.world_size)]
    for record in node.records.values():
        record.set_stride(stride, stride)
    run_ranks(small_training.main, kind, "adamw", str(steps), result, environs=environs)
    return [json.loads(Path(f"{result}.{rank}").read_text()) for rank in range(node.world_size)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", pytest.param("fsdp", marks=needs_fsdp2)])
def test_two_ranks_continue_bitwise(node: Node, kind: str) -> None:
    node.world_size = 2
    straight = trained_by_ranks(node, kind, 12, 1)
    trained_by_ranks(node, kind, 7, 2)
    assert steps_of(node.copies, SHARED) == ([4, 5, 6] if kind == "ddp" else [])
    assert [steps_of(node.copies, rank) for rank in range(2)] == [[4, 5, 6]] * 2
    resumed = trained_by_ranks(node, kind, 12, 3, restore=token(5, 2), tier="memory")
    for rank in range(2):
        assert list(resumed[rank]["losses"]) == ["6", "7", "8", "9", "10", "11"]
        assert straight[rank]["losses"].items() >= resumed[rank]["losses"].items()
        assert resumed[rank]["sha256"] == straight[rank]["sha256"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", pytest.param("fsdp", marks=needs_fsdp2)])
def test_two_ranks_that_keep_every_fourth_step_continue_bitwise(node: Node, kind: str) -> None:
    node.world_size = 2
    straight = trained_by_ranks(node, kind, 16, 1)
    trained_by_ranks(node, kind, 11, 2, stride=4)
    assert [steps_of(node.copies, rank)[-2:] for rank in range(2)] == [[8, 10]] * 2
    resumed = trained_by_ranks(node, kind, 16, 3, stride=4, restore=token(8, 2), tier="memory")
    assert [steps_of(node.copies, rank)[-2:] for rank in range(2)] == [[12, 15]] * 2
    for rank in range(2):
        assert list(resumed[rank]["losses"]) == [str(step) for step in range(9, 16)]
        assert straight[rank]["losses"].items() >= resumed[rank]["losses"].items()
        assert resumed[rank]["sha256"] == straight[rank]["sha256"]


@pytest.mark.slow
def test_a_shared_part_is_fetched_too(node: Node) -> None:
    """Both ranks on another node than before: it has neither their own parts nor the shared one."""
    node.world_size = 2
    straight = trained_by_ranks(node, "ddp", 9, 1)
    ref = CheckpointId(generation=1, step=7)
    for part in (0, 1, SHARED):
        found = there(node.copies.find(part, ref))
        shutil.copy(found, node.copies.fetched(part))
    for path in [*node.copies.path.glob("own-*"), *node.copies.path.glob("shared.*")]:
        path.unlink()
    resumed = trained_by_ranks(node, "ddp", 9, 2, restore=str(ref), tier="peer")
    assert [one["sha256"] for one in resumed] == [one["sha256"] for one in straight]
    wait_for(lambda: steps_of(node.copies) == [8])


# -- reserving ------------------------------------------------------------------------------------


def test_memory_that_takes_long_is_told_as_a_phase(
    node: Node, launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on meanwhile; a phase of the script's own goes before it."""
    gate = threading.Event()
    reserve = Buffer.reserve

    def late(buffer: Buffer, total: int) -> None:
        if not buffer.path.name.endswith(".0"):  # the first snapshot finds memory
            gate.wait(60)
        reserve(buffer, total)

    monkeypatch.setattr(Buffer, "reserve", late)
    monkeypatch.setattr(snapshot, "RESERVE_S", 0.01)  # of two steps, which are to find none
    launch(1)
    checkpointer = sr.Checkpointer(Model().entries)
    checkpointer.restore()
    record = node.records[0]

    def phase() -> str:
        return record.progress(time.monotonic()).phase

    checkpointer.step(0)
    taker = checkpointer._run._memory  # type: ignore[attr-defined]
    taker.settle()
    wait_for(lambda: phase() == RESERVE)
    checkpointer.step(1)
    with sr.phase("evaluation"):
        checkpointer.step(2)
        assert phase() == "evaluation"
    assert phase() == RESERVE
    gate.set()
    wait_for(lambda: phase() == "")  # though no step() comes: the others may wait for this rank in vain
    assert record.progress(time.monotonic()).phase_s < 60
    monkeypatch.setattr(snapshot, "RESERVE_S", 60.0)
    checkpointer.step(3)
    checkpointer.step(4)
    taker.settle()
    assert steps_of(node.copies)[-1] == 4
    assert checkpointer.skipped == 2
    checkpointer.close()


def test_memory_is_reserved_while_a_state_is_restored(node: Node, launch: Launcher) -> None:
    launch(1)
    Model().train(3)
    for path in node.copies.path.glob("own-00000.*"):
        if path != node.copies.find(0, CheckpointId(generation=1, step=1)):
            path.unlink()
    launch(2, restore=token(1), tier="memory")
    checkpointer = sr.Checkpointer(Model().entries)
    assert checkpointer.restore() == 2
    taker = checkpointer._run._memory  # type: ignore[attr-defined]
    wait_for(lambda: not taker.reserving)
    assert len(list(node.copies.path.glob("own-00000.*"))) == 2
    checkpointer.close()
