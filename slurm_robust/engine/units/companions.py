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


class NodeRequest:
    """A request for nodes, open until its answer comes or it is given up; what comes later is given back."""

    def __init__(self, companions: Companions) -> None:
        self._companions = companions
        self._is_given_up = False
        self.answer: BorrowAnswer | None = None
        """What came of it, None until that is known."""

    @property
    def is_open(self) -> bool:
        """Whether nodes may yet come."""
        return self.answer is None and not self._is_given_up

    def give_up(self) -> None:
        """Wait for the answer no longer."""
        self._is_given_up = True

    def take_back(self, reason: str, now: Now) -> None:
        """Give it up, and end the companions that it has brought."""
        self._companions.take_back(self, reason, now)


class Companions:
    """Follows them; :mod:`slurm_robust.controller.borrower` speaks with Slurm."""

    def __init__(self, context: Context, starts: AgentStarts, now: Now) -> None:
        self._context, self._starts = context, starts
        self._wanted: NodeRequest | None = None  # the newest for which training waited
        self._fetched: NodeRequest | None = None  # the newest while training ran
        self._sweep_at: float | None = None  # when to look for older ones again
        self._asked: dict[int, NodeRequest] = {}  # by companion the request that it is for
        state = context.state
        if context.rules.sources or state.companions:
            waiting = [job for job, one in state.companions.items() if not one.node]
            self._record_end(waiting, "the controller that asked for it ended", now)
            self._sweep(now)

    @property
    def fetching(self) -> NodeRequest | None:
        """The request of :meth:`fetch` that is open: its nodes may come any moment."""
        return self._fetched if self._fetched is not None and self._fetched.is_open else None

    def borrow(
        self,
        sources: tuple[CompanionPool, ...],
        missing: int,
        also: Iterable[str],
        now: Now,
        *,
        some: bool,
        near: tuple[str, ...] = (),
    ) -> NodeRequest:
        """Ask for nodes for which training waits, but for evicted ones and ``also``; of the NVLink cliques of
        ``near``.
        """
        if self._wanted is not None:
            self._wanted.give_up()
        self._wanted = self._ask(sources, missing, also, now, some=some, near=near)
        return self._wanted

    def fetch(
        self,
        sources: tuple[CompanionPool, ...],
        missing: int,
        also: Iterable[str],
        now: Now,
        *,
        some: bool = True,
        near: tuple[str, ...] = (),
    ) -> NodeRequest:
        """Ask for standbys while training goes on, or may do so; what is lent stands by."""
        self._fetched = self._ask(sources, missing, also, now, some=some, near=near)
        return self._fetched

    def _ask(
        self,
        sources: tuple[CompanionPool, ...],
        missing: int,
        also: Iterable[str],
        now: Now,
        *,
        some: bool,
        near: tuple[str, ...],
    ) -> NodeRequest:
        request = NodeRequest(self)
        exclude = tuple(dict.fromkeys((*self._context.state.shunned(now.wall), *also)))
        question = BorrowNodes(sources=sources, missing=missing, exclude=exclude, some=some, near=near)
        self._context.ask(question, now, partial(self._on_answer, request, sources[0]))
        return request

    def take_back(self, request: NodeRequest, reason: str, now: Now) -> None:
        """Give up ``request``, and end the companions that it has brought."""
        request.give_up()
        self.end(
            (job for job in self._context.state.companions if self._asked.get(job) is request), reason, now
        )

    def _on_answer(
        self, request: NodeRequest, first: CompanionPool, answer: Borrowed | NoAnswer, now: Now
    ) -> None:
        context = self._context
        match answer:
            case SubmittedCompanion(job_id=job_id, source=source):
                self._asked[job_id] = request
                context.record(ev.CompanionSubmitted(t=now.wall, job_id=job_id, source=source))
                context.emit(Say(text=f"companion {job_id} was submitted, to lend a node from {source}"))
            case BorrowAnswer():
                self._starts.begin(self._on_lent(request, answer, now), now)
            case StraysCancelled(jobs=jobs) if jobs:
                listed = ", ".join(map(str, jobs))
                context.note(f"cancelled companions whose submission had no answer: {listed}", "", now)
            case NoAnswer(late=False, reason=reason):
                self._on_lent(request, BorrowAnswer(refusals=((first, reason),)), now)

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

    def _on_lent(self, request: NodeRequest, answer: BorrowAnswer, now: Now) -> tuple[str, ...]:
        """Return the nodes that stand by now, on which agents are wanted."""
        context = self._context
        is_late = not request.is_open
        for job_id, node in {} if is_late else answer.nodes.items():
            context.record(ev.CompanionStarted(t=now.wall, job_id=job_id, node=node))
            context.emit(Say(text=f"companion {job_id} lends {node}"))
        for source, why in answer.refusals:
            context.record(ev.NotLent(t=now.wall, source=source, reason=why))
            context.emit(Say(text=f"no node from {source}: {why}"))
        over = [
            job
            for job, one in context.state.companions.items()
            if not one.node and self._asked.get(job) is request
        ]
        if is_late:
            self.end((*over, *answer.nodes), "it is not needed any more", now)
            return ()
        # Cancelled again if the borrower could not: a companion that still waits would start, and hold a
        # node.
        self.end(over, "it lends no node", now)
        request.answer = answer
        return tuple(answer.nodes.values()) if request is self._fetched else ()

    def end(self, jobs: Iterable[int], reason: str, now: Now) -> None:
        """Cancel companions."""
        if jobs := tuple(dict.fromkeys(jobs)):
            self._record_end(jobs, reason, now)
            self._context.ask(EndCompanions(jobs=jobs), now, self._on_not_ended)

    def end_all(self, reason: str, now: Now) -> None:
        """Cancel all of them, also the ones that are being asked for."""
        for request in (self._wanted, self._fetched):
            if request is not None:
                request.give_up()
        self.end(self._context.state.companions, reason, now)

    def _record_end(self, jobs: Iterable[int], reason: str, now: Now) -> None:
        for job_id in tuple(jobs):
            if job_id in self._context.state.companions:
                self._context.record(ev.CompanionEnded(t=now.wall, job_id=job_id, reason=reason))
