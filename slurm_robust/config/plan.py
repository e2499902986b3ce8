"""The plan of a run: what ``srobust run`` was asked for, checked; its controllers read it from a file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from slurm_robust.config.job import JobConfig
from slurm_robust.model import events as ev
from slurm_robust.model.container import Container
from slurm_robust.model.errors import ExitCode, PreflightError
from slurm_robust.model.job import CommandKind, JobDirectory
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.record import Record, decoded
from slurm_robust.model.release import Release
from slurm_robust.model.training import TrainingDirectory
from slurm_robust.util.files import write_atomically
from slurm_robust.util.ours import check_own_folder, read_ours


class RunPlan(Record):
    """What ``srobust run`` was asked for, checked; the controller reads it from the job directory.

    ``cluster`` to ``segment`` are as in :class:`~slurm_robust.model.events.RunStarted` and
    ``AllocationTaken``.
    """

    run_id: str
    job_id: int
    kind: CommandKind
    command: tuple[str, ...]
    cwd: str
    slots: int
    spares: int
    nproc_per_node: int
    restart_count: int
    nodes: tuple[str, ...]
    """The allocation, in Slurm's order."""
    config: JobConfig
    cluster: str = ""
    submitted: float | None = None
    array_task: str = ""
    time_limit_s: float | None = None
    queued_s: float | None = None
    eligible: float | None = None
    gpus: int = 0
    required: tuple[str, ...] | None = None
    segment: int = 0
    requeues: bool = True
    """Slurm may requeue the job (``--requeue``, JobRequeue), or has not said."""
    blocks: dict[str, str] = {}
    """Slurm's block of each node of the allocation, where it is topology/block's."""
    start: str = ""
    """This start of ``srobust run``; controllers of other hosts that take over serve the same one."""
    output: str = ""
    """The job's own output, in which a controller on another node goes on; "" if that is no file."""
    training: str = ""
    """As in :class:`~slurm_robust.model.events.RunStarted`."""
    continued: ev.Continued | None = None
    """The point from which the job goes on; None for one that began anew."""
    release: Release | None = None
    """The first release of the job, None for none. What runs later, the journal says. In a later run: the one
    that takes the place of a release whose files are gone."""

    def storage(self, directory: JobDirectory) -> Path:
        """Return the folder with the job's checkpoints on shared storage; ``directory``: the job's."""
        return checkpoints_of(self.config, self.training, directory, self.cwd)

    def container(self, directory: JobDirectory, image: str = "") -> Container:
        """Return how steps of the job get into its container; ``directory``: the job's.

        ``image``: that of a release, "" for that of the configuration. Raises
        :class:`~slurm_robust.config.container.BadOption`.
        """
        agents = self.config.agents.in_image(image) if image else self.config.agents
        local = (str(Path(self.cwd, place)) for place in self.config.checkpoint.places.values())
        writable = (str(directory.path.parent), str(self.storage(directory)), *local)
        return agents.container(writable, (self.cwd,))

    def started(self, t: float, version: str) -> ev.RunStarted:
        """Return the first event of the run, which ``version`` of slurm_robust began at ``t`` (Unix time)."""
        return ev.RunStarted(
            t=t,
            run_id=self.run_id,
            job_id=self.job_id,
            kind=self.kind.value,
            command=self.command,
            cwd=self.cwd,
            slots=self.slots,
            spares=self.spares,
            nproc_per_node=self.nproc_per_node,
            version=version,
            cluster=self.cluster,
            array_task=self.array_task,
            training=self.training,
        )


def layout_of(config: JobConfig, slots: int, nproc_per_node: int) -> ParallelLayout:
    """Return the parallel layout of a job. Raises :class:`~slurm_robust.model.layout.DoesNotDivide`."""
    parallel = config.parallel
    sizes = {"tp": parallel.tp, "cp": parallel.cp, "ep": parallel.ep, "pp": parallel.pp}
    return ParallelLayout.fit(slots * nproc_per_node, nproc_per_node, sizes, parallel.order)


def checkpoints_of(config: JobConfig, training: str, directory: JobDirectory, cwd: str) -> Path:
    """Return the folder with a job's checkpoints on storage: as configured, else the training's, or its
    own.
    """
    if config.checkpoint.directory:
        return Path(cwd, config.checkpoint.directory)
    if training:
        return TrainingDirectory.of(directory.path.parent, training).checkpoints
    return directory.checkpoints


def save_plan(directory: JobDirectory, plan: RunPlan) -> None:
    """Write the plan for the controller, atomically. Raises ``OSError``."""
    write_atomically(directory.path / "plan.json", msgspec.json.encode(plan), durable=False)


def load_plan(directory: JobDirectory, run_id: str = "") -> RunPlan:
    """Return the plan that :func:`save_plan` wrote, of this run unless it is "". Raises
    :class:`PreflightError`.
    """
    path = directory.path / "plan.json"
    try:
        check_own_folder(directory.path)
        plan = decoded(msgspec.json.Decoder(RunPlan), read_ours(path), lambda why: _no_plan(path, why))
    except OSError as error:
        raise _no_plan(path, str(error)) from error
    if run_id not in ("", plan.run_id):
        raise _no_plan(path, f"it is of run {plan.run_id}, this is run {run_id}: the folder was replaced")
    return plan


def _no_plan(path: Path, why: str) -> PreflightError:
    fix = "run 'srobust run' of the same slurm_robust with the same --job-dir, which writes it"
    return PreflightError(f"cannot read {path}: {why}", fix=fix, code=ExitCode.JOB_DIR)
