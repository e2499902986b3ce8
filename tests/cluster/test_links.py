"""Links of their own that nodes of a real training lose, or over which they fall silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.incident import Symptom
from slurm_robust.sandbox import Sandbox
from tests.cluster import network_link
from tests.cluster.network_link import LINK
from tests.cluster.protected_job import ProtectedJob

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

ADDRESS, BROADCAST = "169.254.7.1", "169.254.7.3"
NODES = ("n1", "n2", "n3", "n4")
STEPS, STEP_S = 250, 0.1
APART = 80  # steps, which take longer than the seconds in which losses of two nodes are one event
OPTIONS = "--spares 2 --set detect.network_s=1"
SILENT_S, ROUNDS = 4, 110
TALK = f"--set detect.silence_s={SILENT_S} --set detect.hang_floor_s=1"
TALKER = f"talker.py --rounds {ROUNDS} --link {ADDRESS},{BROADCAST}"
SCRIPT = f"tiny.py --out OUT --steps {STEPS} --step-s {STEP_S:g}"


@pytest.fixture
def cluster(sandboxes: Callable[..., Sandbox]) -> Iterator[Sandbox]:
    sandbox = sandboxes(nodes=len(NODES), slurmd_timeout_s=20, cred_expire_s=5, accounting=False)
    with ExitStack() as stack:
        for node in NODES:
            stack.enter_context(network_link.rail(sandbox, node))
            words = ["ip", "address", "add", f"{ADDRESS}/30", "broadcast", BROADCAST, "dev", LINK]
            sandbox.exec(words, node=node, user="root")
        yield sandbox


class Railed(ProtectedJob):
    """Two nodes that train and two spares, each with a link of its own."""

    def lose(self, node: str) -> None:
        network_link.far_end(self.sandbox, node, "down")

    def flap(self, node: str) -> None:
        network_link.far_end(self.sandbox, node, "down", "up")

    def notes(self, node: str) -> list[str]:
        return [event.text for event in self.events(ev.Noted) if event.text.startswith(f"{node}: {LINK}")]

    def evicted(self) -> list[str]:
        return [event.node for event in self.events(ev.NodeEvicted)]

    def wait_inspected(self, node: str) -> None:
        """Until the inspector of ``node`` has begun, and has had the time of some looks."""
        lanes = ["pgrep", "--count", "--full", "slurm_robust.inspector"]

        def running() -> bool:
            return int(self.sandbox.exec(lanes, node=node, check=False).stdout) > 4

        self.wait(running, 60, f"inspection of {node}")
        self.wait_step(self.step() + 20)


def test_one_loss_of_a_link_is_borne_and_two_evict_the_node(cluster: Sandbox) -> None:
    """One story, because a training is what costs most."""
    job = Railed(cluster, f"{OPTIONS} {SCRIPT}", nodes=len(NODES))
    job.wait_step(5)
    first, second = job.state.world.slots
    for node in (first, second):
        job.wait_inspected(node)

    job.flap(first)
    job.wait(lambda: job.notes(first), 20, "a note about the loss")
    assert "1 network alert within 300 s, evicted at 2" in job.notes(first)[0]

    job.wait_step(job.step() + APART)
    assert job.evicted() == []
    job.lose(second)  # for good
    job.wait_recovered(1)
    assert job.evicted() == [second]

    job.flap(first)
    job.wait_recovered(2)
    assert job.evicted() == [second, first]
    opened = job.events(ev.IncidentOpened)
    assert [event.symptom for event in opened] == [Symptom.NETWORK, Symptom.NETWORK]
    assert f"{second}: 2 network alerts within 300 s: {LINK} no link" in opened[0].detail
    assert f"{first}: 2 network alerts within 300 s: {LINK} link was lost 2 times" in opened[1].detail
    assert set(job.state.world.slots).isdisjoint({first, second})
    assert job.wait_end() == 0, job.log
    assert job.step() == STEPS - 1


@pytest.mark.soak
def test_a_silent_network_shows_a_hang_of_a_program_without_steps(cluster: Sandbox) -> None:
    job = Railed(cluster, f"{OPTIONS} {TALK} {TALKER}", nodes=len(NODES))
    job.wait_step(80)  # it has talked for longer than silence takes to be one
    assert job.events(ev.IncidentOpened) == []
    node = job.state.world.placement.node_of(1)
    cluster.fault.stop_rank(job.id, 1)
    job.wait(job.evicted, 60, "eviction")
    assert job.evicted() == [node]
    (opened,) = job.events(ev.IncidentOpened)
    assert opened.symptom is Symptom.HANG
    assert opened.detail.startswith("the links of all 2 nodes have carried next to nothing for")
    assert job.wait_end() == 0, job.log
