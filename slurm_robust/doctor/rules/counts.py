"""Hazards of what the job asks for: nodes, tasks, segments and GPUs that do not fit together."""

from __future__ import annotations

from slurm_robust.doctor.facts import Facts, Unseen, known
from slurm_robust.doctor.rule import bad, note
from slurm_robust.doctor.rules.settings import CONFIGURATION, sizes_in
from slurm_robust.slurm.records import SlurmVersion

_STRICT = SlurmVersion(major=26, minor=5)
"""From here on two options for the GPUs of a node are fatal, and a job within one segment is not cut."""

_OUTER = (
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_CPUS_PER_TASK",
    "SLURM_MEM_PER_NODE",
    "SLURM_MEM_PER_CPU",
    "SLURM_MEM_PER_GPU",
)


def _number(facts: Facts, option: str) -> int | None:
    """Return a plain number, of a range the lower end."""
    text = (facts.option(option) or "").partition("-")[0]
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def _one_node(facts: Facts) -> str:
    nodes, tasks = _number(facts, "nodes"), _number(facts, "ntasks")
    if nodes is None or not tasks or tasks >= nodes:
        return ""
    return f"--nodes={facts.option('nodes')} with --ntasks={tasks}: the job gets {tasks} of {nodes} nodes"


def _too_few(facts: Facts) -> str:
    sizes, nodes = sizes_in(facts), known(facts.nodes, "the number of nodes")
    if 1 <= sizes.slots <= nodes:
        return ""
    asked = f"--nodes {facts.config.nodes} " if facts.config.nodes is not None else ""
    needs = max(1, sizes.slots) + facts.config.spares
    return f"srobust run {asked}--spares {facts.config.spares} needs {needs} nodes, the job asks for {nodes}"


def _segment(facts: Facts) -> str:
    nodes, size = _number(facts, "nodes"), _number(facts, "segment")
    if nodes is None or not size or nodes % size == 0 or "-" in (facts.option("nodes") or ""):
        return ""
    if nodes < size and facts.release >= _STRICT:
        return ""
    fits = f"{nodes - nodes % size} or " if nodes > size else ""
    spares = facts.config.spares
    of_them = f" ({nodes - spares} and {spares} spares)" if 0 < spares < nodes else ""
    return (
        f"{nodes} nodes{of_them} are no multiple of --segment={size}; {fits}{nodes - nodes % size + size} are"
    )


def _segment_spares(facts: Facts) -> str:
    nodes, size, spares = _number(facts, "nodes"), _number(facts, "segment"), facts.config.spares
    if nodes is None or not size or nodes % size or not 0 < spares < nodes:
        return ""
    slots = nodes - spares
    if slots < size or slots % size == 0:
        return ""
    whole = -(-slots // size) * size
    return f"{slots} of {nodes} nodes train, no whole segments of {size}: a requeue needs {whole} nodes"


def _gpu_options(facts: Facts) -> str:
    """Return GPU options that are given twice, which 26.05 refuses; also if the release is not known."""
    try:
        if facts.release < _STRICT:
            return ""
    except Unseen:
        pass
    per_node = facts.option("gpus-per-node")
    if per_node is not None and "gpu" in (facts.option("gres") or ""):
        return f"--gpus-per-node={per_node} and --gres={facts.option('gres')}"
    if facts.shape is None:
        return ""
    if facts.shape.both:
        return f"--gpus-per-node and --gres of one step: {facts.shape.both}"
    outside = (facts.environ or {}).get("SLURM_GPUS_PER_NODE")
    if facts.shape.gres and (per_node is not None or outside is not None):
        of_job = f"--gpus-per-node={per_node} of the job" if per_node is not None else "SLURM_GPUS_PER_NODE"
        return f"{of_job} and --gres of its step: {facts.shape.gres}"
    return ""


def _gpus_in_all(facts: Facts) -> str:
    gpus = facts.option("gpus")
    if gpus is None or facts.option("exclusive") is not None or facts.nodes in (None, 1):
        return ""
    if facts.option("gpus-per-node") is not None or facts.option("ntasks-per-gpu") is not None:
        return ""
    return f"--gpus={gpus} counts the GPUs of all {facts.nodes} nodes together"


def _outer_job(facts: Facts) -> str:
    environ = known(facts.environ, "the environment")
    found = [name for name in _OUTER if name in environ]
    return f"the environment has {', '.join(found)} of another job" if found else ""


RULES = (
    bad(
        name="job.heterogeneous",
        needs=("options",),
        why="srobust run ends with 71: its agents need one step on all nodes",
        fix="submit a job of one component",
        source="docs/exit-codes.md; sbatch(1), HETEROGENEOUS JOBS",
        judge=lambda facts: (
            "the job is heterogeneous: it has several components (#SBATCH hetjob)"
            if known(facts.options, "sbatch's options").heterogeneous
            else ""
        ),
    ),
    bad(
        name="job.too_few_nodes",
        needs=("nodes", "configured"),
        why="the job ends with 71 as soon as it has started",
        fix="submit with more --nodes, or with fewer spares",
        source=f"docs/exit-codes.md; {CONFIGURATION}, spares",
        judge=_too_few,
    ),
    bad(
        name="job.one_node",
        needs=("options",),
        why="sbatch warns and asks for no more nodes than tasks: the training has only those, and no spares",
        fix="submit with --ntasks-per-node=1 instead of --ntasks",
        source="Slurm's src/sbatch/opt.c, 22.05 to 26.05: setting nnodes to 1",
        judge=_one_node,
    ),
    bad(
        name="job.segment",
        needs=("options",),
        why="slurmctld refuses the job: Requested topology configuration is not available",
        fix="change --nodes, --segment or --spares: nodes that train and spares together are whole segments",
        source="sbatch(1) --segment; Slurm's changes of 24.05 and 26.05",
        judge=_segment,
    ),
    note(
        name="job.segment_spares",
        needs=("options",),
        why="Slurm places whole segments only, so after the loss of a node a requeue waits for spares, too",
        fix="choose --segment so that the nodes that train are whole segments, or leave it out",
        source="Slurm's src/plugins/topology/block/eval_nodes_block.c, 24.05 to 26.05",
        judge=_segment_spares,
    ),
    bad(
        name="job.gpu_options",
        needs=("options",),
        why="Slurm 26.05 and later end with: --gpus-per-node and --gres=gpu are mutually exclusive",
        fix="give one of them; for a step 'env -u SLURM_GPUS_PER_NODE srun' or --gpus-per-node",
        source="Slurm's changes of 26.05; https://github.com/NVIDIA/NVFlare/issues/5268",
        judge=_gpu_options,
    ),
    note(
        name="job.gpus_in_all",
        needs=("options",),
        why="nodes may get different numbers of them, and then a spare cannot take over every node",
        fix="submit with --gpus-per-node",
        source="sbatch(1) --gpus, --gpus-per-node",
        judge=_gpus_in_all,
    ),
    note(
        name="job.outer_job",
        needs=("shape", "environ"),
        why="sbatch passes them on, and the job's own srun takes them for its options",
        fix='submit from outside of a job, or unset them first (unset "${!SLURM_@}" in bash)',
        source="srun(1) and sbatch(1), INPUT ENVIRONMENT VARIABLES",
        judge=_outer_job,
    ),
)
