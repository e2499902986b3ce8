"""Which network copies take: the named one, and no more of it than leaves room for others."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.model.errors import ExitCode
from slurm_robust.policy.peers import PEER_SHARE
from slurm_robust.wire.network import NoAddress, address_in, interface_of, speed_of
from tests.unit.agent.copy_nodes import MIB, MakeNode, keys_in
from tests.waiting import wait_for

HEARTBEATS, COPIES = "10.191.1", "10.191.2"
# Two nodes of a job: each runs this in a network namespace of its own.
NODE = """
import sys, time
from pathlib import Path
from slurm_robust.wire.network import address_in
from slurm_robust.model.copies import Peer
from tests.unit.agent.copy_nodes import MIB, Node, keys_in

name, rank, folder, size = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
node = Node(name, folder, folder / "job", keys_in(folder / "job"))
print(address_in("{copies}.0/24"), node.service.port, flush=True)
address, port = sys.stdin.readline().split()
other = Peer(rank=rank, node="other", address=address, port=int(port))
node.launch(1, (rank,), peers=(other,) if name == "a" else ())
if name == "a":
    node.snapshot(rank, 1, size=size)
sys.stdin.readline()
node.close()
""".replace("{copies}", COPIES)


def test_a_subnet_or_an_interface_names_an_address() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no network")
        address = probe.getsockname()[0]
    assert address_in(f"{address}/32") == address
    interface = interface_of(address)
    assert interface_of(address_in(interface)) == interface
    assert interface_of("203.0.113.9") == ""


def test_a_node_outside_of_the_network_says_what_it_has() -> None:
    with pytest.raises(NoAddress, match=r"is in checkpoint\.peer_network 203\.0\.113\.0/24; it has") as e:
        address_in("203.0.113.0/24")
    assert e.value.exit_code is ExitCode.CONFIG
    assert "that every node of the job has" in e.value.fix
    with pytest.raises(NoAddress):
        address_in("ib7")


@pytest.mark.parametrize(
    ("beside", "speed", "bytes_s"),
    [
        ("device", "25000\n", 25e9 / 8),
        ("lower_eth0", "200000\n", 200e9 / 8),  # a bond or VLAN
        ("device", "-1\n", 0.0),  # its driver does not tell
        ("flags", "10000\n", 0.0),  # veth: a number that means nothing
    ],
)
def test_the_speed_of_an_interface_is_what_the_kernel_tells_of_real_ones(
    tmp_path: Path, beside: str, speed: str, bytes_s: float
) -> None:
    (tmp_path / "net0").mkdir()
    (tmp_path / "net0" / beside).touch()
    (tmp_path / "net0" / "speed").write_text(speed)
    assert speed_of("net0", tmp_path) == bytes_s
    assert speed_of("gone", tmp_path) == 0.0


def test_without_a_limit_copies_take_a_quarter_of_the_interface(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_robust.agent.copies.service.speed_of", lambda _: 3e9)
    free, limited = make("a"), make("b", peer_bytes_s=5e8)
    for node in (free, limited):
        node.service.pace_by("10.0.0.1")
    assert free.service._pace.bytes_s == PEER_SHARE * 3e9
    assert limited.service._pace.bytes_s == 5e8


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    """Two of them with two links in between: ``heartbeats`` and ``copies``."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and ip")
    names = (f"srobust-{os.getpid()}-a", f"srobust-{os.getpid()}-b")
    try:
        for name in names:
            ip("netns", "add", name)
        for link, net in (("heartbeats", HEARTBEATS), ("copies", COPIES)):
            ip(
                "link",
                "add",
                link,
                "netns",
                names[0],
                "type",
                "veth",
                "peer",
                "name",
                link,
                "netns",
                names[1],
            )
            for number, name in enumerate(names, 1):
                ip("-n", name, "address", "add", f"{net}.{number}/24", "dev", link)
                ip("-n", name, "link", "set", link, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def sent(namespace: str, link: str) -> int:
    words = ["netns", "exec", namespace, "cat", f"/sys/class/net/{link}/statistics/tx_bytes"]
    return int(ip(*words))


@pytest.mark.slow
def test_copies_use_the_named_network(namespaces: tuple[str, str], shm: Path) -> None:
    (shm / "job").mkdir()
    keys_in(shm / "job")
    size = 16 * MIB
    nodes = [
        subprocess.Popen(
            [
                "ip",
                "netns",
                "exec",
                namespace,
                sys.executable,
                "-c",
                NODE,
                name,
                str(rank),
                str(shm),
                str(size),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, (name, namespace) in enumerate(zip("ab", namespaces, strict=True))
    ]
    try:
        told = [node.stdout.readline() for node in nodes if node.stdout is not None]
        for node, other in zip(nodes, reversed(told), strict=True):
            assert node.stdin is not None
            node.stdin.write(other)
            node.stdin.flush()
        wait_for(lambda: sent(namespaces[0], "copies") > size)
        assert sent(namespaces[0], "heartbeats") < MIB
    finally:
        for node in nodes:
            node.communicate("\n", 20)
