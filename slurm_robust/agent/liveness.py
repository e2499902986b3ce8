"""What shows others that this node lives, and what this agent finds out about others for the controller."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from slurm_robust.wire.beacons import BeaconSender
from slurm_robust.wire.messages import NodesProbed, ProbeNodes
from slurm_robust.wire.network import bind_free
from slurm_robust.wire.probes import probe


class LivenessPorts:
    """Beacons to the controller, and a port that only this node's kernel answers."""

    def __init__(self, key: str, agent: str, interval_s: float, ports: Iterable[int] = (0,)) -> None:
        """``key``: the public key of the job's clients; ``interval_s``: 0 for no beacons."""
        self._sender = BeaconSender(key, agent, interval_s) if interval_s else None
        self._port: socket.socket | None = None
        if self._sender is not None:
            try:
                self._port = bind_free(ports)  # and never listened on: the kernel refuses whoever connects
                self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, False)  # nor may others
            except OSError:
                pass  # none is free: an ICMP echo may do

    @property
    def port(self) -> int:
        """The port that the kernel answers for, 0 for none."""
        return int(self._port.getsockname()[1]) if self._port is not None else 0

    def aim(self, endpoint: str) -> None:
        """Send beacons to the controller at ``endpoint`` from now on."""
        if self._sender is not None:
            self._sender.aim(endpoint)

    def close(self) -> None:
        """Send no more beacons, and release the port."""
        if self._sender is not None:
            self._sender.close()
        if self._port is not None:
            self._port.close()


def probe_nodes(node: str, question: ProbeNodes) -> NodesProbed:
    """Answer ``question`` on ``node``."""
    answers = probe(question.places, question.for_s)
    answering, asked = tuple(sorted(answers.nodes)), tuple(sorted(answers.asked))
    return NodesProbed(node=node, number=question.number, answering=answering, asked=asked)
