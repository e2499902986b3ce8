from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import msgspec
import pytest

from slurm_robust.wire import copychannel
from slurm_robust.wire.copychannel import (
    FIRST_BYTE,
    ChannelError,
    CopyAnswer,
    CopyChannel,
    CopyVerdict,
    Get,
    Put,
    derive_key,
)
from tests.builders.checkpoints import ref

KEY = derive_key("secret")
GET = Get(run_id="r", rank=1, checkpoint=ref(2, 3))
PUT = Put(run_id="r", launch=2, restore=None, rank=1, checkpoint=ref(2, 3), total=4096)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a test can wait for."""
    monkeypatch.setattr(copychannel, "HANDSHAKE_S", 0.3)
    monkeypatch.setattr(copychannel, "PROGRESS_S", 0.3)


@contextmanager
def other_end(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of somebody who serves one connection in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            connection, _ = listener.accept()
            with connection:
                serve(connection)

        thread = threading.Thread(target=run)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(60)
        assert not thread.is_alive()


def pair(serve: Callable[[CopyChannel], None], key: bytes = KEY) -> AbstractContextManager[int]:
    def run(connection: socket.socket) -> None:
        serve(CopyChannel.accept(connection, key))

    return other_end(run)


def hangs_up(connection: socket.socket) -> None:
    began = time.monotonic()
    with pytest.raises(OSError):  # noqa: PT011
        CopyChannel.accept(connection, KEY)
    assert time.monotonic() - began < 60


def test_messages_cross_in_both_directions() -> None:
    def serve(channel: CopyChannel) -> None:
        assert channel.request() == GET
        channel.send(CopyAnswer(verdict=CopyVerdict.GO, total=5000))
        assert channel.request() == PUT
        channel.send(CopyAnswer(verdict=CopyVerdict.REFUSED, reason="full", later=True))
        assert channel.request() is None

    with pair(serve) as port:
        channel = CopyChannel.connect("127.0.0.1", port, KEY)
        channel.send(GET)
        assert channel.answer() == CopyAnswer(verdict=CopyVerdict.GO, total=5000)
        channel.send(PUT)
        assert channel.answer().reason == "full"
        channel.close()


def test_copies_come_after_everything_else_in_the_queues_of_the_network() -> None:
    seen: list[tuple[int, int]] = []

    def look(channel: CopyChannel) -> None:
        connection = channel._socket
        priority = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY)
        seen.append((connection.getsockopt(socket.IPPROTO_IP, socket.IP_TOS), priority))

    with pair(look) as port:
        channel = CopyChannel.connect("127.0.0.1", port, KEY)
        look(channel)
        channel.close()
    assert seen == [(8 << 2, 2)] * 2


def test_the_bytes_of_a_file_arrive_but_the_first_eight(tmp_path: Path) -> None:
    content = os.urandom(3_000_017)
    (tmp_path / "image").write_bytes(content)
    arrived = bytearray(len(content) - FIRST_BYTE)

    def serve(channel: CopyChannel) -> None:
        with memoryview(arrived) as view:
            channel.receive_into(view)

    paced: list[int] = []
    with pair(serve) as port, (tmp_path / "image").open("rb") as file:
        channel = CopyChannel.connect("127.0.0.1", port, KEY)
        channel.send_file(file.fileno(), len(content), paced.append, 2**20)
        channel.close()
    assert bytes(arrived) == content[FIRST_BYTE:]
    assert sum(paced) == len(arrived)
    assert max(paced) == 2**20


def test_who_does_not_hold_the_key_learns_nothing() -> None:
    errors: list[str] = []

    def serve(connection: socket.socket) -> None:
        with pytest.raises(ChannelError) as caught:
            CopyChannel.accept(connection, derive_key("another secret"))
        errors.append(str(caught.value))

    with other_end(serve) as port, pytest.raises(ChannelError, match="does not hold this job's key"):
        CopyChannel.connect("127.0.0.1", port, KEY)
    assert errors == ["it closed the connection"]


def test_who_skips_the_proof_is_refused() -> None:
    def serve(connection: socket.socket) -> None:
        with pytest.raises(ChannelError, match="key"):
            CopyChannel.accept(connection, KEY)

    with other_end(serve) as port, socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"SRCOPY\0\1" + bytes(32))
        # An old proof of the other side is no proof of ours: nonces are fresh, and the roles are signed.
        proof = b""
        while len(proof) < 64:
            proof += stranger.recv(64)
        stranger.sendall(proof[32:])
        assert stranger.recv(1) == b""


@pytest.mark.slow
@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\n\r\n" * 10, b"SRCOPY\0\1" + bytes(7)])
def test_silence_and_garbage_before_the_proof_end_soon(first: bytes, quick: None) -> None:
    with other_end(hangs_up) as port, socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(first)
        stranger.settimeout(100)
        try:
            assert stranger.recv(1) == b""
        except ConnectionResetError:
            pass  # it had not read all of the garbage


@pytest.mark.slow
def test_one_byte_now_and_then_does_not_stretch_the_handshake(quick: None) -> None:
    with other_end(hangs_up) as port, socket.create_connection(("127.0.0.1", port)) as stranger:
        tick = threading.Event()
        try:
            for _ in range(1000):  # the other one hangs up long before
                stranger.sendall(b"S")
                tick.wait(0.1)
        except OSError:
            pass


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (struct.pack("<I", 2**31), "announces a message of"),
        (struct.pack("<I", 3) + b"\xc1\xc1\xc1", "something else than a request"),
        (struct.pack("<I", 1) + b"\x01", "something else than a request"),
        (struct.pack("<I", 40) + b"half", "closed"),
    ],
)
def test_a_frame_that_is_not_a_request_is_an_error(frame: bytes, words: str) -> None:
    def serve(channel: CopyChannel) -> None:
        with pytest.raises(ChannelError, match=words):
            channel.request()

    with pair(serve) as port:
        channel = CopyChannel.connect("127.0.0.1", port, KEY)
        channel._socket.sendall(frame)
        channel.close()


def test_an_answer_of_another_kind_is_an_error() -> None:
    def serve(channel: CopyChannel) -> None:
        channel.send(GET)

    with pair(serve) as port:
        channel = CopyChannel.connect("127.0.0.1", port, KEY)
        with pytest.raises(ChannelError, match="something else than an answer"):
            channel.answer()
        channel.close()


@pytest.mark.slow
def test_a_peer_that_stops_reading_or_sending_costs_seconds(quick: None, tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(bytes(64 * 2**20))
    over = threading.Event()

    def serve(channel: CopyChannel) -> None:
        over.wait(60)  # as one that was stopped, or is beyond a cut network

    with pair(serve) as port, (tmp_path / "image").open("rb") as file:
        channel = CopyChannel.connect("127.0.0.1", port, KEY)
        with pytest.raises(TimeoutError):
            channel.answer()
        with pytest.raises(TimeoutError):
            channel.receive_into(memoryview(bytearray(10)))
        with pytest.raises(OSError, match="timed out"):
            channel.send_file(file.fileno(), 64 * 2**20, None)
        channel.close()
        over.set()


def test_a_transfer_that_ends_early_is_an_error() -> None:
    def serve(channel: CopyChannel) -> None:
        channel._socket.sendall(bytes(100))

    with pair(serve) as port:
        channel = CopyChannel.connect("127.0.0.1", port, KEY)
        with pytest.raises(ChannelError, match="middle of an image"):
            channel.receive_into(memoryview(bytearray(200)))
        channel.close()


def test_abort_ends_a_wait_of_another_thread() -> None:
    ended = threading.Event()

    def serve(channel: CopyChannel) -> None:
        assert channel.request() is None
        ended.set()

    with pair(serve) as port:
        channel = CopyChannel.connect("127.0.0.1", port, KEY)
        threading.Timer(0.1, channel.abort).start()
        with pytest.raises(ChannelError):
            channel.answer(work_bytes=10**10)
        assert ended.wait(60)
        channel.close()


def test_keys_differ_with_the_secret_and_from_it() -> None:
    assert derive_key("a") != derive_key("b")
    assert len(KEY) == 32


def test_frames_of_all_messages_are_small() -> None:
    first = ref(1, 1)
    long = Put(run_id="9" * 64, launch=2**31, restore=first, rank=2**20, checkpoint=ref(9, 9), total=2**43)
    assert len(msgspec.msgpack.encode(long)) < 1024
