"""A pair of nodes hangs, of which one is at fault, with one standby: no requeue, the same weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.incident import Blame, Symptom
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, ProtectedJob
from tests.cluster.undisturbed import undisturbed

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 70
DETECT = "--set detect.hang_floor_s=4 --set limits.per_hour=100 --set detect.quick_test_s=120"
# What goes back to Slurm is not tested: an evicted node must still be there when the next fault comes.
KEEP = "--set slurm.give_back=false"
SCRIPT = f"pipelines.py --out OUT --faults faults --steps {STEPS} --step-s"


@pytest.fixture
def cluster(sandboxes: Callable[..., Sandbox]) -> Sandbox:
    return sandboxes(nodes=9, slurmd_timeout_s=20, cred_expire_s=5, accounting=False)


class Pipelines(ProtectedJob):
    """Four pipelines of two nodes."""

    def __init__(
        self, sandbox: Sandbox, *, spares: int = 0, step_s: float = 0.2, neighbours: bool = False
    ) -> None:
        self.faults: Path = sandbox.home(USER) / "faults"
        self.faults.mkdir(exist_ok=True)
        self.faults.chmod(0o755)
        words = f"--spares {spares} --set parallel.pp=2 {DETECT} {KEEP} {SCRIPT} {step_s}"
        if neighbours:
            words = f"--set parallel.order=tp-cp-ep-pp-dp {words} --neighbours"
        super().__init__(sandbox, words, nodes=8 + spares)

    def hang(self, node: str, times: int) -> list[ev.Decided]:
        """Have the card of ``node`` broken until so many hangs are over; what they led to."""
        card = self.faults / node
        card.touch()
        try:
            self.wait(lambda: len(self.placed()) >= times, 240, f"hang {times}")
        finally:
            card.unlink()
        self.wait_recovered(times)
        return self.placed()

    def placed(self) -> list[ev.Decided]:
        """Decisions on hangs that the stacks have placed, each but for repetitions with another result."""
        found = {event.incident: event for event in reversed(self.events(ev.Decided)) if event.place}
        return [found[incident] for incident in sorted(found)]

    def report(self, incident: int) -> str:
        """As ``srobust incident`` shows it."""
        command = ["srobust", "incident", str(self.id), str(incident)]
        return self.sandbox.exec(command, user=USER, timeout_s=30.0, check=True).stdout


def pairs(decisions: list[ev.Decided]) -> list[set[str]]:
    """The nodes that each of them suspected."""
    return [set(decided.place.nodes) for decided in decisions if decided.place]


def test_a_pair_with_one_standby_loses_one_node_which_serves_again_when_another_dies(
    cluster: Sandbox,
) -> None:
    job = Pipelines(cluster, spares=1)
    job.wait_step(12)
    slots = job.state.world.slots
    bad, other = slots[5], slots[1]
    hangs = job.hang(bad, 3)
    # In place, then on other nodes: the standby for one of them, and the other one exchanges its slot.
    assert pairs(hangs) == [{bad, other}, {bad, other}, {bad, slots[4]}]
    assert [d.verdict.blame for d in hangs if d.verdict] == [Blame.NOBODY, Blame.NOBODY, Blame.NODE]
    assert [(e.node, e.unproven) for e in job.events(ev.NodeEvicted)] == [(bad, True)]
    assert other in job.state.world.slots
    assert {event.symptom for event in job.events(ev.IncidentOpened)} == {Symptom.HANG}

    dead = slots[2]
    cluster.fault.power_cut(dead)
    job.wait_recovered(4, timeout=200)
    (tested,) = job.events(ev.QuickTested)
    assert (tested.passed, tested.failed, tested.silent) == ((bad,), {}, {})
    assert job.state.world.slots[2] == bad
    assert list(job.state.evicted) == [dead]
    assert "quick test" in job.report(4)
    assert job.wait_end() == 0
    assert job.out.read_text() == undisturbed(8, f"{SCRIPT} 0")
    assert job.events(ev.RequeueStarted) == []
    assert job.state.restart_count == 0


@pytest.mark.soak
def test_a_whole_pair_is_suspected_without_any_standby_and_goes_on_after_a_quick_test(
    cluster: Sandbox,
) -> None:
    job = Pipelines(cluster, neighbours=True)
    job.wait_step(12)
    pair = set(job.state.world.slots[4:6])
    hangs = job.hang(job.state.world.slots[4], 3)
    # They exchange their slots with the first pair, and then that hangs: it stays with these two nodes.
    assert pairs(hangs) == [pair, pair, pair]
    assert set(job.state.world.slots[:2]) == pair
    (tested,) = job.events(ev.QuickTested)
    assert (set(tested.passed), tested.failed, tested.silent) == (pair, {}, {})
    assert job.events(ev.NodeEvicted) == []
    assert job.wait_end() == 0
    assert job.out.read_text() == undisturbed(8, f"{SCRIPT} 0 --neighbours")
    assert job.events(ev.RequeueStarted) == []
