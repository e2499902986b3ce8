"""``python -m slurm_robust.controller.takeover``: the supervisor on a node whose agent found the host dead.

It does what the batch script would have done: keeps a controller running, tells it of the time limit and of
Slurm's end of the job, and ends the job. Slurm knows a job's exit code by its batch script only, so a job
that is over is requeued, and the next run ends immediately with the code that the journal holds.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from slurm_robust.config.plan import RunPlan, load_plan
from slurm_robust.controller.requeue import Requeuer
from slurm_robust.controller.supervisor import Others, supervise
from slurm_robust.engine.questions import RequeueStatus, SlurmAnswer
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.job import JobDirectory
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import JobNotFound, SlurmError
from slurm_robust.slurm.need import Need
from slurm_robust.slurm.process import CommandTimeout, lacking_commands
from slurm_robust.slurm.select import make_client
from slurm_robust.util.output import say, settle
from slurm_robust.util.threads import start_thread

WARN_S = 120.0
"""Before the time limit, of which Slurm warns the batch script only."""

WATCH_S = 5.0
OUTPUT_S = 2.0

BATCH_S = 20.0
"""Time for a batch script that lives behind a cut network to end the job by itself."""

FINISH_S = 3600.0
"""Seconds for Slurm to take the end of the job."""

PAUSE_S = 2.0
_SIGNALLED = (128 + signal.SIGTERM, 128 + signal.SIGINT)
_NO_ANSWER = (SlurmError, CommandTimeout, OSError)


def main(argv: list[str] | None = None) -> int:
    """Supervise to the end of the job."""
    parser = argparse.ArgumentParser(
        prog="slurm_robust.controller.takeover", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--job-dir", type=Path, required=True)
    parser.add_argument("--run-id", default="", help="the run that is in the job directory")
    parser.add_argument("--epoch", type=int, required=True, help="of the controller that is silent")
    parser.add_argument("--taken-from", required=True, help="the node of the controller that is silent")
    parser.add_argument("--why", required=True, help="how that is known")
    parser.add_argument("--silent-since", type=float, default=0.0, help="when that controller was last heard")
    given = parser.parse_args(argv)
    directory = JobDirectory(given.job_dir)
    try:
        plan = load_plan(directory, given.run_id)
        _go_on_in(plan.output, directory.path / "takeover.log")
        slurm = make_client(plan.config.slurm.backend, plan.config.slurm.timeout_s)
        lacking = lacking_commands(os.environ.get("PATH", ""))
        since = given.silent_since
        code = take_over(directory, plan, slurm, given.epoch, given.taken_from, given.why, since, lacking)
    except (SrobustError, OSError) as error:
        say(f"no controller can take over: {error}")
        code = int(ExitCode.JOB_DIR)
    settle(OUTPUT_S)
    return code


def take_over(
    directory: JobDirectory,
    plan: RunPlan,
    slurm: SlurmClient,
    epoch: int,
    taken_from: str,
    why: str,
    silent_since: float = 0.0,
    lacking: Sequence[str] = (),
) -> int:
    """Keep a controller running until the job is over, then end the job; its exit code.

    ``lacking``: Slurm's commands that are not here, as within most images of containers.
    """
    node = os.environ.get("SLURMD_NODENAME", "") or os.uname().nodename
    say(f"takeover: {why}; the controller runs on {node} now")
    if lacking:
        say(
            f"{node} finds no {' and no '.join(lacking)}: no agent is started again, and the job is neither "
            f"requeued nor ended; once training is done: scancel {plan.job_id}"
        )
    others = Others(directory, epoch, plan.start)
    if (code := others.end()) is None:
        start_thread("job", partial(watch, slurm, plan))
        options = ("--taken-from", taken_from, "--why", why, "--silent-since", str(silent_since))
        notify = bool(plan.config.notify.channels)
        code = supervise(directory.path, plan.run_id, *options, after=epoch, notify=notify, start=plan.start)
    if code != ExitCode.REQUEUED and not lacking:
        for number in (signal.SIGTERM, signal.SIGUSR1):  # what is left to do outlives the run
            signal.signal(number, signal.SIG_IGN)
        # Read the journal again and again, until storage answers or the run is over
        deadline = time.monotonic() + FINISH_S
        while (state := others.state()) is None and time.monotonic() < deadline:
            with suppress(*_NO_ANSWER):
                if _batch_host(slurm, plan) is None:
                    break
            time.sleep(PAUSE_S)
        if state is None:
            say("storage does not say how the run ended, so the job is left as it is")
            return code
        end = state.ended
        is_over = end is not None and end.final
        if not is_over and plan.config.mode != "observe" and revive(directory, plan, slurm, taken_from):
            say(f"Slurm has ended the job since its batch script on {taken_from} was killed; it is requeued")
            return code
        # Without an end in the journal, training may go on: without storage, or with another controller.
        if end is not None or code not in (ExitCode.JOB_DIR, *_SIGNALLED):
            finish(directory, plan, slurm, end.code if end is not None and end.final else None)
    return code


def watch(slurm: SlurmClient, plan: RunPlan, signalled: Callable[[int], None] | None = None) -> None:
    """Signal this process, as Slurm does with a batch script, before the time limit and when the job ends."""
    tell = signalled or (lambda number: os.kill(os.getpid(), number))
    is_warned = False
    while True:
        try:
            job = slurm.job(plan.job_id)
            if not job.is_in_run(plan.restart_count):
                break
            if not is_warned and job.end_time and job.end_time - slurm.now() < WARN_S:
                is_warned = True
                tell(signal.SIGUSR1)
        except JobNotFound:
            break
        except _NO_ANSWER:
            pass  # asked again
        time.sleep(WATCH_S)
    tell(signal.SIGTERM)


def finish(directory: JobDirectory, plan: RunPlan, slurm: SlurmClient, code: int | None) -> None:
    """End the job in Slurm's books, unless its batch script does.

    ``code``: of a run that is over for good, else None.
    """
    begun = time.monotonic()
    while True:
        try:
            if (found := _batch_host(slurm, plan)) is None:
                return
            host, is_down = found
            if is_down or time.monotonic() >= begun + BATCH_S:
                break
        except _NO_ANSWER:
            if time.monotonic() >= begun + FINISH_S:
                return
        time.sleep(PAUSE_S)
    deadline = time.monotonic() + FINISH_S
    while time.monotonic() < deadline:
        if code is not None:
            said = _requeue(directory, plan, slurm, (host,))
            if said.said is RequeueStatus.DONE:
                say(
                    f"the batch script is gone, so the job is requeued, to end immediately with exit code "
                    f"{code}"
                )
                return
            refused = said.detail if said.said is RequeueStatus.REFUSED else ""
        else:
            refused = "the run ended without an end of the training"
        try:
            if refused:
                if _batch_host(slurm, plan) is None:  # the next run must not be cancelled
                    return
                say(f"the job has no batch script that could end it, and is cancelled: {refused}")
                slurm.cancel(plan.job_id)
                return
        except _NO_ANSWER:
            pass
        time.sleep(PAUSE_S)


def revive(directory: JobDirectory, plan: RunPlan, slurm: SlurmClient, lost: str) -> bool:
    """Requeue the job without the node ``lost`` if Slurm has ended it because its batch script was gone.

    Slurm does so if that host was DOWN and comes back: slurmd kills what runs there (22.05.8: FAILED,
    ``JobLaunchFailure``). Returns False if there is nothing to do, or Slurm refuses.
    """
    deadline = time.monotonic() + FINISH_S
    while time.monotonic() < deadline:
        try:
            job = slurm.job(plan.job_id)
            if job.restart_count != plan.restart_count or not job.has_lost_script:
                return False
            said = _requeue(directory, plan, slurm, (lost,), revives=True)
            if said.said is not RequeueStatus.NOTHING:
                return said.said is not RequeueStatus.REFUSED
        except JobNotFound:
            return False
        except _NO_ANSWER:
            pass  # asked again
        time.sleep(PAUSE_S)
    return False


def _batch_host(slurm: SlurmClient, plan: RunPlan) -> tuple[str, bool] | None:
    """Return its name, and whether Slurm has given it up; None if the job needs no end any more.

    Raises one of :data:`_NO_ANSWER`.
    """
    try:
        job = slurm.job(plan.job_id)
        if not job.is_in_run(plan.restart_count):
            return None
        (host,) = slurm.nodes([job.batch_host or plan.nodes[0]])
        return host.name, host.is_down
    except JobNotFound:
        return None


def _requeue(
    directory: JobDirectory,
    plan: RunPlan,
    slurm: SlurmClient,
    exclude: tuple[str, ...],
    *,
    revives: bool = False,
) -> SlurmAnswer:
    answers: list[SlurmAnswer] = []
    requeuer = Requeuer(
        slurm,
        plan.job_id,
        plan.restart_count,
        directory.path / "requeue.jsonl",
        nodes=plan.nodes,
        need=Need(least=plan.slots, most=plan.slots + plan.config.spares, segment=plan.segment),
        start_now=plan.config.slurm.start_now,
        revives=revives,
    )
    requeuer.ask(exclude, lambda what, ok, detail: None, answers.append)
    return answers[-1]


def _go_on_in(output: str, otherwise: Path) -> None:
    """Append what this process and its children say to the job's own output."""
    for path in filter(None, (output, str(otherwise))):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY, 0o644)
        except OSError:
            continue
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        return


if __name__ == "__main__":
    sys.exit(main())
