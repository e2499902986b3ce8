"""What shows others that this node lives, and what this agent finds out about others for the controller."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from functools import partial

from slurm_robust.util.threads import Executor
from slurm_robust.wire.beacons import BeaconSender
from slurm_robust.wire.messages import NodesProbed, ProbeNodes
from slurm_robust.wire.network import bind_free
from slurm_robust.wire.probes import probe


class LivenessPorts:
    """Beacons to the controller, a port that only this node's kernel answers, and probes of other kernels."""

    def __init__(
        self, key: str, node: str, agent: str, interval_s: float, ports: Iterable[int] = (0,)
    ) -> None:
        """``key``: the public key of the job's clients; ``interval_s``: 0 for no beacons."""
        self._node = node
        self._sender = BeaconSender(key, agent, interval_s) if interval_s else None
        self._probes: Executor[NodesProbed] = Executor("probes")
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

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`finished` has something."""
        return self._probes.fileno()

    def aim(self, endpoint: str) -> None:
        """Send beacons to the controller at ``endpoint`` from now on."""
        if self._sender is not None:
            self._sender.aim(endpoint)

    def order(self, order: ProbeNodes) -> None:
        """Probe kernels of other nodes."""
        self._probes.submit(partial(self._probe, order))

    def finished(self) -> list[NodesProbed]:
        """Return the answers to orders since the last call."""
        return self._probes.results()

    def close(self) -> None:
        """Send no more beacons, and release the port."""
        if self._sender is not None:
            self._sender.close()
        self._probes.close()
        if self._port is not None:
            self._port.close()

    def _probe(self, order: ProbeNodes) -> NodesProbed:
        answers = probe(order.places, order.for_s)
        answering, asked = tuple(sorted(answers.nodes)), tuple(sorted(answers.asked))
        return NodesProbed(node=self._node, number=order.number, answering=answering, asked=asked)
