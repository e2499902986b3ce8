"""An order to end at any moment of a job's life: what only memory has is stored, or its loss is named.

Lives of random faults are ordered to end in the middle: while agents start, a node is replaced, a step is
saved, an incident is open or agents come back. The order comes again and again, and maybe a second one.
"""

from __future__ import annotations

import re
from random import Random

import pytest
from msgspec import structs

from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.errors import ExitCode
from slurm_robust.testing.sim.job import Sim
from slurm_robust.testing.sim.lives import begin

WITHIN_S = 300.0
"""Also where storage hangs."""


def whole(sim: Sim) -> int:
    """The newest step that nodes which answer hold in memory, every part of it, -1 for none."""
    ranks: dict[CheckpointId, set[int]] = {}
    host = sim.controller.host if sim.controller is not None else ""
    for node in sim.nodes.values():
        agent = node.agent
        if agent is not None and not agent.is_stopped and sim.network.passes(node.name, host):
            for copy in node.copies:
                ranks.setdefault(copy.checkpoint, set()).add(copy.rank)
    size = sim.state.world.placement.world_size
    return max((ref.step for ref, found in ranks.items() if len(found) >= size > 0), default=-1)


def lost(sim: Sim) -> int:
    """The newest step that the job's log calls lost, -1 for none."""
    told = [re.search(r"steps? (?:\d+ to )?(\d+) (?:is|are) lost", text) for text in sim.said]
    return max((int(found[1]) for found in told if found), default=-1)


def check(seed: int) -> None:
    life = begin(seed)
    sim, chance = life.sim, Random(f"order {seed}")
    sim.env.pace = structs.replace(sim.env.pace, kill_wait_s=30.0)  # Slurm's default
    sim.run(chance.uniform(5.0, 160.0))
    if sim.code is not None or sim.controller is None or sim.state.ended or sim.state.requeueing:
        return
    if chance.random() < 0.15:
        life.faults.append("srun ends all agents")
        for name in sim.nodes:
            sim.agent_dies(name, told=False)
    newest, done, saved = whole(sim), sim.state.world.best_step, len(sim.events(ev.StorageWritten))
    second_s = chance.choice((None, None, None, 0.5, 2.0))
    begun = sim.now
    sim.term()
    if second_s is not None:
        sim.order_to_end()
        sim.env.timeline.after(second_s, lambda: sim.controller and sim.controller.hurry())
    while sim.code is None:
        what = f"seed {seed}, ordered at {begun:.1f} s, {life.faults}: {sim.describe()}"
        assert sim.now - begun < WITHIN_S, what
        sim.run(1.0)
        sim.term()
    what = f"seed {seed}, ordered at {begun:.1f} s, {life.faults}: {sim.describe()}"
    if sim.code == 0:
        return
    assert sim.code in (ExitCode.TERMINATED, ExitCode.INTERRUPTED), what
    if any("NaN" in fault for fault in life.faults):
        return  # steps that were spoiled are worth nothing
    on_storage = max((ref.step for ref in sim.storage.complete()), default=-1)
    assert max(on_storage, lost(sim)) >= newest, (newest, what)
    if len(sim.events(ev.StorageWritten)) == saved:
        assert max(on_storage, lost(sim)) >= done, (done, what)
    if not life.faults and second_s is None and newest >= 0:
        assert on_storage >= newest, f"nothing was in the way: {what}"


@pytest.mark.parametrize("first", range(0, 100, 20))
def test_an_ordered_end_stores_what_memory_has_or_names_what_is_lost(first: int) -> None:
    for seed in range(first, first + 20):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(5000, 5200, 40))
def test_many_ordered_ends_store_what_memory_has_or_name_what_is_lost(first: int) -> None:
    for seed in range(first, first + 40):
        check(seed)
