"""The companions of a job: what was asked of them, what they lend, and their end."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.engine.effects import Say
from slurm_robust.engine.questions import (
    BorrowAnswer,
    Borrowed,
    BorrowNodes,
    EndCompanions,
    NoAnswer,
    StraysCancelled,
    SubmittedCompanion,
    SweepCompanions,
)
from slurm_robust.engine.units.starts import AgentStarts
from slurm_robust.model import events as ev
from slurm_robust.model.companion import CompanionPool

SWEEP_AGAIN_S = 60.0
"""After Slurm did not show whether companions of earlier controllers are left."""


class Companions:
    """Follows them; :mod:`slurm_robust.controller.borrower` speaks with Slurm."""

    def __init__(self, context: Context, starts: AgentStarts, now: Now) -> None:
        self._context, self._starts = context, starts
        self._number = 0  # of the newest request
        self._wanted = 0  # the number of the request for which training waits, 0 for none
        self._fetched = 0  # number of the request while training runs, 0 for none
        self._answer: BorrowAnswer | None = None
        self._sweep_at: float | None = None  # when to look for older ones again
        self._asked: dict[int, int] = {}  # by companion the request that it is for
        state = context.state
        if context.rules.sources or state.companions:
            waiting = [job for job, one in state.companions.items() if not one.node]
            self._record_end(waiting, "the controller that asked for it ended", now)
            self._sweep(now)

    @property
    def answer(self) -> BorrowAnswer | None:
        """What came of the newest request, None until that is known."""
        return self._answer

    def borrow(
        self,
        sources: tuple[CompanionPool, ...],
        missing: int,
        exclude: Iterable[str],
        now: Now,
        *,
        some: bool,
    ) -> None:
        """Ask for nodes; :attr:`answer` has what comes of it."""
        self._answer = None
        self._wanted = self._ask(sources, missing, exclude, now, some=some)

    def fetch(
        self,
        sources: tuple[CompanionPool, ...],
        missing: int,
        exclude: Iterable[str],
        now: Now,
        *,
        some: bool = True,
    ) -> int:
        """Ask for standbys while training goes on, or may do so; what is lent stands by.

        Returns the number of the request.
        """
        self._fetched = self._ask(sources, missing, exclude, now, some=some)
        return self._fetched

    def _ask(
        self,
        sources: tuple[CompanionPool, ...],
        missing: int,
        exclude: Iterable[str],
        now: Now,
        *,
        some: bool,
    ) -> int:
        self._number += 1
        question = BorrowNodes(sources=sources, missing=missing, exclude=tuple(exclude), some=some)
        self._context.ask(question, now, partial(self._on_answer, self._number, sources[0]))
        return self._number

    @property
    def fetched(self) -> int:
        """The number of the request of :meth:`fetch` that has no answer yet, 0 for none."""
        return self._fetched

    @property
    def fetches(self) -> bool:
        """Whether :meth:`fetch` has no answer yet: its nodes may come any moment."""
        return self._fetched > 0

    def give_up(self) -> None:
        """Wait for the answer to :meth:`borrow` no longer; what it brings is given back."""
        self._wanted = 0

    def give_up_fetching(self) -> None:
        """Give up what :meth:`fetch` asked for."""
        self._fetched = 0

    def _on_answer(self, number: int, first: CompanionPool, answer: Borrowed | NoAnswer, now: Now) -> None:
        context = self._context
        match answer:
            case SubmittedCompanion(job_id=job_id, source=source):
                self._asked[job_id] = number
                context.record(ev.CompanionSubmitted(t=now.wall, job_id=job_id, source=source))
                context.emit(Say(text=f"companion {job_id} was submitted, to lend a node from {source}"))
            case BorrowAnswer():
                self._starts.begin(self._on_lent(number, answer, now), now)
            case StraysCancelled(jobs=jobs) if jobs:
                listed = ", ".join(map(str, jobs))
                context.note(f"cancelled companions whose submission had no answer: {listed}", "", now)
            case NoAnswer(late=False, reason=reason):
                self._on_lent(number, BorrowAnswer(refusals=((first, reason),)), now)

    def step(self, now: Now) -> None:
        """Look for companions of earlier controllers again if Slurm did not answer."""
        if self._sweep_at is not None and now.mono >= self._sweep_at:
            self._sweep(now)

    def _sweep(self, now: Now) -> None:
        self._sweep_at = None
        known = tuple(self._context.state.companions)
        self._context.ask(SweepCompanions(known=known), now, self._on_swept)

    def _on_swept(self, answer: tuple[int, ...] | NoAnswer, now: Now) -> None:
        if isinstance(answer, NoAnswer):
            text = f"Slurm does not show whether older companions are left: {answer.reason}"
            self._context.note(text, "", now)
            self._sweep_at = now.mono + SWEEP_AGAIN_S
        elif answer:
            self._context.note(f"cancelled older companions: {', '.join(map(str, answer))}", "", now)

    def _on_not_ended(self, answer: str | NoAnswer, now: Now) -> None:
        text = answer.reason if isinstance(answer, NoAnswer) else answer
        if text:
            self._context.note(text, "", now)

    def _on_lent(self, number: int, answer: BorrowAnswer, now: Now) -> tuple[str, ...]:
        """Return the nodes that stand by now, on which agents are wanted."""
        context = self._context
        is_fetched = number == self._fetched
        is_late = not is_fetched and (number != self._wanted or self._answer is not None)
        for job_id, node in {} if is_late else answer.nodes.items():
            context.record(ev.CompanionStarted(t=now.wall, job_id=job_id, node=node))
            context.emit(Say(text=f"companion {job_id} lends {node}"))
        for source, why in answer.refusals:
            context.record(ev.NotLent(t=now.wall, source=source, reason=why))
            context.emit(Say(text=f"no node from {source}: {why}"))
        over = [
            job
            for job, one in context.state.companions.items()
            if not one.node and self._asked.get(job) == number
        ]
        if is_late:
            self.end((*over, *answer.nodes), "it is not needed any more", now)
            return ()
        # Cancelled again if the borrower could not: a companion that still waits would start, and hold a
        # node.
        self.end(over, "it lends no node", now)
        if is_fetched:
            self._fetched = 0
            return tuple(answer.nodes.values())
        self._answer = answer
        return ()

    def end(self, jobs: Iterable[int], reason: str, now: Now) -> None:
        """Cancel companions."""
        if jobs := tuple(dict.fromkeys(jobs)):
            self._record_end(jobs, reason, now)
            self._context.ask(EndCompanions(jobs=jobs), now, self._on_not_ended)

    def end_all(self, reason: str, now: Now) -> None:
        """Cancel all of them, also the ones that are being asked for."""
        self.give_up()
        self.give_up_fetching()
        self.end(self._context.state.companions, reason, now)

    def _record_end(self, jobs: Iterable[int], reason: str, now: Now) -> None:
        for job_id in tuple(jobs):
            if job_id in self._context.state.companions:
                self._context.record(ev.CompanionEnded(t=now.wall, job_id=job_id, reason=reason))
