"""Which bytes are those of the training's network."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.config.node import NetworkLimits, NodeConfig
from slurm_robust.inspector.probes import carried
from slurm_robust.nodes.checks import ethernet, infiniband
from slurm_robust.nodes.checks.ethernet import EthernetFacts, Interface
from slurm_robust.nodes.checks.infiniband import InfinibandFacts, Port
from tests.unit.nodes.host_files import plant

PORTS = InfinibandFacts(
    ports={"mlx5_0/1": Port(state="ACTIVE", nbytes=100), "mlx5_1/1": Port(state="ACTIVE", nbytes=20)}
)
INTERFACES = EthernetFacts(
    interfaces={"eth0": Interface(is_up=True, nbytes=3), "eth1": Interface(is_up=True, nbytes=4)}
)


@pytest.mark.parametrize(
    ("limits", "nbytes"),
    [
        (NetworkLimits(), 120),
        (NetworkLimits(infiniband=("mlx5_1/1",)), 20),
        (NetworkLimits(ethernet=("eth1",)), 124),
        (NetworkLimits(infiniband=("mlx5_7/1",)), None),
    ],
)
def test_all_ports_count_but_only_interfaces_that_are_named(limits: NetworkLimits, nbytes: int) -> None:
    assert carried(PORTS, INTERFACES, limits) == nbytes


def test_a_node_without_such_links_says_nothing() -> None:
    assert carried(None, None, NetworkLimits()) is None
    assert carried(InfinibandFacts(), INTERFACES, NetworkLimits()) is None
    untold = InfinibandFacts(ports={"rxe0/1": Port(state="ACTIVE")})
    assert carried(untold, None, NetworkLimits()) is None


@pytest.mark.parametrize(
    ("received", "sent", "nbytes"),
    [("250", "50", 1200), ("0", "0", 0), ("250", None, None), (str(2**32 - 1), "50", None)],
)
def test_a_port_counts_words_of_four_bytes(
    tmp_path: Path, received: str, sent: str | None, nbytes: int | None
) -> None:
    port = "/sys/class/infiniband/mlx5_0/ports/1"
    files = {f"{port}/state": "4: ACTIVE", f"{port}/counters/port_rcv_data": received}
    files |= {f"{port}/counters/port_xmit_data": sent} if sent else {}
    facts = infiniband.gather(plant(tmp_path, files), NodeConfig())
    assert facts.ports["mlx5_0/1"].nbytes == nbytes


def test_an_interface_counts_bytes(tmp_path: Path) -> None:
    folder = "/sys/class/net/rail0"
    files = {
        f"{folder}/flags": "0x1003",
        f"{folder}/statistics/rx_bytes": "7",
        f"{folder}/statistics/tx_bytes": "5",
    }
    config = NodeConfig(network=NetworkLimits(ethernet=("rail0",)))
    assert ethernet.gather(plant(tmp_path, files), config).interfaces["rail0"].nbytes == 12
