"""Hazards of a node as the job sees it: memory for snapshots, limits, clock."""

from __future__ import annotations

from slurm_robust.checkpoint.budget import NODE, MemoryPlan, plan, usable
from slurm_robust.doctor.facts import Facts, Unseen, known
from slurm_robust.doctor.rule import bad, note

_GIB = 1 << 30
_MIN_SHARE = 0.5


def _limited(facts: Facts) -> str:
    _, *rooms = known(facts.node, "the node").rooms or (None,)
    whole = known(
        next((room for room in rooms if room and room.name.startswith(NODE)), None), "the node's memory"
    )
    tightest = min(room.total for room in rooms if room)
    if not facts.config.checkpoint.memory or tightest >= _MIN_SHARE * whole.total:
        return ""
    return f"the job may use {tightest / 1e9:.1f} GB of the node's {whole.total / 1e9:.1f} GB"


def _plan(facts: Facts) -> MemoryPlan | None:
    """Return how many snapshots of the state that the user named would fit; None if none are wanted."""
    rooms = known(known(facts.node, "the node").rooms or None, "memory")
    nodes = 2 if facts.nodes is None else facts.nodes
    if not facts.config.checkpoint.memory:
        return None
    peers = facts.config.checkpoint.peers and nodes > 1
    state = known(facts.state_bytes, "--state")
    return plan(own=state, shared=0, ranks=1, nodes=nodes if peers else 1, rooms=rooms)


def _of_gpus(facts: Facts) -> str:
    node = known(facts.node, "the node")
    found = known(node.gpu_memory, "whether the kernel counts GPUs' memory")
    if not found:
        return ""
    why = f"NVreg_CoherentGPUMemoryMode={node.memory_mode}" if node.memory_mode else "its default"
    return f"the kernel counts {found / 1e9:.0f} GB of GPUs as the node's: the driver is in NUMA mode ({why})"


def _loopback(facts: Facts) -> str:
    found = known(known(facts.node, "the node").addresses, "the addresses of the node's name")
    if not found:
        return "this node's name in Slurm does not resolve"
    if all(address.startswith("127.") or address == "::1" for address in found):
        return f"this node's name in Slurm resolves to {', '.join(found)} here"
    return ""


_MUCH_FASTER = 4.0


def _slow(facts: Facts) -> str:
    node = known(facts.node, "the node")
    found = known(node.addresses, "the addresses of the node's name")
    known_speeds = known(node.speeds or None, "the speeds of the node's interfaces")
    taken = next((address for address in found if address in known_speeds), None)
    if taken is None:
        raise Unseen("the speed of the interface that the node's name resolves to")
    interface, speed = known_speeds[taken]
    fastest, most = max(known_speeds.values(), key=lambda of: of[1])
    if facts.config.checkpoint.peer_network is not None or most < _MUCH_FASTER * speed:
        return ""
    slow, fast = (f"{bytes_s * 8 / 1e9:g} Gbit/s" for bytes_s in (speed, most))
    return f"this node's name resolves to {taken} on {interface} ({slow}), and {fastest} has {fast}"


RULES = (
    note(
        name="node.slow_address",
        needs=("node",),
        why="copies of snapshots, and Gloo and NCCL where they use sockets, take the slow interface",
        fix="set checkpoint.peer_network to the fast one, and in the script GLOO_SOCKET_IFNAME and "
        "NCCL_SOCKET_IFNAME",
        source="https://github.com/meta-pytorch/torchft/issues/329; docs/checkpoints.md",
        judge=_slow,
    ),
    note(
        name="node.address",
        needs=("node",),
        why="a script that looks up the name of the first node for its MASTER_ADDR gives other nodes an "
        "address that they cannot reach",
        fix="take MASTER_ADDR from srobust; the administrator removes the name from the line of 127.0.1.1 in "
        "/etc/hosts, or lets it resolve",
        source="https://github.com/awslabs/ai-on-eks/pull/241; Debian's manual, hostname resolution",
        judge=_loopback,
    ),
    bad(
        name="memory.shared_memory",
        needs=("node",),
        why="snapshots do not fit, so training waits while each checkpoint is written to storage; data "
        "loaders and NCCL may fail, too",
        fix="start the container with a larger /dev/shm (docker: --shm-size, --ipc=host), or ask the "
        "administrator for one",
        source="docker run, --shm-size (64 MB by default); docs/checkpoints.md",
        judge=lambda facts: (
            f"{room.name} has {room.total / 1e6:.0f} MB"
            if facts.config.checkpoint.memory and (room := facts.shared_memory).total < _GIB
            else ""
        ),
    ),
    bad(
        name="memory.shared_memory_full",
        needs=("node",),
        why="no snapshot fits on this node, so a fault goes back to the newest checkpoint on storage; data "
        "loaders and NCCL may fail, too",
        fix="remove what fills it (ls -lS /dev/shm; killed DataLoader workers leave torch_* files), or have "
        "the administrator remove the files of jobs that are over",
        source="slurm_robust/checkpoint/budget.py: each job leaves a tenth of it alone; docs/checkpoints.md",
        judge=lambda facts: (
            room.describe()
            if facts.config.checkpoint.memory and not usable(room := facts.shared_memory)
            else ""
        ),
    ),
    note(
        name="memory.limit",
        needs=("node",),
        why="snapshots count against the limit",
        fix="submit with --mem=0, for all memory of each node",
        source="sbatch(1) --mem; docs/checkpoints.md",
        judge=_limited,
    ),
    bad(
        name="memory.no_snapshots",
        needs=("node", "state_bytes"),
        why="a recovery loses all steps since the last checkpoint on storage",
        fix="submit with --mem=0, let /dev/shm be larger, or train on more nodes",
        source="slurm_robust/checkpoint/budget.py, as each job plans",
        judge=lambda facts: (
            found.reason if (found := _plan(facts)) is not None and not found.own_buffers else ""
        ),
    ),
    note(
        name="memory.snapshots",
        needs=("node", "state_bytes"),
        why="fewer copies of each step",
        fix="submit with --mem=0, let /dev/shm be larger, or train on more nodes",
        source="slurm_robust/checkpoint/budget.py, as each job plans",
        judge=lambda facts: found.reason if (found := _plan(facts)) is not None and found.own_buffers else "",
    ),
    note(
        name="memory.of_gpus",
        needs=("node",),
        why="files in memory and other programs may take it, then CUDA has less than the script expects; "
        "Slurm's RealMemory and the size of /dev/shm may include it. Snapshots do not use it",
        fix="the administrator loads the driver with NVreg_CoherentGPUMemoryMode=driver (CDMM; from "
        "580.65.06 on, the default from 615 on), or the script starts under numactl --membind with the nodes "
        "that have CPUs",
        source="NVIDIA, understanding memory management on hardware-coherent platforms; HPC SDK 26.11, "
        "release notes; docs/checkpoints.md",
        judge=_of_gpus,
    ),
    note(
        name="memory.locked",
        needs=("node",),
        why="NCCL may not register memory for its network, and generations fail at their first collective",
        fix="the administrator sets LimitMEMLOCK=infinity for slurmd, and "
        "PropagateResourceLimitsExcept=MEMLOCK",
        source="Slurm's FAQ, memlock; NCCL's manual, networking troubleshooting",
        judge=lambda facts: (
            f"the limit on locked memory is {node.memlock / 1e6:.1f} MB"
            if (node := known(facts.node, "the node")).hcas
            and node.memlock is not None
            and node.memlock < _GIB
            else ""
        ),
    ),
    note(
        name="clock.sync",
        needs=("node",),
        why="a clock that no daemon keeps drifts seconds a day (virtual machines may be right without it)",
        fix="the administrator runs chronyd or its like",
        source="docs/node-checks.md, clock.sync",
        judge=lambda facts: (
            "the kernel does not know the clock to be kept right"
            if not known(known(facts.node, "the node").synchronised, "whether the clock is kept right")
            else ""
        ),
    ),
)
