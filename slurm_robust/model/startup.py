"""What a node does from the start of its agent until the first step of a generation, and for how long. Pure.

Each time is measured by one monotonic clock: the node's own or, for :data:`AGENT`, the controller's.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from slurm_robust.model.record import Record

STOP, GPUS, AGENT, ZYGOTE, LAUNCH = "stop", "gpus", "agent", "zygote", "launch"
WORKER, IMPORTS, GROUP, MODEL = "worker", "imports", "process group", "model"
RESTORE, FIRST_STEP = "restore", "first step"

START_PHASES = {
    STOP: "the workers before were ended",
    GPUS: "their memory on the GPUs became free",
    AGENT: "the agent was started, until the controller heard it",
    ZYGOTE: "the zygote was started and imported PyTorch",
    LAUNCH: "from the order to launch until all workers were forked",
    WORKER: "until the script's first line",
    IMPORTS: "until the script asked for its process group",
    GROUP: "init_process_group(), in which ranks wait for each other",
    MODEL: "until restore() was called",
    RESTORE: "restore()",
    FIRST_STEP: "until the first step was done, in which ranks wait for each other",
}
"""In their order. The time of a phase whose end was not seen counts to the next one."""

MAX_NODES, SLOWEST = 32, 8
"""If there are more than MAX_NODES nodes, a phase keeps the times of its SLOWEST slowest ones."""


class PhaseTimes(Record):
    """One phase on all nodes, in seconds."""

    phase: str
    median_s: float
    nodes: dict[str, float]
    """The slowest first."""
    measured: int
    """How many nodes there are times of; ``nodes`` may have fewer."""


def phase_times(nodes: Mapping[str, Mapping[str, float]]) -> tuple[PhaseTimes, ...]:
    """Return the times of all nodes by phase; phases in their order."""
    found = []
    for phase in START_PHASES:
        times = {node: round(known[phase], 3) for node, known in nodes.items() if phase in known}
        if times:
            slowest = sorted(times, key=lambda node: times[node], reverse=True)
            kept = slowest if len(slowest) <= MAX_NODES else slowest[:SLOWEST]
            found.append(
                PhaseTimes(
                    phase=phase,
                    median_s=round(median(times.values()), 3),
                    nodes={node: times[node] for node in kept},
                    measured=len(times),
                )
            )
    return tuple(found)
