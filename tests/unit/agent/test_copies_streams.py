"""An image that goes over several connections arrives whole or not at all."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slurm_robust.agent.copies import streams
from slurm_robust.agent.copies.streams import MAX_STREAMS, MOST_STREAMS, STREAM_BYTES_S, streams_for
from slurm_robust.checkpoint.image import open_image, read_header
from slurm_robust.model.copies import Peer, Tier
from slurm_robust.wire import copychannel
from slurm_robust.wire.copychannel import (
    ChannelError,
    CopyAnswer,
    CopyChannel,
    CopyVerdict,
    Get,
    Join,
    Put,
    derive_key,
)
from tests.builders.checkpoints import ref
from tests.unit.agent.copy_nodes import MIB, RUN, MakeNode, Node, check, connect, fill, keys_in
from tests.waiting import wait_for

PIECE = MIB // 8
SIZE = 4 * MIB
PIECES = SIZE // PIECE + 1  # with the header's page

Serve = Callable[[int, CopyChannel], None]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PIECE_BYTES", PIECE)


class OnTheWire:
    """Sends pieces, and has the first connection wait for the second one, however busy the machine is."""

    def __init__(self) -> None:
        self.breaks = False
        self.is_slow = False
        """The second one takes as long for its first piece as the first one for all others."""
        self.sent: list[CopyChannel] = []
        self._all_others = threading.Event()
        self._lock = threading.Lock()
        self._second = threading.Event()
        self._first: CopyChannel | None = None
        self._real = CopyChannel.send_piece

    def send(self, channel: CopyChannel, file: int, at: int, count: int, *pace: Any) -> None:
        with self._lock:
            is_new, self._first = self._first is None, self._first or channel
            is_second = channel is not self._first
            breaks, self.breaks = self.breaks and is_second, self.breaks and not is_second
        if is_second:
            self._second.set()
        elif not is_new:
            self._second.wait(copychannel.PROGRESS_S / 2)
        if breaks:
            channel._socket.sendall(copychannel._SPAN.pack(at, count) + os.pread(file, count // 2, at))
            channel.abort()
            raise ChannelError("broken in the middle")
        if is_second and self.is_slow:
            self._all_others.wait(copychannel.PROGRESS_S / 2)
        self._real(channel, file, at, count, *pace)
        with self._lock:
            self.sent.append(channel)
            if len(self.sent) == PIECES - 1:
                self._all_others.set()


@pytest.fixture(autouse=True)
def on_the_wire(monkeypatch: pytest.MonkeyPatch) -> OnTheWire:
    wire = OnTheWire()
    monkeypatch.setattr(CopyChannel, "send_piece", lambda *args: wire.send(*args))
    return wire


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> list[CopyChannel]:
    """The connection of each piece that came."""
    found: list[CopyChannel] = []
    real = CopyChannel.receive_piece

    def receive_piece(channel: CopyChannel, view: memoryview) -> int:
        count = real(channel, view)
        if count:
            found.append(channel)
        return count

    monkeypatch.setattr(CopyChannel, "receive_piece", receive_piece)
    return found


def to_peer(make: MakeNode, number: int, **fields: object) -> tuple[Node, Node]:
    """Two launched nodes; copies of the first one's rank go to the second over ``number`` connections."""
    a, b = make("a", peer_streams=number), make("b")
    b.launch(1, (1,))
    a.launch(1, (0,), peers=(b.peer(0),), **fields)
    return a, b


def arrives(a: Node, b: Node, step: int) -> Path:
    a.snapshot(0, step, size=SIZE)
    wait_for(lambda: (1, step) in b.peer_steps(0))
    return next(p for p in b.folder.path.glob("peer-00000.*") if (h := read_header(p)) and h.step == step)


@pytest.mark.parametrize("number", [2, 4, 16])
def test_copies_over_several_connections_are_the_snapshots(
    make: MakeNode, carried: list[CopyChannel], number: int
) -> None:
    a, b = to_peer(make, number)
    for step in range(3):
        check(arrives(a, b, step), 0, step, size=SIZE)
    assert 2 <= len(set(carried)) <= number  # they stay open from one snapshot to the next
    assert len(carried) == 3 * -(-open_size(b) // PIECE)
    assert (a.service.notes(), b.service.notes()) == ([], [])


def open_size(node: Node) -> int:
    with closing(open_image(next(node.folder.path.glob("peer-00000.*")))) as image:
        return image.nbytes - copychannel.FIRST_BYTE


def test_a_slow_way_gets_fewer_pieces(make: MakeNode, on_the_wire: OnTheWire) -> None:
    on_the_wire.is_slow = True
    a, b = to_peer(make, 2)
    check(arrives(a, b, 1), 0, 1, size=SIZE)
    slow = on_the_wire.sent[-1]
    assert len(on_the_wire.sent) == PIECES
    assert on_the_wire.sent.count(slow) == 1


def test_a_part_is_fetched_over_several_connections(make: MakeNode, carried: list[CopyChannel]) -> None:
    a, b = make("a"), make("b", peer_streams=4)
    fill(a.folder.own(0, 0), 0, 5, 1, SIZE)
    b.launch(2, (0,), restore=ref(1, 5), sources=(a.source(0, tier=Tier.MEMORY),))
    wait_for(lambda: b.folder.fetched(0).exists() and read_header(b.folder.fetched(0)))
    check(b.folder.fetched(0), 0, 5, size=SIZE)
    assert 2 <= len(set(carried)) <= 4


def test_a_small_image_goes_over_one_connection(make: MakeNode, carried: list[CopyChannel]) -> None:
    a, b = to_peer(make, 4)
    a.snapshot(0, 1, size=PIECE)
    wait_for(lambda: (1, 1) in b.peer_steps(0))
    assert carried == []


@pytest.fixture
def breaks_once(on_the_wire: OnTheWire) -> Iterator[None]:
    """One connection breaks in the middle of its first piece, after others have carried some."""
    on_the_wire.breaks = True
    yield
    assert not on_the_wire.breaks


@pytest.mark.usefixtures("breaks_once")
def test_a_connection_that_breaks_in_the_middle_costs_one_try(make: MakeNode) -> None:
    a, b = to_peer(make, 3)
    check(arrives(a, b, 1), 0, 1, size=SIZE)
    notes = wait_for(a.service.notes)
    assert all("copies of rank 0 do not reach b" in n or "one of several connections" in n for n in notes)
    check(arrives(a, b, 2), 0, 2, size=SIZE)


@pytest.mark.usefixtures("breaks_once")
def test_after_a_break_one_connection_is_used_alone(make: MakeNode, carried: list[CopyChannel]) -> None:
    a, b = to_peer(make, 3)
    arrives(a, b, 1)
    before = len(carried)
    arrives(a, b, 2)
    assert len(carried) == before


def test_a_break_in_the_middle_leaves_the_copy_before(make: MakeNode, job: Path, shm: Path) -> None:
    b = make("b")
    b.launch(1, (1,))
    fill(b.folder.peer(0, 0), 0, 1, 1, SIZE)
    fill(b.folder.peer(0, 1), 0, 2, 1, SIZE)
    source = fill(shm / "image", 0, 3, 1, SIZE)
    with agreed(b, job, source, 2) as (main, (side,), _), source.open("rb") as file:
        main.send_piece(file.fileno(), 8, PIECE, None)
        side._socket.sendall(copychannel._SPAN.pack(8 + PIECE, PIECE))
        side.abort()
        with pytest.raises(OSError):  # noqa: PT011
            main.answer()
    wait_for(lambda: b.peer_steps(0) == {(1, 2)})


@pytest.mark.usefixtures("breaks_once")
def test_a_fetch_whose_connection_breaks_is_tried_again_over_one(make: MakeNode) -> None:
    a, b = make("a"), make("b", peer_streams=3)
    fill(a.folder.own(0, 0), 0, 5, 1, SIZE)
    b.launch(2, (0,), restore=ref(1, 5), sources=(a.source(0, tier=Tier.MEMORY),))
    wait_for(lambda: b.folder.fetched(0).exists() and read_header(b.folder.fetched(0)))
    check(b.folder.fetched(0), 0, 5, size=SIZE)


@contextmanager
def agreed(
    node: Node, job: Path, source: Path, number: int
) -> Iterator[tuple[CopyChannel, list[CopyChannel], int]]:
    """Connections over which ``node`` takes the pieces of the image ``source`` of rank 0, and its bytes."""
    with closing(open_image(source)) as image:
        total, checkpoint = image.nbytes, image.header.checkpoint
    main = connect(node, job)
    put = Put(run_id=RUN, launch=1, restore=None, rank=0, checkpoint=checkpoint, total=total, streams=number)
    main.send(put)
    go = main.answer()
    assert (go.verdict, go.streams) == (CopyVerdict.GO, number)
    sides = [connect(node, job) for _ in range(number - 1)]
    for side in sides:
        side.send(Join(ticket=go.ticket))
        assert side.answer().verdict is CopyVerdict.GO
    yield main, sides, total
    for channel in (main, *sides):
        channel.close()


def test_pieces_in_the_reverse_order_make_up_the_image(make: MakeNode, job: Path, shm: Path) -> None:
    b = make("b")
    b.launch(1, (1,))
    source = fill(shm / "image", 0, 1, 1, SIZE)
    with agreed(b, job, source, 3) as (main, sides, total), source.open("rb") as file:
        for number, at in enumerate(reversed(range(8, total, PIECE))):
            sides[number % 2].send_piece(file.fileno(), at, min(PIECE, total - at), None)
        main.end_pieces()  # before the others, and without a piece
        for side in sides:
            side.end_pieces()
        assert main.answer().verdict is CopyVerdict.GO
    (path,) = b.folder.path.glob("peer-00000.*")
    check(path, 0, 1, size=SIZE)


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([(8, 100)], "do not make up the image"),
        ([(0, 100)], "is not in an image"),
        ([(2**63, 100)], "is not in an image"),
        ([(8 + SIZE, 2**32 - 1)], "is not in an image"),
    ],
    ids=["missing", "before", "beyond", "too long"],
)
def test_pieces_that_are_not_the_image_end_the_copy(
    make: MakeNode, job: Path, shm: Path, pieces: list[tuple[int, int]], words: str
) -> None:
    b = make("b")
    b.launch(1, (1,))
    source = fill(shm / "image", 0, 1, 1, SIZE)
    with agreed(b, job, source, 2) as (main, (side,), _):
        for at, count in pieces:
            main._socket.sendall(copychannel._SPAN.pack(at, count))
            if at == 8:
                main._socket.sendall(bytes(count))
        main._socket.sendall(copychannel._SPAN.pack(0, 0))
        side.end_pieces()
        with pytest.raises(OSError):  # noqa: PT011
            main.answer()
    assert words in wait_for(b.service.notes)[0]
    assert b.peer_steps(0) == set()


def test_damage_on_one_of_several_connections_is_found(make: MakeNode, job: Path, shm: Path) -> None:
    b = make("b")
    b.launch(1, (1,))
    source = fill(shm / "image", 0, 1, 1, SIZE)
    damaged = bytearray(source.read_bytes())
    damaged[SIZE // 2] ^= 1
    (shm / "damaged").write_bytes(damaged)
    with agreed(b, job, source, 2) as (main, (side,), total), (shm / "damaged").open("rb") as file:
        half = total // 2
        main.send_piece(file.fileno(), 8, half - 8, None)
        side.send_piece(file.fileno(), half, total - half, None)
        for channel in (main, side):
            channel.end_pieces()
        answer = main.answer()
    assert answer.verdict is CopyVerdict.REFUSED
    assert "checksum" in answer.reason
    assert b.peer_steps(0) == set()


def test_a_ticket_of_no_copy_is_refused_and_the_connection_goes_on(make: MakeNode, job: Path) -> None:
    b = make("b")
    channel = connect(b, job)
    for _ in range(2):
        channel.send(Join(ticket="0" * 32))
        assert channel.answer().verdict is CopyVerdict.REFUSED
    channel.close()


def test_a_peer_with_many_connections_grants_one(
    make: MakeNode, job: Path, carried: list[CopyChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_robust.agent.copies.server._CROWDED", 1)
    a, b = to_peer(make, 4)
    check(arrives(a, b, 1), 0, 1, size=SIZE)
    assert carried == []


# -- agents of releases that know of one connection only -----------------------------------------------


class OldPut(msgspec.Struct, tag_field="kind", tag="put", kw_only=True):
    run_id: str
    launch: int
    restore: None
    rank: int
    checkpoint: object
    total: int


class OldAnswer(msgspec.Struct, tag_field="kind", tag="answer", kw_only=True):
    verdict: CopyVerdict
    reason: str = ""
    total: int = 0
    later: bool = False


def old_send(channel: CopyChannel, message: msgspec.Struct) -> None:
    content = msgspec.msgpack.encode(message)
    channel._socket.sendall(len(content).to_bytes(4, "little") + content)


def test_a_peer_that_knows_of_one_connection_only_gets_the_image_over_one(make: MakeNode, job: Path) -> None:
    a, arrived = make("a", peer_streams=4), bytearray()

    def serve(listener: socket.socket) -> None:
        channel = CopyChannel.accept(listener.accept()[0], derive_key(keys_in(job).client.secret))
        put = channel.request()
        assert isinstance(put, Put)
        arrived.extend(bytes(put.total - 8))
        old_send(channel, OldAnswer(verdict=CopyVerdict.GO))
        with memoryview(arrived) as view:
            channel.receive_into(view)
        old_send(channel, OldAnswer(verdict=CopyVerdict.GO))
        assert channel.request() is None

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        peer = Peer(rank=0, node="old", address="127.0.0.1", port=listener.getsockname()[1])
        a.launch(1, (0,), peers=(peer,))
        path = a.snapshot(0, 1, size=SIZE)
        wait_for(lambda: a.service.news().lag_s > 0)
        a.close(remove=False)
        thread.join(60)
    with closing(open_image(path)) as image:
        assert bytes(arrived) == path.read_bytes()[8 : image.nbytes]


def test_an_agent_that_asks_for_one_connection_only_is_served_as_ever(
    make: MakeNode, job: Path, shm: Path
) -> None:
    b = make("b")
    b.launch(1, (1,))
    source = fill(shm / "image", 0, 1, 1, SIZE)
    channel = connect(b, job)
    with closing(open_image(source)) as image:
        checkpoint = {"generation": 1, "step": 1}
        old_send(
            channel,
            OldPut(run_id=RUN, launch=1, restore=None, rank=0, checkpoint=checkpoint, total=image.nbytes),
        )
        assert channel.answer() == CopyAnswer(verdict=CopyVerdict.GO)
        channel.send_file(image.fileno, image.nbytes, None)
        assert channel.answer().verdict is CopyVerdict.GO
    channel.close()
    (path,) = b.folder.path.glob("peer-00000.*")
    check(path, 0, 1, size=SIZE)


def test_a_source_that_knows_of_one_connection_only_is_fetched_from_over_one(
    make: MakeNode, job: Path
) -> None:
    b = make("b", peer_streams=4)
    source = fill(b.base / "image", 0, 5, 1, SIZE)

    def serve(listener: socket.socket) -> None:
        channel = CopyChannel.accept(listener.accept()[0], derive_key(keys_in(job).client.secret))
        assert isinstance(channel.request(), Get)
        with closing(open_image(source)) as image:
            old_send(channel, OldAnswer(verdict=CopyVerdict.GO, total=image.nbytes))
            assert channel.answer().verdict is CopyVerdict.GO
            channel.send_file(image.fileno, image.nbytes, None)
            assert channel.answer().verdict is CopyVerdict.GO

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        peer = Peer(rank=0, node="old", address="127.0.0.1", port=listener.getsockname()[1])
        found = msgspec.structs.replace(b.source(0, tier=Tier.MEMORY), port=peer.port)
        b.launch(2, (0,), restore=ref(1, 5), sources=(found,))
        wait_for(lambda: b.folder.fetched(0).exists() and read_header(b.folder.fetched(0)))
        thread.join(60)
    check(b.folder.fetched(0), 0, 5, size=SIZE)


# -- how many ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gigabits", "images", "asked", "expected"),
    [
        (5, 1, 0, 1),
        (10, 1, 0, 2),
        (25, 8, 0, 1),
        (100, 8, 0, 3),
        (100, 1, 0, MAX_STREAMS),
        (400, 8, 0, 6),
        (0, 1, 0, 5),
        (0, 8, 0, 1),
        (1, 1, 4, 4),
        (1, 8, 16, 6),
        (1, 100, 16, 1),
        (1, 0, 0, 1),
    ],
)
def test_as_many_connections_as_fill_the_interface(
    gigabits: float, images: int, asked: int, expected: int
) -> None:
    assert streams_for(gigabits * 1e9 / 8, images, asked) == expected


def test_the_connections_of_a_node_are_bounded() -> None:
    assert all(n * streams_for(1e12, n, 16) <= MOST_STREAMS for n in range(1, MOST_STREAMS + 1))
    assert STREAM_BYTES_S < 1e9
