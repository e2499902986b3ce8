"""A slurmctld in memory is as slow, as silent and as late as the real one."""

from __future__ import annotations

import pytest

from slurm_robust.slurm.errors import SlurmTimeout
from slurm_robust.testing.clock import VirtualTime
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurmctld import FakeSlurmctld, HookSlurm, Rpc


class Room:
    """Programs that ask one daemon, and what came of it, in the order of time."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.time = VirtualTime(self.cluster.clock)
        self.daemon = FakeSlurmctld(self.cluster, self.time)
        self.begun = self.cluster.clock.now
        self.story: list[tuple[float, str]] = []

    def drains(self, node: str, at_s: float = 0.0) -> None:
        """A hook of ``node`` drains it."""

        def program() -> None:
            slurm = HookSlurm(self.daemon, node, 5.0, self.cluster.clock.now + 20.0)
            try:
                slurm.drain([node], "bad")
                self.tell(f"{node} told")
            except SlurmTimeout:
                self.tell(f"{node} no answer")

        self.time.at(self.begun + at_s, program)

    def tell(self, words: str) -> None:
        drained = sum(node.is_drained for node in self.cluster.nodes.values())
        self.story.append((round(self.cluster.clock.now - self.begun, 1), f"{words}, {drained} drained"))


@pytest.fixture
def room() -> Room:
    return Room()


def test_requests_are_done_one_after_the_other(room: Room) -> None:
    room.daemon.slow = 1.0 / room.daemon.cost_s(Rpc.UPDATE_NODE)
    for node in ("n1", "n2", "n3"):
        room.drains(node)
    room.time.run()
    assert room.story == [
        (1.0, "n1 told, 1 drained"),
        (2.0, "n2 told, 2 drained"),
        (3.0, "n3 told, 3 drained"),
    ]
    assert room.daemon.asked[int(room.begun), Rpc.UPDATE_NODE] == 3


def test_what_a_daemon_that_stands_still_was_asked_is_done_when_it_goes_on(room: Room) -> None:
    room.daemon.stands_s = lambda now: max(0.0, room.begun + 60.0 - now)
    room.drains("n1")
    room.drains("n2", at_s=58.0)
    room.time.run()
    assert [words for _, words in room.story] == ["n1 no answer, 0 drained", "n2 told, 2 drained"]


def test_a_request_without_a_daemon_is_lost(room: Room) -> None:
    room.daemon.is_down = lambda now: now < room.begun + 30.0
    room.drains("n1")
    room.drains("n2", at_s=40.0)
    room.time.run()
    assert room.story == [(5.0, "n1 no answer, 0 drained"), (40.0, "n2 told, 1 drained")]


def test_an_error_of_a_program_is_raised(room: Room) -> None:
    def program() -> None:
        raise KeyError("x")

    room.time.at(room.begun, program)
    with pytest.raises(KeyError):
        room.time.run()
