"""The store never calls a checkpoint complete that is not, and never loses one that is."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_robust.checkpoint import store as store_module
from slurm_robust.checkpoint.errors import MissingCheckpoint
from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.model.copies import CheckpointId
from tests.alone import alone
from tests.builders.checkpoints import ref

refs = st.builds(CheckpointId, generation=st.integers(1, 4), step=st.integers(0, 6))


def publish(store: CheckpointStore, where: CheckpointId, rank: int, world_size: int) -> None:
    with store.publishing_data(where, rank) as path:
        path.write_bytes(b"data")
    with store.publishing(where, rank, world_size) as path:
        path.write_bytes(b"part")


def visible(folder: Path) -> list[str]:
    """What is there besides the lock."""
    return sorted(name for name in os.listdir(folder) if name != ".lock")


def publish_all(store: CheckpointStore, *refs: CheckpointId, world_size: int = 2) -> None:
    for where in refs:
        for rank in range(world_size):
            publish(store, where, rank, world_size)


@given(st.builds(CheckpointId, generation=st.integers(0, 10**6), step=st.integers(0, 10**10)))
def test_tokens_are_reversible(where: CheckpointId) -> None:
    assert CheckpointId.parse(str(where)) == where


def test_tokens_look_like_paths() -> None:
    assert str(ref(3, 120)) == "gen-0003/step-00000120"


@pytest.mark.parametrize(
    "token", ["", "gen-3/step-00000120", "gen-00003/step-00000120", "gen-0003/step-00000120/x", "../x"]
)
def test_other_texts_are_not_tokens(token: str) -> None:
    with pytest.raises(ValueError, match="names no checkpoint"):
        CheckpointId.parse(token)


def test_the_controller_needs_no_torch() -> None:
    code = (
        "import sys, slurm_robust.checkpoint.store, slurm_robust.checkpoint.part\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_absent_folder_holds_nothing(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "none")
    assert store.complete() == []
    assert store.parts(ref(1, 1)) == []
    assert store.newest_generation() == 0
    assert store.prune(1) == []


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path)


def test_complete_means_all_parts_of_one_world_size(store: CheckpointStore) -> None:
    publish(store, ref(1, 10), 0, 2)
    publish(store, ref(1, 10), 1, 3)
    assert store.complete() == []
    with pytest.raises(MissingCheckpoint):
        store.world_size(ref(1, 10))
    publish(store, ref(1, 10), 1, 2)
    assert store.complete() == store.complete(2) == [ref(1, 10)]
    assert store.complete(3) == []
    assert store.world_size(ref(1, 10)) == 2


def test_newest_is_the_highest_step_then_the_highest_generation(store: CheckpointStore) -> None:
    publish_all(store, ref(1, 30), ref(2, 10), ref(3, 10), ref(2, 20))
    assert store.complete() == [ref(1, 30), ref(2, 20), ref(3, 10), ref(2, 10)]
    assert store.newest_generation() == 3


def test_strange_names_are_passed_over(store: CheckpointStore, tmp_path: Path) -> None:
    publish_all(store, ref(1, 1))
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "gen-0001" / "step-1").mkdir()
    (tmp_path / "gen-0007").write_text("a file")
    (tmp_path / str(ref(1, 1)) / "rank-00000-of-00002.part.swp").write_text("x")
    assert store.complete() == [ref(1, 1)]
    names = [path.name for path in store.parts(ref(1, 1))]
    assert names == ["rank-00000-of-00002.part", "rank-00001-of-00002.part"]


def test_a_writer_that_fails_leaves_nothing_behind(store: CheckpointStore, tmp_path: Path) -> None:

    def write_half_and_fail() -> None:
        with store.publishing(ref(1, 1), 0, 1) as path:
            path.write_bytes(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half_and_fail()
    assert os.listdir(tmp_path / str(ref(1, 1))) == []


def test_pruning_keeps_the_newest_of_all_and_of_the_running_generation(store: CheckpointStore) -> None:
    """After a rollback the running generation is behind; its own checkpoints must still be kept."""
    publish_all(store, *(ref(1, step) for step in range(5)), *(ref(2, step) for step in range(3)))
    removed = store.prune(2)
    assert store.complete() == [ref(1, 4), ref(1, 3), ref(2, 2), ref(2, 1)]
    assert set(removed) == {ref(1, 0), ref(1, 1), ref(1, 2), ref(2, 0)}


def test_pruning_spares_what_is_protected(store: CheckpointStore) -> None:
    publish_all(store, *(ref(1, step) for step in range(5)))
    store.prune(1, protect=[ref(1, 1)])
    assert store.complete() == [ref(1, 4), ref(1, 1)]


def test_pruning_removes_only_leftovers_that_nobody_completes(store: CheckpointStore, tmp_path: Path) -> None:
    publish_all(store, ref(1, 9), ref(2, 12))
    for leftover in (ref(1, 10), ref(2, 11), ref(2, 13), ref(3, 1)):
        publish(store, leftover, 0, 2)
    (tmp_path / ".trash-of-a-pruner-that-died").mkdir()
    removed = store.prune(5, generation=2)
    assert set(removed) == {ref(1, 10), ref(2, 11)}
    assert visible(tmp_path) == ["gen-0001", "gen-0002", "gen-0003"]
    assert store.parts(ref(2, 13)) != []  # a slow rank may still write its part
    assert store.parts(ref(3, 1)) != []  # another generation than ours is running


def test_pruning_removes_empty_folders_of_ended_generations(store: CheckpointStore, tmp_path: Path) -> None:
    publish_all(store, ref(1, 9), ref(2, 12))
    store.prune(1)
    assert visible(tmp_path) == ["gen-0002"]


def test_pruning_to_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        CheckpointStore(tmp_path).prune(0)
    with pytest.raises(ValueError, match="at least 1"):
        CheckpointStore(tmp_path).prune(1, keep_every=0)


def test_pruning_keeps_the_checkpoint_after_every_n_steps_for_ever(store: CheckpointStore) -> None:
    publish_all(store, *(ref(1, step) for step in range(4, 60, 5)), ref(2, 60))
    publish(store, ref(1, 79), 0, 2)  # one of them, but never complete
    store.prune(1, keep_every=20)
    assert store.complete() == [ref(2, 60), ref(1, 59), ref(1, 39), ref(1, 19)]
    assert store.parts(ref(1, 79)) == []


def test_the_pointer_names_the_newest_of_the_highest_generation(
    store: CheckpointStore, tmp_path: Path
) -> None:
    assert store.latest() is None
    assert store.point_latest() is None
    publish_all(store, ref(1, 90), ref(2, 60))
    publish(store, ref(2, 70), 0, 2)
    assert store.point_latest() == ref(2, 60)
    assert (tmp_path / "latest").read_text() == "gen-0002/step-00000060\n"
    publish(store, ref(2, 70), 1, 2)
    assert store.latest() == ref(2, 60)
    assert store.point_latest() == store.latest() == ref(2, 70)
    (tmp_path / "latest").write_text("somebody's notes")
    assert store.latest() is None
    assert store.point_latest() == store.latest() == ref(2, 70)


def test_pruning_spares_what_the_pointer_names(store: CheckpointStore) -> None:
    """A rollback: the pointer is behind two steps of an earlier generation, and a third one runs now."""
    publish_all(store, ref(1, 90), ref(1, 80), ref(2, 60))
    store.point_latest()
    publish(store, ref(3, 61), 0, 2)
    store.prune(1)
    assert store.latest() == ref(2, 60)
    assert store.complete() == [ref(1, 90), ref(2, 60)]


def test_a_pruning_without_the_lock_leaves_all_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another host that hangs with the lock costs a pruning, and no more."""
    monkeypatch.setattr(store_module, "_LOCK_WAIT_S", 0.05)
    store = CheckpointStore(tmp_path)
    publish_all(store, ref(1, 1), ref(1, 2), ref(1, 3))
    with (tmp_path / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert store.point_latest() is None
        assert store.prune(1) == []
    assert len(store.complete()) == 3
    assert store.point_latest() == ref(1, 3)
    assert store.prune(1) == [ref(1, 1), ref(1, 2)]


@pytest.mark.slow
def test_the_pointer_is_never_torn_and_never_names_an_incomplete_one(
    store: CheckpointStore, tmp_path: Path
) -> None:
    """Two finishers and a pruner at once, looked at without pause."""
    publish_all(store, ref(1, 0))
    store.point_latest()
    program = (
        "import sys\n"
        "from slurm_robust.checkpoint.store import CheckpointStore\n"
        "from slurm_robust.model.copies import CheckpointId\n"
        "store, rank = CheckpointStore(sys.argv[1]), int(sys.argv[2])\n"
        "for step in range(1, 60):\n"
        "    ref = CheckpointId(generation=1, step=step)\n"
        "    with store.publishing(ref, rank, 2) as path: path.write_bytes(b'part')\n"
        "    store.point_latest()\n"
        "    if rank == 0: store.prune(2)\n"
    )
    finishers = [subprocess.Popen([sys.executable, "-c", program, tmp_path, str(r)]) for r in range(2)]
    seen = []
    while any(finisher.poll() is None for finisher in finishers):
        named = store.latest()
        assert named is not None
        seen.append(named)
        # It may be pruned between the two looks, but then the pointer has gone on.
        assert named in store.complete() or store.latest() != named
    assert [finisher.returncode for finisher in finishers] == [0, 0]
    assert len(set(seen)) > 5
    assert store.latest() == ref(1, 59)


@settings(deadline=None)  # every part is synced to a disk that others use too
@given(
    parts=st.lists(st.tuples(refs, st.integers(0, 2)), max_size=30),
    keep=st.integers(1, 3),
    protect=st.sets(refs, max_size=2),
)
def test_pruning_never_loses_what_a_restore_may_need(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[tuple[CheckpointId, int]],
    keep: int,
    protect: set[CheckpointId],
) -> None:
    store = CheckpointStore(tmp_path_factory.mktemp("store"))
    for where, rank in parts:
        publish(store, where, rank, 3)
    before = store.complete()
    removed = store.prune(keep, protect)
    after = store.complete()
    assert after == [one for one in before if one not in removed]
    assert after[:keep] == before[:keep]
    assert protect & set(before) <= set(after)
    assert not protect & set(removed)
    assert store.prune(keep, protect) == []


def lines_run(action: Callable[[], None], crash_at: int) -> int:
    """Run ``action`` counting the store's lines; at line ``crash_at`` the process dies on the spot."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename != store_module.__file__:
            return None
        if event == "line":
            count += 1
            if count == crash_at:
                os._exit(77)
        return trace

    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(None)
    return count


def dies(action: Callable[[], None], crash_at: int) -> bool:
    child = os.fork()
    if child == 0:
        lines_run(action, crash_at)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 77


@alone
def test_a_writer_that_dies_anywhere_leaves_the_old_ones_and_no_torn_part(tmp_path: Path) -> None:
    crash_at = 0
    while True:
        crash_at += 1
        store = CheckpointStore(tmp_path / str(crash_at))
        publish_all(store, ref(1, 1))
        publish(store, ref(2, 2), 0, 2)
        died = dies(lambda store=store: publish(store, ref(2, 2), 1, 2), crash_at)  # type: ignore[misc]
        found = store.complete()
        assert found in ([ref(1, 1)], [ref(2, 2), ref(1, 1)])
        for one in found:
            assert [part.read_bytes() for part in store.parts(one)] == [b"part", b"part"]
            assert [store.data_path(one, rank).read_bytes() for rank in range(2)] == [b"data", b"data"]
        if not died:
            assert found == [ref(2, 2), ref(1, 1)]
            break
        publish(store, ref(2, 2), 1, 2)  # and the next try succeeds
        assert store.complete() == [ref(2, 2), ref(1, 1)]
    assert crash_at > 10


@alone
def test_a_pruner_that_dies_anywhere_leaves_whole_checkpoints_only(tmp_path: Path) -> None:
    crash_at = 0
    while True:
        crash_at += 7
        store = CheckpointStore(tmp_path / str(crash_at))
        publish_all(store, ref(1, 1), ref(1, 2), ref(2, 3), ref(2, 4), world_size=1)
        died = dies(lambda store=store: store.prune(1) and None, crash_at)  # type: ignore[misc]
        found = store.complete()
        assert found[0] == ref(2, 4)
        for one in found:
            assert [part.read_bytes() for part in store.parts(one)] == [b"part"]
        if not died:
            assert found == [ref(2, 4)]
            break
        store.prune(1)
        assert store.complete() == [ref(2, 4)]
        assert visible(store.path) == ["gen-0002"]
    assert crash_at > 70


def test_what_is_removed_is_gone_and_the_pointer_names_one_that_is_left(
    store: CheckpointStore, tmp_path: Path
) -> None:
    publish_all(store, ref(1, 10), ref(1, 20), ref(2, 30))
    publish(store, ref(2, 40), 0, 2)
    assert store.point_latest() == ref(2, 30)
    assert store.remove([ref(2, 30), ref(2, 40), ref(3, 9)]) == [ref(2, 30), ref(2, 40)]
    assert store.complete() == [ref(1, 20), ref(1, 10)]
    assert store.latest() == ref(1, 20)
    assert visible(tmp_path) == ["gen-0001", "latest"]
    assert store.remove(store.complete()) == [ref(1, 10), ref(1, 20)]
    assert store.latest() is None
    assert visible(tmp_path) == []
