"""The core's unit for a run that is ended from outside: how much time is left, and which agents stay.

Slurm signals all processes of a step, so after an order to end the ranks are dead and the agents are about to
follow. But the agents are needed: they hold the checkpoints in memory. So they are told to stay, by short
leases. If Slurm has signalled only the agents (a preemption with ``GraceTime``, ``--signal`` without ``B:``,
or ``scancel`` of their step), it is asked what that means before any node is blamed.
"""

from __future__ import annotations

from collections.abc import Callable
from signal import SIGTERM

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.engine.effects import Say
from slurm_robust.engine.questions import AskAboutRun, FindKillWait, NoAnswer
from slurm_robust.model.record import Record
from slurm_robust.policy.leaving import (
    ASKING_S,
    KILL_WAIT_S,
    TERM_NEWS_S,
    WARNED_S,
    WORD_S,
    Sentence,
    approaching,
    explain,
    leave_s,
)
from slurm_robust.wire.messages import Heartbeat, Stay

LEASE_S = 8.0
"""An agent stays so long after the newest order to stay: a dead controller must not keep nodes."""

RESEND_S = 1.0

NO_CHECKPOINT = "the script takes no checkpoint that could be asked for"

ORDERED_BY_SLURM = "ordered to end by Slurm, which has ended this run"
"""Slurm signals only the steps of a job that ``salloc`` has started."""


class OrderMeaning(Record):
    """What an order to end means."""

    reason: str
    """Why the run ends."""
    preempted: bool
    """Slurm has said that it takes the nodes of this run for another job."""
    requeued: bool
    """Slurm has queued the job again."""
    is_open: bool
    """Slurm may yet say more."""


class Departure:
    """How long this run has, and why."""

    def __init__(self, context: Context, leave: Callable[[str, Now], object], now: Now) -> None:
        """``leave``: orders the controller to end, for a reason."""
        self._context, self._leave = context, leave
        self._kill_wait_s = KILL_WAIT_S
        order = context.state.stop_ordered  # to an earlier controller of this run
        self._ordered = now.mono - max(0.0, now.wall - order.t) if order is not None else None
        self._is_at_once = False
        self._is_preempted = self._is_requeued = self._is_node_fail = False  # as Slurm says
        self._is_asked = self._is_told = False  # what the order means; Slurm has had its say on it
        self._ends: float | None = None  # when the run's time is over, by Slurm
        self._termed: set[str] = set()  # agents that Slurm has told to end
        self._warned: set[str] = set()  # agents that Slurm has warned of the end
        self._asking: float | None = None  # since when Slurm is asked about them
        self._asked = 0.0
        self._sent = -RESEND_S
        context.ask(FindKillWait(), now, self._learn)
        self._seen = (-1, 0.0)  # of which generation a rank that SIGTERM ended was seen, and since when

    # -- what is known -----------------------------------------------------------------------------

    @property
    def kill_wait_s(self) -> float:
        """``KillWait``: Slurm's time from SIGTERM to SIGKILL."""
        return self._kill_wait_s

    @property
    def at_once(self) -> bool:
        """A second order to end has come: nothing is waited for any more."""
        return self._is_at_once

    def meaning(self, order: str, now: Now) -> OrderMeaning:
        """Return what ``order`` means, by what Slurm has said until now."""
        is_due = self._ordered is not None and now.mono - self._ordered < WORD_S
        return OrderMeaning(
            reason=explain(
                order,
                preempted=self._is_preempted,
                requeued=self._is_requeued,
                node_fail=self._is_node_fail,
            ),
            preempted=self._is_preempted,
            requeued=self._is_requeued,
            is_open=is_due and not (self._is_told or self._is_at_once),
        )

    @property
    def termed(self) -> bool:
        """Whether Slurm has told agents of this run to end; their ranks have been told, too."""
        return bool(self._termed & {view.heartbeat.agent for view in self._context.fleet.views.values()})

    def left_s(self, now: Now) -> float | None:
        """Return the seconds until all has to be done: after an order by KillWait, else by the run's end."""
        if self._ordered is not None:
            return self._ordered + leave_s(self._kill_wait_s) - now.mono
        return None if self._ends is None else self._ends - now.mono

    def asks(self, now: Now) -> bool:
        """Return whether Slurm's answer is awaited as to why it has told agents to end."""
        return self._asking is not None and now.mono - self._asking < ASKING_S

    def undecided(self, now: Now) -> bool:
        """Return whether ranks may have ended by an order of Slurm whose meaning is open: blame no node."""
        if self.asks(now):
            return True
        generation = self._context.world.generation
        if self._seen[0] != generation and any(e.exit.signal == SIGTERM for e in self._context.exits(now)):
            self._seen = generation, now.mono
        return self._seen[0] == generation and now.mono - self._seen[1] < TERM_NEWS_S

    # -- inputs ------------------------------------------------------------------------------------

    def _learn(self, kill_wait_s: float | NoAnswer | None, now: Now) -> None:
        """Learn Slurm's KillWait; without an answer, assume its default."""
        if isinstance(kill_wait_s, float):
            self._kill_wait_s = kill_wait_s

    def approach(self, reason: str, now: Now) -> None:
        """Take in that the end of this run is near, for ``reason``; the first reason counts."""
        context = self._context
        if not reason or context.ending is not None:
            return
        context.end_approaches(reason)
        self.warn(now)
        what = "nothing trains now, so no checkpoint is taken"
        if self.termed:
            what = "what memory has goes to storage first"
        elif context.trains:
            what = "taking a checkpoint first" if context.world.reports else NO_CHECKPOINT
        context.emit(Say(text=f"{reason}: {what}"))

    def order(self, now: Now) -> None:
        """Take in SIGTERM or Ctrl-C, from Slurm or passed on once more, and ask Slurm once what it means."""
        if not self._is_asked:
            self._is_asked = True
            self._context.ask(AskAboutRun(), now, self._on_sentence)
        if self._ordered is None:
            self._ordered = now.mono

    def hurry(self) -> None:
        """End immediately: the supervisor says that a second order came."""
        self._is_at_once = True

    def warn(self, now: Now) -> None:
        """Ask Slurm how near the end of this run is."""
        if self._ends is None:
            self._ask(now)

    def on_heartbeat(self, heartbeat: Heartbeat, now: Now) -> None:
        """Take in what Slurm has told an agent, which alone may say that the run's end is near."""
        if heartbeat.warned and heartbeat.agent not in self._warned:
            self._warned.add(heartbeat.agent)
            self.approach("the end of this run is near (USR1 to its steps)", now)
            return
        if heartbeat.termed and heartbeat.agent not in self._termed:
            self._termed.add(heartbeat.agent)
            if not (self._context.leaving or self._context.ending or self._asking is not None):
                self._asking = now.mono
                self._ask(now)

    def _on_sentence(self, answer: Sentence | NoAnswer | None, now: Now) -> None:
        said, context = answer if isinstance(answer, Sentence) else None, self._context
        was_requeued = self._is_requeued
        if said is not None:
            self._is_told = said.certain
            self._is_preempted = self._is_preempted or said.preempted
            self._is_requeued = self._is_requeued or said.requeued
            self._is_node_fail = self._is_node_fail or said.node_fail
        if said is not None and said.left_s is not None and (said.preempted or said.left_s <= WARNED_S):
            self._ends = now.mono + said.left_s
        if self._asking is not None:
            self._asking = None
            if said is not None and not said.running:
                self._leave(ORDERED_BY_SLURM, now)
            else:
                self.approach(approaching(said, WARNED_S), now)
        if said is not None and said.preempted and context.leaving is None:
            if context.ending is None:  # the word came late
                self.approach(approaching(said, WARNED_S), now)
            else:
                context.end_approaches(approaching(said, WARNED_S))  # a warning alone does not say of what
        if self._is_requeued and not was_requeued and context.state.ended is not None:
            context.emit(Say(text="the job is requeued: it goes on in its next run"))

    # -- time --------------------------------------------------------------------------------------

    def step(self, now: Now) -> None:
        """Have agents stay that Slurm has told to end, as long as they are needed."""
        context = self._context
        if self._asking is not None and now.mono - self._asking >= ASKING_S:
            self._asking = None
        saves = (context.leaving is not None or (context.ending is not None and self.termed)) and not (
            self._is_at_once
        )
        if not (saves or self._asking is not None) or now.mono - self._sent < RESEND_S:
            return
        self._sent = now.mono
        for node in context.fleet.views:
            context.send(node, Stay(epoch=context.state.epoch, for_s=LEASE_S))

    def _ask(self, now: Now) -> None:
        if not self._asked or now.mono - self._asked > RESEND_S:
            self._asked = now.mono
            self._context.ask(AskAboutRun(), now, self._on_sentence)
