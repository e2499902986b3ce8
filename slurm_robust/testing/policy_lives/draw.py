"""Specs drawn from a seed: jobs of 1 to 2,000 nodes, with any faults, bounds, standbys and owners. Pure."""

from __future__ import annotations

import math
from random import Random

from slurm_robust.config.job import (
    CheckpointConfig,
    CompanionConfig,
    DetectConfig,
    JobConfig,
    Limits,
    ReplayConfig,
    SlurmConfig,
    StandbyConfig,
    Timings,
    UpdateConfig,
)
from slurm_robust.simulator.spec import (
    FaultOf,
    FaultSource,
    Owner,
    Phases,
    SimulatedCheckpoints,
    SimulatedCluster,
    SimulatedDiagnostics,
    SimulatedJob,
    Spec,
)
from slurm_robust.simulator.spread import UNITS

MOST_NODES = 2000
MOST_FAULTS = 200.0
"""Faults that are expected of one source in a life, at most."""

_TIMES = ("2 s", "20 s", "1 s to 90 s", "2 min mean", "10 min", "1 min median, 10 min mean", "2 h")


def drawn(seed: int) -> Spec:
    """Draw a spec from ``seed``."""
    chance = Random(f"spec {seed}")
    nodes = chance.choice((1, 2, 3, 8, *(int(_log(chance, 1, MOST_NODES)) for _ in range(3))))
    hours = _log(chance, 1.0, 24 * 30.0)
    return Spec(
        name=f"drawn from {seed}",
        time=f"{hours:.3g} h",
        steps=chance.choice((0, 0, 0, 1, 1000)),
        seeds=1,
        job=_job(chance, nodes),
        cluster=_cluster(chance),
        phases=Phases(
            start=chance.choice(("10 s", "1 s to 2 min", "10 min")),
            first_start=chance.choice(("30 s", "10 min")),
            first_start_per_1000_nodes=chance.choice(("0 s", "330 s")),
        ),
        checkpoints=SimulatedCheckpoints(
            node_gb=chance.choice((0.0, 50.0, 1000.0)),
            write=chance.choice(("60 s", "1 min to 20 min")),
            stride=chance.choice((1, 1, 4)),
        ),
        diagnostics=SimulatedDiagnostics(
            recall=chance.choice((0.0, 0.7, 1.0)),
            false_positives=chance.choice((0.0, 0.0, 0.02)),
            replay_recall=chance.choice((0.0, 0.9)),
        ),
        owner=Owner(
            updates=_some(chance, hours, 20.0),
            bad_updates=chance.choice((0.0, 0.5, 1.0)),
            manual_restarts=_some(chance, hours, 5.0),
            resubmit=chance.choice(("1 min", "5 h")),
            stops_after=chance.choice((0, 1, 100)),
        ),
        faults=tuple(_source(chance, nodes, hours) for _ in range(chance.choice((0, 1, 1, 2, 3, 5)))),
        policy=_policy(chance),
    )


def _log(chance: Random, low: float, high: float) -> float:
    """Draw a number whose magnitude is equally likely to be any."""
    return math.exp(chance.uniform(math.log(low), math.log(high)))


def _some(chance: Random, hours: float, most: float) -> str:
    """Draw a rate: never, or up to ``most`` in the life."""
    return chance.choice(("0 / day", "0 / day", f"{_log(chance, 0.5, most) / hours:.3g} / h"))


def _job(chance: Random, nodes: int) -> SimulatedJob:
    return SimulatedJob(
        nodes=nodes,
        spares=chance.choice((0, 0, 1, 2, 4)),
        step=chance.choice(("0.5 s", "5 s", "5 s", "5 min")),
        time_limit=chance.choice((None, None, f"{_log(chance, 0.1, 72):.3g} h")),
        layout=chance.choice(("data", "pipeline")),
        group=chance.choice((1, 2, 4, 16)),
    )


def _cluster(chance: Random) -> SimulatedCluster:
    return SimulatedCluster(
        shared_spares=chance.choice((0, 0, 1, 3)),
        free=chance.choice((0, 2, 20)),
        rack=chance.choice((1, 4, 32)),
        repair=chance.choice(("10 min", "1 day", "0.7 days median, 6.5 days mean")),
        return_unrepaired=chance.choice((0.0, 0.3, 1.0)),
        queue=chance.choice(("0 s", "2 h mean")),
        preempted_after=chance.choice(((), (), ("10 min", "3 h"))),
    )


def _source(chance: Random, nodes: int, hours: float) -> FaultSource:
    """Draw a source of faults: a bad one now and then, which strikes much more often than the others."""
    often = _log(chance, 0.2, MOST_FAULTS) / hours
    per_node = often / nodes * UNITS["day"] / UNITS["h"]
    return FaultSource(
        kind=chance.choice(tuple(FaultOf)),
        rate=chance.choice((f"{often:.3g} / h", f"{per_node:.3g} / node-day")),
        lifetime=chance.choice(("exponential", "exponential", "weibull")),
        shape=chance.choice((0.5, 1.0, 3.0)),
        dispersion=chance.choice((1.0, 1.0, 5.0)),
        lemons=chance.choice((0.0, 0.0, 0.02, 0.5)),
        lemon_factor=chance.choice((1.0, 10.0, 1000.0)),
        lemons_together=chance.random() < 0.3,
        at_node=_share(chance),
        named=_share(chance),
        placed=_share(chance),
        persists=_share(chance),
        code_persists=_share(chance),
        again=chance.choice(_TIMES),
        detect=chance.choice(_TIMES),
        lasts=chance.choice(_TIMES),
        nodes=chance.choice((1, 1, 1, 3, 40)),
        fixed_by_rollback=_share(chance),
    )


def _share(chance: Random) -> float:
    return chance.choice((0.0, 0.5, 1.0))


def _policy(chance: Random) -> JobConfig:
    partition = chance.random() < 0.3
    return JobConfig(
        limits=Limits(
            per_signature=chance.choice((0, 1, 2, 2, 5)),
            per_hour=chance.choice((0, 3, 10, 10, 100)),
            per_day=chance.choice((0, 5, 100, 100, 1000)),
            total=chance.choice((5, None, None, None, 1000)),
        ),
        timings=Timings(unreachable_s=chance.choice((30.0, 300.0))),
        checkpoint=CheckpointConfig(
            memory=chance.random() < 0.8,
            peers=chance.random() < 0.8,
            every_s=chance.choice((60.0, 600.0, 7200.0)),
            every_steps=chance.choice((None, None, 1, 1000)),
        ),
        detect=DetectConfig(
            diagnose=chance.random() < 0.8,
            quick_test_s=chance.choice((0.0, 60.0)),
        ),
        replay=ReplayConfig(args=chance.choice((None, ("--layers", "2")))),
        standby=StandbyConfig(
            replenish=chance.choice(
                ("reservation", "none", "partition") if partition else ("reservation", "none")
            )
        ),
        companions=CompanionConfig(reservation=chance.choice((None, "spares")), partition=partition),
        slurm=SlurmConfig(requeue=chance.random() < 0.8),
        updates=UpdateConfig(rollback=chance.random() < 0.8),
    )
