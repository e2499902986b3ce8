"""Carries out what :mod:`slurm_robust.node.drain` decides, in bounded time, and writes down what came of it.

A node that is fit and was not drained by us costs Slurm nothing: it is not even asked. What Slurm does not
take, or a cap forbids for now, is kept in ``drain.json`` and tried again at the next run: it may be what only
a close look has found, which no other run would find again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from slurm_robust.config.node import NodeConfig
from slurm_robust.health.report import Conclusion, Report
from slurm_robust.model.record import Record
from slurm_robust.node import drain
from slurm_robust.node.record import (
    DAY_S,
    Action,
    DrainFile,
    Left,
    after_run,
    cause_of,
    causes_of,
    has_passed,
)

if TYPE_CHECKING:
    # The Slurm layer is imported when a Slurm command is needed, which on a healthy node is never.
    from slurm_robust.node.hints import Hint
    from slurm_robust.slurm.client import SlurmClient
    from slurm_robust.slurm.records import Node

BUDGET_S = 20.0
LOCK_S = 2.0
SETTLE_S = 1.1
"""After a drain, until Slurm's clock has left the second in which it was made."""

BACK_OFF_S = 300.0
"""When a whole fleet is unfit, not every node may ask Slurm about all others at every run."""

_MOST_PARENTS = 10
_USUAL_BINS = ("/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin", "/usr/sbin", "/bin")


class Log(Protocol):
    """Where events go: :class:`slurm_robust.node.log.EventLog`."""

    def write(self, event: str, **facts: object) -> None:
        """Never raises, never blocks."""
        ...


class Done(Record):
    """What was decided and whether it was ``carried_out``; ``error``: why Slurm did not do it.

    ``reason`` is the reason that Slurm shows now, as far as it is ours.
    """

    action: Action
    why: str
    reason: str = ""
    carried_out: bool = False
    error: str = ""


def after(
    conclusion: Conclusion,
    *,
    report: Report,
    config: NodeConfig,
    now: float,
    log: Log,
    job: str = "",
    hint: Hint | None = None,
    slurm: SlurmClient | None = None,
    budget_s: float = BUDGET_S,
    pause: Callable[[float], None] = time.sleep,
) -> Done:
    """Do what a run of the checks on this node asks for. Raises nothing that Slurm or files can cause.

    ``now``: seconds since 1970. ``job``: id of the job at whose beginning or end this is; ``hint``: the
    suspicion because of which the checks ran. ``slurm`` and ``pause`` are for tests.
    """
    if hint is not None and conclusion.fit:
        _tell_acquittal(log, hint, report)
    file = DrainFile(Path(config.paths.state))
    if conclusion.fit and not file.exists():
        return Done(action=Action.NOTHING, why="the node is fit")
    deadline = time.monotonic() + budget_s
    with file.locked(min(LOCK_S, budget_s)) as held:
        if not held:
            if not conclusion.fit and config.drain.mode == "act":
                file.leave(Left(conclusion=conclusion, boot_id=report.boot_id))
            return Done(action=Action.NOTHING, why="another hook is at it")
        stewardship = _Stewardship(file, report, config, now, log, job, pause)
        return stewardship.run(conclusion, slurm, deadline)


def _tell_acquittal(log: Log, hint: Hint, report: Report) -> None:
    """Of a suspicion nothing came. A look that was cut short clears nobody, but condemns nobody either."""
    facts = {"job": hint.job_id, "uid": hint.uid, "suspected": hint.reason, "symptom": hint.symptom}
    if report.cut:
        log.write("not_acquitted", **facts, left_out=report.cut)
    else:
        log.write("acquitted", **facts)


class _Stewardship:
    """One run, with the lock held."""

    def __init__(
        self,
        file: DrainFile,
        report: Report,
        config: NodeConfig,
        now: float,
        log: Log,
        job: str,
        pause: Callable[[float], None],
    ) -> None:
        self._file = file
        self._report = report
        self._config = config
        self._now = now
        self._log = log
        self._job = job
        self._pause = pause
        self._saved = self._record = file.load()

    def run(self, conclusion: Conclusion, slurm: SlurmClient | None, deadline: float) -> Done:
        """Count the run, ask Slurm if there is something to do there, and do it."""
        conclusion = self._with_pending(conclusion)
        self._record = after_run(self._record, conclusion, self._report.findings)
        if conclusion.fit and not self._record.reason:
            self._save()
            return Done(action=Action.NOTHING, why="the node is fit")

        from slurm_robust.slurm.errors import SlurmCommandError

        try:
            done = self._act(conclusion, slurm or slurm_client(self._config, deadline))
        except SlurmCommandError as error:
            # Whether a drain took effect is unknown now; the next run sees it in Slurm.
            self._put(waits_until=0.0)
            self._keep(conclusion)
            self._tell("slurm_unreachable", error=str(error)[:500], reason=conclusion.reason)
            done = Done(action=Action.NOTHING, why="Slurm has not done it", error=str(error))
        self._save()
        return done

    @property
    def _acts(self) -> bool:
        return self._config.drain.mode == "act"

    # -- what an earlier run could not tell Slurm ---------------------------------------------------

    def _keep(self, conclusion: Conclusion) -> None:
        if not conclusion.fit and self._acts:
            self._put(pending=conclusion, pending_boot=self._report.boot_id)

    def _with_pending(self, conclusion: Conclusion) -> Conclusion:
        if left := self._file.take_left():
            self._put(pending=self._together(left), pending_boot=left.boot_id)
        pending = self._record.pending
        if pending is None:
            return conclusion
        findings = self._report.findings
        open_ = tuple(f for f in pending.causes if not has_passed(cause_of(f), findings))
        if self._record.pending_boot != self._report.boot_id or not open_:
            self._put(pending=None, pending_boot="")
            if conclusion.fit:
                self._log.write("fault_gone", reason=pending.reason)
            return conclusion
        first = pending if conclusion.fit else conclusion
        return msgspec.structs.replace(first, causes=tuple(dict.fromkeys((*conclusion.causes, *open_))))

    def _together(self, left: Left) -> Conclusion:
        """What was left, and what was kept before during the same boot."""
        before = self._record.pending
        if before is None or self._record.pending_boot != left.boot_id:
            return left.conclusion
        causes = tuple(dict.fromkeys((*left.conclusion.causes, *before.causes)))
        return msgspec.structs.replace(left.conclusion, causes=causes)

    # -- acting ----------------------------------------------------------------------------------------

    def _act(self, conclusion: Conclusion, slurm: SlurmClient) -> Done:
        node = self._look(slurm)
        self._recognise(node)
        decision = self._decide(node, conclusion, ())
        if decision.action is Action.DRAIN:
            if self._now < self._record.waits_until:
                return Done(action=Action.NOTHING, why="it could not be drained a short time ago")
            self._put(waits_until=self._now + BACK_OFF_S)
            shares = drain.shares_of(slurm.nodes(), node.name, self._now)
            decision = self._decide(node, conclusion, shares)
        if decision.action is Action.NOTHING:
            self._put(pending=None, pending_boot="")
            if decision.later:
                self._keep(conclusion)
            if not conclusion.fit:
                self._tell("not_drained", why=decision.why, reason=conclusion.reason)
            return Done(action=decision.action, why=decision.why, reason=self._record.reason)
        if not self._acts:
            self._tell(f"would_{decision.action.name.lower()}", why=decision.why, reason=decision.reason)
            return Done(action=decision.action, why=f"observe mode, would {decision.action.value}")
        if decision.action is Action.UNDRAIN:
            return self._undrain(node, decision, slurm)
        return self._drain(decision, conclusion, slurm)

    def _decide(self, node: Node, conclusion: Conclusion, shares: Sequence[drain.Share]) -> drain.Decision:
        return drain.decide(node, conclusion, self._record, shares, self._config.drain, self._now)

    def _look(self, slurm: SlurmClient) -> Node:
        return slurm.nodes([self._report.node])[0]

    def _recognise(self, node: Node) -> None:
        """Bring the record up to what Slurm shows: a drain that took effect late, or that somebody undid."""
        record = self._record
        if drain.is_own(node, record):
            if record.since not in record.drains:
                self._put(drains=self._recent_drains(record.since))
        elif record.reason and not node.is_drained and not drain.untouchable(node):
            self._log.write("returned_by_others", reason=record.reason)
            # The causes stay: it may be a quarantine that has resumed it, which asks what is to be proven.
            self._put(reason="", passes=0, stays=False, waits_until=0.0)

    def _drain(self, decision: drain.Decision, conclusion: Conclusion, slurm: SlurmClient) -> Done:
        new = decision.action is Action.DRAIN
        known = () if new else self._record.causes
        # Written first: should this process die now, the next run still knows the words as its own, and
        # what they are about: it may look at other things.
        self._keep(conclusion)
        self._put(
            reason=decision.reason,
            former="" if new else self._record.reason,
            since=self._now if new else self._record.since,
            causes=tuple(dict.fromkeys((*known, *causes_of(conclusion)))),
            passes=0,
            stays=decision.stays,
        )
        self._save()
        slurm.drain([self._report.node], decision.reason)
        self._put(pending=None, pending_boot="", former="")
        if new:
            self._put(drains=self._recent_drains(self._now))
            if excess := self._excess(slurm):
                self._keep(conclusion)
                return self._take_back(excess, slurm)
        self._log.write(
            "drained" if new else "reason_updated",
            reason=decision.reason,
            why=decision.why,
            job=self._job,
            stays=decision.stays,
            causes=conclusion.causes,
        )
        self._put(said="")
        return Done(action=decision.action, why=decision.why, reason=decision.reason, carried_out=True)

    def _excess(self, slurm: SlurmClient) -> str:
        """Why this drain is one too many, now that all of the same second can be seen."""
        from slurm_robust.slurm.errors import SlurmCommandError

        self._pause(SETTLE_S)
        try:
            return drain.beyond_cap(slurm.nodes(), self._report.node, self._config.drain, self._now)
        except SlurmCommandError as error:
            self._log.write("cap_not_verified", error=str(error)[:500])
            return ""

    def _take_back(self, excess: str, slurm: SlurmClient) -> Done:
        if drain.is_own(self._look(slurm), self._record):
            slurm.resume([self._report.node])
        reason = self._record.reason
        others = tuple(t for t in self._record.drains if t != self._now)
        self._put(reason="", causes=(), stays=False, drains=others)
        self._tell("not_drained", why=excess, reason=reason)
        return Done(action=Action.NOTHING, why=excess)

    def _undrain(self, node: Node, decision: drain.Decision, slurm: SlurmClient) -> Done:
        slurm.resume([node.name])
        if drain.is_own(self._look(slurm), self._record):
            self._tell("not_undrained", why="Slurm took the order, but the node is still drained")
            return Done(action=decision.action, why=decision.why, reason=node.reason, error="still drained")
        self._log.write("undrained", reason=node.reason, why=decision.why)
        self._put(reason="", causes=(), passes=0, said="", waits_until=0.0)
        return Done(action=decision.action, why=decision.why, carried_out=True)

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

    def _tell(self, event: str, **facts: object) -> None:
        """Write an event unless it was the last one about this node."""
        causes = ",".join(f"{c.check}/{c.subject}" for c in self._record.causes)
        words = f"{event}: {facts.get('why') or facts.get('reason') or ''} {causes}".strip()
        if words != self._record.said:
            self._put(said=words)
            self._log.write(event, **facts, job=self._job)


# -- Slurm's commands from a hook ----------------------------------------------------------------------


def slurm_client(config: NodeConfig, deadline: float) -> SlurmClient:
    """A client for hooks: no environment assumed, each command bounded, all of them by ``deadline``.

    ``deadline`` is a time of ``time.monotonic()``.
    """
    from slurm_robust.slurm.cli_client import CliSlurmClient
    from slurm_robust.slurm.process import CommandTimeout, CompletedCommand, run_command

    def run(command: Sequence[str], *, timeout_s: float, **more: object) -> CompletedCommand:
        left = min(timeout_s, deadline - time.monotonic())
        if left <= 0:
            raise CommandTimeout(command, 0.0)
        return run_command(command, timeout_s=left, **more)  # type: ignore[arg-type]  # passed through

    return CliSlurmClient(config.hooks.slurm_s, environ=slurm_environment(config, os.environ.get), run=run)


def slurm_environment(config: NodeConfig, given: Callable[[str], str | None]) -> dict[str, str]:
    """PATH and SLURM_CONF for Slurm's commands; Slurm gives hooks neither."""
    folders = (config.hooks.slurm_bin, *beside_slurmd(), *_USUAL_BINS)
    environ = {"PATH": ":".join(dict.fromkeys(filter(None, folders))), "LC_ALL": "C.UTF-8"}
    conf = config.hooks.slurm_conf or given("SLURM_CONF")
    return {**environ, "SLURM_CONF": conf} if conf else environ


def beside_slurmd() -> tuple[str, ...]:
    """Folders of Slurm's commands, from the slurmd that started this hook; empty below none."""
    pid = os.getppid()
    for _ in range(_MOST_PARENTS):
        try:
            program = Path(os.readlink(f"/proc/{pid}/exe"))
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return ()
        if program.name.startswith("slurm"):
            return (str(program.parent.parent / "bin"), str(program.parent))
        pid = int(stat.rpartition(")")[2].split()[1])
        if pid <= 1:
            return ()
    return ()
