"""The addresses at which nodes are probed, and what the probes have brought."""

from __future__ import annotations

from typing import NamedTuple

from slurm_robust.model.record import Record


class ProbeTarget(Record):
    """The address at which a node's kernel is probed."""

    addresses: tuple[str, ...]
    """All under which the node is known: one that answers is enough."""
    port: int
    """A TCP port on which nothing listens; 0 for none."""


class Answers(Record):
    """What probes have brought: seconds until the first answer by node, for each kind of probe."""

    tcp: dict[str, float] = {}
    icmp: dict[str, float] = {}
    asked: frozenset[str] = frozenset()
    """Nodes to which at least one probe was sent: without a name or a route nothing is asked."""

    @property
    def nodes(self) -> frozenset[str]:
        """Whose kernel has answered."""
        return frozenset(self.tcp) | frozenset(self.icmp)


class PortsProbed(NamedTuple):
    """What kernels made of a connection, by the names of the places."""

    taken: frozenset[str]
    """A process listens there, though it may be stalled."""
    refused: frozenset[str]
    """No process listens there any more."""
