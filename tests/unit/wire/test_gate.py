"""Who floods the controller's port is kept out, and nobody else. Real sockets, many addresses of one host."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.wire import gate, portfilter
from slurm_robust.wire.gate import BAN_S, WINDOW_S, Strangers, listen
from slurm_robust.wire.keys import ClientKeys, load_server
from slurm_robust.wire.messages import Heartbeat, Phase, Ping, Pong
from slurm_robust.wire.sockets import (
    MAX_MESSAGE_BYTES,
    PIECE_BYTES,
    AgentSocket,
    ControllerSocket,
    joined,
    pieces,
)
from tests.waiting import wait_for

STRANGER = "127.0.0.2"


def connects(port: int, source: str = "127.0.0.1", target: str = "127.0.0.1") -> bool:
    """Whether the kernel of this host takes a connection; what is dropped gets no answer at all."""
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with socket.socket(family) as connection:
        connection.settimeout(0.2)
        connection.bind((source, 0))
        try:
            connection.connect((target, port))
        except TimeoutError:
            return False
        return True


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with listen(0) as listener:
        yield listener


def test_the_kernel_drops_what_comes_from_some_addresses_alone(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    dropped = [ip_address(f"127.0.0.{n}") for n in range(2, 2 + portfilter.MAX_ADDRESSES // 2)]
    portfilter.drop(listener, dropped)
    assert connects(port)
    assert not connects(port, STRANGER)
    assert not connects(port, str(dropped[-1]))
    portfilter.drop(listener, ())
    portfilter.drop(listener, ())
    assert connects(port, STRANGER)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
@pytest.mark.parametrize("others", [(), ("fe80::1", "::2", "10.0.0.1")])
def test_an_address_of_ipv6_is_dropped_as_well(listener: socket.socket, others: tuple[str, ...]) -> None:
    port = listener.getsockname()[1]
    portfilter.drop(listener, [ip_address(other) for other in others])
    assert connects(port, "::1", "::1")
    portfilter.drop(listener, [*map(ip_address, others), ip_address("::1")])
    assert not connects(port, "::1", "::1")
    assert connects(port)


def test_more_addresses_than_a_program_holds_are_no_error(listener: socket.socket) -> None:
    portfilter.drop(listener, [ip_address(2**96 + n) for n in range(2 * portfilter.MAX_ADDRESSES)])
    assert connects(listener.getsockname()[1])


class Short(socket.socket):
    """A listening socket of a kernel that has memory for programs of so many instructions."""

    most = 100

    def setsockopt(self, level: int, option: int, value: bytes, *rest: int) -> None:  # type: ignore[override]
        if isinstance(value, bytes) and struct.unpack("HL", value)[0] > self.most:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        super().setsockopt(level, option, value, *rest)


def test_without_memory_for_all_addresses_some_are_dropped() -> None:
    dropped = [ip_address(f"127.0.0.{n}") for n in range(2, 202)]
    with Short() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        portfilter.drop(listener, dropped)
        assert not connects(listener.getsockname()[1], STRANGER)
        assert connects(listener.getsockname()[1])
        listener.most = 2
        with pytest.raises(OSError, match="Cannot allocate memory"):
            portfilter.drop(listener, dropped)


def test_a_descriptor_that_is_not_a_network_connection_any_more_has_no_source() -> None:
    """ZeroMQ tells numbers of descriptors, which are used again for anything."""
    one, other = socket.socketpair()
    with one, other, socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink, socket.socket() as idle:
        ends = os.pipe()
        for number in (one.fileno(), netlink.fileno(), idle.fileno(), *ends, 1 << 20):
            assert gate._source(number) is None
        for end in ends:
            os.close(end)  # they are still ours


def test_an_address_is_the_same_however_a_socket_shows_it() -> None:
    assert portfilter.address("::ffff:10.0.0.7") == portfilter.address("10.0.0.7") == ip_address("10.0.0.7")
    assert portfilter.address("fe80::1%eth0") == ip_address("fe80::1")


def test_a_connection_that_is_there_goes_on(listener: socket.socket) -> None:
    with closing(socket.create_connection(listener.getsockname()[:2])) as known:
        served, _ = listener.accept()
        portfilter.drop(listener, [ip_address("127.0.0.1"), ip_address("::1")])
        known.sendall(b"here")
        served.settimeout(5)
        assert served.recv(4) == b"here"
        served.close()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 20)), max_size=25))
def test_only_sources_with_more_unproven_connections_than_allowed_are_kept_out(
    course: list[tuple[str, bool, int]],
) -> None:
    strangers: Strangers[str] = Strangers(3)
    now, unproven = 100.0, dict.fromkeys("abc", 0)
    for source, has_key, seconds in course:
        now += seconds
        unproven[source] += not has_key
        strangers.came(source, now)
        if has_key:
            strangers.proved(source)
    assert all(unproven[source] > 2 for source in strangers.banned(now))


def test_who_is_kept_out_may_try_again_later() -> None:
    strangers: Strangers[str] = Strangers(2)
    assert [strangers.came("a", 1.0) for _ in range(4)] == [False, False, True, False]
    assert strangers.banned(1.0) == {"a"}
    assert strangers.next_change(2.0) == BAN_S - 1.0
    assert strangers.banned(1.0 + BAN_S) == frozenset()
    assert strangers.next_change(1.0 + BAN_S) is None
    later = 1.0 + BAN_S + WINDOW_S
    assert [strangers.came("a", later) for _ in range(3)] == [False, False, True]


# -- the controller's port ---------------------------------------------------------------------------


@pytest.fixture
def controller(
    tmp_path: Path, keys: ClientKeys, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ControllerSocket]:
    monkeypatch.setattr(gate, "_MIN_UNPROVEN", 8)
    monkeypatch.setattr(gate, "_MAX_UNPROVEN", 8)
    with closing(ControllerSocket(load_server(tmp_path / "keys"))) as controller:
        yield controller


def is_served(controller: ControllerSocket, keys: ClientKeys) -> bool:
    with closing(AgentSocket(keys, f"n{os.urandom(4).hex()}")) as agent:
        agent.connect([f"tcp://127.0.0.1:{controller.port}"])
        wait_for(lambda: agent.send(Ping()))

        def answered() -> bool:
            while (received := controller.recv()) is not None:
                controller.send(received[0], Pong(epoch=1, host="h", pid=1))
            return agent.recv() is not None

        wait_for(answered)
    return True


@pytest.mark.parametrize("says", [b"", b"\xff" + bytes(8) + b"\x7f", b"GET / HTTP/1.1\r\n\r\n"])
def test_a_flood_of_a_stranger_is_ended_and_agents_are_served(
    controller: ControllerSocket, keys: ClientKeys, says: bytes
) -> None:
    held: list[socket.socket] = []

    def is_kept_out() -> bool:
        if not connects(controller.port, STRANGER):
            return True
        try:
            held.append(socket.create_connection(("127.0.0.1", controller.port), 0.2, (STRANGER, 0)))
            held[-1].sendall(says)
        except OSError:
            pass
        return False

    wait_for(is_kept_out)
    assert controller.floods == 1
    assert is_served(controller, keys)
    for connection in held:
        connection.close()


def test_agents_that_come_again_and_again_are_no_flood(
    controller: ControllerSocket, keys: ClientKeys
) -> None:
    assert all(is_served(controller, keys) for _ in range(20))
    assert controller.floods == 0


def test_a_frame_without_end_costs_no_more_than_a_piece(controller: ControllerSocket) -> None:
    """Memory for a frame is taken when its length is read, before anything is proven."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + b"\0" + bytes(31)
    frame = b"\x06" + (2 * PIECE_BYTES).to_bytes(8, "big")
    with socket.create_connection(("127.0.0.1", controller.port), 60) as stranger:
        stranger.sendall(greeting)
        stranger.sendall(frame)
        began = time.monotonic()
        while stranger.recv(4096):
            assert time.monotonic() - began < 60


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES])
def test_what_goes_in_pieces_comes_as_one(size: int) -> None:
    data = os.urandom(size)
    assert joined(pieces(data)) == data
    assert all(len(piece) <= PIECE_BYTES for piece in pieces(data))


def test_a_message_of_megabytes_comes_through_both_ways(
    controller: ControllerSocket, keys: ClientKeys
) -> None:
    heartbeat = Heartbeat(node="n1", agent="a", seq=1, epoch=1, phase=Phase.IDLE, notes=("x" * (4 << 20),))
    pong = Pong(epoch=1, host="h" * (4 << 20), pid=1)
    with closing(AgentSocket(keys, "a")) as agent:
        agent.connect([f"tcp://127.0.0.1:{controller.port}"])
        wait_for(lambda: agent.send(heartbeat))
        found: list[tuple[bytes, object]] = []
        wait_for(lambda: found.append(controller.recv()) or found[-1] is not None)
        assert found[-1][1] == heartbeat
        assert controller.send(found[-1][0], pong)
        wait_for(lambda: found.append(agent.recv()) or found[-1] is not None)
        assert found[-1] == pong


def test_a_message_beyond_all_measure_is_dropped(controller: ControllerSocket, keys: ClientKeys) -> None:
    with closing(AgentSocket(keys, "a")) as agent:
        agent.connect([f"tcp://127.0.0.1:{controller.port}"])
        notes = ("x" * MAX_MESSAGE_BYTES,)
        heartbeat = Heartbeat(node="n1", agent="a", seq=1, epoch=1, phase=Phase.IDLE, notes=notes)
        wait_for(lambda: agent.send(heartbeat))

        def dropped() -> bool:
            assert controller.recv() is None
            return controller.malformed == 1

        wait_for(dropped)


@pytest.mark.parametrize("kind", [ValueError, MemoryError, OSError])
@pytest.mark.parametrize(("thread", "work"), [("_doorkeeper", "_let_in"), ("_gate", "_hear")])
def test_whoever_listens_learns_of_the_death_of_a_thread_beside(
    controller: ControllerSocket,
    keys: ClientKeys,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Exception],
    thread: str,
    work: str,
) -> None:
    def fail(*_: object) -> NoReturn:
        raise kind("no")

    monkeypatch.setattr(getattr(controller, thread), work, fail)

    def told() -> bool:
        with closing(AgentSocket(keys, "a")) as agent:
            agent.connect([f"tcp://127.0.0.1:{controller.port}"])
            try:
                controller.recv()
            except RuntimeError as error:
                return "has died" in str(error)
            return wait_briefly(agent)

    def wait_briefly(agent: AgentSocket) -> bool:
        for item, flags in agent.pollers(writing=True):
            item.poll(100, flags)
        return False

    wait_for(told)
