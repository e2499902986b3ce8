"""Who proves to be of the job comes in, however many strangers stand there; each of them costs little."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.agent.copies import entrance
from slurm_robust.agent.copies.entrance import Entrance, WaitingConnections, _Stranger, group_of
from slurm_robust.agent.copies.notes import Notes
from slurm_robust.wire.copychannel import ChannelError, CopyChannel, Handshake, derive_key
from slurm_robust.wire.network import bind_free
from tests.waiting import wait_for

KEY = derive_key("the job's secret")
HALF = b"SRCOPY\0\1" + bytes(32)


class Descriptor:
    """As much of a socket as the book of strangers asks for."""

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number


def stranger(number: int, address: str, deadline: float = 0.0, *, silent: bool = True) -> _Stranger:
    handshake = Handshake(KEY)
    if not silent:
        handshake.receive(HALF)
    return _Stranger(Descriptor(number), address, handshake, deadline)  # type: ignore[arg-type]


ARRIVALS = st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=60)


@given(ARRIVALS, st.integers(2, 12))
def test_the_entrance_never_holds_more_connections_than_places(
    arrivals: list[tuple[str, bool]], places: int
) -> None:
    waiting = WaitingConnections(places)
    waiting.agents.add("a")
    for number, (address, silent) in enumerate(arrivals):
        before = waiting.everybody()
        leaving = waiting.add(stranger(number, address, silent=silent))
        counts = Counter(one.address for one in waiting.everybody())
        assert len(waiting) <= places
        assert max(counts.values()) <= max(1, places // 2)
        if leaving is None:
            assert len(waiting) == len(before) + 1
            continue
        # Of one address the silent leave first, then the oldest.
        same = [one for one in before if one.address == leaving.address]
        assert leaving is next((one for one in same if one.handshake.is_silent), same[0])
        others = {one.address for one in before} - {"a"}
        if leaving.address == "a" and address != "a":
            assert not others


def test_an_agents_address_leaves_last() -> None:
    waiting = WaitingConnections(4)
    waiting.agents.add("agent")
    for number in range(2):
        assert waiting.add(stranger(number, "agent")) is None
    assert waiting.add(stranger(2, "b")) is None
    assert waiting.add(stranger(3, "c")) is None
    leaving = [waiting.add(stranger(number, f"x{number}")) for number in range(4, 20)]
    assert {one.address for one in leaving if one} & {"agent"} == set()
    assert waiting.oldest() is waiting.get(0)


def test_a_stranger_who_waits_too_long_is_overdue() -> None:
    waiting = WaitingConnections(8)
    for number in range(4):
        waiting.add(stranger(number, "a", deadline=float(number)))
    assert [one.deadline for one in waiting.overdue(1.5)] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("n7", "n7"),
    ],
)
def test_addresses_of_one_host_share_their_places(address: str, group: str) -> None:
    assert group_of(address) == group


@given(st.binary(max_size=120), st.lists(st.integers(1, 40), max_size=8))
def test_a_handshake_takes_whatever_comes_in_whatever_pieces(said: bytes, pieces: list[int]) -> None:
    handshake = Handshake(KEY)
    assert handshake.is_silent
    try:
        for size in (*pieces, *[1] * len(said)):
            piece, said = said[: min(size, handshake.wants)], said[min(size, handshake.wants) :]
            if not piece:
                break
            handshake.receive(piece)
            assert handshake.wants > 0
    except ChannelError:
        pass
    assert not handshake.is_proven


# -- real connections ----------------------------------------------------------------------------------


class Hall:
    """An entrance with what came in."""

    def __init__(self) -> None:
        self.notes = Notes()
        self.inside: list[tuple[CopyChannel, str]] = []
        listener = bind_free()
        self.port = int(listener.getsockname()[1])
        self.entrance = Entrance(listener, KEY, lambda *who: self.inside.append(who), self.notes)

    def stranger(self, says: bytes = b"") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.settimeout(10.0)
        connection.sendall(says)
        return connection

    def close(self) -> None:
        self.entrance.close()
        for channel, _ in self.inside:
            channel.close()


@pytest.fixture
def hall(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hall]:
    monkeypatch.setattr(entrance, "PLACES", 20)
    made = Hall()
    yield made
    made.close()


def is_shut(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return not connection.recv(200) or is_shut(connection)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("says", [b"", HALF[:20], HALF])
def test_an_agent_comes_in_past_any_number_of_strangers(hall: Hall, says: bytes) -> None:
    standing = [hall.stranger(says) for _ in range(60)]
    wait_for(lambda: sum(map(is_shut, standing)) == 50)
    channel = CopyChannel.connect("127.0.0.1", hall.port, KEY)
    wait_for(lambda: len(hall.inside) == 1)
    assert hall.inside[0][1] == "127.0.0.1"
    (note,) = hall.notes.take()
    assert "a connection of 127.0.0.1" in note
    for one in (channel, *standing):
        one.close()


@pytest.mark.parametrize("says", [b"GET / HTTP/1.1\r\n", HALF + bytes(32), os.urandom(300)])
def test_a_stranger_is_shut_out_at_once(hall: Hall, says: bytes) -> None:
    with hall.stranger(says) as connection:
        wait_for(lambda: is_shut(connection))
    assert hall.inside == []
    (note,) = wait_for(hall.notes.take)
    assert "was refused" in note


def test_a_knock_is_not_noted(hall: Hall) -> None:
    hall.stranger().close()
    CopyChannel.connect("127.0.0.1", hall.port, KEY).close()
    wait_for(lambda: len(hall.inside) == 1)
    assert hall.notes.take() == []


def test_a_connection_that_says_too_little_in_time_is_shut_out(
    hall: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_robust.wire.copychannel.HANDSHAKE_S", 0.1)
    with hall.stranger(HALF) as connection:
        wait_for(lambda: is_shut(connection))
    assert "timed out" in wait_for(hall.notes.take)[0]


@pytest.mark.parametrize("kind", [RuntimeError, MemoryError, SystemExit])
def test_an_unexpected_error_is_noted_and_agents_come_in_again(
    hall: Hall, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    def fail(stranger: _Stranger) -> None:
        monkeypatch.undo()
        raise kind("no more of it")

    monkeypatch.setattr(hall.entrance, "_hear", fail)
    with hall.stranger(HALF) as standing:
        wait_for(lambda: is_shut(standing))
    (note,) = wait_for(hall.notes.take)
    assert f"lets in connections for copies: {kind.__name__}: no more of it; it starts again" in note
    CopyChannel.connect("127.0.0.1", hall.port, KEY).close()
    wait_for(lambda: len(hall.inside) == 1)


def test_the_end_waits_for_nobody(hall: Hall) -> None:
    with hall.stranger(HALF) as connection:
        hall.entrance.close()
        wait_for(lambda: is_shut(connection))
    with pytest.raises(ConnectionRefusedError):
        hall.stranger()
