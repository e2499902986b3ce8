"""An order to end at any moment of a job's life: what only memory has is stored, or its loss is named.

The real core, its stages and the policy live through weather that is drawn,
and are ordered to end in the middle of it: while agents start, a node is replaced, a step is saved, an
incident is open or agents come back. The order comes again and again, and maybe a second one.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_robust.config.job import DetectConfig, JobConfig, Timings
from slurm_robust.engine.questions import RequeueStatus, SlurmAnswer
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.incident import Diagnosis
from slurm_robust.wire.messages import Phase
from tests.unit.engine.fake_job import Job

pytestmark = pytest.mark.slow

NODES, SPARES = ("n1", "n2", "n3"), ("n4",)
ALL = (*NODES, *SPARES)
CONFIG = JobConfig(
    timings=Timings(
        agent_start_s=10.0,
        launch_s=20.0,
        checkpoint_s=10.0,
        unreachable_s=40.0,
        stop_grace_s=2.0,
        kill_wait_s=2.0,
    ),
    detect=DetectConfig(first_step_s=60.0, phase_s=60.0, diagnose_s=20.0),
)
TAKEN, DONE = SlurmAnswer(said=RequeueStatus.TAKEN), SlurmAnswer(said=RequeueStatus.DONE)
SILENT = SlurmAnswer(said=RequeueStatus.NOTHING, detail="Unable to contact slurm controller")
REFUSED = SlurmAnswer(said=RequeueStatus.REFUSED, detail="Requeue is disabled")

TICK_S = 1.0


class Weather:
    """A job, and what may happen to it. ``hangs``: no rank makes a step."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.agents = 0  # started in place of others; no two have one name
        self.hangs = False

    def crash(self, rank: int) -> None:
        job = self.job
        node = job.core.world.placement.node_of(rank % len(NODES))
        if node in job.heartbeats and node not in job.dead and job.heartbeats[node].progress:
            job.kill_rank(rank % len(NODES), signal=11)

    def power_cut(self, number: int) -> None:
        self.job.power_cut(ALL[number])

    def cut(self, number: int) -> None:
        self.job.cut.add(ALL[number])

    def cut_all_others(self, number: int) -> None:
        self.job.cut.update(ALL[1:])
        self.job.slurm_answers = False

    def new_agent(self, number: int) -> None:
        node = ALL[number]
        if node in self.job.heartbeats and node not in self.job.dead:
            self.agents += 1
            self.job.join(node, agent=f"again-{self.agents}")

    def hang(self, number: int) -> None:
        self.hangs = True

    def mute(self, number: int) -> None:
        self.job.mute.add(ALL[number])

    def stubborn(self, number: int) -> None:
        self.job.stubborn.add(ALL[number])

    def slow(self, number: int) -> None:
        self.job.slow[ALL[number]] = 20.0

    def stalled(self, number: int) -> None:
        self.job.stalled.add(ALL[number])
        self.job.cut.add(ALL[number])

    def gpus_not_free(self, number: int) -> None:
        self.job.freeing.add(ALL[number])

    def storage_hangs(self, number: int) -> None:
        self.job.hears_storage = False

    def storage_fails(self, number: int) -> None:
        self.job.storage_broken = True

    def nothing_is_written(self, number: int) -> None:
        self.job.writes = False

    def tests_never_answer(self, number: int) -> None:
        self.job.diagnosis = None

    def tests_blame(self, number: int) -> None:
        self.job.diagnosis = Diagnosis(suspects=(ALL[number],), reason="fails memory")

    def slurm_is_silent(self, number: int) -> None:
        self.job.slurm_answers = False
        self.job.slurm_says = (SILENT,)

    def slurm_loses_answers(self, number: int) -> None:
        self.job.slurm_says = ()

    def slurm_refuses(self, number: int) -> None:
        self.job.slurm_says = (REFUSED,)

    def end_is_near(self, number: int) -> None:
        self.job.act(self.job.core.on_end_approaching("the end of this run is near (USR1)", self.job.now()))

    def gpus_are_free(self) -> None:
        self.job.freeing.clear()
        for node, heartbeat in list(self.job.heartbeats.items()):
            if heartbeat.phase is Phase.FREEING:
                self.job.change(node, phase=Phase.RUNNING)

    def calm(self, lasting: frozenset[str]) -> None:
        """All is well again, but for what lasts."""
        job = self.job
        heal: dict[str, Callable[[], object]] = {
            "cut": job.cut.clear,
            "mute": job.mute.clear,
            "stubborn": job.stubborn.clear,
            "slow": job.slow.clear,
            "freeing": self.gpus_are_free,
            "hangs": lambda: setattr(self, "hangs", False),
            "storage_broken": lambda: setattr(job, "storage_broken", False),
            "writes": lambda: setattr(job, "writes", True),
            "tests": lambda: setattr(job, "diagnosis", Diagnosis(reason="all passed")),
            "slurm": lambda: setattr(job, "slurm_answers", True),
            "requeue": lambda: setattr(job, "slurm_says", (TAKEN, DONE)),
        }
        for name, mend in heal.items():
            if name not in lasting:
                mend()
        if job.slurm_says != (REFUSED,):  # a requeue without an answer is asked for during a day
            job.slurm_says = (TAKEN, DONE)
        if "storage" not in lasting and not job.hears_storage:
            job.hears_storage = True
            job.tell_storage()

    def live(self, seconds: float) -> None:
        """Time passes, and ranks that can make a step a second."""
        job, end = self.job, self.job.mono + seconds
        while job.mono < end and job.code is None:
            job.pass_time(TICK_S, tick=TICK_S)
            if job.requeued and job.slurm_says and job.slurm_says[0] is TAKEN and job.core.leaving is None:
                job.act(job.core.on_leave("ordered to end by SIGTERM", job.now()))
            if self.can_step():
                job.train_to(max(self.step(), job.core.world.restored_step) + 1)

    def step(self) -> int:
        """The newest that all ranks have completed."""
        heartbeats = [self.job.heartbeats.get(node) for node in self.job.core.world.slots]
        return min(
            (p.step for heartbeat in heartbeats if heartbeat is not None for p in heartbeat.progress),
            default=-1,
        )

    def is_settled(self) -> bool:
        """The job has ended, or makes steps that are new."""
        job = self.job
        if job.code is not None:
            return True
        steps = self.step()
        self.live(20.0)
        return job.code is not None or (job.stage == "Running" and self.step() > steps + 10)

    def can_step(self) -> bool:
        job, state = self.job, self.job.core.state
        heartbeats = [job.heartbeats.get(node) for node in state.world.slots]
        return not self.hangs and all(
            b is not None
            and b.node not in job.dead
            and b.phase is Phase.RUNNING
            and b.generation == state.world.generation
            and b.progress
            and not b.exits
            for b in heartbeats
        )


EVENTS = [
    name
    for name in vars(Weather)
    if not name.startswith("_")
    and name not in ("calm", "live", "can_step", "is_settled", "step", "gpus_are_free")
]
LASTING = [
    "cut",
    "mute",
    "stubborn",
    "slow",
    "freeing",
    "hangs",
    "storage",
    "storage_broken",
    "writes",
    "tests",
    "requeue",
]
PAUSES_S = (0.0, 0.7, 3.0, 7.6, 16.8, 29.5, 45.0, 57.0)
happenings = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.sampled_from(range(len(ALL))), st.sampled_from(PAUSES_S)),
    min_size=1,
    max_size=6,
)

ORDER = "ordered to end by SIGTERM"
WITHIN_S = 120.0
"""With the times of CONFIG, storage that hangs and nodes that are silent."""


class Ordered(Weather):
    """A job that is ordered to end, and what it had done until then."""

    def agents_end(self, number: int) -> None:
        """As srun ends them all: their nodes stay, and Slurm starts no others any more."""
        self.job.agent_dies(*[n for n in self.job.heartbeats if n not in self.job.dead])

    def order(self) -> None:
        job = self.job
        job.act(job.core.on_leave(ORDER, job.now()))

    def end(self, *, again: bool, second: float | None) -> None:
        """Time passes until the end. ``again``: the order comes each second; ``second``: after how long."""
        job, begun = self.job, self.job.mono
        while job.code is None:
            assert job.mono - begun < WITHIN_S, f"stage {job.stage}, said {job.said[-5:]}"
            if again:
                self.order()
            if second is not None and job.mono - begun >= second:
                job.act(job.core.on_second_order(job.now()))
            job.pass_time(TICK_S, tick=TICK_S)

    def whole(self) -> int:
        """The newest step that nodes which answer hold in memory, every part of it."""
        job = self.job
        ranks: dict[CheckpointId, set[int]] = {}
        for node, heartbeat in job.heartbeats.items():
            for copy in heartbeat.copies if node not in job.dead | job.cut else ():
                ranks.setdefault(copy.checkpoint, set()).add(copy.rank)
        return max((ref.step for ref, found in ranks.items() if len(found) >= len(NODES)), default=-1)


def lost(job: Job) -> int:
    """The newest step that the job's log calls lost, -1 for none."""
    told = [re.search(r"steps? (?:\d+ to )?(\d+) (?:is|are) lost", text) for text in job.said]
    return max((int(found[1]) for found in told if found), default=-1)


@settings(max_examples=120, derandomize=True, deadline=None)
@given(
    trains_s=st.sampled_from([0.0, 1.0, 2.0, 20.0]),
    happenings=st.lists(happenings.map(lambda some: some[0]) | st.just(("agents_end", 0, 0.0)), max_size=3),
    again=st.booleans(),
    second=st.sampled_from([None, None, None, 0.0, 2.0]),
    stored=st.booleans(),
)
def test_an_ordered_end_stores_what_memory_has_or_names_what_is_lost(
    trains_s: float, happenings: list[tuple[str, int, float]], again: bool, second: float | None, stored: bool
) -> None:
    job = Job(NODES, SPARES, CONFIG, memory=True)
    job.ages, job.slurm_says = True, (TAKEN, DONE)
    weather = Ordered(job)
    weather.live(trains_s)
    if stored and weather.step() >= 0 and job.core.world.running:
        ref = CheckpointId(step=weather.step(), generation=job.core.world.generation)
        job.storage.add(ref)
        weather.live(3.0)
    for name, number, pause_s in happenings:
        getattr(weather, name)(number)
        weather.live(pause_s)
    if job.code is not None or job.requeued:
        return
    whole, done = weather.whole(), job.core.world.best_step
    weather.order()
    weather.end(again=again, second=second)
    on_storage = max((ref.step for ref in job.storage), default=-1)
    if job.code == 0:
        return
    assert job.code == ExitCode.TERMINATED
    saved = [event.step for event in job.events(ev.StorageWritten)]
    told = lost(job)
    assert max(on_storage, told) >= whole, job.said
    if not saved:
        assert max(on_storage, told) >= done, job.said
    if second is None and not happenings and whole >= 0:
        assert on_storage >= whole, "nothing was in the way"
