"""Implicit failures in a real training: seen, placed, answered; the end is bitwise the one without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from slurm_robust.diagnostics.live import NOT_ALL, StackSample
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.incident import Evict, Symptom
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, ProtectedJob
from tests.cluster.undisturbed import undisturbed

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

FLOOR_S = 4.0
OPTIONS = f"--set detect.hang_floor_s={FLOOR_S:g} --set limits.per_hour=100 --set detect.diagnose_s=60"
SCRIPT = "faulty.py --out OUT --faults faults --steps"


@pytest.fixture
def cluster(sandboxes: Callable[..., Sandbox]) -> Sandbox:
    return sandboxes(nodes=8, slurmd_timeout_s=20, cred_expire_s=5, accounting=False)


class Faulty(ProtectedJob):
    """A training of four ranks that commits faults to order."""

    def __init__(self, sandbox: Sandbox, steps: int, *, spares: int = 0, options: str = "") -> None:
        self.faults: Path = sandbox.home(USER) / "faults"
        self.faults.mkdir(exist_ok=True)
        self.faults.chmod(0o777)
        words = f"--spares {spares} {OPTIONS} {options} {SCRIPT} {steps} --step-s 0.2"
        super().__init__(sandbox, words, nodes=4 + spares)

    def order(self, rank: int, fault: str) -> str:
        """Have ``rank`` commit it at its next step; the node on which that is."""
        node = self.state.world.placement.node_of(rank)
        beside = self.faults / f".{rank}"
        beside.write_text(fault)
        beside.chmod(0o666)
        beside.rename(self.faults / str(rank))
        return node

    def end_after(self, step: int) -> None:
        """Have all ranks end after ``step``, which is still to come."""
        beside = self.faults / ".last"
        beside.write_text(str(step))
        beside.rename(self.faults / "last")

    def decisions(self) -> list[ev.Decided]:
        return self.events(ev.Decided)

    def evicted(self) -> list[str]:
        return [event.node for event in self.events(ev.NodeEvicted)]


def looked_at(job: Faulty) -> StackSample:
    """What ``srobust stacks`` shows to the job's owner, though a node may be late on a busy machine."""
    command = ["srobust", "stacks", str(job.id), "--json"]
    done = job.sandbox.exec(command, user=USER, timeout_s=30, check=False)
    assert done.returncode in (ExitCode.SUCCESS, NOT_ALL), done.stderr
    return msgspec.json.decode(done.stdout, type=StackSample)


def test_hangs_of_all_kinds_are_placed_on_the_node_that_hangs(cluster: Sandbox) -> None:
    steps = 150
    expected = undisturbed(4, f"tiny.py --out OUT --steps {steps} --step-s 0")
    job = Faulty(cluster, steps, spares=4)
    job.wait_step(25)
    stopped: list[str] = []
    for number, (rank, kind) in enumerate([(2, "stop"), (1, "c"), (3, "loader"), (0, "lock")], start=1):
        if kind == "stop":
            node = job.state.world.placement.node_of(rank)
            cluster.fault.stop_rank(job.id, rank)
        else:
            node = job.order(rank, kind)
        job.wait_recovered(number)
        opened = job.events(ev.IncidentOpened)[-1]
        assert opened.symptom is Symptom.HANG, kind
        assert opened.detect_s < 20.0, kind
        place = job.decisions()[-1].place
        assert place is not None, kind
        assert place.nodes == (node,), kind
        assert job.decisions()[-1].localise_s < 15.0, kind
        job.wait_step(job.step() + 5)
        stopped = [node] if kind == "stop" else stopped
        assert job.evicted() == stopped, "only a process that is held speaks against its node at once"
    assert job.wait_end() == 0
    assert job.out.read_text() == expected


@pytest.mark.soak
def test_a_hang_that_moves_with_the_rank_ends_the_job_and_costs_no_node(cluster: Sandbox) -> None:
    job = ProtectedJob(
        cluster,
        "--spares 1 --set detect.hang_floor_s=5 tiny.py --no-hurry --out OUT --steps 60 --step-s 0.2 "
        "--hang-at 30",
        nodes=3,
    )
    assert job.wait_end(500) == 93
    assert not job.events(ev.NodeEvicted)
    launched = job.events(ev.GenerationLaunched)
    assert len(launched) == 3
    first, second, third = (event.slots[1] for event in launched)
    assert first == second != third, "in place, then on another node"
    assert "it moves with the rank: the code is at fault" in job.log
    assert "tiny.py" in job.log


def test_what_is_no_hang_is_let_be(cluster: Sandbox) -> None:
    job = Faulty(cluster, 60, options="--set detect.hang_floor_s=5")
    job.wait_step(25)
    job.order(1, "pause")  # longer than the bound, but it goes on before anybody is evicted
    assert job.wait_end() == 0
    assert job.evicted() == []
    assert job.state.world.generation <= 2


def test_observe_mode_names_the_node_and_touches_nothing(cluster: Sandbox) -> None:
    job = Faulty(cluster, 600, spares=1, options="--set mode=observe")
    job.wait_step(25)
    node = job.state.world.placement.node_of(1)
    # Somebody is last at some moments of any training, but not at all of them.
    job.wait(
        lambda: not looked_at(job).localisation.ranks, 10, "a look at healthy training that names nobody"
    )
    cluster.fault.stop_rank(job.id, 1)
    job.wait(lambda: looked_at(job).localisation.ranks, 30, "a look by hand that sees it")
    by_hand = looked_at(job)
    assert by_hand.localisation.exact
    assert [node, *by_hand.localisation.ranks] == [by_hand.nodes[1], 1]
    job.wait(job.decisions, 60, "a decision")
    assert looked_at(job).localisation.ranks == (1,)  # also when the policy has had its say
    (decided,) = job.decisions()
    assert not decided.carried_out
    assert [a.node for a in decided.actions if isinstance(a, Evict)] == [node]
    cluster.fault.continue_rank(job.id, 1)
    job.end_after(job.step() + 25)
    assert job.wait_end() == 0
    assert job.evicted() == []
    assert job.state.world.generation == 1


@pytest.mark.soak
def test_a_long_evaluation_on_rank_0_that_nobody_announced(cluster: Sandbox) -> None:
    job = ProtectedJob(cluster, "plain.py --steps 120 --step-s 0.2 --evaluation-s 300", nodes=2)
    assert job.wait_end(600) == 0
    assert not job.events(ev.NodeEvicted)
    assert not job.events(ev.RequeueStarted)
    assert job.state.world.generation <= 2, "one restart at most"
    assert "computes on, maybe in an evaluation" in job.log
