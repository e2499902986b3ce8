"""The matrix: every fault with what is right to follow from it, whether that is what happens today or not."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, replace

from benchmarks.fault_matrix import plants
from benchmarks.fault_matrix.outcomes import EVICT, MOVE, RESTART, TESTED, Expected
from benchmarks.fault_matrix.plants import Plant, gpu, kernel, ordered
from slurm_robust.model.incident import Symptom

CRASH_S, KERNEL_S, GPU_S, VERDICT_S, DEAD_S = 0.5, 2.0, 5.0, 2.0, 6.0
TAKEOVER_S = 40.0
"""Ten without a controller, the votes, its start, and four without the dead host's agent."""

HANG_S = 15.0
"""The floor, which is more than three times the 99th percentile of these short steps."""

LINK_S = 30.0
"""Two looks in a row after the first, ten seconds apart."""

NUMBERS_S = 3.0

FEW, WARM, TRENDING = 5, 25, 130
"""Steps before a fault: for a crash; for a hang, whose bound is longer at first; for what must be a trend."""


@dataclass(frozen=True)
class Case:
    """One fault. ``about``: what is planted. ``after``: steps of the generation before it.

    ``takes_node``: the rank must not be on the controller's host, whose loss is another story, and the one of
    ``takes_controller``.
    ``survives``: training goes on although nobody acts. ``watch_s``: how long nothing must happen, where
    nothing is expected; ``patience_s``: how long a decision may take. ``fresh``: it begins a new training,
    since the case before it would change the answer. ``mend``: undoes what would outlive it.
    """

    name: str
    about: str
    plant: Plant
    expected: Expected
    after: int = FEW
    takes_node: bool = False
    takes_controller: bool = False
    survives: bool = False
    watch_s: float = 12.0
    patience_s: float = 90.0
    fresh: bool = False
    mend: Plant = plants.nothing

    def rank(self, seed: int, world: int, avoided: Collection[int]) -> int:
        """The rank that has the fault, the same for the same ``seed``; not ``avoided`` if others are left."""
        ranks = [rank for rank in range(world) if rank not in avoided] or range(world)
        return random.Random(f"{seed} {self.name}").choice(ranks)


CRASHES = (Symptom.WORKER_EXIT, Symptom.USER_EXCEPTION)
CRASH = Expected(symptoms=(Symptom.WORKER_EXIT,), actions=RESTART, detect_s=CRASH_S)
RAISED = Expected(symptoms=(Symptom.USER_EXCEPTION,), actions=RESTART, detect_s=CRASH_S)
BROKEN = Expected(symptoms=CRASHES, actions=EVICT, node=True, detect_s=CRASH_S)
HALTED = Expected(symptoms=(Symptom.HANG,), actions=EVICT, node=True, detect_s=HANG_S)
"""The process cannot go on by itself, which no code brings about."""

UNKILLABLE = replace(HALTED, observed=RESTART)
"""Only who kills it finds out that it cannot be killed."""

HANG = Expected(symptoms=(Symptom.HANG,), actions=RESTART, detect_s=HANG_S)
"""A first hang may be the fault of the code or of the node."""

SLOW = Expected(symptoms=(Symptom.SLOW,), actions=MOVE, node=True)
DIES = Expected(symptoms=(Symptom.AGENTS_LOST, Symptom.NODE_LOST, *CRASHES), actions=RESTART, detect_s=DEAD_S)
"""Workers die with their agent, so the first sign may be another rank that has lost its peer. Slurm says that
the agent ended and speaks with its node, which is not to blame."""

LOST = Expected(symptoms=(Symptom.NODE_LOST,), actions=EVICT, node=True, detect_s=VERDICT_S)
TAKEN_OVER = replace(LOST, detect_s=TAKEOVER_S)
NOTHING = Expected()


def _fault(seconds: float) -> Expected:
    return Expected(symptoms=(Symptom.NODE_FAULT,), actions=EVICT, node=True, detect_s=seconds)


XID = f"NVRM: Xid (PCI:{plants.BUS}): "
CASES: tuple[Case, ...] = (
    Case("SIGKILL", "SIGKILL to a rank", plants.kill, CRASH),
    Case("SIGSEGV", "a rank reads address 0", ordered("segfault"), CRASH),
    Case("SIGABRT", "a rank aborts", ordered("signal SIGABRT"), CRASH),
    Case("SIGBUS", "a rank gets SIGBUS", ordered("signal SIGBUS"), CRASH),
    Case("exit code", "a rank ends with code 1 and says nothing", ordered("exit 1"), CRASH),
    Case("OOM kill", "a rank takes more than its memory cgroup has", plants.out_of_memory, CRASH),
    Case("NCCL watchdog", "a rank aborts with the watchdog's timeout", ordered("watchdog"), CRASH),
    Case("ValueError", "user code raises ValueError", ordered("exception"), RAISED),
    Case("ImportError", "user code imports what is not there", ordered("import"), RAISED),
    Case("CUDA illegal access", "RuntimeError with CUDA's text", ordered("cuda"), RAISED),
    Case("CUDA out of memory", "torch.OutOfMemoryError", ordered("memory"), RAISED),
    Case("CUDA ECC", "RuntimeError: uncorrectable ECC error", ordered("ecc"), BROKEN),
    Case("full disk", "a rank writes to its node's full /tmp", plants.full_disk, BROKEN),
    Case("hang in C", "main thread in a C function for ever", ordered("c"), HANG, after=WARM),
    Case("hang in loader", "the data loader's child delivers nothing", ordered("loader"), HANG, after=WARM),
    Case("hang on a lock", "main thread waits for its own lock", ordered("lock"), HANG, after=WARM),
    Case("SIGSTOP", "a rank is stopped", plants.stop, HALTED, after=WARM),
    Case("skipped collective", "a rank is in another collective", ordered("skip"), HANG, after=WARM),
    Case("stale mount", "a rank reads from a dead file server", plants.stale_mount, UNKILLABLE, after=WARM),
    Case(
        "pause",
        "a rank stands still for 6.5 s",
        ordered("pause"),
        NOTHING,
        after=WARM,
        survives=True,
    ),
    Case(
        "slow rank",
        "a rank takes ten times as long for each step",
        ordered("slow"),
        SLOW,
        after=TRENDING,
        survives=True,
        patience_s=240.0,
    ),
    Case(
        "slow pair",
        "both ranks of a node take ten times as long",
        plants.slow_pair,
        SLOW,
        after=TRENDING,
        survives=True,
        patience_s=240.0,
        fresh=True,  # what is slow at the same place on another node is the code
    ),
    Case(
        "loss spike",
        "all ranks report a loss of 10^6; hardware is good",
        plants.spike,
        Expected(
            symptoms=(Symptom.SPIKE,), actions=("diagnose", *RESTART), everywhere=True, detect_s=NUMBERS_S
        ),
        after=TRENDING,
        survives=True,
        patience_s=200.0,
    ),
    Case(
        "kernel XID 79",
        "the kernel's log: GPU fell off the bus",
        kernel(f"{XID}79, pid=1, name=python, GPU has fallen off the bus."),
        _fault(KERNEL_S),
        survives=True,
    ),
    Case(
        "kernel XID 13",
        "the kernel's log: a program's own fault",
        kernel(f"{XID}13, pid=1, name=python, Graphics Exception"),
        NOTHING,
        survives=True,
    ),
    Case("driver XID 79", "NVML's event of a lost GPU", gpu(xid=79), _fault(KERNEL_S), survives=True),
    Case("GPU lost", "NVML does not find the GPU", gpu(lost=True), _fault(GPU_S), survives=True),
    Case(
        "GPU hot",
        "a GPU slows down by its temperature",
        gpu(temperature=99),
        NOTHING,
        survives=True,
        mend=plants.gpus_as_new,
    ),
    Case(
        "link down",
        "a link is down and stays so",
        plants.link_down,
        Expected(symptoms=(Symptom.NETWORK,), actions=EVICT, node=True, detect_s=LINK_S),
        survives=True,
    ),
    Case("link flap", "a link is down for 2 s", plants.link_flap, NOTHING, survives=True, watch_s=25.0),
    Case("starved agent", "a node's agent is stopped for 3 s", plants.starve_agent, NOTHING, survives=True),
    Case("dead agent", "SIGKILL to a node's agent", plants.kill_agent, DIES, takes_node=True),
    Case("dead node", "power cut", plants.power_cut, LOST, takes_node=True),
    Case("cut network", "a node's cable is pulled", plants.cut_network, LOST, takes_node=True),
    Case(
        "dead slurmd",
        "SIGKILL to a node's slurmd",
        plants.kill_slurmd,
        NOTHING,
        survives=True,
        mend=plants.start_slurmd,
    ),
    Case(
        "dead slurmctld",
        "SIGKILL to slurmctld, which is away for 12 s",
        plants.kill_slurmctld,
        NOTHING,
        survives=True,
    ),
    Case("dead controller", "SIGKILL to the controller", plants.kill_controller, NOTHING, survives=True),
    Case(
        "silent corruption",
        "NaN from a node whose arithmetic is wrong",
        plants.corrupt,
        Expected(symptoms=(Symptom.NON_FINITE,), actions=TESTED, node=True, detect_s=NUMBERS_S),
        survives=True,
        patience_s=200.0,
    ),
    Case(
        "dead batch host",
        "power cut of the node with the batch script and the controller",
        plants.power_cut,
        TAKEN_OVER,
        takes_controller=True,
        fresh=True,
    ),
)
