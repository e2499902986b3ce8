"""Moments of a job, of as many nodes as a test wants: one that trains, and one with an open incident."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.model.copies import Tier
from slurm_robust.model.live_status import (
    FORMAT,
    LiveCompanion,
    LiveIncident,
    LiveNode,
    LiveRelease,
    LiveStatus,
    LiveTier,
    LiveUpdate,
    NodeState,
)
from slurm_robust.model.totals import IncidentMark, JobTotals, UpdateMark


def live_node(slot: int, **changes: object) -> LiveNode:
    node = LiveNode(
        node=f"gpu{slot:04d}",
        state=NodeState.TRAINING,
        slot=slot,
        heard_s=0.4,
        step=1200,
        step_age_s=0.3,
        step_s=1.25,
        memory_step=1200,
        peer_step=1196,
    )
    return structs.replace(node, **changes)


def live_status(count: int = 4, **changes: object) -> LiveStatus:
    moment = LiveStatus(
        format=FORMAT,
        t=1.7e9,
        number=1,
        job_id=4711,
        run_id="4711-abcd",
        run=2,
        epoch=3,
        host="gpu0000",
        mode="act",
        generation=5,
        stage="running",
        stage_why="",
        stage_s=740.0,
        world=8 * count,
        ranks=8 * count,
        step=1200,
        step_age_s=0.3,
        step_s=1.25,
        usual_step_s=1.2,
        best_step=1200,
        reports=True,
        loss=2.1234,
        grad_norm=0.7,
        non_finite=False,
        restored_step=1100,
        nodes=tuple(live_node(slot) for slot in range(count)),
        opened=3,
        closed=3,
        tiers=(
            LiveTier(tier=Tier.MEMORY, step=1200, generation=5),
            LiveTier(tier=Tier.PEER, step=1196, generation=5),
            LiveTier(tier=Tier.STORAGE, step=1000, generation=5, age_s=240.0),
        ),
        ettr=0.973,
        ettr_hour=0.991,
        ettr_age_s=12.0,
        left_s=86400.0,
    )
    return structs.replace(moment, **changes)


def live_incident(nodes: int = 3, **changes: object) -> LiveStatus:
    """``nodes`` that train, one standby and one evicted node; the second incident is open."""
    training = tuple(
        LiveNode(node=f"n{i + 1}", state=NodeState.TRAINING, slot=i, heard_s=0.25, step=120)
        for i in range(nodes)
    )
    standby = LiveNode(node="s1", state=NodeState.STANDBY, why="rehearsed", heard_s=0.5)
    evicted = LiveNode(node="bad", state=NodeState.EVICTED, why="XID 79", alerts=("gpu3 XID 79",), failed=2)
    moment = live_status(
        nodes,
        t=1_700_000_000.5,
        number=7,
        job_id=42,
        run_id="42-cafe",
        run=1,
        host="n1",
        generation=2,
        stage_s=60.0,
        step=120,
        step_age_s=1.5,
        step_s=2.0,
        usual_step_s=1.9,
        best_step=120,
        loss=2.25,
        grad_norm=None,
        restored_step=100,
        nodes=(*training, standby, evicted),
        companions=(LiveCompanion(job_id=43, source="partition"),),
        opened=2,
        closed=1,
        incident=LiveIncident(number=2, symptom="hang", sign="no step for 30 s", age_s=4.0, step=120),
        tiers=(
            LiveTier(tier=Tier.MEMORY, step=119, generation=2),
            LiveTier(tier=Tier.STORAGE, step=100, generation=1, age_s=300.0),
        ),
        ettr=0.97,
        ettr_hour=0.99,
        ettr_age_s=10.0,
        totals=JobTotals(
            classes={"productive": 3600.5, "starting": 12.0},
            incidents={"worker exit": 1, "hang": 1},
            actions={"restart": 1},
            launches=2,
            evictions=1,
            requeues=1,
            takeovers=0,
            drills=1,
            marks=(
                IncidentMark(number=1, symptom="worker exit", begun=1.0e9, ended=1.0e9 + 9, blame="node"),
                IncidentMark(number=2, symptom="hang", begun=1.1e9),
            ),
            updates={"good": 1, "waiting": 1},
            update_marks=(UpdateMark(number=1, release="b", applied=1.05e9),),
        ),
        release=LiveRelease(name="bbbbbbbbbbbb", state="good"),
        update=LiveUpdate(
            number=2, release="cccccccccccc", when="lazy", by="alice (uid 1000)", tried=True, left_s=7200.0
        ),
        updates=2,
        turn_s=0.012,
        left_s=7200.0,
    )
    return structs.replace(moment, **changes)
