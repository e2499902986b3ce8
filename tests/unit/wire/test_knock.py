"""Nodes are asked by a TCP handshake, which a kernel completes for a process that does nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from slurm_robust.wire.knock import answering

NOWHERE = "192.0.2.1"  # RFC 5737: no packet to it is answered


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def place(of: socket.socket) -> tuple[str, int]:
    return of.getsockname()[0], of.getsockname()[1]


def test_who_listens_answers_although_nobody_accepts(listener: socket.socket) -> None:
    assert answering({"n1": place(listener)}) == {"n1"}


def test_who_does_not_listen_any_more_does_not_answer(listener: socket.socket) -> None:
    with ExitStack() as stack:
        gone = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        where = place(gone)
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    assert answering({"n1": place(listener), "n2": where, "n3": place(bound)}) == {"n1"}
    bound.close()


def test_silence_ends_at_the_limit(listener: socket.socket) -> None:
    found = answering({"n1": place(listener), "n2": (NOWHERE, 9), "n3": ("no such host.invalid", 9)}, 0.2)
    assert found == {"n1"}


def test_nobody_is_asked() -> None:
    assert answering({}) == frozenset()
