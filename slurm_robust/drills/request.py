"""``srobust drill``: what it costs is said, the fault is asked for, and its recovery is followed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress

from msgspec import structs

from slurm_robust.diagnostics.live import ANSWER_S, LiveJob, NotLive, requester
from slurm_robust.drills import screen
from slurm_robust.drills.faults import FAULTS
from slurm_robust.drills.follow import DrillProgress, broken_promises, progress_of
from slurm_robust.model.drill import DrillFault, DrillPromise
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.incident import Diagnose, Requeue
from slurm_robust.model.record import Record
from slurm_robust.notify.follow import JournalFollower
from slurm_robust.terminal.console import Screen, Wrapped, facts_table, show
from slurm_robust.util.text import one_line
from slurm_robust.wire.messages import Drill, DrillReply
from slurm_robust.wire.sockets import ask

NOT_KEPT = 1
"""Exit code if the recovery was not as promised, or if the fault was not planted."""

RECOVER_S = 120.0
"""How long to wait for the first new step beyond the time in which the fault is seen."""

TESTS_S = 300.0
QUEUE_S = 300.0
POLL_S = 0.2


class DrillAnswer(Record):
    """All that ``srobust drill --json`` prints. Times are seconds since the fault was planted."""

    job_id: int
    drill: int
    fault: DrillFault
    rank: int
    node: str
    text: str
    """What the controller said."""
    promise: DrillPromise | None
    is_kept: bool | None = None
    """None if nobody waited."""
    broken: tuple[str, ...] = ()
    """What was not as promised."""
    progress: DrillProgress | None = None


class NotAgreed(SrobustError):
    """A drill that costs more than a restart was not agreed to."""

    exit_code = ExitCode.USAGE


def listed(*, json: bool) -> int:
    """Print all faults."""
    show(FAULTS, screen.listing, json=json)
    return ExitCode.SUCCESS


def drill(
    name: str,
    fault: DrillFault,
    rank: int | None,
    *,
    yes: bool,
    wait: bool,
    json: bool,
    job_dir: str | None,
) -> int:
    """Have ``fault`` planted in a running job. Raises ``NoSuchJob``, ``NotLive``, :class:`NotAgreed`."""
    job = LiveJob(name, job_dir, "choose a job that is running")
    wish = Drill(fault=fault.value, rank=rank or 0, by=requester())
    try:
        may_begin = _is_wanted(job, wish, rank, yes=yes, json=json)
    except KeyboardInterrupt:
        _say("interrupted: nothing was done")
        return ExitCode.INTERRUPTED
    if not may_begin:
        _say("nothing was done")
        return NOT_KEPT
    follower = JournalFollower(job.directory)
    for _ in follower.read():  # only what follows counts
        pass
    try:
        said = _ask(job, wish)
    except KeyboardInterrupt:
        shows = f"'srobust status {one_line(name)}' shows whether a fault was planted"
        _say(f"interrupted before the controller answered: {shows}")
        return ExitCode.INTERRUPTED
    answer = DrillAnswer(
        job_id=job.state.job_id,
        drill=said.drill,
        fault=fault,
        rank=wish.rank,
        node=said.node,
        text=said.text,
        promise=said.promise,
    )
    if not wait:
        show(answer, lambda _: Wrapped(one_line(said.text), "  "), json=json)
        return ExitCode.SUCCESS
    if not json:
        show(answer, lambda _: Wrapped(one_line(said.text), "  "), json=False)
    known: DrillProgress | None = None
    try:
        for progress in _follow(follower, said):
            known = progress
    except KeyboardInterrupt:
        _say(screen.interrupted(said.drill, said.promise, known, one_line(name)))
        if json:
            show(structs.replace(answer, progress=known), lambda _: "", json=True)
        return ExitCode.INTERRUPTED
    if known is None:
        raise NotLive(
            f"drill {said.drill} is not in the journal", fix=f"'srobust status {job.state.job_id}' shows why"
        )
    broken = tuple(broken_promises(known))
    answer = structs.replace(answer, is_kept=not broken, broken=broken, progress=known)
    rows = screen.outcome(known, str(job.state.job_id))
    show(answer, lambda _: facts_table(rows, indent="  "), json=json)
    return NOT_KEPT if broken else ExitCode.SUCCESS


def _is_wanted(job: LiveJob, wish: Drill, rank: int | None, *, yes: bool, json: bool) -> bool:
    """Say what will be done and what it costs; return whether that is agreed to. Raises as :func:`drill`."""
    fault = DrillFault(wish.fault)
    plan = _ask(job, structs.replace(wish, plan=True))
    if rank is None and fault is not DrillFault.KILL_CONTROLLER:
        _say("rank 0, since --rank names no other")
    if plan.promise is None:
        return True
    if not json:
        _say(f"{one_line(plan.text)} ({plan.node}); {screen.promised(plan.promise)}")
    return yes or not plan.promise.is_costly or _agreed(screen.costs(fault, plan.promise))


def _ask(job: LiveJob, wish: Drill) -> DrillReply:
    answer = ask(job.epoch.endpoints, job.keys, wish, timeout_s=ANSWER_S)
    if not isinstance(answer, DrillReply):
        raise job.failed(answer)
    if not answer.ok:
        raise NotLive(answer.text, fix="'srobust status' shows what runs", code=ExitCode.USAGE)
    return answer


def _agreed(costs: str) -> bool:
    """Ask whether to go on. Raises :class:`NotAgreed` if there is nobody to ask."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise NotAgreed(costs, fix="give --yes if that is wanted")
    print(f"{one_line(costs)} Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _say(text: str) -> None:
    print(one_line(text), file=sys.stderr)


def _follow(follower: JournalFollower, said: DrillReply) -> Iterator[DrillProgress]:
    """Yield how far a drill is until it, or its time, is over; nothing if the journal never has it."""
    known: DrillProgress | None = None
    until = time.monotonic() + limit_s(said.promise)
    with Screen(stderr=True).status(f"drill {said.drill}") as status:
        while time.monotonic() < until:
            with suppress(OSError):  # storage may answer next time
                for followed in follower.read():
                    if (
                        followed.before is not None
                    ):  # a controller took over, and some of what was read is void
                        known = progress_of(followed.before, said.drill)
                    known = progress_of([followed.event], said.drill, known)
            if known is not None:
                yield known
                if known.is_done:
                    return
                status.update(screen.line(known))
            time.sleep(POLL_S)


def limit_s(promise: DrillPromise | None) -> float:
    """Return how long to wait for what was promised."""
    if promise is None:
        return RECOVER_S
    seconds = 2 * promise.detect_s + RECOVER_S
    seconds += TESTS_S * any(isinstance(action, Diagnose) for action in promise.actions)
    return seconds + QUEUE_S * any(isinstance(action, Requeue) for action in promise.actions)
