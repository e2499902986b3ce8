"""One controller: ``python -m slurm_robust.controller --job-dir DIR``, started by ``srobust run``."""

from __future__ import annotations

import argparse
import os
import shlex
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import structs

from slurm_robust import __version__
from slurm_robust.analysis.logs.site_rules import load_log_rules
from slurm_robust.checkpoint.tiers import SharedTiers, shared_tiers
from slurm_robust.config.changes import changes, with_file
from slurm_robust.config.plan import RunPlan, load_plan
from slurm_robust.controller.addresses import of_controller
from slurm_robust.controller.agent_steps import AgentSteps
from slurm_robust.controller.borrower import Borrower
from slurm_robust.controller.conclusion import CONCLUDE_S, HURRY_S, conclude
from slurm_robust.controller.journal import Journal
from slurm_robust.controller.live_status_file import LiveStatusFile
from slurm_robust.controller.loop import Loop
from slurm_robust.controller.requeue import Requeuer
from slurm_robust.controller.shrink import Shrinker
from slurm_robust.controller.supervisor import report_end, storage_error
from slurm_robust.controller.tester import Tester
from slurm_robust.controller.turns import read_clocks
from slurm_robust.diagnostics.places import SlurmPlace
from slurm_robust.diagnostics.replay.node import ReplayedRelease
from slurm_robust.diagnostics.replay.steps import ReplayCommand, StepReplayer
from slurm_robust.diagnostics.runner import PlaceDiagnoser
from slurm_robust.engine.core import Core
from slurm_robust.engine.effects import HANDED_OVER
from slurm_robust.engine.lost_release import in_place_of_lost
from slurm_robust.engine.stages.table import begin, build
from slurm_robust.jobdir.place import make_in_job
from slurm_robust.model import events as ev
from slurm_robust.model.copies import Tier
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.job import JOBS_FOLDER, CommandKind, CopySpec, InspectionSpec, JobDirectory, JobSpec
from slurm_robust.model.journal import fold
from slurm_robust.model.release import Requester
from slurm_robust.model.state import JobState
from slurm_robust.model.training import is_shared
from slurm_robust.policy.liveness import beacon_interval, overdue_s
from slurm_robust.policy.protections import protections, told
from slurm_robust.policy.quick_test import TESTS
from slurm_robust.releases.store import ReleaseStore
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.companion import Lent
from slurm_robust.slurm.environment import allocation_from_environment
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.fence import fenced
from slurm_robust.slurm.need import Need
from slurm_robust.slurm.records import Allocation
from slurm_robust.slurm.select import make_client
from slurm_robust.util.files import write_atomically
from slurm_robust.util.hostlist import fold as fold_nodes
from slurm_robust.util.output import say, settle
from slurm_robust.util.process import file_shortage, raise_file_limit
from slurm_robust.util.text import count
from slurm_robust.util.threads import BackgroundCall
from slurm_robust.util.trust import user_name
from slurm_robust.wire.beacons import BeaconReceiver
from slurm_robust.wire.epochs import EpochRecord, is_overtaken, take_epoch
from slurm_robust.wire.keys import load_server
from slurm_robust.wire.sockets import ControllerSocket

OUTPUT_S = 2.0  # for the last lines
FENCE_S = 10.0  # for storage to say whether another controller has taken over


def main(argv: list[str] | None = None) -> int:
    """Run one controller to its end."""
    parser = argparse.ArgumentParser(
        prog="slurm_robust.controller", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--job-dir", type=Path, required=True)
    parser.add_argument("--run-id", default="", help="the run that is in the job directory")
    parser.add_argument(
        "--taken-from", default="", help="the node of the controller whose place this one takes"
    )
    parser.add_argument("--why", default="", help="why it takes over")
    parser.add_argument("--silent-since", type=float, default=0.0, help="when that one was last heard")
    parser.add_argument(
        "--supervisor", type=int, help="descriptor on which the supervisor learns that the job is over"
    )
    given = parser.parse_args(argv)
    directory = JobDirectory(given.job_dir)
    try:
        taken = PreviousController(given.taken_from, given.why, given.silent_since)
        code = control(directory, load_plan(directory, given.run_id), taken)
        report_end(given.supervisor, code)
    except Exception as error:  # noqa: BLE001  # whatever it is, training must go on under the next controller
        code = _explain(error, given.supervisor)
    settle(OUTPUT_S)
    return code


def _explain(error: Exception, supervisor: int | None) -> int:
    """Return the exit code by which the supervisor decides what to do; the job's log gets the message."""
    if (refused := storage_error(error)) is not None:
        say(f"the job's folder does not let a controller work: {refused}")
        return int(ExitCode.JOB_DIR)
    if isinstance(error, SrobustError):
        say(f"error: {error}" + (f"\n  fix: {error.fix}" if error.fix else ""))
        report_end(supervisor, error.exit_code)
        return int(error.exit_code)
    say(f"internal error in the controller\n{''.join(traceback.format_exception(error))}")
    return int(ExitCode.INTERNAL)


class PreviousController(NamedTuple):
    """The controller that this one takes over from: its node, why, and when it was last heard."""

    node: str = ""
    why: str = ""
    silent_since: float = 0.0


NO_PREVIOUS = PreviousController()


def control(directory: JobDirectory, plan: RunPlan, taken: PreviousController = NO_PREVIOUS) -> int:
    """Take the job's next epoch, replay the journal, and go on from there."""
    raise_file_limit()
    slurm = make_client(plan.config.slurm.backend, plan.config.slurm.timeout_s)
    with ExitStack() as stack:
        server = stack.enter_context(
            closing(
                ControllerSocket(load_server(directory.keys), plan.config.wire.port, agents=len(plan.nodes))
            )
        )
        host, node = socket.gethostname(), os.environ.get("SLURMD_NODENAME", "")
        epoch = take_epoch(
            directory.epochs,
            host=host,
            addresses=of_controller(node, host, slurm),
            port=server.port,
            pid=os.getpid(),
            run_id=plan.run_id,
            node=node,
        )
        journal = Journal(directory.journal)
        journal.epoch = epoch.epoch
        journal.is_ours = lambda: not is_overtaken(directory.epochs, epoch.epoch)
        slurm = fenced(slurm, journal.is_ours)
        spec = _spec(directory, plan, fold(journal.events).release)
        places = spec.tier_places(directory)
        runs = (spec.run_id, *spec.earlier) if is_shared(Path(places[Tier.STORAGE]), directory) else ()
        write_atomically(directory.spec, msgspec.json.encode(spec), durable=True)
        _write_start(journal, plan, epoch, taken)
        plan = _with_release(directory, plan, journal)
        beacons = _listen_for_beacons(directory, spec, server.port, journal)
        if beacons is not None:
            stack.enter_context(closing(beacons))
        # Read now, which costs nothing when a worker has failed
        rules, trouble = load_log_rules(plan.config, Path(plan.cwd))
        if trouble:
            say(trouble)
            journal.append(ev.Noted(t=time.time(), text=trouble))
        # Slurm tells CPUs and GPUs per node; if it does not answer, the environment does
        try:
            allocation = slurm.allocation(plan.job_id)
        except SlurmError as error:
            say(f"Slurm does not show the allocation ({error}); using the environment of the batch script")
            allocation = allocation_from_environment(os.environ)
        news, first = begin(journal.events, plan, time.time())
        journal.append(*news)
        state = fold(journal.events)
        lent = Lent(allocation, state.lenders, plan.container(directory, state.image))
        steps = AgentSteps(
            slurm,
            allocation,
            _agent_command(directory, plan),
            directory.agents,
            lent,
            image=state.image,
            container_of=partial(plan.container, directory),
        )
        steps.adopt()
        core = Core(plan.config, state, build, first, read_clocks(), rules)
        loop = Loop(
            core,
            config=plan.config,
            directory=directory,
            journal=journal,
            socket=server,
            beacons=beacons,
            steps=steps,
            requeuer=Requeuer(
                slurm,
                plan.job_id,
                plan.restart_count,
                directory.path / "requeue.jsonl",
                nodes=allocation_from_environment(os.environ).nodes,
                need=Need(least=plan.slots, most=plan.slots + plan.config.spares, segment=plan.segment),
                start_now=plan.config.slurm.start_now,
            ),
            store=SharedTiers(shared_tiers(places, runs)),
            slurm=slurm,
            tester=_tester(directory, plan, slurm, allocation, lent, places[Tier.STORAGE]),
            borrower=_borrower(directory, plan, slurm, lent),
            shrinker=Shrinker(slurm, plan.job_id, own_node=state.own_node),
            live_status=(live_status := LiveStatusFile(directory, journal, plan.config.timings.moment_s)),
        )
        _serve_metrics(stack, directory, plan, live_status, loop.report)
        for line in introduction(plan, directory, core.state):
            say(line)
        code = _fenced(loop.run(), journal)
    if code == ExitCode.OTHER_CONTROLLER:
        journal.abandon()
    elif code != HANDED_OVER:
        steps.kill()
        requeued = code == ExitCode.REQUEUED
        comments = plan.config.slurm.job_comment and plan.config.mode != "observe"
        limit_s = HURRY_S if requeued else CONCLUDE_S
        conclude(
            directory, journal.events, slurm, plan.job_id, state.own_node, comments=comments, limit_s=limit_s
        )
    if not journal.close():
        say(f"{directory.journal} could not be written ({journal.trouble}): it lacks the end of this run")
    return code


def _serve_metrics(
    stack: ExitStack,
    directory: JobDirectory,
    plan: RunPlan,
    live_status: LiveStatusFile,
    report: Callable[[str], None],
) -> None:
    """Serve metrics until ``stack`` ends, if they are configured."""
    if plan.config.metrics.listen is None:
        return
    from slurm_robust.controller.metrics import About, MetricsServer  # asyncio, which few jobs need

    user = user_name(os.geteuid()).partition(" (")[0]
    about = About(
        folder=directory.path.name,
        cluster=plan.cluster,
        user=user,
        name=os.environ.get("SLURM_JOB_NAME", ""),
    )
    server = MetricsServer(plan.config.metrics, directory, lambda: live_status.newest, about, report)
    try:
        server.start()
    except RuntimeError as error:  # no thread can be started
        report(f"no metrics are served on {plan.config.metrics.listen}: {error}")
        return
    stack.enter_context(closing(server))


def introduction(plan: RunPlan, directory: JobDirectory, state: JobState) -> tuple[str, str, str]:
    """Return what a controller says first: what runs on which nodes, its protections, its output folder."""
    task = f" ({plan.array_task})" if plan.array_task else ""
    command = shlex.join(plan.command)
    command = f"-m {command}" if plan.kind is CommandKind.MODULE else command
    where = f"{count(state.world.placement.world_size, 'rank')} on {fold_nodes(state.world.slots)}"
    spares = f", standby {fold_nodes(state.spares)}" if state.spares else ""
    mode = "; observe mode: nothing is done about faults" if plan.config.mode == "observe" else ""
    generation = state.world.generation if state.world.running else state.world.next_generation
    output = directory.worker_log(generation, 0, "out")
    # By its id a job is found only if it is in the usual place.
    usual = directory.path.name == str(plan.job_id) and plan.config.job_dir is None
    name = str(plan.job_id) if usual else shlex.quote(str(directory.path))
    return (
        f"controller {state.epoch} of job {plan.job_id}{task}: {command}; {where}{spares}; "
        f"folder {directory.path}{mode}",
        told(protections(plan.config, len(state.world.slots), len(state.spares), requeues=plan.requeues)),
        f"output of the training: {output}; to follow it: srobust logs {name} -f",
    )


def _fenced(code: int, journal: Journal) -> int:
    """Return ``code``, unless another controller has the job: then the job goes on."""
    try:
        # Storage has had its time before, and takes no longer part in the end of the job.
        is_ours = BackgroundCall("fence", journal.is_ours).result(FENCE_S)
    except OSError:  # which a TimeoutError is
        return code
    return code if is_ours else int(ExitCode.OTHER_CONTROLLER)


def _write_start(journal: Journal, plan: RunPlan, epoch: EpochRecord, taken: PreviousController) -> None:
    state = fold(journal.events)
    if state.own_node != taken.node:
        taken = NO_PREVIOUS  # a controller that is started again under the same supervisor takes nothing over
    known = len(journal.events)
    if not journal.events:
        goes_on = (plan.continued,) if plan.continued is not None else ()
        first = (ev.ReleaseTaken(t=time.time(), release=plan.release),) if plan.release is not None else ()
        journal.append(plan.started(time.time(), __version__), *goes_on, *first)
    elif plan.release is not None and plan.start != state.start and plan.release.name != state.release:
        uid = os.geteuid()
        by = Requester(user=user_name(uid).partition(" (")[0], uid=uid, host=epoch.host)
        journal.append(*in_place_of_lost(state, plan.release, by, time.time()))
    if journal.torn is not None:
        journal.append(ev.Noted(t=time.time(), text=f"a torn last line was set aside in {journal.torn}"))
    journal.append(
        ev.ControllerStarted(
            t=time.time(),
            epoch=epoch.epoch,
            host=epoch.host,
            pid=epoch.pid,
            port=epoch.port,
            node=epoch.node,
            known=known,
            taken_from=taken.node,
            reason=taken.why,
            silent_since=taken.silent_since,
            start=plan.start,
        )
    )
    if short := file_shortage(len(plan.nodes), "agents"):
        say(short)
        journal.append(ev.Noted(t=time.time(), text=short))


def _with_release(directory: JobDirectory, plan: RunPlan, journal: Journal) -> RunPlan:
    """Return the plan with the configuration of the release that runs, if that can be read."""
    state = fold(journal.events)
    name = state.release
    if not state.configures(name):
        return plan
    try:
        text = ReleaseStore(directory.releases).config_text(name)
        config = with_file(plan.config, text.encode(), f"config.yaml of release {name}")
    except (SrobustError, OSError, ValueError) as error:
        text = f"the configuration of release {name} is left out, since it cannot be read: {error}"
        say(text)
        journal.append(ev.Noted(t=time.time(), text=text))
        return plan
    for change in changes(plan.config, config):
        say(f"release {name} sets {change.key} to {change.after}, not {change.before}")
    return structs.replace(plan, config=config)


def _listen_for_beacons(
    directory: JobDirectory, spec: JobSpec, port: int, journal: Journal
) -> BeaconReceiver | None:
    """Listen for beacons; None if none are sent, or the port is taken."""
    if not spec.beacon_s:
        return None
    key = load_server(directory.keys).client_public
    try:
        return BeaconReceiver(key, port, spec.beacon_s, overdue_s(spec.beacon_s))
    except OSError as error:
        text = f"no beacons are received: UDP port {port} cannot be used ({error.strerror})"
        say(text)
        journal.append(ev.Noted(t=time.time(), text=text))
        return None


def _spec(directory: JobDirectory, plan: RunPlan, release: str) -> JobSpec:
    """``release``: that the journal says, "" for none."""
    detect, checkpoint = plan.config.detect, plan.config.checkpoint
    inspection = InspectionSpec(
        kernel_s=detect.kernel_s, gpu_s=detect.gpu_s, network_s=detect.network_s, node_s=detect.node_s
    )
    copies = CopySpec(
        memory=checkpoint.memory,
        peers=checkpoint.peers,
        peer_bytes_s=(checkpoint.peer_mb_s or 0.0) * 1e6,
        network=checkpoint.peer_network or "",
        places=checkpoint.places,
        keep=checkpoint.keep,
        peer_streams=checkpoint.peer_streams or 0,
    )
    return JobSpec(
        run_id=plan.run_id,
        job_id=plan.job_id,
        kind=plan.kind,
        command=plan.command,
        cwd=plan.cwd,
        nproc_per_node=plan.nproc_per_node,
        preload=plan.config.preload,
        heartbeat_s=plan.config.timings.heartbeat_s,
        beacon_s=beacon_interval(plan.config.timings.verdict_s, len(plan.nodes)),
        takeover_s=plan.config.timings.takeover_s,
        kill_wait_s=plan.config.timings.kill_wait_s,
        checkpoint_dir=str(plan.storage(directory)),
        earlier=plan.continued.runs if plan.continued is not None else (),
        copies=copies,
        inspection=inspection if detect.inspect else None,
        numa_binding=plan.config.workers.numa_binding == "node",
        learn=plan.config.standby.learn and plan.config.mode == "act",
        code=release or (plan.release.name if plan.release is not None else ""),
        version=__version__,
    )


def _borrower(directory: JobDirectory, plan: RunPlan, slurm: SlurmClient, lent: Lent) -> Borrower:
    beside = directory.path.parent  # holds folders of companions, in which their epilogs look for suspects
    return Borrower(
        slurm,
        plan.config.companions,
        lent,
        job_id=plan.job_id,
        run=plan.restart_count,
        run_id=plan.run_id,
        folder=directory.agents,
        cwd=str(beside.parent) if beside.name == JOBS_FOLDER else plan.cwd,
    )


def _tester(
    directory: JobDirectory,
    plan: RunPlan,
    slurm: SlurmClient,
    allocation: Allocation,
    lent: Lent,
    checkpoints: str,
) -> Tester:
    ports = plan.config.rendezvous.ports
    replay = plan.config.replay
    place = SlurmPlace(slurm, allocation, lent)
    return Tester(
        PlaceDiagnoser(place, ports=ports, report=say),
        StepReplayer(slurm, allocation, directory.path / "replays", ports=ports, lent=lent),
        partial(_replayed, directory, plan),
        replay,
        checkpoints,
        partial(PlaceDiagnoser, place, tests=TESTS, report=say),
        partial(make_in_job, directory.path, plan.run_id),
    )


def _replayed(directory: JobDirectory, plan: RunPlan, release: str) -> ReplayCommand:
    """Return what a replay runs. Raises ``SrobustError``, ``OSError``."""
    added = plan.config.replay.args or ()
    if not release:
        return ReplayCommand(kind=plan.kind, command=(*plan.command, *added), cwd=plan.cwd)
    taken = ReleaseStore(directory.releases).read(release)
    return ReplayCommand(
        kind=taken.kind,
        command=(*taken.command, *added),
        cwd=plan.cwd,
        release=ReplayedRelease(name=release, folder=str(directory.releases), run_id=plan.run_id),
    )


def _agent_command(directory: JobDirectory, plan: RunPlan) -> tuple[str, ...]:
    ports = plan.config.rendezvous.port_range
    agent = (sys.executable, "-m", "slurm_robust.agent")
    command = (*agent, "--job-dir", str(directory.path), "--run-id", plan.run_id)
    return (*command, "--ports", ports) if ports else command


if __name__ == "__main__":
    sys.exit(main())
