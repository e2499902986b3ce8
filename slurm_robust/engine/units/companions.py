"""The companions of a job: what was asked of them, what they lend, and their end."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_robust.engine.context import Context
from slurm_robust.engine.effects import (
    BorrowAnswer,
    BorrowNodes,
    EndCompanions,
    Now,
    Say,
    SweepCompanions,
)
from slurm_robust.model import events as ev
from slurm_robust.model.companion import CompanionPool


class Companions:
    """Follows them; :mod:`slurm_robust.controller.borrower` speaks with Slurm."""

    def __init__(self, context: Context, now: Now) -> None:
        self._context = context
        self._number = 0  # of the newest request
        self._wanted = 0  # the number of the request for which training waits, 0 for none
        self._fetched = 0  # that of the request beside the training, 0 for none
        self._answer: BorrowAnswer | None = None
        self._asked: dict[int, int] = {}  # by companion the request that it is for
        state = context.state
        if context.rules.sources or state.companions:
            waiting = [job for job, one in state.companions.items() if not one.node]
            self._record_end(waiting, "the controller that asked for it ended", now)
            context.emit(SweepCompanions(known=tuple(context.state.companions)))

    @property
    def answer(self) -> BorrowAnswer | None:
        """What came of the newest request, None until that is known."""
        return self._answer

    def borrow(
        self, sources: tuple[CompanionPool, ...], missing: int, exclude: Iterable[str], *, some: bool
    ) -> None:
        """Ask for nodes; :attr:`answer` has what comes of it."""
        self._answer = None
        self._wanted = self._ask(sources, missing, exclude, some=some)

    def fetch(
        self, sources: tuple[CompanionPool, ...], missing: int, exclude: Iterable[str], *, some: bool = True
    ) -> None:
        """Ask for standbys while training goes on, or may do so; what is lent stands by."""
        self._fetched = self._ask(sources, missing, exclude, some=some)

    def _ask(
        self, sources: tuple[CompanionPool, ...], missing: int, exclude: Iterable[str], *, some: bool
    ) -> int:
        self._number += 1
        self._context.emit(
            BorrowNodes(
                number=self._number,
                sources=sources,
                missing=missing,
                exclude=tuple(exclude),
                some=some,
            )
        )
        return self._number

    @property
    def fetches(self) -> bool:
        """Whether :meth:`fetch` has no answer yet: its nodes may come any moment."""
        return self._fetched > 0

    def give_up(self) -> None:
        """Wait for the answer to :meth:`borrow` no longer; what it brings is given back."""
        self._wanted = 0

    def give_up_fetching(self) -> None:
        """The same for :meth:`fetch`."""
        self._fetched = 0

    def on_companion(self, number: int, job_id: int, source: CompanionPool, now: Now) -> None:
        """Companion ``job_id`` was submitted for request ``number``."""
        self._asked[job_id] = number
        self._context.record(ev.CompanionSubmitted(t=now.wall, job_id=job_id, source=source))
        self._context.emit(Say(text=f"companion {job_id} was submitted, to lend a node from {source}"))

    def on_lent(self, number: int, answer: BorrowAnswer, now: Now) -> tuple[str, ...]:
        """The answer to request ``number``; the nodes that stand by now, on which agents are wanted."""
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
        # Cancelled again where the borrower could not: one that still waits would start, and hold a node.
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
            self._context.emit(EndCompanions(jobs=jobs))

    def end_all(self, reason: str, now: Now) -> None:
        """Cancel all of them, also those that are asked for just now."""
        self.give_up()
        self.give_up_fetching()
        self.end(self._context.state.companions, reason, now)

    def _record_end(self, jobs: Iterable[int], reason: str, now: Now) -> None:
        for job_id in tuple(jobs):
            if job_id in self._context.state.companions:
                self._context.record(ev.CompanionEnded(t=now.wall, job_id=job_id, reason=reason))
