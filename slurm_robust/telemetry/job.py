"""A job's page: the live status of its controller, as samples. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache

from slurm_robust.model.live_status import LiveNode, LiveStatus, NodeState
from slurm_robust.model.standby import StandbyStage
from slurm_robust.model.totals import JobTotals
from slurm_robust.telemetry.metric import Family, Metric, Rendered, Sample, render, rendered
from slurm_robust.telemetry.table import JobMetric
from slurm_robust.version import __version__

MAX_NODES = 20_000
"""With series of their own; those that are wrong come first. Slurm's largest clusters have fewer."""

MAX_KNOWN = 1 << 13
"""Nodes and states whose lines are kept; a kilobyte each."""

_STATES = tuple((state, state.value) for state in NodeState)
_STAGES = tuple(stage.value for stage in StandbyStage)


def page(status: LiveStatus) -> bytes:
    """Return the whole page."""
    return render(families(status), _constant(str(status.job_id)))


def _constant(job_id: str) -> dict[str, str]:
    return {"job_id": job_id}


def families(status: LiveStatus) -> Iterator[Family]:
    """Return all metrics of a job, in the order of the table; what is not known has no sample."""
    about = (status.run_id, status.mode, status.host, __version__)
    yield JobMetric.INFO, ((about, 1),)
    yield JobMetric.STAGE, (((status.stage,), 1),)
    yield _one(JobMetric.HELD, status.held)
    yield _one(JobMetric.RUN, status.run)
    yield _one(JobMetric.EPOCH, status.epoch)
    yield _one(JobMetric.GENERATION, status.generation)
    yield _one(JobMetric.WORLD, status.world)
    states = Counter(node.state for node in status.nodes)
    yield JobMetric.NODES, [((state.value,), states[state]) for state in NodeState]
    stages = Counter(_stage(node) for node in status.nodes if node.state is NodeState.STANDBY)
    yield JobMetric.STANDBYS, [((stage,), stages[stage]) for stage in _STAGES]
    lending = sum(bool(companion.node) for companion in status.companions)
    yield JobMetric.COMPANIONS, ((("lending",), lending), (("waiting",), len(status.companions) - lending))
    yield _one(JobMetric.TIME_LEFT, status.left_s)
    yield _one(JobMetric.TURN, status.turn_s)
    yield _one(JobMetric.JOURNAL_BEHIND, status.behind)
    yield _one(JobMetric.MOMENT_TIME, status.t)
    yield _one(JobMetric.STEP, status.step)
    yield _one(JobMetric.BEST_STEP, status.best_step if status.reports else None)
    yield _one(JobMetric.STEP_AGE, status.step_age_s)
    yield _one(JobMetric.STEP_TIME, status.step_s)
    yield _one(JobMetric.USUAL_STEP_TIME, status.usual_step_s)
    yield _one(JobMetric.LOSS, status.loss)
    yield _one(JobMetric.GRAD_NORM, status.grad_norm)
    yield _one(JobMetric.NON_FINITE, status.non_finite)
    yield _one(JobMetric.ETTR, status.ettr)
    yield _one(JobMetric.ETTR_HOUR, status.ettr_hour)
    yield _one(JobMetric.INCIDENT_OPEN, status.incident is not None)
    yield _one(JobMetric.INCIDENT_AGE, status.incident.age_s if status.incident is not None else None)
    release = status.release
    yield JobMetric.RELEASE, () if release is None else (((release.name, release.state), 1),)
    yield _one(JobMetric.UPDATE_WAITING, None if release is None else status.update is not None)
    if status.totals is not None:
        yield from _of_the_past(status.totals)
    yield JobMetric.CHECKPOINT_STEP, [((tier.tier.value,), tier.step) for tier in status.tiers]
    yield (
        JobMetric.CHECKPOINT_AGE,
        [((tier.tier.value,), tier.age_s) for tier in status.tiers if tier.age_s is not None],
    )
    nodes: Sequence[LiveNode] = status.nodes
    if len(nodes) > MAX_NODES:
        nodes = sorted(nodes, key=lambda node: not node.is_wrong)[:MAX_NODES]
    yield from _of_nodes(nodes, str(status.job_id))


def _one(metric: Metric, value: float | None) -> Family:
    return metric, () if value is None else (((), value),)


def _of_the_past(totals: JobTotals) -> Iterator[Family]:
    yield JobMetric.TIME, _by_name(totals.classes)
    yield JobMetric.INCIDENTS, _by_name(totals.incidents)
    yield JobMetric.ACTIONS, _by_name(totals.actions)
    yield JobMetric.UPDATES, _by_name(totals.updates)
    marks = totals.update_marks
    yield JobMetric.UPDATE_APPLIED, [((str(one.number), one.release), one.applied) for one in marks]
    yield _one(JobMetric.LAUNCHES, totals.launches)
    yield _one(JobMetric.EVICTIONS, totals.evictions)
    yield _one(JobMetric.REQUEUES, totals.requeues)
    yield _one(JobMetric.DRILLS, totals.drills)
    yield _one(JobMetric.TAKEOVERS, totals.takeovers)
    yield JobMetric.INCIDENT_START, [((str(one.number), one.symptom), one.begun) for one in totals.marks]
    yield (
        JobMetric.INCIDENT_END,
        [((str(one.number), one.blame), one.ended) for one in totals.marks if one.ended is not None],
    )


def _by_name(values: dict[str, float] | dict[str, int]) -> list[Sample]:
    return [((name,), value) for name, value in values.items()]


@lru_cache(maxsize=MAX_KNOWN)
def _states(job_id: str, node: str, state: NodeState) -> str:
    """Return the lines of a node's state: most of a large page, and mostly as they were a moment ago."""
    samples = [((node, name), one is state) for one, name in _STATES]
    return rendered(JobMetric.NODE_STATE, samples, _constant(job_id))


def _of_nodes(nodes: Sequence[LiveNode], job_id: str) -> Iterator[Family]:
    yield JobMetric.NODE_HEARTBEAT, [((one.node,), one.heard_s) for one in nodes if one.heard_s is not None]
    yield JobMetric.NODE_STEP, [((one.node,), one.step) for one in nodes if one.slot >= 0]
    states = "".join([_states(job_id, one.node, one.state) for one in nodes])
    yield JobMetric.NODE_STATE, Rendered(text=states)
    yield JobMetric.NODE_ALERTS, [((one.node,), len(one.alerts)) for one in nodes if one.alerts]
    yield JobMetric.NODE_FAILED, [((one.node,), one.failed) for one in nodes if one.failed]


def _stage(node: LiveNode) -> str:
    """Return the stage of a standby without the reason that may follow it."""
    stage = node.why.partition(":")[0]
    return stage if stage in _STAGES else _STAGES[0]
