"""How faults are planted: each a function of the running training and of the rank, whose node has it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from benchmarks.fault_matrix.nodes import DEAD
from benchmarks.fault_matrix.training import RANKS_PER_NODE, Training
from tests.cluster.protected_job import find_process

Plant = Callable[[Training, int], float]
"""Returns when the fault began, ``time.time()``."""

AGENT = "slurm_robust.agent --job-dir"
BUS = "0000:9b:00"
FLAP_S, STARVED_S, AWAY_S = 2.0, 3.0, 12.0


def ordered(fault: str) -> Plant:
    """The rank commits it by itself."""
    return lambda training, rank: training.order(rank, fault)


def kernel(text: str) -> Plant:
    """The kernel of the rank's node says it."""
    return lambda training, rank: training.nodes.kernel_says(node_of(training, rank), text)


def gpu(**values: object) -> Plant:
    """The first GPU of the rank's node gets other values."""

    def plant(training: Training, rank: int) -> float:
        begun = time.time()
        training.sandbox.gpus(node_of(training, rank)).set(0, **values)
        return begun

    return plant


def node_of(training: Training, rank: int) -> str:
    return training.state.world.placement.node_of(rank)


# -- ranks -----------------------------------------------------------------------------------------


def kill(training: Training, rank: int) -> float:
    return training.sandbox.fault.kill_rank(training.id, rank).t


def stop(training: Training, rank: int) -> float:
    return training.sandbox.fault.stop_rank(training.id, rank).t


def out_of_memory(training: Training, rank: int) -> float:
    """The rank takes more than its memory cgroup has, and the kernel kills it."""
    training.nodes.limit_memory(training.sandbox.fault.rank_pid(training.id, rank), 32)
    return training.order(rank, "eat")


def slow_pair(training: Training, rank: int) -> float:
    """Both ranks of a node take longer for each step."""
    first = rank - rank % RANKS_PER_NODE
    return max(training.order(first + i, "slow") for i in range(RANKS_PER_NODE))


def spike(training: Training, rank: int) -> float:
    """All ranks report a loss of 10^6 for a few seconds; no node is bad."""
    return training.order_each(range(training.state.world.placement.world_size), "spike")


def corrupt(training: Training, rank: int) -> float:
    """The rank's numbers become wrong, and so are those of tests on its node."""
    training.wears(node_of(training, rank), "arithmetic")
    return training.order(rank, "nan")


# -- nodes -----------------------------------------------------------------------------------------


def full_disk(training: Training, rank: int) -> float:
    """The node's own /tmp is full, and the rank writes there."""
    training.sandbox.fault.fill_disk(node_of(training, rank), "/tmp")
    return training.order(rank, "write /tmp/cache")


def stale_mount(training: Training, rank: int) -> float:
    """A file server that only this node mounts has gone, and the rank reads there."""
    training.nodes.dead_mount(node_of(training, rank))
    return training.order(rank, f"read {DEAD}/data")


def link_down(training: Training, rank: int) -> float:
    return training.nodes.link(node_of(training, rank), "down")


def link_flap(training: Training, rank: int) -> float:
    """Down for two seconds, once."""
    node = node_of(training, rank)
    begun = training.nodes.link(node, "down")
    time.sleep(FLAP_S)
    training.nodes.link(node, "up")
    return begun


def kill_agent(training: Training, rank: int) -> float:
    begun = time.time()
    words = ["pkill", "-9", "-f", AGENT]
    training.sandbox.exec(words, node=node_of(training, rank), user="root")
    return begun


def starve_agent(training: Training, rank: int) -> float:
    """Stopped for a while, once; its node's kernel answers meanwhile."""
    agent = find_process(training.sandbox, node_of(training, rank), "-m", "slurm_robust.agent")
    begun = time.time()
    os.kill(agent, signal.SIGSTOP)
    try:
        time.sleep(STARVED_S)
    finally:
        os.kill(agent, signal.SIGCONT)
    return begun


def power_cut(training: Training, rank: int) -> float:
    return training.sandbox.fault.power_cut(node_of(training, rank)).t


def cut_network(training: Training, rank: int) -> float:
    return training.sandbox.fault.cut_network(node_of(training, rank)).t


def kill_slurmd(training: Training, rank: int) -> float:
    return training.sandbox.fault.kill_slurmd(node_of(training, rank)).t


def kill_slurmctld(training: Training, rank: int) -> float:
    """Away for a while, once."""
    begun = training.sandbox.fault.kill_slurmctld().t
    time.sleep(AWAY_S)
    training.sandbox.fault.start_slurmctld()
    return begun


def kill_controller(training: Training, rank: int) -> float:
    return training.kill_controller()


# -- mending what the training would go on with ----------------------------------------------------


def nothing(training: Training, rank: int) -> float:
    return time.time()


def gpus_as_new(training: Training, rank: int) -> float:
    training.sandbox.gpus(node_of(training, rank)).reset()
    return time.time()


def start_slurmd(training: Training, rank: int) -> float:
    return training.sandbox.fault.start_slurmd(node_of(training, rank)).t
