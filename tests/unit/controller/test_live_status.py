"""What the controller knows, as one record: of a simulated job, in every state that a person asks about."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.config.job import JobConfig
from slurm_robust.controller.journal import Journal
from slurm_robust.controller.live_status import AgentPicture, LiveStatusMaker, Picture, Storage, picture, why
from slurm_robust.controller.live_status_file import LiveStatusFile
from slurm_robust.engine import transitions as to
from slurm_robust.engine.clock import Now
from slurm_robust.ledger.summary import Summary, summary_of
from slurm_robust.model import events as ev
from slurm_robust.model.copies import Copy, Tier
from slurm_robust.model.findings import Alert
from slurm_robust.model.incident import Fault, Symptom
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.live_status import LiveNode, LiveStatus, NodeState, encode, read
from slurm_robust.testing.sim.job import Sim
from slurm_robust.wire.messages import Heartbeat, Phase, Progress
from tests.builders.state import job_state
from tests.unit.engine import stories
from tests.unit.engine.stories import controller_of
from tests.waiting import wait_for


class Watched:
    """A simulated job, and who makes its moments."""

    def __init__(self, sim: Sim) -> None:
        self.sim = sim
        self.moments = LiveStatusMaker()
        self._known = 0

    def look(self) -> LiveStatus:
        news, self._known = self.sim.journal[self._known :], len(self.sim.journal)
        controller = controller_of(self.sim)
        return self.moments.make(picture(controller.core, controller.now(), news, Storage()))

    def node(self, name: str) -> LiveNode:
        return next(each for each in self.look().nodes if each.node == name)

    def is_decided(self) -> bool:
        incident = self.sim.state.world.incident
        return incident is not None and incident.decided is not None


def watched(config: JobConfig | None = None) -> Watched:
    """A job of two nodes and a standby that has just made step 5."""
    found = Watched(stories.trained(2, 1, to=0, config=config))
    for step in range(1, 6):
        found.look()
        found.sim.run_until(lambda step=step: found.sim.step >= step, within_s=30.0)
    found.sim.run(1.6)  # its peers have their copies, and the controller has heard of them
    return found


@pytest.fixture
def trained() -> Watched:
    return watched()


def test_a_step_that_one_node_has_no_room_to_keep_is_shown_in_no_tier(trained: Watched) -> None:
    full = "the file system of /dev/shm has 3.1 MB free of 2.1 GB"
    kept = {tier.tier: tier.step for tier in trained.look().tiers}
    assert kept[Tier.MEMORY] == 5
    trained.sim.nodes["n2"].unkept = full
    trained.sim.run_until(lambda: trained.sim.step >= 12, within_s=30.0)
    trained.sim.run(1.6)
    seen = trained.look()
    assert seen.unkept == {"n2": full}
    assert Tier.MEMORY not in {tier.tier for tier in seen.tiers}, "n2 still has step 5, which n1 has not"


def test_the_age_of_the_newest_whole_step_begins_with_the_step(trained: Watched) -> None:
    assert trained.look().kept_age_s is not None
    trained.sim.run_until(lambda: trained.sim.step >= 7, within_s=30.0)
    trained.sim.run(1.6)
    assert trained.look().kept_age_s == 0.0
    trained.sim.run(0.3)
    assert trained.look().kept_age_s == pytest.approx(0.3)


def test_a_training_shows_its_step_and_pace(trained: Watched) -> None:
    moment = trained.look()
    assert (moment.stage, moment.step, moment.ranks, moment.world) == ("running", 5, 2, 2)
    assert moment.step_s == pytest.approx(2.0, abs=0.1)
    assert [(n.node, n.slot, n.state) for n in moment.nodes] == [
        ("n1", 0, NodeState.TRAINING),
        ("n2", 1, NodeState.TRAINING),
        ("n3", -1, NodeState.STANDBY),
    ]
    assert {tier.tier: tier.step for tier in moment.tiers} == {Tier.MEMORY: 5, Tier.PEER: 5}
    assert moment.nodes[0].memory_step == 5


def test_the_moment_of_a_job_is_empty_before_anything_is_known() -> None:
    moment = Watched(Sim(2, 1)).look()
    assert (moment.step, moment.loss, moment.ettr, moment.incident) == (-1, None, None, None)
    assert moment.stage_s >= 0


def test_a_node_that_is_silent_is_wrong() -> None:
    seen = watched(JobConfig(mode="observe"))
    seen.sim.node_dies("n2")
    seen.sim.run_until(lambda: bool(seen.sim.events(ev.Decided)), within_s=30.0)
    assert seen.node("n2").state is NodeState.DEAD
    assert seen.node("n2").why.startswith("n2 is dead: no beacon for ")
    assert seen.node("n2").is_wrong
    assert not seen.node("n1").is_wrong


def test_an_incident_says_what_is_done_and_why(trained: Watched) -> None:
    sim = trained.sim
    sim.node_dies("n2")
    sim.run_until(trained.is_decided, within_s=60.0)
    moment = trained.look()
    assert moment.incident is not None
    assert (moment.opened, moment.closed) == (1, 0)
    assert "n2" in moment.incident.sign
    assert "evict n2, n3 takes its slot" in moment.incident.actions
    assert moment.incident.reason
    assert moment.incident.suspects == ("n2",)
    assert [n.state for n in moment.nodes if n.node == "n2"] == [NodeState.EVICTED]
    sim.run_until(lambda: sim.state.world.incident is None, within_s=60.0)
    assert trained.look().incident is None
    assert trained.look().closed == 1


def test_totals_count_what_the_journal_holds(trained: Watched) -> None:
    sim = trained.sim
    before = trained.look().totals
    assert before is not None
    assert (before.launches, before.evictions, sum(before.incidents.values())) == (1, 0, 0)
    assert before.classes == {}  # until the ledger was computed
    sim.node_dies("n2")
    sim.run_until(trained.is_decided, within_s=60.0)
    now = controller_of(sim).now()
    trained.moments.on_ledger(summary_of(sim.journal, now.wall), now.mono)
    totals = trained.look().totals
    assert totals is not None
    assert (totals.incidents["node lost"], totals.evictions, totals.actions["evict"]) == (1, 1, 1)
    assert [(mark.number, mark.symptom, mark.blame, mark.ended) for mark in totals.marks] == [
        (1, "node lost", "node", None)
    ]
    assert totals.classes["productive"] > 0


def test_a_loss_that_is_no_number_is_told_and_can_be_written(trained: Watched) -> None:
    assert (trained.look().non_finite, trained.look().loss) == (False, 2.5)
    trained.sim.spoil_rank(1)
    trained.sim.run_until(lambda: trained.look().loss is None, within_s=10.0)
    moment = trained.look()
    assert moment.non_finite
    assert b"NaN" not in encode(moment)


def test_standing_alerts_are_shown_newest_first(trained: Watched) -> None:
    for number in range(6):
        is_over = number == 5
        alert = Alert(
            check="gpu.ecc",
            subject=f"gpu{number}",
            text="\x1b[2Jbad",
            number=number,
            age_s=9.0 - number,
            ended_s=1.0 if is_over else None,
        )
        trained.sim.alert("n3", alert)
    trained.sim.run(1.0)
    found = trained.node("n3")
    assert found.alerts[0] == "gpu.ecc gpu4: bad"
    assert len(found.alerts) == 4


@pytest.mark.parametrize(
    ("entered_by", "text"),
    [
        (to.ToStopping(reason="ordered"), "ordered"),
        (
            to.ToStopping(reason="x", fault=Fault(symptom=Symptom.HANG, detail="no step for 20 s")),
            "no step for 20 s",
        ),
        (to.ToRequeueing(exclude=("n1",), reason="no standby", failure=True), "no standby (without 1 node)"),
        (to.ToSaving(then=to.ToEnding(code=0, reason="done")), "done"),
        (to.ToCheckpointing(agents={}), "time limit"),
        (to.ToRunning(agents={}), ""),
    ],
)
def test_a_stage_says_why(entered_by: to.Transition, text: str) -> None:
    assert why(entered_by, "time limit") == text


# -- a large job -----------------------------------------------------------------------------------

NODES, RANKS = 300, 2


def large(step: int) -> Picture:
    """Of a job of more nodes than are looked at for one moment; benchmarks/top.py has one of 1,200."""
    slots = tuple(f"gpu{i:04d}" for i in range(NODES))
    agents = {}
    for number, node in enumerate(slots):
        ranks = range(number * RANKS, (number + 1) * RANKS)
        copies = [
            Copy(rank=r, generation=1, step=step - k, tier=Tier.MEMORY) for r in ranks for k in range(3)
        ]
        copies += [
            Copy(rank=(r + RANKS) % (NODES * RANKS), generation=1, step=step - k, tier=Tier.PEER)
            for r in ranks
            for k in range(2)
        ]
        progress = tuple(Progress(rank=r, step=step, reported=True, age_s=0.1, loss=1.5) for r in ranks)
        heartbeat = Heartbeat(
            node=node, agent="a", seq=step, epoch=1, phase=Phase.RUNNING, generation=1,
            progress=progress, copies=tuple(copies),
        )  # fmt: skip
        agents[node] = AgentPicture(heartbeat, float(step), float(step), "")
    state = job_state(
        run_id="7-abcd", job_id=7, slots=slots, generation=1, running=True, nproc_per_node=RANKS
    )
    return Picture(
        now=Now(mono=step + 0.5, wall=1.7e9 + step), state=state, agents=agents, stage="running",
        entered_by=to.ToRunning(agents={}), stage_since=0.0, mode="act", node_dead_s=5.0, usual_step_s=1.0,
        hang_s=14.0, stage_most_s=None, ending="", held=False, listed={}, storage=Storage(), news=[],
    )  # fmt: skip


def test_a_large_job_is_looked_at_in_turns_and_is_a_small_file() -> None:
    moments = LiveStatusMaker()
    first, second = moments.make(large(10)), moments.make(large(11))
    assert not first.tiers  # not all nodes have been looked at
    assert {tier.tier: tier.step for tier in second.tiers} == {Tier.MEMORY: 10, Tier.PEER: 10}
    assert len(encode(second)) < NODES * 400
    assert (second.hang_s, second.stage_most_s) == (14.0, None)


# -- the file --------------------------------------------------------------------------------------


class Written:
    """A simulated job, and its moments in a real folder."""

    def __init__(self, folder: Path, every_s: float = 0.001) -> None:
        self.directory = JobDirectory(folder)
        self.sim = Sim(2, 1)
        self.controller = controller_of(self.sim)
        folder.mkdir(exist_ok=True)
        self.directory.spec.write_text(f'{{"run_id": "{self.sim.state.run_id}"}}')
        self.journal = Journal(self.directory.journal)
        self.journal.append(*self.sim.journal)
        self.computed = 0
        self.file = LiveStatusFile(self.directory, self.journal, every_s, self.compute)

    def compute(self, events: list[ev.AnyEvent], now: float) -> Summary:
        self.computed += 1
        return summary_of(events, now)

    def step(self) -> None:
        self.file.step(self.controller.core, self.controller.now())
        assert self.file.settle(10)

    def write(self) -> LiveStatus:
        def written() -> bool:
            self.step()
            return self.directory.live_status.exists()

        wait_for(written)
        return read(self.directory.live_status)

    def close(self, *, ours: bool = True) -> None:
        self.file.close(self.controller.core, self.controller.now(), ours=ours)
        self.journal.close()


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    made = Written(tmp_path / "7")
    yield made
    made.close(ours=False)


def test_the_file_is_closed_to_others_and_has_the_ledger(written: Written) -> None:
    moment = written.write()
    assert (moment.job_id, moment.final) == (1, False)
    assert moment.ettr is not None
    assert written.directory.live_status.stat().st_mode & 0o077 == 0


def test_the_ledger_is_not_computed_each_time(written: Written) -> None:
    written.write()
    number = read(written.directory.live_status).number

    def newer() -> bool:
        written.step()
        return read(written.directory.live_status).number > number + 2

    wait_for(newer)
    assert written.computed == 1


def test_the_last_live_status_says_that_it_is_the_last(written: Written) -> None:
    written.write()
    written.close()
    assert read(written.directory.live_status).final


def test_a_controller_that_was_taken_over_from_does_not_call_the_job_over(written: Written) -> None:
    written.write()
    written.close(ours=False)
    assert not read(written.directory.live_status).final


def test_storage_that_refuses_is_counted_and_then_goes_on(written: Written) -> None:
    written.directory.live_status.mkdir()
    written.step()
    wait_for(lambda: written.step() or written.file.missed > 0)
    written.directory.live_status.rmdir()
    assert written.write().missed > 0


def test_nothing_is_written_into_another_jobs_folder(written: Written) -> None:
    written.directory.spec.write_text('{"run_id": "8-other"}')
    wait_for(lambda: written.step() or written.file.missed > 0)
    assert not written.directory.live_status.exists()


def test_the_live_status_that_a_killed_controller_left_is_removed(written: Written) -> None:
    (written.directory.path / ".moment.json.0123").write_bytes(b"half")
    written.write()
    assert not [path for path in written.directory.path.iterdir() if path.name.startswith(".moment")]


def test_no_live_status_is_written_if_none_is_wanted(tmp_path: Path) -> None:
    off = Written(tmp_path / "7", every_s=0.0)
    off.step()
    off.close()
    assert not off.directory.live_status.exists()


def test_the_live_status_is_written_every_two_seconds_by_default() -> None:
    assert JobConfig().timings.moment_s == 2.0


def test_an_update_shows_what_its_trial_is_at(trained: Watched) -> None:
    trained.sim = stories.trained(2, 0, to=5, release="a" * 12)
    trained.sim.has_release("b" * 12)
    trained.sim.update("b" * 12)
    seen: list[str] = []

    def is_tried() -> bool:
        update = trained.look().update
        if update is None or update.tried:
            return bool(seen)
        seen.extend([update.doing] if update.doing not in seen else [])
        return False

    trained.sim.run_until(is_tried, within_s=120.0)
    assert "first steps on n1" in seen
    assert "imports: done on 0 of 2 nodes" in seen
