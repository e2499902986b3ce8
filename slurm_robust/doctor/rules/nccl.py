"""Hazards of the software of the ranks: releases of torch, CUDA, driver and NCCL, and their variables."""

from __future__ import annotations

from collections.abc import Callable

from slurm_robust.doctor.facts import Facts, Version, known
from slurm_robust.doctor.rule import bad, note

_OLDEST_TORCH = (2, 4)
_RECORDER_AS_JSON = (2, 5)
_NCCL2, _NCCL2_RECORDED = (2, 14), (2, 15)
_USE_NCCL2 = "TORCH_DIST_USE_NCCL2"
_PORT_FAILOVER = (2, 29, 7)
_SHRINK_HANGS = (2, 31, 2)
_RANKS_ALLTOALL = 80
_IB_RETRIES, _IB_LEAST_S = 7, 2.0

# The oldest driver that runs any release of a CUDA series.
_DRIVERS: dict[int, Version] = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def _within(facts: Facts, first: Version, fixed: Version) -> str:
    """Name NCCL's release if it is at least ``first`` and before ``fixed``."""
    have = facts.version("nccl")
    return f"NCCL is {_dotted(have)}" if first <= have < fixed else ""


def _driver(facts: Facts) -> str:
    cuda, have = facts.version("cuda"), facts.version("driver")
    least = known(_DRIVERS.get(cuda[0]), f"the driver that CUDA {cuda[0]} needs")
    if have >= least:
        return ""
    return f"the driver is {_dotted(have)}, and torch is built for CUDA {_dotted(cuda)}"


def _unrecorded(facts: Facts) -> str:
    """Return why no recorder of NCCL's operations answers, if a rank has such."""
    have = facts.version("torch")
    if not known(facts.software, "the software").nccl:
        return ""
    if have < _RECORDER_AS_JSON:
        return f"torch is {_dotted(have)}, which does not give its flight recorder out"
    if _NCCL2 <= have < _NCCL2_RECORDED and facts.variable(_USE_NCCL2) == "1":
        return f"{_USE_NCCL2} is 1, and torch is {_dotted(have)}, whose nccl2 records nothing"
    return ""


def _unseen_gpus(facts: Facts) -> str:
    have = facts.version("torch")
    is_nccl2 = have >= _NCCL2_RECORDED and facts.variable(_USE_NCCL2) != "0"
    if not known(facts.software, "the software").nccl or not is_nccl2:
        return ""
    return f"torch is {_dotted(have)}, and {_USE_NCCL2} is not 0: the backend nccl is nccl2"


def _port_failover(facts: Facts) -> str:
    ports = known(facts.node, "the node").hcas
    if len(ports) < 2 or facts.version("nccl") < _PORT_FAILOVER:
        return ""
    if facts.variable("NCCL_IB_RESILIENCY_PORT_FAILOVER") == "1":
        return ""
    return f"NCCL_IB_RESILIENCY_PORT_FAILOVER is not 1, and the node has {len(ports)} adapters"


def _off(*names: str) -> Callable[[Facts], str]:
    """Return the judge that names the first of these variables that is 0."""
    return lambda facts: next((f"{name} is 0" for name in names if facts.variable(name) == "0"), "")


def _ib_timeout(facts: Facts) -> str:
    """Return the time: 4.096 µs x 2^timeout for each of the retries."""
    timeout = facts.variable("NCCL_IB_TIMEOUT") or ""
    retries = facts.variable("NCCL_IB_RETRY_CNT") or str(_IB_RETRIES)
    if not (timeout.isdecimal() and retries.isdecimal()) or not 0 < int(timeout) < 32:
        return ""
    bears_s = 4.096e-6 * 2 ** int(timeout) * int(retries)
    return (
        f"NCCL_IB_TIMEOUT is {timeout}: NCCL bears {bears_s:.1f} s of silence"
        if bears_s < _IB_LEAST_S
        else ""
    )


def _interfaces(facts: Facts) -> str:
    have = known(facts.node, "the node").interfaces
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = facts.variable(name)
        if value and not _finds(value, have, exact=name.startswith("GLOO")):
            return f"{name} is {value}, and this node has {', '.join(have)}"
    return ""


def _finds(value: str, have: tuple[str, ...], *, exact: bool) -> bool:
    """Return whether NCCL finds it: it takes prefixes, ``=`` before whole names and ``^`` to leave out."""
    if value.startswith("^"):
        return True
    names = [name.strip() for name in value.removeprefix("=").split(",")]
    if exact or value.startswith("="):
        return any(name in have for name in names)
    return any(interface.startswith(name) for name in names for interface in have)


_RELEASE = "NCCL's release notes of"
_VARIABLES = "torch, ProcessGroupNCCL environment variables"
_ENV = "NCCL's manual, environment variables"

RULES = (
    bad(
        name="torch.release",
        needs=("software",),
        why="checkpoints and workers were tested with 2.4 and later",
        fix="install torch 2.4 or later",
        source="docs/installing.md, supported releases",
        judge=lambda facts: (
            f"torch is {_dotted(have)}" if (have := facts.version("torch")) < _OLDEST_TORCH else ""
        ),
    ),
    bad(
        name="torch.driver",
        needs=("software",),
        why="CUDA does not start: every generation fails, unless the container brings cuda-compat",
        fix="install a torch for the driver's CUDA, or the administrator installs a later driver",
        source="CUDA's release notes, minimum driver for minor version compatibility (450.80.02 for CUDA 11, "
        "525.60.13 for 12, 580.65.06 for 13)",
        judge=_driver,
    ),
    bad(
        name="nccl.large_scale",
        needs=("software",),
        why="it hangs at large scale, and may crash when communicators are aborted",
        fix="install NCCL 2.28.9 or later",
        source=f"{_RELEASE} 2.28.9; NVRx's README (avoid 2.28.3 to 2.28.8)",
        judge=lambda facts: _within(facts, (2, 28), (2, 28, 9)),
    ),
    bad(
        name="nccl.all_to_all",
        needs=("software", "ranks"),
        why="exchanges like all-to-all (experts) may hang with more than 80 ranks",
        fix="install NCCL 2.27.3 or later",
        source=f"{_RELEASE} 2.27.3",
        judge=lambda facts: _within(facts, (2,), (2, 27, 3)) if (facts.ranks or 0) > _RANKS_ALLTOALL else "",
    ),
    bad(
        name="nccl.corruption",
        needs=("software",),
        why="it may corrupt data where a GPU shares its PCI switch with one NIC (HGX H100)",
        fix="install NCCL 2.18.3 or later",
        source=f"{_RELEASE} 2.18.1 and 2.18.3",
        judge=lambda facts: _within(facts, (2, 18, 1), (2, 18, 3)),
    ),
    note(
        name="nccl.abort",
        needs=("software",),
        why="aborting a communicator may hang, and takes up to a hundred times as long",
        fix="install NCCL 2.26.2 or later",
        source=f"{_RELEASE} 2.26.2",
        judge=lambda facts: _within(facts, (2,), (2, 26, 2)),
    ),
    note(
        name="nccl.ras_crash",
        needs=("software",),
        why="a rank may crash when RAS is asked, as for each hang, while it makes a communicator",
        fix="install NCCL 2.27.3 or later",
        source=f"{_RELEASE} 2.27.3; NVIDIA/nccl#1669, #1718",
        judge=lambda facts: _within(facts, (2, 24), (2, 27, 3)),
    ),
    note(
        name="nccl.shrink",
        needs=("software",),
        why="torch's shrink_group(…, SHRINK_ABORT) hangs on the ranks that are left",
        fix="do not use shrink_group, or a torch that has pytorch#194775",
        source="pytorch/pytorch#194679, #194775 (NCCL 2.31.2 on)",
        judge=lambda facts: (
            f"NCCL is {_dotted(have)}" if (have := facts.version("nccl")) >= _SHRINK_HANGS else ""
        ),
    ),
    note(
        name="nccl.port_failover",
        needs=("software", "node", "environ"),
        why="where NCCL merges ports into one device, one that fails ends the generation, instead of leaving "
        "its traffic to the others",
        fix="export NCCL_IB_RESILIENCY_PORT_FAILOVER=1, after a test on this network",
        source="NCCL 2.29.7, src/transport/net_ib/p2p_resiliency.cc (default 0)",
        judge=_port_failover,
    ),
    note(
        name="cuda.launch_blocking",
        needs=("environ",),
        why="the CPU waits for each kernel: training is slower, and a hang shows another stack",
        fix="unset it; it is for debugging",
        source="CUDA programming guide, environment variables: CUDA_LAUNCH_BLOCKING",
        judge=lambda facts: (
            "CUDA_LAUNCH_BLOCKING is 1" if facts.variable("CUDA_LAUNCH_BLOCKING") == "1" else ""
        ),
    ),
    note(
        name="nccl.error_handling",
        needs=("environ",),
        why="ranks wait for a dead peer until the hang is detected, instead of failing immediately",
        fix="unset it",
        source=_VARIABLES,
        judge=_off("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"),
    ),
    note(
        name="nccl.aborting",
        needs=("environ",),
        why="a rank that fails aborts its communicators first, which may hang; by default it only ends",
        fix="unset it (3)",
        source=_VARIABLES,
        judge=lambda facts: (
            f"TORCH_NCCL_ASYNC_ERROR_HANDLING is {value}"
            if (value := facts.variable("TORCH_NCCL_ASYNC_ERROR_HANDLING")) in ("1", "2")
            else ""
        ),
    ),
    note(
        name="nccl.flight_recorder",
        needs=("environ",),
        why="without the flight recorder most hangs inside NCCL name no rank",
        fix="unset it; srobust run sets 2000",
        source=f"{_VARIABLES}; docs/stacks.md",
        judge=_off("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    ),
    note(
        name="nccl.timing",
        needs=("environ",),
        why="operations that a GPU has begun look like those that wait: a GPU that hangs names no rank",
        fix="unset it; srobust run sets 1",
        source=f"{_VARIABLES}; docs/stacks.md",
        judge=_off("TORCH_NCCL_ENABLE_TIMING"),
    ),
    note(
        name="nccl.unrecorded",
        needs=("software", "environ"),
        why="no rank tells in which operation of NCCL it waits: most hangs inside NCCL name no rank",
        fix=f"with torch 2.14 unset {_USE_NCCL2}; else install torch 2.5 or later",
        source="torch 2.4.1 (no JSON), 2.14.1 (nccl2 has no recorder); docs/stacks.md#taking-stacks",
        judge=_unrecorded,
    ),
    note(
        name="nccl.unseen_gpus",
        needs=("software", "environ"),
        why="the recorder of nccl2 does not show what a GPU has begun: a GPU that hangs names no rank, and a "
        "rank that has ended all it enqueued is named with its node first",
        fix=f"export {_USE_NCCL2}=0, while torch has the older backend",
        source="pytorch/pytorch#192281 (nccl is nccl2), #192233 (its recorder); docs/stacks.md#taking-stacks",
        judge=_unseen_gpus,
    ),
    note(
        name="nccl.ras",
        needs=("environ",),
        why="NCCL does not say which processes of a hang are gone",
        fix="unset it",
        source="NCCL's manual, NCCL_RAS_ENABLE; docs/stacks.md#taking-stacks",
        judge=_off("NCCL_RAS_ENABLE"),
    ),
    note(
        name="nccl.ib_timeout",
        needs=("environ",),
        why="a link that flaps for a moment ends the generation",
        fix="unset it (20, which with 7 retries are 30 s)",
        source=f"{_ENV}: NCCL_IB_TIMEOUT, NCCL_IB_RETRY_CNT",
        judge=_ib_timeout,
    ),
    bad(
        name="nccl.interfaces",
        needs=("environ", "node"),
        why="ranks on a node without that interface cannot meet the others: no generation starts there",
        fix="name an interface that all nodes have, or a prefix of their names",
        source=f"{_ENV}: NCCL_SOCKET_IFNAME; torch.distributed, GLOO_SOCKET_IFNAME",
        judge=_interfaces,
    ),
)
