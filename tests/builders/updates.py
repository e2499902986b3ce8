"""A job whose code changes: updates that are good, refused, rolled back, superseded, and one that waits."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.exits import WorkerError, WorkerExit
from slurm_robust.model.incident import (
    Blame,
    FaultKind,
    NodeExit,
    Restart,
    RollBack,
    Signature,
    Symptom,
)
from slurm_robust.model.job import CommandKind
from slurm_robust.model.release import Release, Requester, UpdateEnd, When
from tests.builders import incidents
from tests.builders.events import allocation_taken, run_started

BEGIN = 1767261600.0  # 2026-01-01 10:00:00 UTC
JOB = 4711
FIRST, BATCH, TYPO, LAYERS, NEXT = (
    "aaaaaaaaaaaa",
    "bbbbbbbbbbbb",
    "eeeeeeeeeeee",
    "cccccccccccc",
    "dddddddddddd",
)
ALICE = Requester(user="alice", uid=1000, host="login1")
SLOTS = ("n1", "n2")
_RELEASE = Release(name=FIRST, kind=CommandKind.SCRIPT, command=("train.py",))


def release(**changes: object) -> Release:
    """A copy of one script, but for ``changes``."""
    return structs.replace(_RELEASE, **changes)


def taken(t: float, name: str) -> ev.ReleaseTaken:
    return ev.ReleaseTaken(t=BEGIN + t, release=release(name=name), by=None if name == FIRST else ALICE)


def requested(t: float, number: int, name: str, **changes: object) -> ev.UpdateRequested:
    asked = ev.UpdateRequested(t=BEGIN + t, update=number, release=name, when=When.LAZY, by=ALICE)
    return structs.replace(asked, **changes)


def tried(t: float, number: int, **changes: object) -> ev.UpdateTried:
    return structs.replace(ev.UpdateTried(t=BEGIN + t, update=number, ok=True, took_s=8.2), **changes)


def applied(
    t: float, number: int, name: str, before: str, step: int, generation: int = 1, **changes: object
) -> ev.UpdateApplied:
    """``step`` was the newest, and ``generation`` made it."""
    found = ev.UpdateApplied(
        t=BEGIN + t,
        update=number,
        release=name,
        before=before,
        step=step,
        checkpoint=CheckpointId(step=step, generation=generation),
    )
    return structs.replace(found, **changes)


def launched(t: float, generation: int, name: str, step: int = -1, of: int = 0) -> ev.GenerationLaunched:
    """It restores ``step`` of generation ``of``."""
    restore = CheckpointId(step=step, generation=of) if step >= 0 else None
    return ev.GenerationLaunched(
        t=BEGIN + t, generation=generation, slots=SLOTS, master="n1:29500", restore=restore, release=name
    )


def first_step(t: float, generation: int, step: int) -> ev.FirstStep:
    return ev.FirstStep(t=BEGIN + t, generation=generation, step=step, reported=True)


def progress(t: float, generation: int, step: int) -> ev.ProgressMade:
    return ev.ProgressMade(t=BEGIN + t, generation=generation, step=step, reported=True, loss=2.5)


def ended(t: float, generation: int, step: int, *exits: NodeExit) -> ev.GenerationEnded:
    return ev.GenerationEnded(t=BEGIN + t, generation=generation, reason="", exits=exits, sealed_step=step)


def start() -> list[ev.AnyEvent]:
    """The first release has made its steps."""
    return [
        run_started(t=BEGIN, job_id=JOB, slots=2, spares=1, nproc_per_node=1, version="0.1.0"),
        ev.ControllerStarted(t=BEGIN, epoch=1, host="n1", pid=7, port=4000),
        taken(0, FIRST),
        allocation_taken(SLOTS, ("n3",), t=BEGIN),
        launched(2, 1, FIRST),
        first_step(9, 1, 0),
        progress(109, 1, 100),
        ev.ReleaseProven(t=BEGIN + 110, release=FIRST, reason="100 steps", step=100),
    ]


def good(t: float = 200) -> list[ev.AnyEvent]:
    """An update at the next step boundary, which stops training for 4.5 s."""
    return [
        progress(t, 1, 190),
        taken(t, BATCH),
        requested(
            t + 1,
            1,
            BATCH,
            when=When.NOW,
            message="a larger batch",
            changes=("train.py: 3 lines added, 1 removed", "arguments: --batch 64 instead of --batch 32"),
        ),
        tried(t + 9.2, 1),
        ev.StopStarted(t=BEGIN + t + 10, generation=1, reason="update 1", update=1),
        progress(t + 10.2, 1, 200),
        ended(t + 10.5, 1, 200),
        applied(t + 11, 1, BATCH, FIRST, 200),
        launched(t + 11, 2, BATCH, 200, of=1),
        first_step(t + 14.5, 2, 201),
        progress(t + 114, 2, 300),
        ev.ReleaseProven(t=BEGIN + t + 114, release=BATCH, reason="100 steps", step=300),
    ]


def refused(t: float = 400) -> list[ev.AnyEvent]:
    """An update whose module cannot be imported on one node."""
    text = "ModuleNotFoundError: No module named 'flash'"
    return [
        taken(t, TYPO),
        requested(t, 2, TYPO, message="flash attention"),
        tried(
            t + 9,
            2,
            ok=False,
            node="n2",
            text=text,
            traceback=f'Traceback (most recent call last):\n  File "train.py", line 3\n{text}',
        ),
        ev.UpdateEnded(t=BEGIN + t + 9, update=2, how=UpdateEnd.REFUSED, reason=text),
    ]


def rolled_back(t: float = 500) -> list[ev.AnyEvent]:
    """A lazy update that the recovery of incident 1 takes along; it raises an exception at its tenth step."""
    killed = NodeExit(node="n2", exit=WorkerExit(rank=1, signal=9, age_s=0.1))
    told = WorkerError(
        type="IndexError", message="index 12 is out of range", file="train.py", line=40,
        traceback='Traceback (most recent call last):\n  File "train.py", line 40\nIndexError: index 12',
    )  # fmt: skip
    raised = NodeExit(node="n1", exit=WorkerExit(rank=0, code=1, age_s=0.1, error=told))
    nobody = incidents.verdict(
        rung=6, blame=Blame.NOBODY, signature=Signature(kind=FaultKind.EXIT, key="SIGKILL"), reason="killed"
    )
    reason = f"release {LAYERS} raised IndexError at train.py:40 before it was good"
    code = incidents.verdict(
        rung=7,
        blame=Blame.CODE,
        signature=Signature(kind=FaultKind.EXCEPTION, key="IndexError at train.py:40"),
        reason=reason,
        confidence=0.9,
    )
    return [
        taken(t, LAYERS),
        requested(
            t,
            3,
            LAYERS,
            message="twelve layers",
            changes=("train.py: 1 line changed", "model.py: 20 lines added"),
            deadline=BEGIN + t + 86400,
        ),
        tried(t + 8, 3),
        progress(t + 60, 2, 450),
        incidents.opened(
            t=BEGIN + t + 61, incident=1, generation=2, symptom=Symptom.WORKER_EXIT,
            detail="rank 1 on n2: SIGKILL", best_step=450,
        ),
        ended(t + 61.2, 2, 450, killed),
        ev.Decided(t=BEGIN + t + 61.3, incident=1, actions=(Restart(),), reason="killed", verdict=nobody),
        applied(t + 61.5, 3, LAYERS, BATCH, 450, 2, recovery=True),
        launched(t + 61.5, 3, LAYERS, 450, of=2),
        first_step(t + 64, 3, 451),
        ev.IncidentClosed(t=BEGIN + t + 64, incident=1, generation=3, step=451, recover_s=2.7),
        progress(t + 73, 3, 460),
        incidents.opened(
            t=BEGIN + t + 74, incident=2, generation=3, symptom=Symptom.USER_EXCEPTION,
            detail="rank 0 on n1: IndexError: index 12 is out of range", best_step=460,
        ),
        ended(t + 74.2, 3, 460, raised),
        ev.Decided(
            t=BEGIN + t + 74.3,
            incident=2,
            actions=(RollBack(release=LAYERS, to=BATCH, step=450), Restart()),
            reason=f"{reason}: roll back",
            verdict=code,
        ),
        launched(t + 74.5, 4, BATCH, 450, of=2),
        first_step(t + 77, 4, 451),
        progress(t + 88, 4, 462),
        ev.IncidentClosed(t=BEGIN + t + 88, incident=2, generation=4, step=462, recover_s=13.7),
    ]  # fmt: skip


def waiting(t: float = 700) -> list[ev.AnyEvent]:
    """An update that another one supersedes, which waits for the next recovery."""
    return [
        requested(t, 4, FIRST, rollback=True),
        ev.UpdateEnded(
            t=BEGIN + t + 1, update=4, how=UpdateEnd.SUPERSEDED, reason="update 5 takes its place"
        ),
        taken(t + 1, NEXT),
        requested(t + 1, 5, NEXT, message="a lower rate", deadline=BEGIN + t + 7201),
        tried(t + 9, 5),
        progress(t + 20, 4, 600),
    ]


def whole() -> list[ev.AnyEvent]:
    """The job from its start until it trains with an update that waits."""
    return [*start(), *good(), *refused(), *rolled_back(), *waiting()]
