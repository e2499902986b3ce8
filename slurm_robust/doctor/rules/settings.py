"""Hazards of the job's own settings, and the order of its timeouts with those of PyTorch."""

from __future__ import annotations

import re

from slurm_robust.doctor.facts import Facts, known
from slurm_robust.doctor.launchers import is_local
from slurm_robust.doctor.rule import bad, note
from slurm_robust.policy.resharding import Sizes, sizes_of

PROCESS_GROUP_S = 600
"""The default of ``init_process_group(timeout=…)`` with NCCL."""

_BEATS = 3


def detection_s(facts: Facts) -> float:
    """Return the least seconds without a step until a hang is declared and its stacks are taken twice."""
    detect = facts.config.detect
    return detect.hang_floor_s + 2 * detect.stacks_s


def _heartbeat(facts: Facts) -> str:
    text = facts.variable("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC") or ""
    ours = detection_s(facts)
    if not text.isdecimal() or int(text) > ours or facts.variable("TORCH_NCCL_ENABLE_MONITORING") == "0":
        return ""
    return f"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC is {text}, and a hang is sampled within {ours:g} s"


CONFIGURATION = "docs/configuration.md"


def sizes_in(facts: Facts) -> Sizes:
    """Return the slots and spares of a first run of the job."""
    nodes, config = known(facts.nodes, "the number of nodes"), facts.config
    return sizes_of(nodes, nodes=config.nodes, spares=config.spares, before=None, later_run=False)


def _imex_channels(facts: Facts) -> str:
    companions = facts.config.companions
    borrows = companions.reservation is not None or companions.partition
    own = facts.setting("SwitchType").endswith("/nvidia_imex")
    if not borrows or companions.without_nvlink or not own:
        return ""
    return "SwitchType is switch/nvidia_imex: each job, so each companion, has an IMEX channel of its own"


def _refused_at(facts: Facts) -> str:
    """Return the places in files that are named in what ``srobust run`` says."""
    places = re.findall(r"(?:^|; )([^;\s]+, line \d+): ", facts.refused or "")
    return f"correct {' and '.join(dict.fromkeys(places))}" if places else ""


def _local_folder(facts: Facts) -> str:
    config, options = facts.config, facts.run.options if facts.run is not None else ()
    if is_local(config.job_dir or ""):
        of_run = any(option.partition("=")[0] == "--job-dir" for option in options)
        return f"{'srobust run --job-dir' if of_run else 'job_dir is'} {config.job_dir}"
    folder = config.checkpoint.directory or ""
    return f"checkpoint.directory is {folder}" if is_local(folder) else ""


def _spares(facts: Facts) -> str:
    spares = known(facts.configured, "a configuration").spares
    if not spares:
        return "spares is 0"
    if facts.nodes is None or (sizes := sizes_in(facts)).spares >= spares or sizes.slots < 1:
        return ""
    return f"of {facts.nodes} nodes {sizes.slots} train, so {sizes.spares} of {spares} spares are left"


RULES = (
    note(
        name="timeouts.process_group",
        needs=("gpus",),
        why="torch ends a collective after 600 s unless the script says otherwise: a hang is then a crash "
        "without stacks",
        fix="lower detect.hang_floor_s, or init_process_group(timeout=…) with more",
        source="torch.distributed, init_process_group; docs/detection.md, how the timeouts nest",
        judge=lambda facts: (
            f"a hang is declared and sampled within {ours:g} s at the earliest (detect.hang_floor_s)"
            if facts.config.detect.hang and facts.gpus and (ours := detection_s(facts)) >= PROCESS_GROUP_S
            else ""
        ),
    ),
    bad(
        name="timeouts.nccl_heartbeat",
        needs=("environ",),
        why="torch kills a rank whose watchdog is stuck before the stacks of the hang are taken",
        fix="unset it (480 s or more)",
        source="torch, ProcessGroupNCCL environment variables, and their defaults in ProcessGroupNCCL.cpp",
        judge=_heartbeat,
    ),
    note(
        name="timeouts.node_dead",
        why="two late heartbeats are enough to declare a node dead",
        fix="set timings.node_dead_s to five heartbeats",
        source=f"{CONFIGURATION}, timings.node_dead_s",
        judge=lambda facts: (
            f"timings.node_dead_s ({timings.node_dead_s:g} s) is less than three heartbeats"
            if (timings := facts.config.timings).node_dead_s < _BEATS * timings.heartbeat_s
            else ""
        ),
    ),
    bad(
        name="settings.refused",
        needs=("refused",),
        why="the job ends as soon as it has started",
        fix="correct it in the batch script",
        source=f"{CONFIGURATION}; srobust run --help",
        judge=lambda facts: f"srobust run says: {facts.refused}" if facts.refused else "",
        exactly=_refused_at,
    ),
    bad(
        name="settings.local_folder",
        why="each node has this folder for itself: the job ends with 73, or nodes do not find checkpoints",
        fix="name a folder on shared storage",
        source="docs/security.md; docs/exit-codes.md",
        judge=_local_folder,
    ),
    note(
        name="settings.spares",
        needs=("configured",),
        why="every lost node costs a requeue, or the wait for a node",
        fix="ask for one node more than train, and set spares to 1",
        source=f"{CONFIGURATION}, spares",
        judge=_spares,
    ),
    note(
        name="settings.reservation",
        why="no companion gets a node from it when no standby is left",
        fix="the administrator makes it (srobust spares create), or correct its name",
        source="docs/fleet.md#shared-spares; docs/standbys.md#fallbacks",
        judge=lambda facts: (
            f"there is no reservation {name} that this user may see (companions.reservation)"
            if (name := facts.config.companions.reservation) is not None
            and name not in known(facts.reservations, "reservations")
            else ""
        ),
    ),
    note(
        name="settings.imex_channels",
        needs=("slurm",),
        why="a lent node cannot import memory of the job's GPUs: with NVLink between nodes none is lent",
        fix="ask for spares, or set companions.without_nvlink if NVLink is used within nodes only",
        source="slurm.conf(5) SwitchParameters, imex_channel_count; docs/fleet.md#shared-spares",
        judge=_imex_channels,
    ),
    note(
        name="settings.memory",
        why="a recovery loses all steps since the last checkpoint on storage",
        fix="set checkpoint.memory to true",
        source=f"{CONFIGURATION}, checkpoint.memory",
        judge=lambda facts: "" if facts.config.checkpoint.memory else "checkpoint.memory is false",
    ),
    note(
        name="settings.peers",
        why="the loss of a node costs all steps since the last checkpoint on storage",
        fix="set checkpoint.peers to true",
        source=f"{CONFIGURATION}, checkpoint.peers",
        judge=lambda facts: (
            "checkpoint.peers is false"
            if (checkpoint := facts.config.checkpoint).memory and not checkpoint.peers
            else ""
        ),
    ),
    note(
        name="settings.hang",
        why="a hang ends only by torch's own timeout, without stacks",
        fix="set detect.hang to true",
        source=f"{CONFIGURATION}, detect.hang",
        judge=lambda facts: "" if facts.config.detect.hang else "detect.hang is false",
    ),
    bad(
        name="settings.requeue",
        why="the job ends when its allocation cannot be saved, instead of going on in another",
        fix="set slurm.requeue to true",
        source=f"{CONFIGURATION}, slurm.requeue",
        judge=lambda facts: "" if facts.config.slurm.requeue else "slurm.requeue is false",
    ),
    bad(
        name="settings.observe",
        why="nothing is recovered: what would be done is only printed",
        fix="set mode to act",
        source=f"{CONFIGURATION}, mode",
        judge=lambda facts: "mode is observe" if facts.config.mode == "observe" else "",
    ),
)
