"""The commands of a job's owner: ``srobust run``, and ``srobust replay`` by hand."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path

from msgspec import structs

from slurm_robust.analysis.logs.site_rules import check_log_rules
from slurm_robust.config.job import JobConfig
from slurm_robust.config.plan import checkpoints_of, layout_of, save_plan
from slurm_robust.controller import supervisor
from slurm_robust.controller.takeover import watch
from slurm_robust.diagnostics.command import Code, code_of_replay, render_replay
from slurm_robust.diagnostics.replay.steps import ReplayCommand, StepReplayer
from slurm_robust.doctor.facts import Facts
from slurm_robust.doctor.rule import Level, apply
from slurm_robust.doctor.rules.site import TIMES
from slurm_robust.model import journal
from slurm_robust.model.errors import ExitCode, PreflightError
from slurm_robust.model.job import CommandKind, JobDirectory
from slurm_robust.model.state import JobState
from slurm_robust.model.training import Chapter, TrainingDirectory
from slurm_robust.policy.continuing import other_training, unheard
from slurm_robust.run import preflight
from slurm_robust.run.continuing import NOTHING, ContinueOptions, check_still_ours, start
from slurm_robust.run.holding import Applicant, take_alone
from slurm_robust.run.preflight import job_directory, sizes
from slurm_robust.run.releasing import first_release, later_release
from slurm_robust.run.sources import Here
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.companion import Lent
from slurm_robust.slurm.environment import allocation_from_environment, array_task
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.records import Allocation
from slurm_robust.slurm.select import make_client
from slurm_robust.terminal.console import show
from slurm_robust.util.alone import Alone
from slurm_robust.util.output import say
from slurm_robust.util.threads import start_thread


def run(
    config: JobConfig,
    command: tuple[str, ...],
    kind: CommandKind,
    name: str = "",
    wish: ContinueOptions = NOTHING,
) -> int:
    """Run ``command``, which was checked, protected, inside a batch script; returns the job's exit code.

    ``wish``: the point from which it should go on; of no account once the job has begun.

    Raises ``PreflightError``, ``JournalDamaged``, ``NoSuchJob``, ``SlurmError``.
    """
    wish.check()
    allocation = preflight.find_allocation(os.environ)
    preflight.check_slurm_commands(os.environ)
    check_log_rules(config, Path.cwd())
    directory = preflight.job_directory(config, os.environ, allocation.job_id, name)
    for text in preflight.check_place(directory, os.environ, later_run=allocation.restart_count > 0):
        say(f"warning: {text}")
    slurm = make_client("cli", config.slurm.timeout_s)
    job = preflight.find_job(slurm, allocation.job_id)
    submitted = job.submit_time if job is not None else None
    events = journal.read(directory.journal)
    cluster = os.environ.get("SLURM_CLUSTER_NAME", "")
    if how := journal.another_job(events, cluster, allocation.restart_count, submitted):
        say(preflight.move_aside(directory, events, how))
        events = []
    state = journal.fold(events)
    over = preflight.check_history(state, events, command)
    if over is not None and state.ended is not None:
        say(f"this run is over, as {directory.journal} says: {state.ended.reason}")
        return over
    preflight.open_directory(directory)
    preflight.check_place(directory, os.environ, later_run=True)  # what was made since, perhaps by others
    preflight.check_alone(directory)
    run_id = state.run_id or f"{allocation.job_id}-{secrets.token_hex(4)}"
    training, continued = state.training if events else wish.training, state.continued
    whole = TrainingDirectory.of(directory.path.parent, training)
    what = f"training {training}" if training else f"job {allocation.job_id}"
    with closing(Alone(os.path.realpath(whole.path if training else directory.path))) as alone:
        take = partial(_take, alone, what, directory, begun=bool(events))
        if not events:
            chapter = Chapter(
                job_id=allocation.job_id,
                run_id=run_id,
                folder=directory.path.name,
                t=time.time(),
                cluster=cluster,
                submitted=submitted,
                array_task=array_task(os.environ),
                node=os.environ.get("SLURMD_NODENAME", ""),
            )
            here = _here(config, kind, command, directory, chapter, slurm, allocation)
            started = start(wish, here._replace(take=take))
            if started.finished:
                say(started.finished)
                return ExitCode.SUCCESS
            continued = started.continued
        else:
            _start_again(wish, state, whole, config, allocation.restart_count)
        take()
        before = len(state.world.slots) or (continued.slots if continued is not None else 0) or None
        sized = preflight.sizes(config, allocation, before, later_run=bool(state.world.slots))
        if sized[0].text:
            say(sized[0].text)
        plan = preflight.make_plan(config, kind, command, os.environ, allocation, run_id, job, sized)
        blocks, segment = preflight.placement(slurm, allocation, job, os.environ)
        plan = structs.replace(plan, training=training, continued=continued, blocks=blocks, segment=segment)
        preflight.check_container(plan, directory)
        taken = later_release(plan, directory, state) if events else first_release(plan, directory)
        plan = structs.replace(plan, release=taken)
        save_plan(directory, plan)
        if job is not None:  # else Slurm does not answer now
            for text in slurm_times(slurm, config, allocation):
                say(f"warning: {text}")
        if "SLURMD_NODENAME" not in os.environ:  # within salloc, whose command Slurm neither signals nor ends
            start_thread("job", partial(watch, slurm, plan))
        notify = bool(plan.config.notify.channels)
        return supervisor.supervise(directory.path, plan.run_id, notify=notify, start=plan.start)


def _start_again(
    wish: ContinueOptions, state: JobState, whole: TrainingDirectory, config: JobConfig, restart_count: int
) -> None:
    """Start a job that has begun again: it goes on from its own journal, if its training is still its own.

    A user who starts it again by hand for another training gets none. After a requeue it goes on anyway: the
    configuration may have changed meanwhile. Raises :class:`PreflightError`.
    """
    job = str(state.job_id)
    if text := unheard(wish.chosen(), job):
        say(text)
    if text := other_training(wish.training, state.training, job):
        if wish.training and restart_count == state.restart_count:
            raise PreflightError(
                f"{text}, and this start is for training {wish.training}; nothing was started",
                fix=f"submit a new job for training {wish.training}, or add a --name of its own",
                code=ExitCode.USAGE,
            )
        say(f"{text}, and goes on so")
    if state.training:
        check_still_ours(whole, state.run_id, job, config.slurm.timeout_s)


def _take(alone: Alone, what: str, directory: JobDirectory, *, begun: bool) -> None:
    """Keep other starts out. ``begun``: the journal was there. Raises ``PreflightError``."""
    take_alone(alone, what)
    if not begun:
        preflight.check_unbegun(directory)


def _here(
    config: JobConfig,
    kind: CommandKind,
    command: tuple[str, ...],
    directory: JobDirectory,
    chapter: Chapter,
    slurm: SlurmClient,
    allocation: Allocation,
) -> Here:
    """Return the job that starts, as :func:`start` wants to know it."""
    training, cwd = config.training or "", os.getcwd()
    return Here(
        directory=directory,
        chapter=chapter,
        storage=checkpoints_of(config, training, directory, cwd),
        kind=kind,
        command=command,
        cwd=cwd,
        keep=config.checkpoint.keep,
        requeued=allocation.restart_count > 0,
        asked=Applicant(slurm, chapter.cluster, chapter.job_id, f"training {training}"),
        fits=lambda slots: preflight.sizes(config, allocation, slots or None),
    )


def slurm_times(slurm: SlurmClient, config: JobConfig, allocation: Allocation) -> tuple[str, ...]:
    """Return what slurm.conf should say for this job; nothing if Slurm does not show it."""
    try:
        slurm_conf = slurm.config()
    except SlurmError:
        return ()
    facts = Facts(config=config, slurm=slurm_conf, gpus=any(allocation.gpus_per_node.values()))
    found = (apply(rule, facts) for rule in TIMES)
    return tuple(hazard.line() for hazard in found if hazard.level is Level.BAD)


def replay(config: JobConfig, command: tuple[str, ...], kind: CommandKind, *, json: bool) -> Code:
    """Replay ``command``, which was checked, on all nodes of this job and print the verdict.

    Raises ``SlurmError``, and ``PreflightError`` for sizes that do not fit the allocation.
    """
    slurm = make_client(config.slurm.backend, config.slurm.timeout_s)
    # Slurm's own answer: the variables are stale once a node is lost.
    own = allocation_from_environment(os.environ)
    allocation = structs.replace(slurm.allocation(own.job_id), tasks_per_node=own.tasks_per_node)
    found, nproc = sizes(config, allocation)
    slots = found.slots
    directory = job_directory(config, os.environ, allocation.job_id, "")
    preflight.make_directory(directory)
    replays = directory.path / "replays"
    # When Slurm or a shell ends this process, the steps must end as with Ctrl-C: they would outlive it.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    print(
        f"replaying {config.replay.steps} steps on {slots} nodes; see {replays}", file=sys.stderr, flush=True
    )
    cwd = os.getcwd()
    lent = Lent(allocation, container=preflight.container_of_replay(config, replays, cwd))
    verdict = StepReplayer(slurm, allocation, replays, ports=config.rendezvous.ports, lent=lent).replay(
        allocation.nodes[:slots],
        layout_of(config, slots, nproc),
        ReplayCommand(kind=kind, command=(*command, *(config.replay.args or ())), cwd=cwd),
        steps=config.replay.steps,
        budget_s=config.replay.budget_s,
    )
    show(verdict, render_replay, json=json)
    return code_of_replay(verdict)
