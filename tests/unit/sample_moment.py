"""A moment of a job that trains, of as many nodes as a test wants."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.model.copies import Tier
from slurm_robust.model.moment import FORMAT, JobMoment, NodeMoment, NodeState, TierMoment


def node_moment(slot: int, **changes: object) -> NodeMoment:
    node = NodeMoment(
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


def job_moment(count: int = 4, **changes: object) -> JobMoment:
    moment = JobMoment(
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
        nodes=tuple(node_moment(slot) for slot in range(count)),
        opened=3,
        closed=3,
        tiers=(
            TierMoment(tier=Tier.MEMORY, step=1200, generation=5),
            TierMoment(tier=Tier.PEER, step=1196, generation=5),
            TierMoment(tier=Tier.STORAGE, step=1000, generation=5, age_s=240.0),
        ),
        ettr=0.973,
        ettr_hour=0.991,
        ettr_age_s=12.0,
        left_s=86400.0,
    )
    return structs.replace(moment, **changes)
