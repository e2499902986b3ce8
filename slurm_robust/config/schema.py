"""The configuration of a job: frozen records, validated when they are built.

The YAML file has the same shape, one mapping per nested record. Times are in seconds. A value that
cannot work is refused with :class:`~slurm_robust.config.errors.InvalidValue`, which names the fix.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field, fields
from typing import Literal

from slurm_robust.config.detect import DetectConfig
from slurm_robust.config.errors import InvalidValue
from slurm_robust.config.ranges import at_least, not_empty, positive
from slurm_robust.config.replay import ReplayConfig
from slurm_robust.model.copies import Tier
from slurm_robust.model.job import LEAVING_S

HIGHEST_PORT = 65535


@dataclass(frozen=True)
class Limits:
    """Bounds of automatic restarts. When one is reached, the job ends with exit code 93."""

    per_signature: int = 2
    """Restarts for one fault signature without new progress in between; 1 at most for an exception of the
    script and for memory that runs out."""

    per_hour: int = 10
    """Restarts within any 3600 s, whatever their reason."""

    total: int = 100
    """Restarts in the life of the job, over all its requeues."""

    def __post_init__(self) -> None:
        """Refuse negative bounds; 0 means never."""
        for name in ("per_signature", "per_hour", "total"):
            at_least(self, name, 0)


@dataclass(frozen=True)
class Timings:
    """How long things may take, in seconds."""

    heartbeat_s: float = 1.0
    """Time between two heartbeats of an agent; changes are reported at once in any case."""

    node_dead_s: float = 5.0
    """Silence of an agent after which its node counts as dead."""

    unreachable_s: float = 300.0
    """How long nodes that fell silent together are waited for: the network between them may heal."""

    agent_start_s: float = 300.0
    """From the start of the agents' step until the first agent has to have reported.

    Python and its libraries come from one storage for all nodes, which takes minutes for a thousand of them.
    Once one has come, the others are late when none has come for a minute."""

    launch_s: float = 600.0
    """From then until the first node has imported torch, and from the order to launch until ranks run on one.

    Once one is ready, the others are late after two minutes, unless one has become ready within a minute."""

    stop_grace_s: float = 5.0
    """From TERM to KILL when workers are stopped."""

    kill_wait_s: float = 180.0
    """From KILL until a worker that is still there counts as stuck although it goes on giving memory back.

    The driver took 25.9 s for 243 GB that were registered for a GPU (reported). One at which nothing moves
    for 30 s is stuck earlier, and nobody waits for one that is gone."""

    checkpoint_s: float = 60.0
    """How long a job that leaves its nodes waits for its newest checkpoint to be on storage."""

    shutdown_s: float = 10.0
    """How long the controller waits for its agents at the end of the job."""

    def __post_init__(self) -> None:
        """Refuse times that are not positive, and pairs that contradict each other."""
        for item in fields(self):
            positive(self, item.name)
        if self.node_dead_s < 2 * self.heartbeat_s:
            raise InvalidValue(
                ("node_dead_s", "heartbeat_s"),
                f"node_dead_s ({self.node_dead_s:g}) is less than two heartbeats (of {self.heartbeat_s:g}): "
                "one late heartbeat would cost a healthy node",
                f"set node_dead_s to {2 * self.heartbeat_s:g} or more, or heartbeat_s to "
                f"{self.node_dead_s / 2:g} or less",
            )
        stop_s = self.stop_grace_s + min(self.kill_wait_s, LEAVING_S)
        if self.shutdown_s < stop_s:
            raise InvalidValue(
                ("shutdown_s", "stop_grace_s"),
                f"shutdown_s ({self.shutdown_s:g}) is less than the {stop_s:g} s in which agents stop their "
                "workers at the end: the controller would leave before them",
                f"set shutdown_s to {stop_s:g} or more",
            )


@dataclass(frozen=True)
class ParallelConfig:
    """Sizes of the parallel groups; data parallelism takes what is left of the world."""

    tp: int = 1
    """Tensor parallel size."""

    cp: int = 1
    """Context parallel size."""

    ep: int = 1
    """Expert parallel size, as a dimension of its own (1 where experts lie across data parallel ranks)."""

    pp: int = 1
    """Pipeline parallel size."""

    order: str = "tp-cp-ep-dp-pp"
    """Which dimension changes fastest with the rank, first to last (Megatron-LM's default)."""

    def __post_init__(self) -> None:
        """Refuse sizes below 1 and an order that is none."""
        for name in ("tp", "cp", "ep", "pp"):
            at_least(self, name, 1)
        if sorted(self.order.split("-")) != ["cp", "dp", "ep", "pp", "tp"]:
            raise InvalidValue(
                ("order",),
                f"order is {self.order!r}",
                'name each of tp, cp, ep, dp, pp once, e.g. "tp-cp-ep-dp-pp"',
            )


@dataclass(frozen=True)
class CheckpointConfig:
    """Where checkpoints are and how many are kept."""

    directory: str | None = None
    """Folder on storage that all nodes share; null: ``checkpoints`` in the job's folder."""

    keep: int = 2
    """Newest complete checkpoints that are kept. With 1 there is none to go back to when it is bad."""

    keep_every: int | None = None
    """Of the checkpoints on storage those after each so many steps are kept for ever; null: none."""

    memory: bool = True
    """Take snapshots in the nodes' memory, as far as they fit; false: every checkpoint goes to storage while
    training waits."""

    peers: bool = True
    """Keep second copies of the snapshots in the memory of other nodes, where there are any."""

    peer_network: str | None = None
    """Network of these copies: a subnet (``10.20.0.0/16``) or an interface; null: that of the heartbeats."""

    peer_mb_s: float | None = None
    """Most that one node sends to its peers, in MB (10^6 bytes) per second; null: a quarter of what the
    interface can carry, where the kernel tells that."""

    every_s: float = 600.0
    """A checkpoint goes from memory to storage when the newest there is so old, in seconds."""

    every_steps: int | None = None
    """A checkpoint goes from memory to storage after each so many steps; null: by time only."""

    local_directory: str | None = None
    """Folder on each node's own disk that gets a copy of what goes to storage; null: none."""

    @property
    def places(self) -> dict[Tier, str]:
        """Where the tiers are that a job has besides memory and ``directory``."""
        return {Tier.LOCAL: self.local_directory} if self.local_directory is not None else {}

    def __post_init__(self) -> None:
        """Refuse empty folder names, keeping nothing, and intervals that are none."""
        not_empty(self, "directory", "name a folder, or leave the key out")
        not_empty(self, "local_directory", "name a folder on the nodes' own disks, or leave the key out")
        not_empty(self, "peer_network", "name a subnet or an interface, or leave the key out")
        if self.peer_network is not None and "/" in self.peer_network:
            try:
                ipaddress.ip_network(self.peer_network, strict=False)
            except ValueError as error:
                raise InvalidValue(
                    ("peer_network",),
                    f"peer_network is {self.peer_network!r}: {error}",
                    'write a subnet, e.g. "10.20.0.0/16", or the name of an interface, e.g. "ib0"',
                ) from error
        for name in ("keep", "keep_every", "every_steps"):
            at_least(self, name, 1)
        positive(self, "every_s")
        if self.peer_mb_s is not None:
            positive(self, "peer_mb_s")


@dataclass(frozen=True)
class WorkersConfig:
    """How workers run on their node."""

    numa_binding: Literal["node", "none"] = "node"
    """``node``: on the CPUs of the job that lie beside the rank's GPU, with memory from there first, where
    that is known; ``none``: wherever the kernel puts them."""


@dataclass(frozen=True)
class SlurmConfig:
    """How Slurm is spoken to and what it may be asked for."""

    backend: Literal["auto", "cli", "pyslurm"] = "auto"
    """``cli``: Slurm's commands; ``pyslurm``: the Python binding; ``auto``: the better one that works."""

    timeout_s: float = 30.0
    """Limit of a single question to Slurm, in seconds."""

    requeue: bool = True
    """Whether the job may be requeued when it cannot go on in its allocation."""

    start_now: bool = True
    """Whether a requeued job asks to start at once instead of after Slurm's usual delay of minutes."""

    def __post_init__(self) -> None:
        """Refuse a limit that is not positive."""
        positive(self, "timeout_s")


@dataclass(frozen=True)
class WireConfig:
    """The connections between controller and agents."""

    port: int = 0
    """TCP port of the controller on the batch host; 0: any free one."""

    def __post_init__(self) -> None:
        """Refuse what is no port."""
        if not 0 <= self.port <= HIGHEST_PORT:
            raise InvalidValue(
                ("port",),
                f"port is {self.port}, which is no TCP port",
                f"use 0 (any free one) to {HIGHEST_PORT}",
            )


@dataclass(frozen=True)
class RendezvousConfig:
    """Where the ranks meet (``MASTER_PORT``)."""

    port_range: str | None = None
    """Ports to choose from, ``low-high``; null: any free one of the kernel's choice."""

    def __post_init__(self) -> None:
        """Refuse what is no range of ports."""
        if self.port_range is not None:
            parse_port_range(self.port_range)

    @property
    def ports(self) -> range | None:
        """The ports as a range, None for any free one."""
        return None if self.port_range is None else parse_port_range(self.port_range)


@dataclass(frozen=True)
class JobConfig:
    """Everything about a protected job that can be chosen. ``docs/configuration.md`` explains each key."""

    nodes: int | None = None
    """Nodes that train; null: all nodes of the allocation but the spares."""

    spares: int = 0
    """Nodes of the allocation that stand by."""

    nproc_per_node: int | None = None
    """Worker processes per node; null: the GPUs of the node, 1 without GPUs."""

    job_dir: str | None = None
    """Folder on shared storage that holds the folders of jobs, each named by its job id; null:
    ``srobust-jobs`` in the folder where the job was submitted."""

    preload: tuple[str, ...] = ()
    """Python modules that every agent imports before the first worker is forked, besides torch."""

    mode: Literal["act", "observe"] = "act"
    """``observe``: run the whole policy, print what it would do, and do nothing."""

    limits: Limits = field(default_factory=Limits)
    """Bounds of automatic restarts."""

    timings: Timings = field(default_factory=Timings)
    """How long things may take."""

    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Where checkpoints are and how many are kept."""

    detect: DetectConfig = field(default_factory=DetectConfig)
    """What is noticed while the training runs."""

    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """How the training is replayed in small groups of nodes."""

    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    """Sizes of the parallel groups."""

    workers: WorkersConfig = field(default_factory=WorkersConfig)
    """How workers run on their node."""

    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    """How Slurm is spoken to and what it may be asked for."""

    wire: WireConfig = field(default_factory=WireConfig)
    """The connections between controller and agents."""

    rendezvous: RendezvousConfig = field(default_factory=RendezvousConfig)
    """Where the ranks meet."""

    final_exit_codes: tuple[int, ...] = (2,)
    """Exit codes of the training after which a restart cannot help; 2 is argparse's wrong usage."""

    def __post_init__(self) -> None:
        """Refuse values outside their range and records that contradict each other."""
        at_least(self, "nodes", 1)
        at_least(self, "spares", 0)
        at_least(self, "nproc_per_node", 1)
        not_empty(self, "job_dir", "name a folder on shared storage, or leave the key out")
        for module in self.preload:
            if not all(part.isidentifier() for part in module.split(".")):
                raise InvalidValue(
                    ("preload",),
                    f"preload has {module!r}, which is no module name",
                    'write module names as in an import statement, e.g. ["transformers", "my_package.data"]',
                )
        for code in self.final_exit_codes:
            if not 1 <= code <= 255:
                raise InvalidValue(
                    ("final_exit_codes",),
                    f"final_exit_codes has {code}",
                    "use codes from 1 to 255; 0 is success and final in any case",
                )
        ports = self.rendezvous.ports
        if ports is not None and self.wire.port in ports:
            raise InvalidValue(
                ("wire.port", "rendezvous.port_range"),
                f"wire.port ({self.wire.port}) lies in rendezvous.port_range ({self.rendezvous.port_range}): "
                "the controller could not open it while ranks meet there",
                "take the port out of the range, or set wire.port to 0 (any free one)",
            )


def parse_port_range(text: str) -> range:
    """``"29500-29600"`` as a range with both ends in it. Raises :class:`InvalidValue`."""
    low, dash, high = text.partition("-")
    if not (dash and low.strip().isdecimal() and high.strip().isdecimal()):
        raise InvalidValue(("port_range",), f"port_range is {text!r}", 'write two ports, e.g. "29500-29600"')
    ports = range(int(low), int(high) + 1)
    if not ports or ports[0] < 1 or ports[-1] > HIGHEST_PORT:
        raise InvalidValue(
            ("port_range",),
            f"port_range is {text!r}",
            f'write the lower port first, both from 1 to {HIGHEST_PORT}, e.g. "29500-29600"',
        )
    return ports
