"""``srobust checkpoint plan``: how many snapshots fit into the memory of nodes, and how long each takes.

How many fit says :func:`slurm_robust.checkpoint.budget.plan`, as each job plans. The seconds are those of the
rates below, so they say what to expect, not what is promised.
"""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.text import Text

from slurm_robust.checkpoint.budget import NODE, RESERVE, Room, buffer_bytes, plan
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.nodefolders import SHARED_MEMORY
from slurm_robust.model.record import Record
from slurm_robust.policy.peers import PEER_SHARE
from slurm_robust.terminal.console import facts_table, show
from slurm_robust.util.text import count, duration, size_text

# -- rates ------------------------------------------------------------------------------------------
# In bytes per second. Measured on a node with one H200 and 16 CPUs (docs/measurements.md), if nothing else is
# said.

COPY = 50e9
"""One GPU to or from registered memory. 55 GB/s for one alone; 50 reported where all of a node copy."""

SUMS = 6.8e9
"""Checksums by one thread: 4 GB in 0.59 s."""

SUMS_IDLE = 40e9
"""Checksums by the eight threads that a snapshot has where CPUs are idle: 4 GB in 0.10 s."""

RESTORE = 9.4e9
"""A restore: its four threads read, sum up and copy 8 GB to the GPU in 0.85 s."""

UNREGISTER = 26e9
"""A killed process that has registered 40 GB is gone after 1.65 s. Taken for a node as a whole, as if its
driver released the memory of one process after that of the other, which nobody has measured."""

CLEAR = 1.7e9
"""The kernel clears memory: 0.6 s per GB, on two cores of a virtual machine."""

BYTES_PER_PARAM = 12.0
"""FSDP2 with AdamW: parameter and two moments, each float32. (14: with bfloat16 weights beside them.)"""

LINK = 25e9 / 8
"""The slowest network that is usual on nodes with GPUs; copies take the one of the heartbeats by default."""


class DoesNotFit(SrobustError):
    """The state of the ranks of a node is larger than the node's memory."""

    exit_code = ExitCode.USAGE


class PlannedTraining(Record):
    """A training that need not exist."""

    params: float
    nodes: int
    gpus: int
    """Of each node; one rank each."""

    node_memory: int
    """Bytes, and so is ``shm``."""

    shm: int
    """The size of ``/dev/shm``."""

    bytes_per_param: float = BYTES_PER_PARAM
    replicas: int = 1
    """How many whole states all ranks have together: 1 if all is sharded, as many as ranks if nothing is."""

    link: float = LINK
    """Bytes per second that a node's interface to its peers carries."""


class SnapshotPlan(Record):
    """What its nodes keep of each step, and how long that takes. Bytes and seconds."""

    training: PlannedTraining
    state_bytes: int
    rank_bytes: int
    """Of each rank's own part."""

    shared_bytes: int
    """Of the part that is equal on all ranks, which each node keeps once."""

    node_bytes: int
    """Of one step on one node."""

    own_buffers: int
    peer_buffers: int
    buffer_bytes: int
    """On one node, for its own ranks and those of its peer."""

    reason: str
    """Why it is not the best plan, "" if it is."""

    copy_s: float
    """From the GPU to memory; training goes on meanwhile, but for its next update."""

    sums_s: float
    """Checksums, where the training uses the CPUs."""

    sums_idle_s: float
    """Checksums, where CPUs are idle."""

    peer_s: float | None
    """One step of one node to its peer; None if no peer keeps any, or all nodes have the same."""

    restore_s: float
    """From the node's own memory: it is verified, and copied to the GPU behind that."""

    fetch_s: float | None
    """On a new node, with what another one has; None if no peer keeps any."""

    registered_bytes: int
    """On one node, with the drivers of its GPUs."""

    die_s: float
    """Until the driver has released that memory of killed ranks."""


def forecast(training: PlannedTraining) -> SnapshotPlan:
    """Return what fits. Pure. Raises ``DoesNotFit``."""
    ranks = training.nodes * training.gpus
    state = round(training.params * training.bytes_per_param)
    is_shared = training.replicas == ranks > 1
    own = 0 if is_shared else -(-state * training.replicas // ranks)
    shared = state if is_shared else 0
    node = training.gpus * own + shared
    if node > training.node_memory:
        usable = (1 - RESERVE) * min(training.shm, training.node_memory)
        least = math.ceil(node * training.nodes / usable)
        raise DoesNotFit(
            f"the ranks of one node save {size_text(node)} in each step, and a node has "
            f"{size_text(training.node_memory)} of memory",
            fix="take nodes with more memory (--node-memory)"
            + ("" if is_shared else f", or {least} nodes, on which one snapshot fits"),
        )
    rooms = (
        Room(name=f"the file system of {SHARED_MEMORY}", total=training.shm, free=training.shm),
        Room(name=NODE, total=training.node_memory, free=training.node_memory),
    )
    made = plan(own=own, shared=shared, ranks=training.gpus, nodes=training.nodes, rooms=rooms)
    largest = own + shared
    registered = buffer_bytes(made.own_buffers, 0, own=own, shared=shared, ranks=training.gpus)
    restore_s = largest / RESTORE
    return SnapshotPlan(
        training=training,
        state_bytes=state,
        rank_bytes=own,
        shared_bytes=shared,
        node_bytes=node,
        own_buffers=made.own_buffers,
        peer_buffers=made.peer_buffers,
        buffer_bytes=buffer_bytes(
            made.own_buffers, made.peer_buffers, own=own, shared=shared, ranks=training.gpus
        ),
        reason=made.reason,
        copy_s=largest / COPY,
        sums_s=largest / SUMS,
        sums_idle_s=largest / SUMS_IDLE,
        peer_s=node / (PEER_SHARE * training.link) if made.peer_buffers and own else None,
        restore_s=restore_s,
        fetch_s=largest / CLEAR + node / training.link + restore_s if made.peer_buffers else None,
        registered_bytes=registered,
        die_s=registered / UNREGISTER,
    )


def plan_main(training: PlannedTraining, *, json: bool) -> int:
    """Print what fits; 1 if nothing does. Raises ``DoesNotFit``."""
    found = forecast(training)
    show(found, _render, json=json)
    return 0 if found.own_buffers else 1


def _render(found: SnapshotPlan) -> RenderableType:
    training = found.training
    head = (
        f"{training.params / 1e9:g}e9 parameters x {training.bytes_per_param:g} bytes = "
        f"{size_text(found.state_bytes)}, on {count(training.nodes, 'node')} with "
        f"{count(training.gpus, 'GPU')} and {size_text(training.node_memory)} of memory each"
    )
    link = f"{training.link * 8 / 1e9:g} Gbit/s"
    rows = [("one step of a rank", size_text(found.rank_bytes or found.shared_bytes))]
    if found.shared_bytes:
        rows = [("one step, equal on all ranks", size_text(found.shared_bytes))]
    rows += [
        ("one step of a node", size_text(found.node_bytes)),
        ("snapshots kept", _kept(found)),
        ("memory for them on a node", size_text(found.buffer_bytes)),
        ("copy from the GPU", duration(found.copy_s)),
        ("checksums", f"{duration(found.sums_s)}; {duration(found.sums_idle_s)} where CPUs are idle"),
        ("a node's step to its peer", _or_none(found.peer_s, f"{PEER_SHARE:.0%} of {link}")),
        ("restore from own memory", duration(found.restore_s)),
        ("restore on a new node", _or_none(found.fetch_s, link)),
        ("registered with the driver", size_text(found.registered_bytes)),
        ("killed ranks need to end", duration(found.die_s)),
    ]
    return Group(Text(head), "", facts_table(rows), *(("", Text(found.reason)) if found.reason else ()))


def _kept(found: SnapshotPlan) -> str:
    if not found.own_buffers:
        return "none"
    of_peers = f" and {found.peer_buffers} of each peer's" if found.peer_buffers else ""
    return f"{found.own_buffers} of each rank{of_peers}"


def _or_none(seconds: float | None, over: str) -> str:
    return "-" if seconds is None else f"{duration(seconds)} ({over})"
