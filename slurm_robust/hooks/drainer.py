"""Carries out what :mod:`.drain` decides, in bounded time, and writes down what came of it.

A node that is fit and was not drained by us costs Slurm nothing: it is not even asked. A node drains itself
only with the drain lock (:mod:`.hooks.drain_lock`), so that no fault of a whole cluster and no silence of
slurmctld drains more nodes than the caps allow. What Slurm does not take, or a cap forbids for now, is kept
in ``drain.json`` and tried again later, ever more rarely: it may be what only a deep run has found, which
no other run would find again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from slurm_robust.config.node import NodeConfig
from slurm_robust.hooks import drain
from slurm_robust.hooks.log import Log
from slurm_robust.hooks.record import (
    DAY_S,
    LOCK_LASTS_S,
    LONGEST_S,
    DrainAction,
    DrainFile,
    Left,
    Pending,
    after_run,
    as_of,
    cause_of,
    causes_of,
    has_passed,
)
from slurm_robust.model.record import Record
from slurm_robust.nodes.verdict import Report

if TYPE_CHECKING:
    # The Slurm layer is imported when a Slurm command is needed, which on a healthy node is never.
    from slurm_robust.hooks.drain_lock import DrainLock
    from slurm_robust.slurm.client import SlurmClient
    from slurm_robust.slurm.records import SlurmNode

BUDGET_S = 20.0
LOCK_S = 2.0
SPREAD_S, OWN_SPREAD_S = 10.0, 1.0
"""What many nodes find in the same second they do not ask Slurm about in the same second. The second is for
faults of a node's own hardware, which seldom fails on many."""

BACK_OFF_S = 300.0
"""Until a node asks again for which there was no room; twice as long after each time more."""

NO_ANSWER_S = 15.0
"""The same if Slurm did not answer, which in most cases is a restart of slurmctld."""

MAX_UNANSWERED = 3
"""Runs that may ask in vain whether a drain was one too many; then it is taken back."""

LATE_S = 600.0
"""After so long an order to which Slurm gave no answer takes effect no more."""

_WAITS = "it could not be drained a short time ago"
_LATE = "its drain lock expired before the order could go out: slurmctld or the disk of paths.state is slow"
_UNSURE = (
    "Slurm took the order, but another node may have held the drain lock by then; a later run compares "
    "it with the caps"
)


def _chance() -> float:
    # The module random takes longer to load than a hook has for everything else.
    return int.from_bytes(os.urandom(4), "big") / 2**32


class DrainResult(Record):
    """What was decided, and what came of it."""

    action: DrainAction
    why: str
    reason: str = ""
    """The reason that Slurm shows now, or the part of it that is ours."""

    carried_out: bool = False
    error: str = ""
    """Why Slurm did not do it."""


def after(
    report: Report,
    *,
    config: NodeConfig,
    now: float,
    log: Log,
    job: str = "",
    whole: bool = False,
    slurm: SlurmClient | None = None,
    budget_s: float = BUDGET_S,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
    chance: Callable[[], float] = _chance,
) -> DrainResult:
    """Do what a run of the checks on this node asks for. Raises nothing that Slurm or files can cause.

    ``now``: seconds since 1970. ``job``: id of the job at whose beginning or end this is. ``whole``: it was a
    periodic run of all checks. The rest is for tests; ``clock`` and ``pause`` are of one monotonic time,
    ``chance`` is from 0 to 1.
    """
    file = DrainFile(Path(config.paths.state))
    if report.fit and not file.exists():
        return DrainResult(action=DrainAction.NOTHING, why="the node is fit")
    deadline = clock() + budget_s
    if not report.fit and config.drain.mode == "act" and _is_new(file, now):
        # Before the lock, for which others wait only shortly.
        spread_s = SPREAD_S if drain.may_be_common(report) else OWN_SPREAD_S
        pause(chance() * min(spread_s, budget_s / 3))
    with file.locked(min(LOCK_S, budget_s)) as held:
        if not held:
            if not report.fit and config.drain.mode == "act":
                file.leave(Left(conclusion=_pending(report), boot_id=report.boot_id))
            return DrainResult(action=DrainAction.NOTHING, why="another hook is at it")
        surroundings = _Surroundings(now, job, whole, clock, deadline, pause, chance)
        drainer = _Drainer(file, report, config, log, surroundings)
        return drainer.run(slurm)


def _pending(report: Report) -> Pending:
    return Pending(reason=report.reason, causes=report.causes)


def _is_new(file: DrainFile, now: float) -> bool:
    """Return whether Slurm is about to be asked for a drain."""
    record = as_of(file.load(), now)
    return not record.reason and record.waits_until <= now


class _Surroundings(NamedTuple):
    """When and on what occasion a run is; see :func:`after`."""

    now: float
    job: str
    whole: bool
    clock: Callable[[], float]
    deadline: float
    pause: Callable[[float], None]
    chance: Callable[[], float]


class _Drainer:
    """One run, with the lock held."""

    def __init__(
        self, file: DrainFile, report: Report, config: NodeConfig, log: Log, around: _Surroundings
    ) -> None:
        self._file = file
        self._report = report
        self._config = config
        self._log = log
        self._around = around
        self._now = around.now
        self._saved = file.load()
        self._record = as_of(self._saved, self._now)
        # Long after the last wait it is another story.
        recent = self._now < self._record.waits_until + LONGEST_S
        self._tries = self._record.tries if recent else 0

    def run(self, slurm: SlurmClient | None) -> DrainResult:
        """Count the run, ask Slurm if there is something to do there, and do it."""
        found = set(causes_of(self._report))
        self._report = self._with_pending()
        pending = self._saved.pending
        if self._report.fit or (pending is not None and found - set(causes_of(pending))):
            self._wait_at_most(BACK_OFF_S)
        self._record = after_run(self._record, self._report, whole=self._around.whole)
        if not self._record.reason and (done := self._without_slurm()):
            self._save()
            return done

        from slurm_robust.hooks.client import slurm_client
        from slurm_robust.slurm.errors import ControllerUnreachable, SlurmCommandError, SlurmTimeout

        try:
            done = self._act(slurm or slurm_client(self._config, self._around.deadline))
        except SlurmCommandError as error:
            # Whether an order took effect is unknown now; a later run sees it in Slurm.
            self._wait(NO_ANSWER_S)
            self._keep()
            facts = {"error": str(error)[:500], "reason": self._report.reason}
            if isinstance(error, SlurmTimeout | ControllerUnreachable):
                self._log_change("slurm_unreachable", **facts)
            else:  # what Slurm refuses a person has to mend
                self._log_change("slurm_refused", **facts, fix=error.fix)
            done = DrainResult(action=DrainAction.NOTHING, why="Slurm has not done it", error=str(error))
        self._save()
        return done

    def _without_slurm(self) -> DrainResult | None:
        """Return what to do with a node of which no drain of ours is known, if Slurm need not be asked."""
        if self._report.fit:
            return DrainResult(action=DrainAction.NOTHING, why="the node is fit")
        if self._now >= self._record.waits_until:
            return None
        self._keep()
        return DrainResult(action=DrainAction.NOTHING, why=_WAITS)

    def _wait(self, least_s: float) -> None:
        """Ask Slurm for a drain no sooner than after ``least_s``, or longer if it was in vain before."""
        wait_s = min(LONGEST_S, least_s * 2 ** min(self._tries, 16)) * (0.5 + self._around.chance())
        self._put(waits_until=self._now + wait_s, tries=self._tries + 1)

    def _wait_at_most(self, most_s: float) -> None:
        """Bound the wait. What has healed, or has another fault now, is another matter."""
        if self._record.waits_until > self._now + most_s:
            self._tries = 0
            self._put(waits_until=self._now + most_s, tries=0)

    @property
    def _acts(self) -> bool:
        return self._config.drain.mode == "act"

    # -- what an earlier run could not tell Slurm ---------------------------------------------------

    def _keep(self) -> None:
        if not self._report.fit and self._acts:
            self._put(pending=_pending(self._report), pending_boot=self._report.boot_id)

    def _with_pending(self) -> Report:
        report = self._report
        if left := self._file.take_left():
            self._put(pending=self._together(left), pending_boot=left.boot_id)
        pending = self._record.pending
        if pending is None:
            return report
        open_ = tuple(f for f in pending.causes if not has_passed(cause_of(f), report.findings))
        if self._record.pending_boot != report.boot_id or not open_:
            self._put(pending=None, pending_boot="")
            if report.fit:
                self._log.write("fault_gone", reason=pending.reason)
            return report
        return msgspec.structs.replace(
            report,
            reason=pending.reason if report.fit else report.reason,
            causes=tuple(dict.fromkeys((*report.causes, *open_))),
        )

    def _together(self, left: Left) -> Pending:
        """Return what was left, and what was kept before during the same boot."""
        before = self._record.pending
        if before is None or self._record.pending_boot != left.boot_id:
            return left.conclusion
        causes = tuple(dict.fromkeys((*left.conclusion.causes, *before.causes)))
        return msgspec.structs.replace(left.conclusion, causes=causes)

    # -- acting ----------------------------------------------------------------------------------------

    def _act(self, slurm: SlurmClient) -> DrainResult:
        node = slurm.node(self._report.node)
        self._recognise(node)
        is_open = self._record.unverified and drain.is_own(node, self._record)
        if is_open and (excess := self._excess(node, slurm)):
            self._keep()
            return self._take_back(excess, slurm)
        decision = self._decide(node, ())
        if decision.action is DrainAction.NOTHING:
            return self._nothing(node, decision)
        if not self._acts:
            # Nothing stands then that could fill a cap, so Slurm need not be asked about others.
            self._wait(BACK_OFF_S)
            self._log_change(
                f"would_{decision.action.name.lower()}", why=decision.why, reason=decision.reason
            )
            return DrainResult(action=decision.action, why=f"observe mode, would {decision.action.value}")
        if decision.action is DrainAction.UNDRAIN:
            return self._undrain(node, decision, slurm)
        if decision.action is DrainAction.DRAIN:
            return self._drain_with_lock(node, slurm)
        return self._drain(decision, slurm)

    def _decide(self, node: SlurmNode, shares: Sequence[drain.PartitionDrains]) -> drain.DrainDecision:
        return drain.decide(node, self._report, self._record, shares, self._config.drain, self._now)

    def _recognise(self, node: SlurmNode) -> None:
        """Bring the record up to what Slurm shows: a drain that took effect late, or that a person undid."""
        record = self._record
        if drain.is_own(node, record):
            if node.reason != record.reason:  # the newest order has not been taken, or not yet
                self._put(reason=node.reason, former=record.reason)
            if record.since not in record.drains:
                self._put(drains=self._recent_drains(record.since))
        elif record.reason and not node.is_drained and not drain.untouchable(node):
            if record.unverified:
                if self._now - record.since > LATE_S:
                    self._put(reason="", unverified=False)
                return
            self._log.write("returned_by_others", reason=record.reason)
            # The causes and the reason stay: it may be a quarantine that has resumed it, which asks what is
            # to be proven, and drains it again with that reason when it is interrupted.
            self._put(
                reason="",
                former=record.reason,
                passes=0,
                unproven=0,
                stays=False,
                waits_until=0.0,
                tries=0,
            )

    def _nothing(self, node: SlurmNode, decision: drain.DrainDecision) -> DrainResult:
        if not self._report.fit:
            return self._no_drain(decision, known=drain.is_own(node, self._record))
        report, runs = self._report, self._config.drain.pass_runs
        if self._around.whole and (
            why := drain.hindrance(node, self._record, report.findings, report.left_out, runs)
        ):
            self._log_change("not_returned", why=why, reason=self._record.reason)
        return DrainResult(action=decision.action, why=decision.why, reason=self._record.reason)

    def _no_drain(self, decision: drain.DrainDecision, *, known: bool = False) -> DrainResult:
        """Return the result for a node that is not fit: it must not be drained, has no room for now, or is
        drained already for what is ``known``.
        """
        self._put(pending=None, pending_boot="")
        if decision.later:
            self._wait(BACK_OFF_S)
            self._keep()
        if not known:
            self._log_change("not_drained", why=decision.why, reason=self._report.reason)
        return DrainResult(
            action=decision.action, why=decision.why, reason=self._record.reason if known else ""
        )

    def _drain_with_lock(self, node: SlurmNode, slurm: SlurmClient) -> DrainResult:
        """Drain if there is room; only the holder of the drain lock can know."""
        from slurm_robust.hooks.drain_lock import NoDrainLock, drain_lock

        if self._now < self._record.waits_until:
            return DrainResult(action=DrainAction.NOTHING, why=_WAITS)
        self._wait(NO_ANSWER_S)
        self._save()  # So that it waits even if it is killed.
        around = self._around
        where = (slurm, node.name, node.partitions)
        with drain_lock(*where, around.clock, around.deadline, around.pause, around.chance) as held:
            if isinstance(held, NoDrainLock):
                return self._no_drain(_not_now(held.why))
            decision = self._decide_among_all(slurm, held.now)
            if decision.full:
                held.leave(decision.full)
            if decision.action is not DrainAction.DRAIN:
                return self._no_drain(decision)
            return self._drain(decision, slurm, held)

    def _decide_among_all(self, slurm: SlurmClient, now: float) -> drain.DrainDecision:
        """Return the decision with all nodes in view. ``now``: by slurmctld's clock."""
        every = slurm.nodes()
        mine = [node for node in every if node.name == self._report.node]
        if not mine:
            return drain.DrainDecision(action=DrainAction.NOTHING, why="Slurm does not know this node")
        return self._decide(mine[0], drain.shares_of(every, mine[0].name, now))

    def _drain(
        self,
        decision: drain.DrainDecision,
        slurm: SlurmClient,
        held: DrainLock | None = None,
    ) -> DrainResult:
        """Order it. ``held``: the drain lock; a new drain needs it, a new reason for an old one does not."""
        new = held is not None
        before = self._record
        known = () if new else before.causes
        # Written first: should this process die now, the next run still knows the reason as its own, what
        # it is about (it may run other checks), and that what came of the order was not seen.
        self._keep()
        self._put(
            reason=decision.reason,
            former=before.reason,  # also of a new drain: an order without an answer may yet be taken
            since=self._now if new else before.since,
            causes=tuple(dict.fromkeys((*known, *causes_of(self._report)))),
            unverified=new or before.unverified,
            unanswered=0 if new else before.unanswered,
            passes=0,
            unproven=0,
            stays=decision.stays,
        )
        self._save()
        if held is not None and not held.lasts:
            self._record = before
            return self._no_drain(_not_now(_LATE))
        slurm.drain([self._report.node], decision.reason)
        if held is not None and not held.is_sole(slurm):
            self._log_change("cap_not_verified", why=_UNSURE, reason=decision.reason)
            return DrainResult(action=DrainAction.NOTHING, why=_UNSURE)
        self._put(pending=None, pending_boot="", former="")
        if new:
            drains = self._recent_drains(self._now)
            self._put(unverified=False, drains=drains, waits_until=0.0, tries=0)
        self._log_drain("drained" if new else "reason_updated", decision.why, self._report.causes)
        return DrainResult(action=decision.action, why=decision.why, reason=decision.reason, carried_out=True)

    def _excess(self, node: SlurmNode, slurm: SlurmClient) -> str:
        """Return why a drain that Slurm perhaps took after the lock expired is one too many; "" if it is not.

        "" also for a young one: the holder at that time may not have seen it, and still drain its own node.

        If that cannot be found out, the drain is taken back.
        """
        from slurm_robust.slurm.errors import SlurmCommandError

        try:
            if slurm.now() < (node.reason_time or 0.0) + LOCK_LASTS_S:
                return ""
            excess = drain.beyond_cap(slurm.nodes(), self._report.node, self._config.drain)
        except SlurmCommandError as error:
            self._put(unanswered=self._record.unanswered + 1)
            self._log_change("cap_not_verified", error=str(error)[:500])
            many = self._record.unanswered >= MAX_UNANSWERED
            return f"{MAX_UNANSWERED} runs could not find out whether there is room for it" if many else ""
        if not excess:
            self._put(unverified=False, unanswered=0, pending=None, pending_boot="")
            self._log_drain("drained", "Slurm has taken the order late", self._record.causes)
        return excess

    def _take_back(self, excess: str, slurm: SlurmClient) -> DrainResult:
        if drain.is_own(slurm.node(self._report.node), self._record):
            slurm.resume([self._report.node])
        reason, since = self._record.reason, self._record.since
        others = tuple(t for t in self._record.drains if t != since)
        self._put(reason="", causes=(), unverified=False, unanswered=0, stays=False, drains=others)
        self._wait(BACK_OFF_S)
        self._log_change("not_drained", why=excess, reason=reason)
        return DrainResult(action=DrainAction.NOTHING, why=excess)

    def _undrain(self, node: SlurmNode, decision: drain.DrainDecision, slurm: SlurmClient) -> DrainResult:
        slurm.resume([node.name])
        if drain.is_own(slurm.node(node.name), self._record):
            self._log_change("not_undrained", why="Slurm took the order, but the node is still drained")
            return DrainResult(
                action=decision.action, why=decision.why, reason=node.reason, error="still drained"
            )
        self._log.write("undrained", reason=node.reason, why=decision.why)
        self._put(reason="", causes=(), unverified=False, passes=0, unproven=0, said="")
        self._put(waits_until=0.0, tries=0)
        return DrainResult(action=decision.action, why=decision.why, carried_out=True)

    # -- remembering -----------------------------------------------------------------------------------

    def _recent_drains(self, new: float) -> tuple[float, ...]:
        recent = {t for t in self._record.drains if t > self._now - DAY_S}
        return tuple(sorted(recent | {new}))

    def _put(self, **changes: object) -> None:
        self._record = msgspec.structs.replace(self._record, **changes)

    def _save(self) -> None:
        if self._record == self._saved:
            return
        try:
            self._file.save(self._record)
        except OSError as error:
            # The node is still drained, which matters more; only a person or a quarantine returns it then.
            self._log.write("record_not_written", file=str(self._file.path), error=str(error))
        else:
            self._saved = self._record

    def _log_drain(self, event: str, why: str, causes: Sequence[object]) -> None:
        record = self._record
        facts = {"reason": record.reason, "why": why, "job": self._around.job, "stays": record.stays}
        self._log.write(event, **facts, causes=causes)
        self._put(said="")

    def _log_change(self, event: str, **facts: object) -> None:
        """Write an event unless it was the last one about this node."""
        causes = ",".join(f"{c.check}/{c.subject}" for c in self._record.causes)
        text = f"{event}: {facts.get('why') or facts.get('reason') or ''} {causes}".strip()
        if text != self._record.said:
            self._put(said=text)
            self._log.write(event, **facts, job=self._around.job)


def _not_now(why: str) -> drain.DrainDecision:
    return drain.DrainDecision(action=DrainAction.NOTHING, why=why, later=True)
