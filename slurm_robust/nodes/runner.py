"""One run of the checks: choose, gather side by side in time, judge, remember."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from slurm_robust.config.node import CheckRule, NodeConfig
from slurm_robust.kernel.host import Host, node_name
from slurm_robust.model.findings import Finding, Outcome
from slurm_robust.model.record import Record
from slurm_robust.nodes.check import AnyCheck, AnySource, CheckContext, View
from slurm_robust.nodes.gpus.links import together
from slurm_robust.nodes.memory import Memory
from slurm_robust.nodes.registry import CHECKS
from slurm_robust.nodes.verdict import OUT_OF_TIME, Report, overridden, rule_of, subject_key
from slurm_robust.util.isolate import CallResult, call


def all_checks(config: NodeConfig, host: Host) -> tuple[AnyCheck, ...]:
    """Return our checks and the site's."""
    if not config.site_checks and not (config.site_checks_dir and host.names(config.site_checks_dir)):
        return CHECKS
    from slurm_robust.nodes.site import checks

    return *CHECKS, *checks(config, host)


def choose(
    checks: Iterable[AnyCheck], config: NodeConfig, context: CheckContext, only: Sequence[str] = ()
) -> tuple[tuple[AnyCheck, ...], dict[str, str]]:
    """Return the checks to run, and those that the site has switched off, with the reason. Pure."""
    chosen = []
    left_out = {}
    for check in checks:
        rule = rule_of(config, check.name)
        if context not in contexts_of(check, rule) or not _is_asked(check.name, only):
            continue
        if rule.enabled is False:
            left_out[check.name] = "switched off in the configuration"
        else:
            chosen.append(check)
    return tuple(chosen), left_out


def contexts_of(check: AnyCheck, rule: CheckRule) -> frozenset[CheckContext]:
    """Return the contexts in which a check runs by the site's rule for it. Live with the periodic runs, if it
    can run live. Pure.
    """
    if rule.contexts is None:
        return check.contexts
    contexts = frozenset(map(CheckContext, rule.contexts))
    return (
        contexts | (check.contexts & {CheckContext.LIVE}) if CheckContext.PERIODIC in contexts else contexts
    )


def inspect(
    config: NodeConfig,
    context: CheckContext,
    *,
    host: Host = Host(),  # noqa: B008 - holds nothing but the root's path
    memory: Memory | None,
    now: float,
    budget_s: float,
    job_gone: bool | Callable[[], bool | None] | None = None,
    only: Sequence[str] = (),
    checks: Sequence[AnyCheck] | None = None,
    calls: Callable[..., dict[str, CallResult]] = call,
) -> Report:
    """Run the checks of ``context`` within ``budget_s`` seconds. Never raises for what a check does.

    ``now`` is wall-clock time, seconds since 1970. A ``job_gone`` that is called has to hold before and after
    gathering: what a job that begins meanwhile does is not left over. ``only`` has names or patterns of
    checks; ``checks`` replaces those of the registry. With a ``memory`` the run is remembered and, when
    periodic or live, counted. ``calls`` gathers: in children, or
    :func:`~slurm_robust.util.isolate.directly`.
    """
    begun = time.monotonic()
    chosen, left_out = choose(all_checks(config, host) if checks is None else checks, config, context, only)
    is_gone = job_gone if callable(job_gone) else lambda: job_gone
    run = _CheckRun(config, host, memory, now, is_gone())
    reused = run.reuse(chosen) if context is CheckContext.PROLOG else ()
    sources = {check.source.name: check.source for check in chosen}
    run.gather([source for name, source in sources.items() if name not in reused], budget_s, calls)
    if run.job_gone and sources.keys() - set(reused):
        run.job_gone = is_gone()
    findings = together([finding for check in chosen for finding in run.findings(check)])
    left_out |= run.left_out(chosen)
    if memory is not None:
        if context in (CheckContext.PERIODIC, CheckContext.LIVE):
            _count(memory, chosen, findings, config)
        memory.save()
    return Report(
        node=node_name(os.environ),
        at=now,
        boot_id=run.boot_id,
        context=context,
        findings=tuple(findings),
        took_s={name: round(answer.took_s, 4) for name, answer in run.answers.items()},
        reused=reused,
        left_out=left_out,
        errors=run.errors,
        wall_s=round(time.monotonic() - begun, 4),
    )


def failing_runs(report: Report, memory: Memory | None) -> dict[str, int]:
    """Count for :func:`~slurm_robust.nodes.verdict.conclude`; without a memory every failure is the first."""
    names = {subject_key(found) for found in report.findings if found.outcome is Outcome.FAIL}
    return {name: max(1, memory.keeping_away(name)) if memory else 1 for name in names}


def baseline_facts(
    config: NodeConfig, host: Host, budget_s: float, checks: Sequence[AnyCheck] | None = None
) -> tuple[dict[str, Record], dict[str, str]]:
    """Return what the node is like now, by source, and the sources that could not be read, with the reason.

    Sources whose facts may never be used again (``fresh_s`` is 0) describe a moment and not the node.
    """
    every = all_checks(config, host) if checks is None else checks
    sources = {check.source.name: check.source for check in every if check.source.fresh_s > 0}
    run = _CheckRun(config, host, None, 0.0, None)
    run.gather(list(sources.values()), budget_s, call)
    silent = {name: answer.error for name, answer in run.answers.items() if answer.value is None}
    return {name: sample.facts for name, sample in run.facts.items()}, silent


class _CheckRun:
    """The facts of one run and their origin."""

    def __init__(
        self, config: NodeConfig, host: Host, memory: Memory | None, now: float, job_gone: bool | None
    ) -> None:
        self._config = config
        self._host = host
        self._memory = memory
        self._now = now
        self.job_gone = job_gone
        self.facts: dict[str, View[Any]] = {}
        self.boot_id = host.boot_id()
        self.answers: dict[str, CallResult] = {}
        self.errors: dict[str, str] = {}

    def reuse(self, checks: Sequence[AnyCheck]) -> tuple[str, ...]:
        """Take facts that are fresh and good; whatever is amiss is measured anew."""
        if self._memory is None:
            return ()
        for source in {check.source.name: check.source for check in checks}.values():
            if (sample := self._memory.fresh(source, self._now, self.boot_id)) is None:
                continue
            self.facts[source.name] = sample
            found = [f for check in checks if check.source.name == source.name for f in self.findings(check)]
            if any(finding.outcome is not Outcome.PASS for finding in found):
                del self.facts[source.name]
        self.errors.clear()  # They come again when the facts are judged for good.
        return tuple(self.facts)

    def gather(
        self, sources: Sequence[AnySource], budget_s: float, calls: Callable[..., dict[str, CallResult]]
    ) -> None:
        """Read these parts of the machine, side by side."""
        # What may take longest begins first: after the others it might have no time to be found hanging.
        sources = sorted(sources, key=lambda source: -source.timeout_s)
        tasks = {source.name: self._task(source) for source in sources}
        limits = {source.name: source.timeout_s for source in sources}
        self.answers = calls(tasks, limits, budget_s, shared=True)
        for source in sources:
            answer = self.answers[source.name]
            if answer.value is None:
                continue
            try:
                facts = msgspec.msgpack.decode(answer.value, type=source.facts)
            except msgspec.MsgspecError as error:
                wrong = CallResult(value=None, error=f"wrong facts: {error}", took_s=answer.took_s)
                self.answers[source.name] = wrong
                self.errors[source.name] = wrong.error
                continue
            sample = View(at=self._now, boot_id=self.boot_id, facts=facts)
            self.facts[source.name] = sample
            if self._memory is not None:
                self._memory.remember(source, sample)

    def findings(self, check: AnyCheck) -> tuple[Finding, ...]:
        """Return what a check says, or why it can say nothing."""
        sample = self.facts.get(check.source.name)
        if sample is None:
            return (_of(check, _silence(check, self.answers[check.source.name])),)
        view: View[Record] = View(
            facts=sample.facts,
            at=sample.at,
            boot_id=self.boot_id,
            before=self._memory.before(check.source, sample.at) if self._memory else (),
            baseline=self._memory.baseline(check.source) if self._memory else None,
            job_gone=self.job_gone,
        )
        try:
            return tuple(_of(check, finding) for finding in check.judge(view, self._config))
        except Exception as error:  # noqa: BLE001 - a bug in one check must not take the others along
            self.errors[check.name] = f"{type(error).__name__}: {error}"
            text = f"error in the check: {self.errors[check.name]}"
            return (Finding(check=check.name, outcome=Outcome.UNKNOWN, text=text),)

    def left_out(self, checks: Sequence[AnyCheck]) -> dict[str, str]:
        """Return the checks for which the time was too short."""
        late = {name for name, answer in self.answers.items() if answer.is_cut}
        return {check.name: OUT_OF_TIME for check in checks if check.source.name in late}

    def _task(self, source: AnySource) -> Callable[[], bytes]:
        return lambda: msgspec.msgpack.encode(source.gather(self._host, self._config))


def _of(check: AnyCheck, finding: Finding) -> Finding:
    if finding.confirm >= check.confirm or finding.outcome is not Outcome.FAIL:
        return finding
    return msgspec.structs.replace(finding, confirm=check.confirm)


def _silence(check: AnyCheck, answer: CallResult) -> Finding:
    hang = check.source.hang
    if answer.hung and check.hangs:
        return Finding(
            check=check.name,
            outcome=hang.outcome,
            text=hang.text,
            value=f"no answer in {answer.took_s:.1f} s",
            limit=f"{check.source.timeout_s:g} s",
            source=check.source.name,
            blame=hang.blame,
            suggestion=hang.suggestion,
        )
    text = f"left out, budget: {answer.error}" if answer.is_cut else answer.error
    return Finding(check=check.name, outcome=Outcome.UNKNOWN, text=text, source=check.source.name)


def _is_asked(name: str, only: Sequence[str]) -> bool:
    return not only or any(fnmatchcase(name, pattern) for pattern in only)


def _count(
    memory: Memory, checks: Iterable[AnyCheck], findings: Sequence[Finding], config: NodeConfig
) -> None:
    unknown = {finding.check for finding in findings if finding.outcome is Outcome.UNKNOWN}
    known = [finding for finding in findings if finding.outcome is not Outcome.UNKNOWN]
    failed = {subject_key(finding): finding.outcome is Outcome.FAIL for finding in known}
    ruled = (overridden(f, rule_of(config, f.check)) for f in known if f.outcome is Outcome.FAIL)
    away = {subject_key(finding) for finding in ruled if finding.suggestion.keeps_jobs_away}
    memory.count(failed, away, {check.name for check in checks} - unknown)
