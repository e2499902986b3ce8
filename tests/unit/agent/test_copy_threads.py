"""Every thread of copies that raises something unexpected is noted, and starts again or gives its work up."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_robust.agent.copies import sender
from slurm_robust.agent.copies.flush import StorageWriter
from slurm_robust.agent.copies.leftovers import remove_leftovers
from slurm_robust.agent.copies.notes import Notes
from slurm_robust.agent.copies.server import CopyServer
from slurm_robust.agent.copies.watch import BufferScan
from slurm_robust.checkpoint.local import LocalCopies
from slurm_robust.model.copies import CheckpointId, Tier
from slurm_robust.wire.copychannel import CopyChannel
from tests.unit.agent.copy_nodes import MIB, MakeNode, Node, fill, with_peer
from tests.waiting import wait_for

Breaking = Callable[..., None]


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> Breaking:
    """Makes the next call of something raise an error that nobody expects there."""

    def patch(owner: object, name: str, kind: type[BaseException] = RuntimeError) -> None:
        real = getattr(owner, name)

        def broken(*args: Any, **kwargs: Any) -> None:
            monkeypatch.setattr(owner, name, real)
            raise kind("broken")

        monkeypatch.setattr(owner, name, broken)

    return patch


@pytest.fixture
def no_threads() -> Iterator[None]:
    """This process can start no thread: none has room for its stack."""
    before = threading.stack_size(1 << 46)
    yield
    threading.stack_size(before)


def note_of(node: Node) -> str:
    (note,) = wait_for(node.service.notes)
    return str(note)


@pytest.mark.parametrize("kind", [RuntimeError, OSError, MemoryError, SystemExit])
def test_a_scan_that_fails_is_noted_and_snapshots_are_copied_again(
    make: MakeNode, breaks: Breaking, kind: type[BaseException]
) -> None:
    a, b = make("a"), make("b")
    breaks(BufferScan, "images", kind)
    b.launch(1, (1,))
    a.launch(1, (0,), peers=(b.peer(0),))
    notes = [*wait_for(lambda: a.service.notes() or b.service.notes())]
    a.snapshot(0, 1)
    wait_for(lambda: b.peer_steps(0) == {(1, 1)})
    expected = f"an unexpected error in the thread that finds new snapshots: {kind.__name__}: broken"
    assert notes == [f"{expected}; it starts again"]


@pytest.mark.parametrize("kind", [RuntimeError, MemoryError, SystemExit])
def test_a_sender_that_fails_is_noted_and_sends_the_same_snapshot(
    make: MakeNode, breaks: Breaking, kind: type[BaseException]
) -> None:
    a, b = with_peer(make)
    breaks(sender, "open_image", kind)
    a.snapshot(0, 1)
    note = note_of(a)
    wait_for(lambda: b.peer_steps(0) == {(1, 1)})
    assert note == (
        f"an unexpected error in the thread that copies rank 0 to b: {kind.__name__}: broken; it starts again"
    )


@pytest.mark.parametrize("kind", [RuntimeError, MemoryError, SystemExit])
def test_a_flush_that_fails_is_noted_and_ends_and_the_next_one_is_written(
    make: MakeNode, breaks: Breaking, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    answer = "import sys\nfor line in sys.stdin: print('{\"ok\": true}', flush=True)"
    real = StorageWriter.__init__
    monkeypatch.setattr(StorageWriter, "__init__", lambda it: real(it, (sys.executable, "-c", answer)))
    node = make("a")
    node.launch(1, (0,))
    breaks(StorageWriter, "write", kind)
    node.service.ask_flush(7)
    node.snapshot(0, 7)
    assert f"puts snapshots on disk and storage: {kind.__name__}: broken; it starts again" in note_of(node)
    assert node.service.flush_over == 7  # workers need not keep it
    assert node.service.news().flushed == -1
    node.service.ask_flush(8)
    node.snapshot(0, 8)
    wait_for(lambda: node.service.news().flushed == 8)


def test_a_disk_that_cannot_be_read_or_written_is_noted(
    make: MakeNode, breaks: Breaking, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    breaks(LocalCopies, "inventory")
    node = make("a", places={Tier.LOCAL: str(tmp_path / "disk")}, keep=2)
    assert "reads which copies the disk holds: RuntimeError: broken; its work is given up" in note_of(node)
    node.launch(1, (0,))
    breaks(LocalCopies, "publish")
    monkeypatch.setattr(StorageWriter, "write", lambda it, order: "")
    node.service.ask_flush(7)
    node.snapshot(0, 7)
    assert "copies snapshots to this node's disk: RuntimeError: broken" in note_of(node)
    wait_for(lambda: node.service.news().flushed == 7)
    node.service.ask_flush(8)
    node.snapshot(0, 8)
    wait_for(lambda: [c.step for c in node.service.inventory() if c.tier is Tier.LOCAL] == [8])


def test_a_fetch_that_fails_is_noted_and_the_worker_reads_why(make: MakeNode, breaks: Breaking) -> None:
    a, b = make("a"), make("b")
    fill(a.folder.own(0, 0), 0, 5, 1, MIB)
    breaks(CopyChannel, "connect")
    source = a.source(0, tier=Tier.MEMORY)
    b.launch(2, (0,), restore=CheckpointId(generation=1, step=5), sources=(source,))
    wait_for(b.folder.fetch_error(0).exists)
    assert "unexpected error, see the agent's output" in b.folder.fetch_error(0).read_text()
    assert "fetches parts of gen-0001/step-00000005: RuntimeError: broken" in note_of(b)


def test_a_connection_whose_thread_fails_is_noted_and_closed(make: MakeNode, breaks: Breaking) -> None:
    a, b = make("a"), make("b")
    b.launch(1, (1,))
    breaks(CopyServer, "_handle")
    a.launch(1, (0,), peers=(b.peer(0),))
    a.snapshot(0, 1)
    assert "serves a connection of 127.0.0.1: RuntimeError: broken; its work is given up" in note_of(b)
    wait_for(lambda: b.peer_steps(0) == {(1, 1)})


def test_a_search_for_leftovers_that_fails_is_noted(tmp_path: Path) -> None:
    (tmp_path / f"srobust-{os.getuid()}-4711-abc-copies").mkdir()
    notes = Notes()

    def make() -> Any:
        raise ZeroDivisionError("broken")

    thread = remove_leftovers((tmp_path / "own",), notes, make)
    assert thread is not None
    thread.join(60)
    (note,) = notes.take()
    assert "removes what other jobs have left: ZeroDivisionError: broken" in note


def test_work_that_always_fails_is_noted_once_and_ends_when_it_is_stopped() -> None:
    notes, stopped, calls = Notes(), threading.Event(), threading.Semaphore(0)

    def work() -> None:
        calls.release()
        raise RuntimeError("broken")

    thread = notes.start_thread("x", "does x", work, stopped)
    assert thread is not None
    assert calls.acquire(timeout=60)
    assert calls.acquire(timeout=60)
    stopped.set()
    thread.join(60)
    assert len(notes.take()) == 1


@pytest.mark.usefixtures("no_threads")
def test_a_node_with_too_many_threads_gives_copies_up_and_says_so(make: MakeNode, shm: Path) -> None:
    node = make("a", places={Tier.LOCAL: str(shm / "disk")}, keep=2)
    restore = CheckpointId(generation=1, step=5)
    node.launch(2, (0,), restore=restore, peers=(node.peer(1),), sources=(node.source(0, tier=Tier.MEMORY),))
    node.service.ask_flush(7)
    assert node.service.flush_over == 7
    assert "too many threads" in node.folder.fetch_error(0).read_text()
    notes = node.service.notes()
    assert all("cannot be started: can't start new thread" in note for note in notes)
    for task in ("lets in", "reads which", "fetches parts", "copies rank 1", "finds new", "puts snapshots"):
        assert sum(f"the thread that {task}" in note for note in notes) == 1
