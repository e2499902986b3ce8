"""What may go wrong between two nodes: sources that die, damage, no memory, strangers, silence."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from slurm_robust.checkpoint.image import open_image, read_header
from slurm_robust.model.copies import CheckpointId, Peer
from slurm_robust.wire import copychannel
from slurm_robust.wire.copychannel import CopyVerdict, Put
from slurm_robust.wire.messages import Phase
from tests.unit.agent.copy_nodes import (
    MIB,
    RUN,
    MakeNode,
    Node,
    check,
    connect,
    fill,
    folder_of,
    keys_in,
    peer_steps,
    with_peer,
)
from tests.unit.agent.local_job import pause
from tests.waiting import wait_for

SEED = 20260801


def put_of(node: Node, rank: int = 0, step: int = 1, **fields: object) -> Put:
    values: dict[str, object] = {
        "run_id": RUN,
        "launch": 1,
        "restore": None,
        "rank": rank,
        "checkpoint": CheckpointId(generation=1, step=step),
        "total": 2 * MIB,
    }
    return Put(**{**values, **fields})  # type: ignore[arg-type]


def buffers_in_use(node: Node) -> bool:
    here = node.service._here
    assert here is not None
    return bool(here.buffers._busy)


@contextmanager
def process(*words: str | Path) -> Iterator[tuple[subprocess.Popen[bytes], bytes]]:
    """A program of :mod:`tests.unit.agent.copy_processes` and its first line; killed at the end."""
    command = [sys.executable, "-m", "tests.unit.agent.copy_processes", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        try:
            yield running, running.stdout.readline()
        finally:
            running.kill()


def check_copies(node: Node, size: int) -> None:
    """Every image of rank 0 on this node is exactly what its source wrote."""
    for path in node.folder.path.glob("peer-00000.*"):
        header = read_header(path)
        if header is not None:
            check(path, 0, header.step, size=size)


@pytest.mark.slow
def test_a_source_killed_in_mid_stream_leaves_the_older_copy(make: MakeNode, shm: Path, job: Path) -> None:
    rng = random.Random(SEED)
    sink = make("sink")
    for _ in range(5):
        sink.launch(1, (1,))
        with process("source", shm, job, str(sink.service.port), "32"):
            wait_for(lambda: len(sink.peer_steps(0)) == 2)
            pause(rng.uniform(0, 0.2))
        wait_for(lambda: not buffers_in_use(sink))
        assert sink.peer_steps(0)
        check_copies(sink, 32 * MIB)
        for path in (*sink.folder.path.glob("peer-*"), *(shm / "source").rglob("own-*")):
            path.unlink()


@pytest.mark.slow
def test_an_agent_killed_while_it_receives_leaves_no_torn_copy(make: MakeNode, shm: Path, job: Path) -> None:
    rng = random.Random(SEED)
    for _ in range(3):
        with (
            process("sink", shm, job) as (sink, port),
            process("source", shm, job, port.decode().strip(), "32"),
        ):
            wait_for(lambda: len(peer_steps(folder_of("sink", shm), 0)) == 2)
            pause(rng.uniform(0, 0.2))
            sink.kill()
            sink.wait()
        again = make("sink")
        assert again.service.inventory()
        check_copies(again, 32 * MIB)
        again.close()


def test_a_torn_copy_is_ignored_and_the_other_one_stays(make: MakeNode, job: Path) -> None:
    b = make("b")
    b.launch(1, (1,))
    fill(b.folder.peer(0, 0), 0, 1, 1, MIB)
    fill(b.folder.peer(0, 1), 0, 2, 1, MIB)
    channel = connect(b, job)
    channel.send(put_of(b, step=3))
    assert channel.answer().verdict is CopyVerdict.GO
    channel._socket.sendall(bytes(100_000))
    assert b.peer_steps(0) == {(1, 2)}
    channel.close()
    wait_for(lambda: not buffers_in_use(b))
    assert b.peer_steps(0) == {(1, 2)}


def test_damage_on_the_way_is_found_and_reported(make: MakeNode, job: Path, shm: Path) -> None:
    b = make("b")
    b.launch(1, (1,))
    source = fill(shm / "image", 0, 1, 1, MIB)
    content = bytearray(source.read_bytes())
    total = open_image(source).nbytes
    content[total // 2] ^= 1
    channel = connect(b, job)
    channel.send(put_of(b, total=total))
    assert channel.answer().verdict is CopyVerdict.GO
    channel._socket.sendall(content[8:total])
    answer = channel.answer()
    assert answer.verdict is CopyVerdict.REFUSED
    assert "checksum" in answer.reason
    assert b.peer_steps(0) == set()
    channel.close()


def test_what_is_not_what_was_announced_does_not_stay(make: MakeNode, job: Path, shm: Path) -> None:
    b = make("b")
    b.launch(1, (1,))
    source = fill(shm / "image", 5, 1, 1, MIB)
    image = open_image(source)
    channel = connect(b, job)
    channel.send(put_of(b, total=image.nbytes))
    channel.answer()
    channel.send_file(image.fileno, image.nbytes, None)
    assert "not what was announced" in channel.answer().reason
    assert b.service.inventory() == ()
    channel.close()
    image.close()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"run_id": "8-x"}, "this is run 7-abcd"),
        ({"launch": 2}, "generation 2 does not run here"),
        ({"launch": 0}, "generation 0 does not run here"),
        ({"total": 2**50}, "no image has"),
        ({"total": 10}, "no image has"),
        ({"rank": -1}, "no image has"),
        ({"total": 2**43}, "has no room"),
    ],
)
def test_what_does_not_belong_here_is_refused(
    make: MakeNode, job: Path, fields: dict[str, object], words: str
) -> None:
    b = make("b")
    b.launch(1, (1,))
    fill(b.folder.peer(0, 0), 0, 1, 1, MIB)
    fill(b.folder.peer(0, 1), 0, 2, 1, MIB)
    channel = connect(b, job)
    channel.send(put_of(b, **{"step": 9, **fields}))
    answer = channel.answer()
    assert answer.verdict is CopyVerdict.REFUSED
    assert words in answer.reason
    assert b.peer_steps(0) == {(1, 1), (1, 2)}
    channel.close()


def test_after_a_stop_nothing_new_is_taken_in(make: MakeNode, job: Path) -> None:
    b = make("b")
    b.launch(1, (1,))
    b.service.follow(Phase.RUNNING, 1)
    under_way = connect(b, job)
    under_way.send(put_of(b, rank=3))
    assert under_way.answer().verdict is CopyVerdict.GO
    b.service.follow(Phase.STOPPING, 1)
    channel = connect(b, job)
    channel.send(put_of(b))
    assert "none does" in channel.answer().reason
    channel.close()
    under_way.close()


def test_one_copy_of_a_rank_at_a_time(make: MakeNode, job: Path) -> None:
    b = make("b")
    b.launch(1, (1,))
    first, second = connect(b, job), connect(b, job)
    first.send(put_of(b))
    assert first.answer().verdict is CopyVerdict.GO
    second.send(put_of(b, step=2))
    answer = second.answer()
    assert (answer.verdict, answer.later) == (CopyVerdict.REFUSED, True)
    first.close()
    second.close()


def test_a_full_memory_is_told_and_costs_no_copy(make: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = make("a"), make("b")
    b.launch(1, (1,))
    fill(b.folder.peer(0, 0), 0, 1, 1, MIB)
    fill(b.folder.peer(0, 1), 0, 2, 1, MIB)
    monkeypatch.setattr("slurm_robust.agent.copies.server._RESERVE", 1.0)
    a.launch(1, (0,), peers=(b.peer(0),))
    a.snapshot(0, 3, size=4 * MIB)
    note = wait_for(a.service.notes)
    assert "b takes no copy of rank 0: its" in note[0]
    assert "has no room for" in note[0]
    assert b.peer_steps(0) == {(1, 1), (1, 2)}


def test_a_buffer_that_is_being_read_is_not_refilled(make: MakeNode) -> None:
    a, b = make("a"), make("b")
    b.launch(1, (1,))
    reading = open_image(fill(b.folder.peer(0, 0), 0, 1, 1, MIB))
    fill(b.folder.peer(0, 1), 0, 2, 1, MIB)
    a.launch(1, (0,), peers=(b.peer(0),))
    a.snapshot(0, 3)
    pause(0.3)
    assert b.peer_steps(0) == {(1, 1), (1, 2)}
    reading.close()
    wait_for(lambda: b.peer_steps(0) == {(1, 2), (1, 3)})


def test_a_removed_buffer_is_made_anew(make: MakeNode) -> None:
    """A reader that finds a copy damaged removes its file."""
    a, b = with_peer(make)
    for step in range(4):
        a.snapshot(0, step)
        wait_for(lambda step=step: (1, step) in b.peer_steps(0))
        for path in b.folder.path.glob("peer-*"):
            path.unlink()
    assert a.service.notes() == []


def test_strangers_cost_a_line_and_keep_nobody_out(make: MakeNode) -> None:
    a, b = make("a"), make("b")
    b.launch(1, (1,))
    silent = [socket.create_connection(("127.0.0.1", b.service.port)) for _ in range(200)]
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", b.service.port)) as garbage:
            garbage.sendall(os.urandom(500))
    a.launch(1, (0,), peers=(b.peer(0),))
    a.snapshot(0, 1)
    wait_for(lambda: b.peer_steps(0) == {(1, 1)})
    (note,) = wait_for(b.service.notes)
    assert "to this node's copies was refused" in note
    for connection in silent:
        connection.close()


def test_a_wrong_key_is_noted_on_both_sides(make: MakeNode, shm: Path, tmp_path: Path) -> None:
    b = make("b")
    b.launch(1, (1,))
    other = tmp_path / "other"
    other.mkdir()
    with closing(Node("a", shm, other, keys_in(other))) as a:
        a.launch(1, (0,), peers=(b.peer(0),))
        a.snapshot(0, 1)
        assert "does not hold this job's key" in wait_for(a.service.notes)[0]
        assert "was refused" in wait_for(b.service.notes)[0]
        assert b.peer_steps(0) == set()


def test_training_is_not_held_by_a_peer_that_hangs(make: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copychannel, "PROGRESS_S", 0.3)
    a = make("a")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        peer = Peer(rank=0, node="deaf", address="127.0.0.1", port=deaf.getsockname()[1])
        monkeypatch.setattr(copychannel, "HANDSHAKE_S", 0.3)
        a.launch(1, (0,), peers=(peer,))
        for step in range(5):
            a.snapshot(0, step)
        assert "timed out" in wait_for(a.service.notes)[0]
        for limit in ("PROGRESS_S", "HANDSHAKE_S"):
            monkeypatch.setattr(copychannel, limit, 600.0)  # of what is tried from now on
        began = time.monotonic()
        a.service.launched(a.launch(2, (0,)))
        a.close()
        assert time.monotonic() - began < 60


def test_a_node_with_too_many_threads_refuses_and_takes_the_next(make: MakeNode, job: Path) -> None:
    node = make("a")
    before = threading.stack_size(1 << 47)  # no thread gets as much
    try:
        refused = connect(node, job)
        with pytest.raises(OSError, match="closed"):
            refused.answer()
    finally:
        threading.stack_size(before)
    refused.close()
    assert any("can't start new thread" in note for note in wait_for(node.service.notes))
    accepted = connect(node, job)
    accepted.send(put_of(node))
    assert accepted.answer().verdict is CopyVerdict.REFUSED, "no generation runs here"
    accepted.close()
