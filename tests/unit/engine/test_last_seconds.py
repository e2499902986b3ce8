"""The end is the end, whatever happens in its last seconds.

The real core, its stages and the policy end a job: a training that is done, code that fails again, an order
of Slurm or of the owner, a time limit. Meanwhile the controller is killed at an event of its journal, once or
twice, and messages from and to agents are lost or late. Agents live on, as they do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from slurm_robust.engine import effects as fx
from slurm_robust.engine.core import Core
from slurm_robust.engine.over import code_of
from slurm_robust.engine.stages.table import begin, build
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.exits import WorkerError, WorkerExit
from slurm_robust.model.incident import GiveUp, Requeue
from slurm_robust.model.journal import fold
from slurm_robust.wire.messages import Launch, Phase
from tests.builders.events import run_started
from tests.builders.plans import plan
from tests.unit.engine.fake_job import Job

pytestmark = pytest.mark.slow

START = "this start of srobust run"
AGAIN_S = 1.0
"""Until the supervisor starts the next controller."""

FOUND_S = 3.0
"""Until agents find it."""

WITHIN_S = 120.0
"""A job of this fleet has ended by then, also where its controller dies twice."""

ORDER = "ordered to end by SIGTERM"
ERROR = WorkerError(type="ValueError", message="no", file="/home/u/train.py", line=12)


class LastSeconds(Job):
    """A job whose controllers die and whose messages go astray, from :meth:`arm` on."""

    killed = False
    armed = False
    kills: tuple[int, ...] = ()
    lost: frozenset[int] = frozenset()
    late: Mapping[int, float] = {}
    epoch = 1
    found_at = 0.0

    def arm(self, kills: tuple[int, ...], lost: frozenset[int], late: Mapping[int, float]) -> None:
        """``kills``: after how many events each controller dies; the others are numbers of messages."""
        self.armed, self.kills, self.lost, self.late = True, kills, lost, late
        self.written = self.messages = 0
        self.until_mono = self.mono + 5.0
        self.under_way: list[tuple[float, Callable[[], object]]] = []
        self.pending = ""  # an order that no controller has reported to be carried out
        self.launched: list[int] = []

    # -- the controller dies, and the next one comes ---------------------------------------------------

    def act(self, effects: list[fx.Effect]) -> None:
        if self.killed:
            return
        for effect in effects:
            if isinstance(effect, fx.Write):
                super().act([effect])
                if self._dies():
                    return  # nothing of what was decided is done
        super().act([effect for effect in effects if not isinstance(effect, fx.Write)])

    def _dies(self) -> bool:
        if not self.armed or not self.kills:
            return False
        self.written += 1
        if self.written < self.kills[0]:
            return False
        self.kills = self.kills[1:]
        self.killed, self.born_at = True, self.mono + AGAIN_S
        return True

    def next_controller(self) -> None:
        self.written, self.killed = 0, False
        self.epoch += 1
        self.journal.append(
            ev.ControllerStarted(
                t=self.wall, epoch=self.epoch, host="n1", pid=self.epoch, port=1, start=START
            )
        )
        news, first = begin(self.journal, structs.replace(plan(), restart_count=0), self.wall)
        self.journal += news
        self.found_at = self.mono + FOUND_S
        self.core = Core(self.core.config, fold(self.journal), build, first, self.now())
        if self.pending:
            self.act(self.core.on_leave(self.pending, self.now()))
        self.act(self.core.on_tick(self.now()))

    def order_to_end(self) -> None:
        self.pending = ORDER
        if not self.killed:
            self.act(self.core.on_leave(ORDER, self.now()))

    # -- messages go astray ----------------------------------------------------------------------------

    def tell(self, node: str, **changes: object) -> bool:
        if not self.armed:
            return super().tell(node, **changes)
        old = self.heartbeats[node]
        self.heartbeats[node] = heartbeat = structs.replace(old, seq=old.seq + 1, **changes)
        if self.killed or self.mono < self.found_at:
            return False
        return self._carry(lambda: self.core.on_heartbeat(heartbeat, self.now()))

    def obey(self, node: str, message: object) -> None:
        if not self.armed:
            super().obey(node, message)
            return
        if self.mono < self.found_at:
            return  # no agent has found this controller yet
        self._carry(lambda: self._obey(node, message))

    def _obey(self, node: str, message: object) -> None:
        if isinstance(message, Launch) and message.generation > self.heartbeats_generation(node):
            self.launched.append(message.generation)
        super().obey(node, message)

    def heartbeats_generation(self, node: str) -> int:
        return self.heartbeats[node].generation if node in self.heartbeats else 0

    def _carry(self, deliver: Callable[[], object]) -> bool:
        self.messages += 1
        if self.mono < self.until_mono and self.messages in self.lost:
            return False
        if self.mono < self.until_mono and self.messages in self.late:
            self.under_way.append((self.mono + self.late[self.messages], deliver))
            return False
        deliver()
        return True

    def make_a_step(self) -> None:
        """All ranks complete one more, and each has written what it was asked for."""
        step = 1 + max(p.step for b in self.heartbeats.values() for p in b.progress)
        self.train_to(step)
        for node, heartbeat in list(self.heartbeats.items()):
            if node in self.heartbeats and heartbeat.phase is Phase.RUNNING:
                done = tuple(structs.replace(p, step=step, checkpoint=step) for p in heartbeat.progress)
                self.change(node, progress=done)

    # -- time ------------------------------------------------------------------------------------------

    def live(self, seconds: float = 0.5) -> None:
        if self.killed and self.mono >= self.born_at:
            self.next_controller()
        if self.code is None:
            self.pass_time(seconds)
        due = [deliver for at, deliver in self.under_way if at <= self.mono]
        self.under_way = [(at, deliver) for at, deliver in self.under_way if at > self.mono]
        for deliver in due:
            deliver()

    def ends(self, meanwhile: Callable[[LastSeconds], None]) -> None:
        until = self.mono + WITHIN_S
        while self.code is None:
            assert self.mono < until, f"stage {self.stage}, said {self.said[-5:]}"
            self.live()
            meanwhile(self)


# -- how a job ends --------------------------------------------------------------------------------------


def nothing(job: LastSeconds) -> None:
    pass


def is_done(job: LastSeconds) -> Callable[[LastSeconds], None]:
    job.finish()
    return nothing


def is_done_and_then_ordered_to_end(job: LastSeconds) -> Callable[[LastSeconds], None]:
    job.finish()
    job.live()
    if job.code is None:
        job.order_to_end()
    return nothing


def fails_again(job: LastSeconds) -> Callable[[LastSeconds], None]:
    def fail(job: LastSeconds) -> None:
        for node, heartbeat in list(job.heartbeats.items()):
            ranks = [p.rank for p in heartbeat.progress]
            if node in job.heartbeats and heartbeat.phase is Phase.RUNNING and not heartbeat.exits and ranks:
                exits = (WorkerExit(rank=ranks[0], code=1, error=ERROR),)
                job.change(node, exits=exits, phase=Phase.ENDED)

    fail(job)
    return fail


def is_ordered_to_end(job: LastSeconds) -> Callable[[LastSeconds], None]:
    job.order_to_end()
    return nothing


def runs_out_of_time(job: LastSeconds) -> Callable[[LastSeconds], None]:
    job.act(job.core.on_end_approaching("the end of this run is near (USR1)", job.now()))

    def term(job: LastSeconds) -> None:
        if job.stage in ("Running", "Checkpointing"):
            job.make_a_step()
        if not job.killed and job.core.ending is None and job.code is None:  # the supervisor passes it on
            job.act(job.core.on_end_approaching("the end of this run is near (USR1)", job.now()))
        if job.requeued and not job.pending:
            job.order_to_end()

    return term


def loses_a_node(job: LastSeconds) -> Callable[[LastSeconds], None]:
    job.power_cut("n2")

    def term(job: LastSeconds) -> None:
        if job.requeued and not job.pending:
            job.order_to_end()

    return term


ENDS: dict[str, tuple[Callable[[LastSeconds], Callable[[LastSeconds], None]], set[int]]] = {
    "done": (is_done, {0}),
    "done, then ordered": (is_done_and_then_ordered_to_end, {0}),
    "fails": (fails_again, {ExitCode.DO_NOT_REQUEUE}),
    "ordered": (is_ordered_to_end, {ExitCode.TERMINATED}),
    "time": (runs_out_of_time, {ExitCode.REQUEUED, ExitCode.TERMINATED}),
    "node lost": (loses_a_node, {ExitCode.REQUEUED, ExitCode.TERMINATED}),
}


def play(
    end: str,
    kills: tuple[int, ...] = (),
    lost: frozenset[int] = frozenset(),
    late: Mapping[int, float] | None = None,
    *,
    beacons: bool = False,
) -> LastSeconds:
    """A job of two nodes has trained for a while, and ends."""
    nodes = ("n1", "n2")
    history = (
        run_started(t=1.7e9, job_id=7, slots=2, spares=0),
        ev.ControllerStarted(t=1.7e9, epoch=1, host="n1", pid=1, port=1, start=START),
        ev.AllocationTaken(t=1.7e9, restart_count=0, nodes=nodes, slots=nodes, spares=()),
    )
    job = LastSeconds(nodes, (), history=history, memory=True, beacons=beacons)
    job.until(lambda: job.stage == "Running")
    job.train_to(5)
    job.pass_time(2.0)
    job.arm(kills, lost, late or {})
    job.ends(ENDS[end][0](job))
    return job


def check(job: LastSeconds, end: str) -> None:
    """What holds for each end."""
    journal = job.journal
    assert job.code in ENDS[end][1]
    ended = [event for event in journal if isinstance(event, ev.RunEnded)]
    if job.code != ExitCode.REQUEUED:
        assert [event.code for event in ended] == [job.code]
        assert code_of(fold(journal), START) == job.code
    else:
        assert ended == []
    binds = next(i for i, event in enumerate(journal) if is_binding(event))
    later = [type(event).__name__ for event in journal[binds + 1 :]]
    assert not {"GenerationLaunched", "IncidentOpened"} & set(later), later
    if end.startswith("done"):
        assert job.launched == []
        assert job.events(ev.IncidentOpened) == []
    if end == "ordered":
        assert job.launched == []
        assert job.events(ev.IncidentOpened) == []


def is_binding(event: ev.AnyEvent) -> bool:
    if isinstance(event, ev.Decided):
        return any(isinstance(action, GiveUp | Requeue) for action in event.actions)
    return isinstance(event, ev.StopOrdered | ev.EndStarted | ev.RunEnded)


@pytest.mark.parametrize("end", ENDS)
def test_an_end_is_the_end_wherever_its_controller_dies(end: str) -> None:
    number = 0
    while not (job := play(end, kills=(number := number + 1,))).kills:
        check(job, end)
    check(job, end)  # that of a controller that has written all
    assert number > 2


LATE_S = (0.4, 1.1, 2.6)


@pytest.mark.parametrize("end", ENDS)
def test_an_end_is_the_end_whichever_message_is_lost_or_late(end: str) -> None:
    number = 0
    while True:
        number += 1
        check(job := play(end, lost=frozenset({number})), end)
        for late_s in LATE_S:
            check(play(end, late={number: late_s}), end)
        if number >= job.messages:
            break
    assert number > 5


@pytest.mark.parametrize("end", ENDS)
@settings(max_examples=150, derandomize=True, deadline=None)
@given(
    kills=st.lists(st.integers(1, 14), max_size=3).map(tuple),
    lost=st.frozensets(st.integers(1, 40), max_size=4),
    late=st.dictionaries(st.integers(1, 40), st.sampled_from(LATE_S), max_size=4),
    beacons=st.sampled_from([False, False, False, True]),
)
def test_an_end_is_the_end_whatever_comes_together(
    end: str, kills: tuple[int, ...], lost: frozenset[int], late: dict[int, float], beacons: bool
) -> None:
    check(play(end, kills, lost, late, beacons=beacons), end)
