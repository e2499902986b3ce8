from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_robust.controller.addresses import of_controller, resolved
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.records import SlurmNode
from slurm_robust.testing.fake_slurm import FakeSlurm


class Slurm(FakeSlurm):
    """Its nodes have the NodeAddr given; None: it does not answer."""

    def __init__(self, node_addr: str | None) -> None:
        super().__init__()
        self.node_addr = node_addr
        self.asked = 0

    def nodes(self, names: object = None) -> tuple[SlurmNode, ...]:
        self.asked += 1
        if self.node_addr is None:
            raise SlurmError("no answer")
        (node,) = super().nodes(["n1"])
        return (replace(node, address=self.node_addr),)


@pytest.mark.parametrize(
    ("names", "node_addr", "expected"),
    [
        ({"n1": ("10.0.0.1",), "h1": ("10.0.0.1",)}, "10.9.9.9", ("10.0.0.1", "n1", "h1")),
        (
            {"n1": ("10.0.0.1", "fd00::1"), "h1": ("10.0.0.2",)},
            "x",
            ("10.0.0.1", "fd00::1", "10.0.0.2", "n1", "h1"),
        ),
        ({"n1": ("127.0.1.1",), "h1": ("127.0.1.1", "::1")}, "10.42.3.17", ("10.42.3.17", "n1", "h1")),
        ({"n1": ("127.0.1.1",), "h1": ("10.0.0.2",)}, "10.42.3.17", ("10.0.0.2", "n1", "h1")),
        ({}, "10.42.3.17", ("10.42.3.17", "n1", "h1")),
        ({}, "n1", ("n1", "h1")),
        ({}, "127.0.0.1", ("n1", "h1")),
        ({}, None, ("n1", "h1")),
    ],
)
def test_a_controller_is_found_where_other_nodes_can_reach_it(
    names: dict[str, tuple[str, ...]], node_addr: str | None, expected: tuple[str, ...]
) -> None:
    slurm = Slurm(node_addr)
    assert of_controller("n1", "h1", slurm, lambda name: names.get(name, ())) == expected
    assert slurm.asked == (expected[0] in ("10.42.3.17", "n1")), "Slurm is asked only where it is needed"


def test_without_a_name_of_slurm_the_host_has_one() -> None:
    assert of_controller("", "h1", Slurm(None), lambda _: ("10.0.0.2",)) == ("10.0.0.2", "h1")


def test_names_are_resolved_as_the_node_does() -> None:
    assert "127.0.0.1" in resolved("127.0.0.1")
    assert resolved("no-such-host.invalid") == ()
