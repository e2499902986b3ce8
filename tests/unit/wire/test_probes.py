"""A kernel answers for processes that do nothing, and only an answer counts as one."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from slurm_robust.model.probes import ProbeTarget
from slurm_robust.wire.probes import probe

PING = Path("/proc/sys/net/ipv4/ping_group_range")


@pytest.fixture
def bound() -> Iterator[ProbeTarget]:
    """A port that is held and on which nobody listens, as agents hold one."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield place_of(holder)


@pytest.fixture
def silent() -> Iterator[ProbeTarget]:
    """A port whose kernel answers nothing: the queue of its listener is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield place_of(listener)


def place_of(holder: socket.socket) -> ProbeTarget:
    return ProbeTarget(addresses=(holder.getsockname()[0],), port=holder.getsockname()[1])


def may_ping() -> bool:
    low, high = map(int, PING.read_text().split())
    return low <= os.getegid() <= high


def test_a_port_without_a_listener_is_answered_at_once(bound: ProbeTarget) -> None:
    begun = time.monotonic()
    assert probe({"n1": bound}, 300.0).nodes == {"n1"}
    assert time.monotonic() - begun < 60.0


def test_what_does_not_answer_is_waited_for_as_long_as_was_said(
    bound: ProbeTarget, silent: ProbeTarget
) -> None:
    if may_ping():
        pytest.skip("this user may send ICMP echos, which the silent port's node answers")
    begun = time.monotonic()
    answers = probe(
        {"n1": bound, "n2": silent, "n3": ProbeTarget(addresses=("no such host.invalid",), port=9)}, 1.0
    )
    assert answers.nodes == {"n1"}
    assert 1.0 <= time.monotonic() - begun < 60.0


def test_a_stopped_process_does_not_keep_its_kernel_from_answering() -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        holder = socket.socket()
        holder.bind(("127.0.0.1", 0))
        os.write(write, str(holder.getsockname()[1]).encode())
        signal.pause()
    try:
        port = int(os.read(read, 10))
        os.kill(child, signal.SIGSTOP)
        assert probe({"n1": ProbeTarget(addresses=("127.0.0.1",), port=port)}, 5.0).nodes == {"n1"}
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)


def test_without_a_port_only_an_echo_can_answer(bound: ProbeTarget) -> None:
    answers = probe({"n1": ProbeTarget(addresses=(bound.addresses[0],), port=0)}, 0.3)
    assert set(answers.icmp) == ({"n1"} if may_ping() else set())
    assert not answers.tcp


def test_nobody_is_probed() -> None:
    assert probe({}, 5.0).nodes == frozenset()


def test_no_descriptor_is_left(bound: ProbeTarget, silent: ProbeTarget) -> None:
    before = os.listdir("/proc/self/fd")
    probe({"n1": bound, "n2": silent}, 0.3)
    assert os.listdir("/proc/self/fd") == before
