"""``srobust checkpoint plan``: how many snapshots fit into the memory of nodes, and how long each takes.

How many fit says :func:`slurm_robust.checkpoint.budget.plan`, as each job plans. The seconds are those of the
rates below, so they say what to expect, not what is promised.
"""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.text import Text

from slurm_robust.checkpoint.budget import NODE, RESERVE, Room, buffer_bytes, plan
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
"""A restore: its four threads verify 8 GB in 0.85 s, and copy half of them to the GPU meanwhile."""

UNREGISTER = 9.4e9
"""A killed process that had registered 243 GB was gone after 25.9 s on an H100 (reported in
sgl-project/sglang#32829), one with 40 GB after 1.65 s here (24 GB/s). This is the slower one, since timeouts
are set by it. Taken for a node as a whole, as if its driver released the memory of one process after that of
the other, which nobody has measured."""

CLEAR = 1.7e9
"""The kernel clears memory: 0.6 s per GB, on two cores of a virtual machine."""

BYTES_PER_PARAM = 12.0
"""FSDP2 with AdamW: parameter and two moments, each float32. (14: with bfloat16 weights beside them.)"""

MAX_NODES = 99_999
"""No layout has more."""

LINK = 25e9 / 8
"""The slowest network that is usual on nodes with GPUs; copies take the one of the heartbeats by default."""


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

    copy_s: float | None
    """From the GPU to memory; training goes on meanwhile, but for its next update. None if none fits."""

    sums_s: float | None
    """Checksums, where the training uses the CPUs."""

    sums_idle_s: float | None
    """Checksums, where CPUs are idle."""

    peer_s: float | None
    """One step of one node to its peer; None if no peer keeps any, or all nodes have the same."""

    restore_s: float | None
    """From the node's own memory: it is verified, and copied to the GPU behind that."""

    fetch_s: float | None
    """On a new node, with what another one has; None if no peer keeps any."""

    registered_bytes: int
    """On one node, with the drivers of its GPUs."""

    die_s: float
    """Until the driver has released that memory of killed ranks."""


def forecast(training: PlannedTraining) -> SnapshotPlan:
    """Return what fits. Pure."""
    ranks = training.nodes * training.gpus
    state = round(training.params * training.bytes_per_param)
    is_shared = training.replicas == ranks > 1
    own = 0 if is_shared else -(-state * training.replicas // ranks)
    shared = state if is_shared else 0
    node = training.gpus * own + shared
    rooms = (
        Room(name=f"the file system of {SHARED_MEMORY}", total=training.shm, free=training.shm),
        Room(name=NODE, total=training.node_memory, free=training.node_memory),
    )
    made = plan(own=own, shared=shared, ranks=training.gpus, nodes=training.nodes, rooms=rooms)
    kept = made.own_buffers > 0
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
        reason=made.reason if kept else made.reason + _nodes_that_do(training, rooms, state),
        copy_s=largest / COPY if kept else None,
        sums_s=largest / SUMS if kept else None,
        sums_idle_s=largest / SUMS_IDLE if kept else None,
        peer_s=node / (PEER_SHARE * training.link) if made.peer_buffers and own else None,
        restore_s=restore_s if kept else None,
        fetch_s=largest / CLEAR + node / training.link + restore_s if made.peer_buffers else None,
        registered_bytes=registered,
        die_s=registered / UNREGISTER,
    )


def _nodes_that_do(training: PlannedTraining, rooms: tuple[Room, ...], state: int) -> str:
    """Return how many nodes one snapshot fits on, as the end of a sentence; "" if no number would do."""
    if training.replicas == training.nodes * training.gpus > 1:
        return ""  # each node has all of it
    usable = min(room.free - RESERVE * room.total for room in rooms)
    usable -= training.gpus  # the part of each rank is rounded up
    if usable <= 0:
        return ""
    step = training.replicas // math.gcd(training.replicas, training.gpus)  # the replicas divide the ranks
    nodes = math.ceil(state * training.replicas / usable / step) * step
    return f", or take {nodes} nodes, on which one snapshot fits" if nodes <= MAX_NODES else ""


def plan_main(training: PlannedTraining, *, json: bool) -> int:
    """Print what fits; 1 if nothing does."""
    found = forecast(training)
    show(found, _render, json=json)
    return 0 if found.own_buffers else 1


def _render(found: SnapshotPlan) -> RenderableType:
    training = found.training
    head = (
        f"{_power(training.params)} parameters x {training.bytes_per_param:g} bytes = "
        f"{size_text(found.state_bytes)}, on {count(training.nodes, 'node')} with "
        f"{count(training.gpus, 'GPU')} and {size_text(training.node_memory)} of memory each"
    )
    rows = [("one step of a rank", size_text(found.rank_bytes or found.shared_bytes))]
    if found.shared_bytes:
        rows = [("one step, equal on all ranks", size_text(found.shared_bytes))]
    rows += [("one step of a node", size_text(found.node_bytes)), ("snapshots kept", _kept(found))]
    if found.own_buffers:
        rows += _times(found)
    notes = [found.reason] if found.reason else []
    if training.shm > training.node_memory:
        notes.append(
            f"/dev/shm ({size_text(training.shm)}) is larger than the node's memory, which limits what fits"
        )
    told = [part for note in notes for part in ("", Text(note))]
    return Group(Text(head), "", facts_table(rows), *told)


def _times(found: SnapshotPlan) -> list[tuple[str, str]]:
    link = _bit_rate(found.training.link)
    of = {
        "memory for them on a node": size_text(found.buffer_bytes),
        "copy from the GPU": _time(found.copy_s),
        "checksums": f"{_time(found.sums_s)}; {_time(found.sums_idle_s)} where CPUs are idle",
        "a node's step to its peer": _time(found.peer_s, f" ({PEER_SHARE:.0%} of {link})"),
        "restore from own memory": _time(found.restore_s),
        "restore on a new node": _time(found.fetch_s, f" ({link})"),
        "registered with the driver": size_text(found.registered_bytes),
        "killed ranks need to end": f"{duration(found.die_s)} (UnkillableStepTimeout must be longer)",
    }
    return [(name, text) for name, text in of.items() if text]


def _kept(found: SnapshotPlan) -> str:
    if not found.own_buffers:
        return "none"
    of_peers = f" and {found.peer_buffers} of each peer's" if found.peer_buffers else ""
    return f"{found.own_buffers} of each rank{of_peers}"


def _time(seconds: float | None, how: str = "") -> str:
    return "" if seconds is None else f"{duration(seconds)}{how}"


def _power(value: float) -> str:
    """Format a number as people write those of parameters: ``70e9``, ``350e3``, ``12``."""
    exponent = _thousands(value)
    return f"{value / 10**exponent:g}" + (f"e{exponent}" if exponent else "")


def _bit_rate(bytes_s: float) -> str:
    exponent = _thousands(8 * bytes_s)
    return f"{8 * bytes_s / 10**exponent:g} {'kMGTP'[exponent // 3 - 1] if exponent else ''}bit/s"


def _thousands(value: float) -> int:
    """Return the largest multiple of 3 that leaves ``value`` with digits before its point."""
    return max(0, int(math.log10(float(f"{value:g}"))) // 3 * 3)
