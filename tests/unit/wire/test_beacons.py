"""Beacons arrive from processes of the job only, and show within three intervals that one has stopped."""

from __future__ import annotations

import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.wire.beacons import BeaconReceiver, BeaconSender, decode, encode
from tests.waiting import wait_for

KEY = "a public key that no message shows"
INTERVAL_S = 0.02


def free_port() -> int:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def receiver(port: int) -> Iterator[BeaconReceiver]:
    with closing(BeaconReceiver(KEY, port, INTERVAL_S, 3 * INTERVAL_S)) as found:
        yield found


def send(port: int, *datagrams: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for datagram in datagrams:
            sender.sendto(datagram, ("127.0.0.1", port))


@given(st.text(min_size=1, max_size=80), st.integers(0, 2**64 - 1))
def test_what_was_encoded_is_decoded(agent: str, seq: int) -> None:
    try:
        agent.encode()
    except UnicodeEncodeError:
        return
    assert decode(KEY.encode(), encode(KEY.encode(), agent, seq)) == (agent, seq)


@given(st.binary(max_size=300))
def test_no_other_bytes_are_a_beacon(garbage: bytes) -> None:
    assert decode(KEY.encode(), garbage) is None


@pytest.mark.parametrize("place", range(0, 30, 3))
def test_a_beacon_of_which_one_byte_is_changed_is_none(place: int) -> None:
    beacon = bytearray(encode(KEY.encode(), "n1-100", 7))
    beacon[place] ^= 1
    assert decode(KEY.encode(), bytes(beacon)) is None
    assert decode(b"another key", encode(KEY.encode(), "n1-100", 7)) is None


def hears(receiver: BeaconReceiver) -> bool:
    return "n1-100" in receiver.ages()


def test_beacons_of_an_agent_keep_its_age_small(receiver: BeaconReceiver, port: int) -> None:
    with closing(BeaconSender(KEY, "n1-100", INTERVAL_S)) as sender:
        sender.aim(f"tcp://127.0.0.1:{port}")
        wait_for(lambda: "n1-100" in receiver.ages())
        begun = time.monotonic()
        while time.monotonic() - begun < 0.5:
            assert receiver.ages()["n1-100"] < 0.4
            select.select([receiver.fileno()], [], [], 0.05)


def test_the_loop_is_woken_while_an_agent_is_overdue(receiver: BeaconReceiver, port: int) -> None:
    send(port, encode(KEY.encode(), "n1-100", 1))
    wait_for(lambda: receiver.ages().get("n1-100", 0.0) > 3 * INTERVAL_S)
    for _ in range(3):
        receiver.ages()
        assert select.select([receiver.fileno()], [], [], 5.0)[0], "nobody is told that it stays overdue"


def test_old_and_foreign_beacons_change_nothing(receiver: BeaconReceiver, port: int) -> None:
    old = encode(KEY.encode(), "n1-100", 5)
    send(port, encode(KEY.encode(), "n1-100", 9))
    wait_for(lambda: "n1-100" in receiver.ages())
    wait_for(lambda: receiver.ages()["n1-100"] > 0.2)
    send(port, old, encode(KEY.encode(), "n1-100", 9), encode(b"another key", "n2-7", 1), b"", b"SRB1" * 99)
    send(port, encode(KEY.encode(), "n3-1", 1))
    wait_for(lambda: "n3-1" in receiver.ages())
    assert set(receiver.ages()) == {"n1-100", "n3-1"}
    assert receiver.ages()["n1-100"] > 0.2


def test_while_a_stranger_floods_the_port_nobody_is_overdue(receiver: BeaconReceiver, port: int) -> None:
    flood = "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
    flood += f"while True: s.sendto(b'x' * 60, ('127.0.0.1', {port}))"
    strangers = [subprocess.Popen([sys.executable, "-c", flood], stderr=subprocess.PIPE) for _ in range(2)]
    try:
        wait_for(lambda: receiver.floods > 3)
        numbers = itertools.count(1)

        def heard() -> bool:
            send(port, encode(KEY.encode(), "n1-100", next(numbers)))  # most are dropped
            return "n1-100" in receiver.ages()

        wait_for(heard)
        used, begun = time.process_time(), time.monotonic()
        while time.monotonic() - begun < 2.0:
            assert receiver.ages()["n1-100"] < 1.0
            select.select([], [], [], 0.05)
        assert time.process_time() - used < 1.5
    finally:
        for stranger in strangers:
            stranger.kill()
            stranger.communicate()
    wait_for(lambda: receiver.ages()["n1-100"] > 3 * INTERVAL_S)


def test_a_sender_follows_the_controller_to_another_port() -> None:
    ports = free_port(), free_port()
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(closing(BeaconReceiver(KEY, port, INTERVAL_S, 1.0))) for port in ports
        )
        sender = stack.enter_context(closing(BeaconSender(KEY, "n1-100", INTERVAL_S)))
        for receiver, port in zip((first, second), ports, strict=True):
            sender.aim(f"tcp://127.0.0.1:{port}")
            wait_for(partial(hears, receiver))


def test_a_sender_without_a_controller_goes_on(receiver: BeaconReceiver, port: int) -> None:
    with closing(BeaconSender(KEY, "n1-100", INTERVAL_S)) as sender:
        sender.aim(f"tcp://127.0.0.1:{free_port()}")  # refused again and again
        sender.aim("tcp://no such host.invalid:1")
        sender.aim(f"tcp://127.0.0.1:{port}")
        wait_for(lambda: "n1-100" in receiver.ages())


def test_time_in_which_the_receiver_itself_was_stopped_is_nobodys_silence(port: int) -> None:
    """A child receives, is stopped for 1 s while beacons go on, and then tells the age."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        receiver = BeaconReceiver(KEY, port, INTERVAL_S, 3 * INTERVAL_S)
        while "n1-100" not in receiver.ages():
            select.select([], [], [], 0.01)
        os.write(write, b"1")
        worst = 0.0
        end = time.monotonic() + 3.0
        while time.monotonic() < end:
            select.select([receiver.fileno()], [], [], 0.01)
            worst = max(worst, receiver.ages()["n1-100"])
        os.write(write, str(worst).encode())
        os._exit(0)
    try:
        with closing(BeaconSender(KEY, "n1-100", INTERVAL_S)) as sender:
            sender.aim(f"tcp://127.0.0.1:{port}")
            assert os.read(read, 1) == b"1"
            os.kill(child, signal.SIGSTOP)
            select.select([], [], [], 1.0)
            os.kill(child, signal.SIGCONT)
            assert float(os.read(read, 100)) < 0.9
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)
