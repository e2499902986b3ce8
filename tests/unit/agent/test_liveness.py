"""What an agent does so that its node is known to live, and to find out about others."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from slurm_robust.agent.liveness import LivenessPorts, probe_nodes
from slurm_robust.model.probes import ProbeTarget
from slurm_robust.wire.messages import ProbeNodes
from slurm_robust.wire.probes import probe


@pytest.fixture
def liveness() -> Iterator[LivenessPorts]:
    with closing(LivenessPorts("key", "n2-1", 0.1)) as found:
        yield found


def test_the_kernel_answers_for_the_port(liveness: LivenessPorts) -> None:
    assert liveness.port
    assert probe({"n2": ProbeTarget(addresses=("127.0.0.1",), port=liveness.port)}, 5.0).nodes == {"n2"}


def test_nobody_else_gets_the_port(liveness: LivenessPorts) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)
        with pytest.raises(OSError, match="Address already in use"):
            other.bind(("127.0.0.1", liveness.port))


def test_an_agent_probes_other_nodes_for_the_controller(liveness: LivenessPorts) -> None:
    places = {
        "n5": ProbeTarget(addresses=("127.0.0.1",), port=liveness.port),
        "n6": ProbeTarget(addresses=(), port=0),
    }
    found = probe_nodes("n2", ProbeNodes(epoch=1, number=3, places=places, for_s=0.2))
    assert (found.node, found.number, found.answering) == ("n2", 3, ("n5",))


def test_where_every_port_is_taken_there_is_none() -> None:
    with socket.socket(socket.AF_INET6) as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        with closing(LivenessPorts("key", "n2-1", 0.1, (port,))) as liveness:
            assert liveness.port == 0


def test_without_beacons_there_is_no_port() -> None:
    with closing(LivenessPorts("key", "n2-1", 0.0)) as liveness:
        liveness.aim("tcp://127.0.0.1:9")
        assert liveness.port == 0
