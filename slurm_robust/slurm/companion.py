"""A companion: a job of one node that lends it to another job, and ends with that.

``python -m slurm_robust.slurm.companion JOB --run N``

This is its batch script. It starts nothing: the other job's controller runs steps on the node
(``srun --jobid``). It asks Slurm about that job a few times a minute, and ends when Slurm says that the run
is over. So the node is given back whatever dies first: the controller, its host, or slurmctld for a while.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from slurm_robust.model.companion import CompanionPool
from slurm_robust.model.container import OUTSIDE, Container
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import JobNotFound, SlurmCommandError
from slurm_robust.slurm.process import CommandTimeout
from slurm_robust.slurm.records import Allocation, SlurmJob
from slurm_robust.slurm.requests import StepRequest, SubmitRequest, whole_node_steps
from slurm_robust.slurm.requeue import Clock, SystemClock
from slurm_robust.slurm.select import make_client

ASK_EVERY_S = 15.0
LONGEST_SILENCE_S = 86400.0
"""Without an answer of Slurm a companion ends after this time, unless its own time limit comes first."""

OF_JOB = "SROBUST_COMPANION_OF"
"""Variable of an agent on a companion's node: the job that the node is lent to."""

OF_NODES = "SROBUST_COMPANION_NODES"
"""The nodes of that job's allocation, as ``SLURM_JOB_NODELIST`` names them."""


def companion_name(job_id: int) -> str:
    """Return the name of all companions of one job."""
    return f"srobust-companion-{job_id}"


def companion_job(
    job_id: int,
    *,
    run: int,
    run_id: str,
    source: CompanionPool,
    gpus: int,
    time_left_s: float | None,
    output: str,
    cwd: str,
    environ: Mapping[str, str],
    exclude: Sequence[str] = (),
    options: Sequence[str] = (),
) -> SubmitRequest:
    """Return the request for a companion of ``job_id``, whose batch script has the variables ``environ``.

    It gets a whole node, because no other job may run there: its prolog would remove what seems to be left of
    ``job_id``, which Slurm does not show on that node.
    """
    command = (sys.executable, "-m", "slurm_robust.slurm.companion", str(job_id), f"--run={run}")
    settings = tuple(f"--{option}={environ[name]}" for option, name in _SAME.items() if environ.get(name))
    return SubmitRequest(
        command=(f"exec {shlex.join(command)}",),
        wrap=True,
        name=companion_name(job_id),
        nodes=1,
        partition=environ.get("SLURM_JOB_PARTITION", ""),
        reservation=source.reservation,
        time_limit_s=time_left_s,
        output=output,
        work_dir=cwd,
        comment=f"companion of job {job_id}, run {run_id}",
        excluded_nodes=tuple(exclude),
        requeue=False,
        exclusive=True,
        gres=f"gpu:{gpus}" if gpus else "",
        options=(
            "--ntasks=1",
            "--mem=0",
            *(("--time=UNLIMITED",) if time_left_s is None else ()),
            *settings,
            *options,
        ),
    )


_SAME = {"account": "SLURM_JOB_ACCOUNT", "qos": "SLURM_JOB_QOS"}


def is_companion_of(job: SlurmJob, job_id: int, run_id: str) -> bool:
    """Return whether ``job`` lends its node to the run ``run_id`` of ``job_id``."""
    return job.name == companion_name(job_id) and job.comment.endswith(f"run {run_id}")


class Lent:
    """Nodes that companions lend to one job. Works from any thread."""

    def __init__(
        self, own: Allocation, lenders: Mapping[str, int] | None = None, container: Container = OUTSIDE
    ) -> None:
        """Take ``lenders``, the companion of each node that is lent already; steps run in ``container``."""
        self._own = own
        self.container = container
        self._held: dict[str, Allocation] = {}
        for node, job_id in (lenders or {}).items():
            self.add(job_id, node)

    @property
    def gpus(self) -> int:
        """For each node: as many as the job has on its own."""
        return max(self._own.gpus_per_node.values(), default=0)

    @property
    def lenders(self) -> frozenset[int]:
        """Companions that lend a node, or have."""
        return frozenset(held.job_id for held in self._held.values())

    def add(self, job_id: int, node: str) -> None:
        """Record that companion ``job_id`` lends ``node``."""
        self._held[node] = Allocation(
            job_id=job_id, nodes=(node,), gpus_per_node={node: self.gpus}, batch_host=node
        )

    def holder(self, node: str) -> Allocation:
        """Return the allocation that has ``node``: a companion's, else the job's own."""
        return self._held.get(node, self._own)

    def steps(
        self, nodes: tuple[str, ...], command: tuple[str, ...], *, name: str, environ: Mapping[str, str]
    ) -> tuple[StepRequest, ...]:
        """Return :func:`~slurm_robust.slurm.requests.whole_node_steps`; each job's nodes get their own steps.

        ``command`` begins with this process's Python; ``environ``: that of the job, for nodes that are lent.
        """
        own = tuple(node for node in nodes if node not in self._held)
        steps = partial(whole_node_steps, command=command, name=name, container=self.container)
        found = steps(self._own, own)
        told = {OF_JOB: str(self._own.job_id), OF_NODES: environ.get("SLURM_JOB_NODELIST", "")}
        for node in nodes:
            if node in self._held:
                found += steps(self._held[node], (node,), environment=told)
        return found


def settings_of_borrower(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what workers on a companion's node must see of Slurm, so that all see one job; else {}."""
    job, nodes = environ.get(OF_JOB, ""), environ.get(OF_NODES, "")
    if not job:
        return {}
    listed = dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), nodes) if nodes else {}
    return {"SLURM_JOB_ID": job, "SLURM_JOBID": job, **listed}


# -- the batch script of a companion ----------------------------------------------------------------


def is_over(client: SlurmClient, job_id: int, run: int) -> bool:
    """Return whether ``run`` (SLURM_RESTART_COUNT) of the job has ended, by Slurm. Raises ``SlurmError``."""
    try:
        job = client.job(job_id)
    except JobNotFound:
        return True
    return not job.is_in_run(run)


def stand_by(client: SlurmClient, job_id: int, run: int, clock: Clock) -> None:
    """Return when the run is over, or when Slurm has not answered for :data:`LONGEST_SILENCE_S`."""
    answered = clock.monotonic()
    while clock.monotonic() - answered < LONGEST_SILENCE_S:
        try:
            if is_over(client, job_id, run):
                return
            answered = clock.monotonic()
        except (SlurmCommandError, CommandTimeout, OSError):
            pass  # slurmctld is restarting, say
        clock.sleep(ASK_EVERY_S)


def main(argv: Sequence[str] | None = None) -> int:
    """Hold the node."""
    parser = argparse.ArgumentParser(prog="slurm_robust.slurm.companion", description=__doc__.splitlines()[0])
    parser.add_argument("job_id", type=int)
    parser.add_argument("--run", type=int, required=True)
    args = parser.parse_args(argv)
    stand_by(make_client("cli"), args.job_id, args.run, SystemClock())
    return 0


if __name__ == "__main__":
    sys.exit(main())
