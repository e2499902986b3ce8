"""Observe mode: what would have been done is said, once it can be known, and nothing is touched."""

from __future__ import annotations

from slurm_robust.config.job import JobConfig
from slurm_robust.engine import questions as qs
from slurm_robust.model import events as ev
from slurm_robust.model.exits import WorkerError
from slurm_robust.model.incident import Evict
from slurm_robust.testing.sim.job import Sim
from slurm_robust.testing.sim.lives import BAD_GPU
from slurm_robust.wire.messages import Shutdown, Stop
from tests.unit.engine.stories import questions, sent, trained

PEER_LOST = WorkerError(type="RuntimeError", message="Connection reset by peer")


def observed() -> Sim:
    return trained(2, 1, config=JobConfig(mode="observe"))


def has_decided(sim: Sim) -> bool:
    return bool(sim.events(ev.Decided))


def would_evict(sim: Sim) -> list[str]:
    """Whom the only decision would have evicted, of which nothing was done."""
    (found,) = sim.events(ev.Decided)
    assert not found.carried_out
    assert sent(sim, Stop) == []
    return [action.node for action in found.actions if isinstance(action, Evict)]


def test_observe_mode_prints_the_decision_and_ends_with_the_code_of_the_first_exit() -> None:
    sim = observed()
    sim.kill_rank(1)
    sim.run(0.5)
    sim.exit_rank(0, error=PEER_LOST)
    sim.run_until(lambda: has_decided(sim), within_s=3.0)
    assert would_evict(sim) == []
    assert sim.run_to_end(within_s=30.0) == 128 + 9
    last = "end, exit code 137: observe mode, nothing was done about it: rank 1: SIGKILL on n2"
    assert sim.said[-1] == last
    assert sim.state.world.generation == 1


def test_observe_mode_judges_no_rank_that_lost_its_peer_before_the_node_of_that_peer() -> None:
    sim = observed()
    sim.node_dies("n2")
    sim.exit_rank(0, error=PEER_LOST)
    sim.run(0.5)
    assert not has_decided(sim)
    sim.run_until(lambda: has_decided(sim), within_s=8.0)
    assert would_evict(sim) == ["n2"]


def test_observe_mode_decides_although_other_workers_do_not_end() -> None:
    sim = observed()
    sim.kill_rank(1)
    sim.run_until(lambda: has_decided(sim), within_s=8.0)
    assert (would_evict(sim), sim.code) == ([], None)


def test_observe_mode_leaves_a_standby_alone_that_its_inspection_names() -> None:
    sim = observed()
    sim.alert("n3", BAD_GPU)
    sim.run(8.0)
    assert (sim.state.evicted, sim.state.spares) == ({}, ("n3",))
    assert questions(sim, qs.GiveBack) == []
    assert sent(sim, Shutdown) == []
