"""Connections of a local socket: who made them, and which its daemon has taken."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.nodes import unixsockets
from slurm_robust.nodes.unixsockets import Connections, connections
from tests.waiting import wait_for

CONNECT = """
import os, socket, sys
if os.getuid() == 0:
    os.setgid(1234); os.setuid(1234)
held = [socket.socket(socket.AF_UNIX) for _ in range(3)]
for one in held:
    one.connect(sys.argv[1])
print("connected", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        Path(folder).chmod(0o755)
        server.bind(f"{folder}/socket")
        Path(f"{folder}/socket").chmod(0o777)
        server.listen()
        yield server


def test_connections_are_listed_with_their_owners(listener: socket.socket) -> None:
    path = listener.getsockname()
    assert connections(path) == Connections()
    with socket.socket(socket.AF_UNIX) as own:
        own.connect(path)
        inode = os.fstat(own.fileno()).st_ino
        assert connections(path) == Connections(pending={inode: os.getuid()})
        server, _ = listener.accept()
        assert connections(path) == Connections(accepted={inode: os.getuid()})
    assert connections(path) == Connections()  # its other end is closed
    server.close()


def test_connections_of_other_processes_are_counted(listener: socket.socket) -> None:
    path = listener.getsockname()
    words = [sys.executable, "-c", CONNECT, path]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"connected\n"
        uid = 1234 if os.getuid() == 0 else os.getuid()
        assert Counter(connections(path).pending.values()) == {uid: 3}
        taken = [listener.accept()[0] for _ in range(2)]
        found = connections(path)
        assert Counter(found.accepted.values()) == {uid: 2}
        assert len(found.pending) == 1
        other.communicate()
    wait_for(lambda: connections(path).accepted == {}, message="they are gone")
    for one in taken:
        one.close()


def test_a_socket_is_known_by_whatever_name_it_was_bound_or_is_asked_for() -> None:
    """As munged is, which binds /var/run/munge/…, while /var/run is a link to /run."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        (Path(folder) / "run").mkdir()
        (Path(folder) / "var-run").symlink_to("run")
        server.bind(f"{folder}/var-run/socket")
        server.listen()
        with socket.socket(socket.AF_UNIX) as own:
            own.connect(f"{folder}/run/socket")
            expected = Connections(pending={os.fstat(own.fileno()).st_ino: os.getuid()})
            for name in (f"{folder}/run/socket", f"{folder}/var-run/socket", f"{folder}/run/./socket"):
                assert connections(name) == expected
            os.rename(f"{folder}/run/socket", f"{folder}/moved")
            assert connections(f"{folder}/moved") == expected


def test_another_socket_of_the_same_name_is_another(listener: socket.socket) -> None:
    """What was bound before at this name, or is in a mount namespace of a user's own."""
    path = listener.getsockname()
    with socket.socket(socket.AF_UNIX) as own, socket.socket(socket.AF_UNIX) as successor:
        own.connect(path)
        os.rename(path, f"{path}.old")  # so that its inode is not used again
        successor.bind(path)
        successor.listen()
        assert connections(path) == Connections()
        assert len(connections(f"{path}.old").pending) == 1


def test_a_file_to_which_no_socket_is_bound_tells_nothing(listener: socket.socket) -> None:
    path = listener.getsockname()
    listener.close()
    with pytest.raises(OSError, match="no socket that is bound"):
        connections(path)


def test_an_owner_that_the_kernel_does_not_report_is_nobody(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before Linux 5.3: the same question to this kernel, without the flag that asks for owners."""
    monkeypatch.setattr(unixsockets, "_SHOW", unixsockets._SHOW & ~0x40)
    with socket.socket(socket.AF_UNIX) as own:
        own.connect(listener.getsockname())
        inode = os.fstat(own.fileno()).st_ino
        assert connections(listener.getsockname()) == Connections(pending={inode: None})


def test_hundreds_of_other_sockets_are_no_trouble(listener: socket.socket) -> None:
    pairs = [socket.socketpair() for _ in range(300)]
    assert connections(listener.getsockname()) == Connections()
    for one, other in pairs:
        one.close()
        other.close()
