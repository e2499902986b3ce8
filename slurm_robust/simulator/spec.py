"""What a simulation is of: a job, its cluster, what goes wrong, and the policy that answers.

The keys of a spec in YAML. Times and rates are texts with their units (:mod:`slurm_robust.simulator.spread`).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from slurm_robust.config.job import JobConfig
from slurm_robust.config.reader import Layers
from slurm_robust.config.section import CHECK, Contradiction, Count, Number, Positive, Section, Share
from slurm_robust.simulator.spread import EXAMPLE, RATE_EXAMPLE, parse, rate, seconds

MAX_NODES = 100_000
"""More would take a minute for each decision."""

Time = Annotated[
    str, Meta(title="a time with its unit, such as 90 s, 10 min, 2 h or 3 days", extra={CHECK: seconds})
]
Times = Annotated[
    str, Meta(title=f"a time or a distribution of times, such as {EXAMPLE}", extra={CHECK: parse})
]
RateText = Annotated[str, Meta(title=f"a rate with its unit, such as {RATE_EXAMPLE}", extra={CHECK: rate})]
_Nodes = Annotated[int, Meta(ge=1, le=MAX_NODES, title=f"an integer from 1 to {MAX_NODES}")]
_Spares = Annotated[int, Meta(ge=0, le=MAX_NODES, title=f"an integer from 0 to {MAX_NODES}")]


class FaultOf(str, Enum):
    """What can go wrong, in the words of the incidents that follow."""

    NODE = "node"
    """A node loses its power, or its kernel stops."""
    GPU = "gpu"
    """A health check names the node: a GPU fell off the bus, a double-bit error, a broken disk."""
    NETWORK = "network"
    """Alerts of a network interface name the node."""
    SWITCH = "switch"
    """All nodes behind one leaf switch are cut off at once."""
    STORAGE = "storage"
    """The shared storage does not answer: no step is made meanwhile."""
    CRASH = "crash"
    """A rank ends by a signal or a CUDA error."""
    EXCEPTION = "exception"
    """The script raises an exception at a place that can be named."""
    OUT_OF_MEMORY = "out of memory"
    """The kernel kills a rank for want of memory."""
    HANG = "hang"
    SLOW = "slow"
    NAN = "nan"
    """The loss is NaN or infinite."""
    CORRUPTION = "silent corruption"
    """Numbers are wrong, and the loss shows it only later."""
    AGENT = "agent"
    """The agent of a node ends; its node lives."""


class FaultSource(Section):
    """One source of faults."""

    kind: FaultOf
    rate: RateText | None = None
    """How often. A rate by nodes or GPUs strikes all nodes of the cluster, one by time the job alone."""
    after: Time | None = None
    """Instead of ``rate``: it happens once, when the job has trained for this time in all."""
    starting: bool = False
    """With ``after``: it strikes when the job starts again after that, before its first step."""
    slots: tuple[Count, ...] = ()
    """With ``after``: it strikes the nodes that have these slots then, numbered from 0; the standbys follow
    after the job's ``nodes``. Empty: any node of the job."""
    same: str = ""
    """With ``after``: faults with the same word are one that comes again. It strikes the same nodes, as long
    as the job uses them, or the same line of code."""
    lifetime: Literal["exponential", "weibull"] = "exponential"
    """Distribution of the time between two faults of a node. ``weibull``: see ``shape``."""
    shape: Annotated[float, Meta(gt=0, le=20, title="a number above 0, up to 20")] = 1.0
    """Shape of the Weibull distribution: below 1 young nodes fail most, above 1 old ones."""
    dispersion: Annotated[float, Meta(ge=1, le=1000, title="a number from 1 to 1000")] = 1.0
    """Variance by mean of the faults in a day: 1 if days are alike, more if some days are bad."""
    lemons: Share = 0.0
    """Share of the nodes that are lemons …"""
    lemon_factor: Annotated[float, Meta(ge=1, le=1e6, title="a number of 1 or more")] = 10.0
    """… and how many times as often as others they fail."""
    lemons_together: bool = False
    """The lemons are neighbours: those of a bad rack."""
    at_node: Share = 1.0
    """Share of these faults for which a node is at fault; the others are the code's, or nobody's."""
    named: Share = 0.0
    """Share of the crashes at a node whose output names broken hardware."""
    placed: Share = 1.0
    """Share of the hangs and slowdowns that stacks place."""
    persists: Share = 1.0
    """Share of the faults of nodes that come again as long as the node is in use."""
    code_persists: Share = 0.0
    """The same for those of the code."""
    again: Times = "10 min mean"
    """Time until one that persists strikes again."""
    detect: Times = "2 s"
    """Time from the fault until it is detected."""
    lasts: Times = "10 min mean"
    """How long a switch or the storage is away."""
    factor: Annotated[float, Meta(ge=1, le=1000, title="a number from 1 to 1000")] = 2.0
    """How many times as long steps take while a slow node is part of the job."""
    nodes: Positive = 1
    """Nodes that one fault strikes at once, which are neighbours."""
    fixed_by_rollback: Share = 0.0
    """Share of the code's faults that the newest release brought, if there is one to go back to."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a source that says twice, or not at all, when its faults happen."""
        if self.rate is None and self.after is None:
            yield Contradiction(
                keys=("rate",),
                text="rate is missing: it is not said when these faults happen",
                fix="add rate, for example rate: 6.5 / 1000 node-days, or after, for example after: 3 h",
            )
        if self.rate is not None and self.after is not None:
            yield Contradiction(
                keys=("rate", "after"),
                text="both rate and after say when these faults happen",
                fix="remove one of them",
            )


class SimulatedJob(Section):
    """The job that is played."""

    nodes: _Nodes = 8
    """Nodes that hold ranks."""
    spares: _Spares = 0
    """Standbys inside the allocation."""
    gpus_per_node: Count = 8
    step: Time = "5 s"
    """Time of one step."""
    between: Time = "0 s"
    """Time for each step, on the average, that goes into phases that the script announces: evaluation."""
    time_limit: Time | None = None
    """Of one run of the job (``--time``). ``null``: none."""
    layout: Literal["data", "pipeline"] = "data"
    """How ranks are grouped, for what is evicted together: ``pipeline`` has groups of ``group`` nodes."""
    group: Positive = 1
    """Nodes of a pipeline: what an unclear hang evicts together."""


class SimulatedCluster(Section):
    """What is around the job."""

    shared_spares: _Spares = 0
    """Nodes of the site's reservation for spares, which companions lend."""
    free: _Spares = 0
    """Other free nodes of the partition."""
    rack: Positive = 32
    """Nodes behind one leaf switch."""
    repair: Times = "1 day"
    """Time from a node's fault until it is back."""
    return_unrepaired: Share = 0.0
    """Share of the broken nodes that pass the site's test and come back as they are."""
    lend: Times = "10 s"
    """Time until a companion has a node."""
    requeue: Times = "15 s"
    """Time from the end of a run until Slurm starts the next one, if nodes are free."""
    queue: Times = "0 s"
    """Time that a job waits for nodes when it is submitted, or requeued with too few nodes."""
    preempted_after: tuple[Time, ...] = ()
    """How long the job has trained in all when Slurm takes its nodes for another job, and requeues it."""
    lost_after: tuple[Time, ...] = ()
    """The same when a run dies with its batch host: Slurm requeues the job by itself."""


class Phases(Section):
    """How long the parts of a recovery take.

    Defaults at a small scale are this project's measurements (docs/measurements.md, sections 1, 2, 21, 23).
    Their growth with the scale is that of hot updates and requeues in ByteRobust's table 7, by GPUs.
    """

    decide: Times = "0.1 s"
    """From the incident to the decision, without tests: stacks of a hang are taken within its detection."""
    stop: Times = "0.2 s to 1.7 s"
    """Until all ranks have ended: as long as a worker that holds 40 to 100 GB of a GPU takes to die."""
    agents: Times = "2 s to 5 s"
    """Until agents are started again, and torch is imported."""
    start: Times = "4 s to 12 s"
    """From the launch until ranks can restore: process groups, the model. Measured in place, with a script
    whose first start takes 17 to 56 s."""
    start_per_1000_nodes: Time = "10 s"
    """What comes to ``start`` for each thousand nodes of 8 GPUs."""
    first_start: Times = "17 s to 56 s"
    """From Slurm's start of a run until its agents are ready, and torch is imported."""
    first_start_per_1000_nodes: Time = "160 s"
    """What comes to ``first_start`` for each thousand nodes of 8 GPUs: images, libraries from storage."""
    update: Times = "0.1 s to 1 s"
    """For which training stands still when the owner changes the code, besides ``start``."""


class SimulatedCheckpoints(Section):
    """Where checkpoints are, and how long they take. ``policy.checkpoint`` says how often."""

    node_gb: Number = 50.0
    """Gigabytes that each node restores."""
    memory_gb_s: Number = 8.0
    """Rate of a restore from the memory of the node, per node."""
    peer_gb_s: Number = 5.0
    """Rate from the memory of a peer."""
    storage_gb_s: Number = 100.0
    """Rate from storage, of all nodes together."""
    write: Times = "60 s"
    """Time until a checkpoint is on storage. Training goes on meanwhile, unless
    ``policy.checkpoint.memory`` is off."""
    blocks: Time = "0 s"
    """For which the snapshot of a step holds training up."""
    stride: Positive = 1
    """A snapshot is kept in memory of every step that is a multiple of this."""


class SimulatedDiagnostics(Section):
    """What tests of suspended nodes find."""

    takes: Times = "2 min to 5 min"
    recall: Share = 0.7
    """Share of the broken nodes that they find (paper, section 9: 70 % of silent corruptions)."""
    false_positives: Share = 0.0
    """Probability for a healthy node to fail."""
    quick: Times = "20 s to 60 s"
    """Duration of the quick test."""
    replay: Times = "20 min to 40 min"
    """Duration of a dual-phase replay."""
    replay_recall: Share = 0.9


class Owner(Section):
    """What people do to the job."""

    updates: RateText = "0 / day"
    """How often they bring a new release of the code, by ``srobust update``."""
    updates_after: tuple[Time, ...] = ()
    """How long the job has trained in all when they do so besides."""
    bad_updates: Share = 0.0
    """Share of the releases that raise an exception, or make NaN, soon."""
    manual_restarts: RateText = "0 / day"
    """How often they cancel the job and submit it again."""
    resubmit: Times = "30 min"
    """Time until they submit it again, after they cancelled it or it ended with an error."""
    stops_after: Count = 100
    """How often they do that."""


class Spec(Section):
    """A simulation. Every key has a default."""

    job: SimulatedJob = SimulatedJob()
    name: str = ""
    time: Time = "90 days"
    """How long the job is watched."""
    steps: Count = 0
    """Number of steps after which the job is done; 0: it goes on until ``time``."""
    seeds: Positive = 10
    """How many lives are played; ``--seeds`` overrides it."""
    fidelity: Literal["policy", "core"] = "policy"
    """``core``: the controller's core decides and waits as in a job. ``policy``: the policy and the fold of
    the journal alone, which is much faster."""
    cluster: SimulatedCluster = SimulatedCluster()
    phases: Phases = Phases()
    checkpoints: SimulatedCheckpoints = SimulatedCheckpoints()
    diagnostics: SimulatedDiagnostics = SimulatedDiagnostics()
    owner: Owner = Owner()
    faults: tuple[FaultSource, ...] = ()
    policy: JobConfig = JobConfig()
    """The configuration of the job, with the keys of ``job.yaml``."""


def read(path: Path) -> Spec:
    """Read a spec. Raises :class:`~slurm_robust.config.errors.ConfigError` with all that is wrong."""
    layers = Layers(Spec)
    layers.add_file(path)
    return layers.build()
