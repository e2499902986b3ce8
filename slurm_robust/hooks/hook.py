"""What happens on a node before a job, after it, and now and then in between."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_robust.config.node import NodeConfig
from slurm_robust.hooks import drainer, seen
from slurm_robust.hooks.drainer import DrainResult
from slurm_robust.hooks.jobs import no_other_job
from slurm_robust.hooks.log import EventLog
from slurm_robust.hooks.record import DrainAction, DrainFile
from slurm_robust.hooks.sweep import Swept, number, sweep_gone, sweep_job
from slurm_robust.hooks.undertest import under_test, wait_for_test
from slurm_robust.kernel.host import Host, node_name
from slurm_robust.model.findings import Outcome
from slurm_robust.model.nodefolders import SHARED_MEMORY
from slurm_robust.model.nodeseen import HookSeen
from slurm_robust.model.record import Record
from slurm_robust.nodes.check import CheckContext
from slurm_robust.nodes.gpus.leftovers import LEFTOVERS, STANDS_S, is_being_freed
from slurm_robust.nodes.memory import Memory
from slurm_robust.nodes.runner import failing_runs, inspect
from slurm_robust.nodes.verdict import Report, conclude, subject_key

if TYPE_CHECKING:
    from slurm_robust.model.findings import Suspect

_SWEEP_SHARE = 0.3
_TEST_SHARE = 0.5
"""Share of the time for a test that an epilog still runs."""

_CHECK_SHARE = 0.6
"""Share of the time that is left then; the rest is for Slurm."""

_LAST_WORDS_S = 0.2

_LAST_CHECK_S = 10.0
"""Seconds of an epilog's time that waiting for memory of GPUs leaves: for the check that counts, and for
Slurm.
"""


class Hook(str, Enum):
    """When Slurm calls."""

    PROLOG = "prolog"
    EPILOG = "epilog"
    PERIODIC = "periodic"


class HookResult(Record):
    """How a hook ends."""

    exit_code: int = 0
    message: str = ""
    """The line for slurmd's log."""

    failing: str = ""
    """A line for each failure."""


class _HookRun:
    """One hook, begun now."""

    def __init__(
        self,
        hook: Hook,
        config: NodeConfig,
        environ: Mapping[str, str],
        budget_s: float,
        host: Host,
        begun: float | None = None,
    ) -> None:
        self._begun = time.monotonic() if begun is None else begun
        self._hook = hook
        self._config = config
        self._environ = environ
        self._host = host
        self._deadline = time.monotonic() + 0.9 * budget_s
        self._now = time.time()
        self.job = number(environ, "SLURM_JOB_ID")
        self.node = node_name(environ)
        self.log = EventLog(config.paths, self.node)
        self._memory = Memory(Path(config.paths.state))

    def left_s(self, share: float = 1.0) -> float:
        """Return this share of what is left of the budget."""
        return max(0.0, share * (self._deadline - time.monotonic() - _LAST_WORDS_S))

    def prolog(self, shm: Path) -> HookResult:
        """Make room, check the node, and refuse the job if it must not run here."""
        if self._config.hooks.sweep:
            self._log_sweep(sweep_gone(self._config, self.job, self.node, self.left_s(_SWEEP_SHARE), shm))
        was_tested = wait_for_test(Path(self._config.paths.state), self.left_s(_TEST_SHARE))
        if seen.wants_no_tests(self._config, self._environ):
            return self._untested(was_tested=was_tested)
        report = self._check(CheckContext.PROLOG)
        done = self._settle(report)
        drained = DrainFile(Path(self._config.paths.state)).load().reason if was_tested else ""
        refused = is_refused(report, done) or bool(drained)
        code = int(self._config.drain.mode == "act" and refused)
        self._log_run(report, done, code)
        self._publish(report, code)
        if self._config.hooks.tell_owner and self.job:
            seen.keep(self._config, self.job, seen.seen_by(report, self._memory))
        return HookResult(exit_code=code, message=self._said(report, done) or drained)

    def _untested(self, *, was_tested: bool) -> HookResult:
        """Return the result without tests: the job's owner wants none, and the site allows that."""
        self.log.write("tests_skipped", job=self.job, uid=number(self._environ, "SLURM_JOB_UID"))
        if self._config.hooks.tell_owner and self.job:
            seen.keep(self._config, self.job, HookSeen(at=self._now, skipped=True))
        drained = DrainFile(Path(self._config.paths.state)).load().reason if was_tested else ""
        return HookResult(exit_code=int(self._config.drain.mode == "act" and bool(drained)), message=drained)

    def epilog(self, shm: Path) -> HookResult:
        """Make room, and check the node; deeply if the job suspected it. Never fails."""
        with ExitStack() as testing:
            # First of all: the next prolog may come before it is known whether there is a suspect.
            testing.enter_context(under_test(Path(self._config.paths.state)))
            if self._config.hooks.sweep:
                self._log_sweep(sweep_job(self._config, self._environ, self.left_s(_SWEEP_SHARE), shm))
            from slurm_robust.hooks.suspects import Ignored, read_suspect  # in epilogs only

            suspect = read_suspect(self._config, self._environ, self.node, self._now)
            if isinstance(suspect, Ignored):
                self.log.write("suspect_ignored", job=self.job, why=suspect.why)
                suspect = None
            if suspect is None:
                testing.close()
            ended = self._test(suspect)
        if self._config.fleet.collect:
            self._spool_summary()
        return ended

    def _spool_summary(self) -> None:
        from slurm_robust.hooks import summaries  # only if a site collects them

        found = summaries.spool_summary(
            self._config, self._environ, self.node, self._now, max(0.1, self.left_s())
        )
        if isinstance(found, summaries.Kept):
            self.log.note("summary_kept", job=self.job, bytes=found.bytes)
        elif found is not None:
            name = "summary_not_kept" if isinstance(found, summaries.NotKept) else "summary_ignored"
            self.log.write(name, job=self.job, why=found.why)

    def _test(self, suspect: Suspect | None) -> HookResult:
        context = CheckContext.DEEP if suspect else CheckContext.EPILOG
        report = self._check(context)
        if is_being_freed(report.findings):
            self._wait_for_gpus()
            report = self._check(context)
        if suspect is not None and report.fit:
            self._log_acquittal(suspect, report)
        done = self._settle(report)
        self._log_run(report, done, 0)
        self._publish(report)
        if self._config.hooks.tell_owner:
            self._tell_owner(report)
        return HookResult(message=self._said(report, done))

    def _tell_owner(self, report: Report) -> None:
        from slurm_robust.hooks import owner  # in epilogs only

        limit_s = max(0.1, min(owner.WRITE_S, self.left_s()))
        told = owner.tell(self._config, self._environ, report, self._memory, limit_s)
        if isinstance(told, owner.FileFound):
            self.log.note("owner_told", job=self.job, file=told.file)
        elif told is not None:
            self.log.note("owner_not_told", job=self.job, why=told.why)

    def periodic(self, only: Sequence[str] = (), known: str | None = None) -> HookResult:
        """Check the node, drain it or return it. Never fails.

        ``known``: what a run of the same checks found moments ago; finding it again is no news.
        """
        report = self._check(CheckContext.PERIODIC, only)
        # A warning that has been confirmed is news.
        causes = [f"{subject_key(found)}: keeps jobs away" for found in report.causes]
        failing = "\n".join(sorted([*causes, *map(subject_key, report.warnings)]))
        if known is not None and failing == known:
            return HookResult(message=report.reason, failing=failing)
        done = self._settle(report, whole=not only)
        began, ended = self._memory.changes()
        if began or ended:
            self.log.write("changed", failing=began, passing=ended)
        self._log_run(report, done, 0)
        self._publish(report, whole=not only)
        return HookResult(message=self._said(report, done), failing=failing)

    def _wait_for_gpus(self) -> None:
        """Check until their memory is free, or has long enough not become less.

        Each check takes its time by itself while there is something to wait for.
        """
        end = time.monotonic() + min(STANDS_S, self.left_s() - _LAST_CHECK_S)
        freeing = True
        while freeing and time.monotonic() < end:
            self._begin_anew()
            freeing = is_being_freed(self._check(CheckContext.EPILOG, (LEFTOVERS,)).findings)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._now = time.time()
        self._memory = Memory(Path(self._config.paths.state))

    def _check(self, context: CheckContext, only: Sequence[str] = ()) -> Report:
        report = inspect(
            self._config,
            context,
            host=self._host,
            memory=self._memory,
            now=self._now,
            budget_s=self.left_s(_CHECK_SHARE),
            job_gone=partial(no_other_job, self._host, self.job),
            only=only,
        )
        return conclude(report, self._config, failing_runs(report, self._memory))

    def _log_acquittal(self, suspect: Suspect, report: Report) -> None:
        """Log that the tests that a job asked for found nothing. Tests cut short prove neither side."""
        facts = {
            "uid": int(self._environ["SLURM_JOB_UID"]),
            "suspected": suspect.reason,
            "symptom": suspect.symptom,
        }
        if report.cut:
            self.log.write("not_acquitted", job=suspect.job_id, **facts, left_out=report.cut)
        else:
            self.log.write("acquitted", job=suspect.job_id, **facts)

    def _settle(self, report: Report, *, whole: bool = False) -> DrainResult:
        return drainer.after(
            report,
            config=self._config,
            now=self._now,
            log=self.log,
            job=str(self.job or ""),
            whole=whole,
            budget_s=self.left_s(),
        )

    def _log_run(self, report: Report, done: DrainResult, code: int) -> None:
        is_well = report.fit and not report.errors
        (self.log.note if is_well else self.log.write)(
            "run",
            hook=self._hook.value,
            job=self.job,
            exit_code=code,
            fit=report.fit,
            reason=report.reason,
            action=self._action(done),
            causes=report.causes,
            warnings=report.warnings,
            unknown=[f"{found.check} {found.subject}".rstrip() for found in report.unknown],
            checks=len({found.check for found in report.findings}),
            reused=report.reused,
            left_out=report.left_out,
            errors=report.errors,
            took_s=report.took_s,
            wall_s=report.wall_s,
            hook_s=round(time.monotonic() - self._begun, 4),
            mode=self._config.drain.mode,
        )

    def _action(self, done: DrainResult) -> str:
        """Return what was done with the node, or would be, "" for nothing."""
        if done.action is DrainAction.NOTHING:
            return ""
        is_act = self._config.drain.mode == "act"
        return done.action.value if is_act else f"would {done.action.value} (observe)"

    def _said(self, report: Report, done: DrainResult) -> str:
        """Return the line for slurmd's log."""
        action = self._action(done)
        return f"{report.reason}: {action}" if report.reason and action.startswith("would") else report.reason

    def _publish(self, report: Report, code: int = 0, *, whole: bool = True) -> None:
        """Write for Prometheus, if the site wants that."""
        if not self._config.metrics.textfile_dir:
            return
        from slurm_robust.hooks.textfile import publish  # hardly any site needs it

        if why := publish(self._config, self._hook.value, report, code, whole=whole):
            self.log.note("metrics_not_written", why=why)

    def _log_sweep(self, swept: Swept) -> None:
        if swept.removed:
            self.log.note("swept", job=self.job, folders=swept.removed)
        if swept.failed:
            self.log.write("not_swept", job=self.job, folders=swept.failed)


def is_refused(report: Report, done: DrainResult) -> bool:
    """Return whether the job must not start here.

    Slurm drains a node whose prolog fails, by its own reason if need be, and without bounds. So a prolog
    fails only if our own drain stands, which is within the bounds. If Slurm did not answer, the job starts:
    else a fault of many nodes and a silent slurmctld would cost the whole partition, while a single node's
    fault is seen by the job's agents and by the epilog. If a site wants to refuse jobs over what is unknown,
    it gets that, although we do not drain for it.
    """
    if report.fit:
        return False
    if report.causes[0].outcome is Outcome.UNKNOWN:
        return True
    return bool(done.carried_out or done.reason)


def run(
    hook: Hook,
    config: NodeConfig,
    environ: Mapping[str, str],
    budget_s: float,
    host: Host = Host(),  # noqa: B008 - holds nothing but the root's path
    shm: Path = SHARED_MEMORY,
    only: Sequence[str] = (),
    known: str | None = None,
    begun: float | None = None,
) -> HookResult:
    """Carry out a hook, usually within ``budget_s`` seconds. A bug may raise anything.

    ``begun``: when the hook did, by the monotonic clock; None for now. ``only`` and ``known`` are of a part
    of the periodic check, as the watch has it.
    """
    this = _HookRun(hook, config, environ, budget_s, host, begun)
    if hook is Hook.PROLOG:
        return this.prolog(shm)
    return this.epilog(shm) if hook is Hook.EPILOG else this.periodic(only, known)
