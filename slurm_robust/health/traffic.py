"""What the links that nodes train over have carried. Pure."""

from __future__ import annotations

from slurm_robust.config.node import NetworkLimits
from slurm_robust.health.checks.ethernet import EthernetFacts
from slurm_robust.health.checks.infiniband import InfinibandFacts


def carried(
    infiniband: InfinibandFacts | None, ethernet: EthernetFacts | None, limits: NetworkLimits
) -> int | None:
    """Bytes that all of them together have received and sent since they count; None if nothing tells.

    These are the InfiniBand and RoCE ports (those of ``network.infiniband``, else all), and the Ethernet
    interfaces of ``network.ethernet``: any other may be the management network.
    """
    ports = infiniband.ports if infiniband else {}
    interfaces = ethernet.interfaces if ethernet else {}
    counts = [
        port.nbytes for name, port in ports.items() if name in limits.infiniband or not limits.infiniband
    ]
    counts += [interface.nbytes for name, interface in interfaces.items() if name in limits.ethernet]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
