"""``srobust replay``: replays a training by hand on the nodes of this job, and prints the verdict."""

from __future__ import annotations

import os
import signal
import sys

from slurm_robust.config.job import JobConfig
from slurm_robust.controller.checkpoints import layout_of
from slurm_robust.controller.preflight import job_directory, sizes
from slurm_robust.diagnostics.replay.steps import ReplayCommand, StepReplayer
from slurm_robust.model.job import CommandKind
from slurm_robust.report.console import show
from slurm_robust.report.replay import Code, code_of, render
from slurm_robust.slurm.environment import allocation_from_environment
from slurm_robust.slurm.select import make_client


def main(config: JobConfig, command: tuple[str, ...], kind: CommandKind, *, json: bool) -> Code:
    """Replay ``command``, which was checked, on all nodes of this job and print the verdict.

    Raises ``SlurmError``, and ``PreflightError`` for sizes that do not fit the allocation.
    """
    slurm = make_client(config.slurm.backend, config.slurm.timeout_s)
    # Slurm's own answer: the variables are stale once a node is lost.
    allocation = slurm.allocation(allocation_from_environment(os.environ).job_id)
    slots, _, nproc = sizes(config, allocation)
    replays = job_directory(config, os.environ, allocation.job_id, "").path / "replays"
    # When Slurm or a shell ends this process, the steps must end as with Ctrl-C: they would outlive it.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    print(
        f"replaying {config.replay.steps} steps on {slots} nodes; see {replays}", file=sys.stderr, flush=True
    )
    verdict = StepReplayer(slurm, allocation, replays, ports=config.rendezvous.ports).replay(
        allocation.nodes[:slots],
        layout_of(config, slots, nproc),
        ReplayCommand(kind=kind, command=(*command, *(config.replay.args or ())), cwd=os.getcwd()),
        steps=config.replay.steps,
        budget_s=config.replay.budget_s,
    )
    show(verdict, render, json=json)
    return code_of(verdict)
