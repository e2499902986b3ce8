"""Journals of jobs whose code is updated, told event by event."""

from __future__ import annotations

from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.incident import Restart, RollBack, Symptom
from slurm_robust.model.job import CommandKind
from slurm_robust.model.release import CodeRoot, GitState, Release, Requester, UpdateEnd, When
from tests.builders.events import allocation_taken, run_started

OLD, NEW, THIRD = "3f2a91c04b7d", "a81e77d0c5f2", "3f2b00000000"
ME = Requester(user="ada", uid=1000, host="login1")


class Story:
    """A journal that grows by what happens; a second passes with each event."""

    def __init__(self) -> None:
        self.t = 1_764_500_000.0
        self.events: list[ev.AnyEvent] = [run_started(command=("train.py",), job_id=7), allocation_taken()]
        self.generation = 0

    def add(self, event: ev.AnyEvent) -> Story:
        self.t += 1.0
        self.events.append(event)
        return self

    def taken(self, name: str, by: Requester | None = None, **changes: object) -> Story:
        release = Release(
            name=name,
            kind=CommandKind.SCRIPT,
            command=("train.py", "--lr", "1e-4"),
            code=name,
            roots=(CodeRoot(path="/home/ada/gpt", folder="gpt"),),
            files=12,
            nbytes=34_000,
            git=GitState(commit="9f8e7d6c5b4a39281706", branch="main", dirty=True),
        )
        return self.add(ev.ReleaseTaken(t=self.t, release=release, by=by))

    def trains(self, name: str, first: int, last: int, restore: int = -1) -> Story:
        self.generation += 1
        at = CheckpointId(step=restore, generation=1) if restore >= 0 else None
        self.add(
            ev.GenerationLaunched(
                t=self.t,
                generation=self.generation,
                slots=("n1",),
                master="n1",
                restore=at,
                release=name,
            )
        )
        self.add(ev.FirstStep(t=self.t, generation=self.generation, step=first, reported=True))
        return self.add(ev.ProgressMade(t=self.t, generation=self.generation, step=last, reported=True))

    def proven(self, name: str, reason: str = "made its steps") -> Story:
        return self.add(ev.ReleaseProven(t=self.t, release=name, reason=reason, step=100))

    def asked(self, update: int, name: str, when: When = When.NOW, **changes: object) -> Story:
        return self.add(
            ev.UpdateRequested(t=self.t, update=update, release=name, when=when, by=ME, **changes)  # type: ignore[arg-type]
        )

    def tried(self, update: int, *, ok: bool = True, **changes: object) -> Story:
        return self.add(ev.UpdateTried(t=self.t, update=update, ok=ok, took_s=2.0, **changes))  # type: ignore[arg-type]

    def stops(self, update: int) -> Story:
        return self.add(ev.StopStarted(t=self.t, generation=self.generation, reason="update", update=update))

    def applied(
        self, update: int, name: str, before: str, step: int, kept: int, *, recovery: bool = False
    ) -> Story:
        return self.add(
            ev.UpdateApplied(
                t=self.t,
                update=update,
                release=name,
                before=before,
                step=step,
                checkpoint=CheckpointId(step=kept, generation=1),
                recovery=recovery,
            )
        )

    def ended(self, update: int, how: UpdateEnd, reason: str = "") -> Story:
        return self.add(ev.UpdateEnded(t=self.t, update=update, how=how, reason=reason))

    def crashes(self, incident: int) -> Story:
        return self.add(
            ev.IncidentOpened(
                t=self.t,
                incident=incident,
                generation=self.generation,
                symptom=Symptom.WORKER_EXIT,
                detail="rank 0 ended with exit code 1",
                detect_s=0.1,
                best_step=60,
            )
        )

    def rolled_back(self, incident: int, name: str, to: str, step: int) -> Story:
        actions = (RollBack(release=name, to=to, step=step), Restart())
        reason = f"release {name} raised ValueError at train.py:12"
        return self.add(ev.Decided(t=self.t, incident=incident, actions=actions, reason=reason))


def trained() -> Story:
    """The first release is good and has made 60 steps."""
    return Story().taken(OLD).trains(OLD, 0, 60).proven(OLD)


def updated() -> Story:
    """The second release runs, since step 61."""
    story = trained().taken(NEW, by=ME).asked(1, NEW, message="smaller lr").tried(1)
    return story.stops(1).applied(1, NEW, OLD, step=60, kept=60).trains(NEW, 61, 80, restore=60)
