"""An order to end at any moment of a job's life: what only memory has is stored, or its loss is named.

The real core, its stages and the policy live through weather that is drawn, as in ``test_every_stage_ends``,
and are ordered to end in the middle of it: while agents start, a node is replaced, a step is saved, an
incident is open or agents come back. The order comes again and again, and maybe a second one.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.errors import ExitCode
from tests.unit.engine.fake_job import Job
from tests.unit.engine.test_every_stage_ends import (
    CONFIG,
    DONE,
    NODES,
    SPARES,
    TAKEN,
    TICK_S,
    Weather,
    happenings,
)

pytestmark = pytest.mark.slow

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
