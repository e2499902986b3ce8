"""``srobust check``: what is wrong with this node, what is unknown, and what to do about it."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import IntEnum
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from msgspec import structs
from rich.console import Group, RenderableType
from rich.text import Text

from slurm_robust.config.node import NodeConfig
from slurm_robust.config.nodefile import FILE, load
from slurm_robust.hooks.jobs import no_other_job
from slurm_robust.kernel.host import Host
from slurm_robust.model.errors import SrobustError
from slurm_robust.model.findings import Finding, Outcome
from slurm_robust.nodes.check import AnyCheck, CheckContext
from slurm_robust.nodes.memory import Memory, record_baseline
from slurm_robust.nodes.runner import all_checks, baseline_facts, contexts_of, failing_runs, inspect
from slurm_robust.nodes.verdict import Report, conclude, rule_of
from slurm_robust.terminal.console import STYLES, Bar, ScreenTable, show
from slurm_robust.util.text import count, one_line

BUDGET_S = 60.0


class Nagios(IntEnum):
    """Exit codes of a check program."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


class NoSuchCheck(SrobustError):
    """No check has such a name."""

    exit_code = Nagios.UNKNOWN
    fix = "srobust check --explain lists all checks"


class CannotRecord(SrobustError):
    """The baseline could not be written."""

    exit_code = Nagios.UNKNOWN
    fix = "run it as root on the node"


def parts_of(report: Report) -> dict[str, dict[str, object]]:
    """Return what ``--json`` prints: the run, and what follows from it."""
    run = structs.asdict(report)
    verdict = {
        "fit": report.fit,
        "reason": run.pop("reason"),
        "suggestion": report.suggestion,
        "causes": run.pop("causes"),
        "warnings": run.pop("warnings"),
        "unknown": report.unknown,
    }
    return {"report": run, "conclusion": verdict}


def main(*, only: Sequence[str], deep: bool, json: bool, config_file: Path | None) -> int:
    """Run the checks and print them; the Nagios code. Raises ``InvalidSettings``, :class:`NoSuchCheck`."""
    config = load(config_file or FILE)
    host = Host()
    _named(all_checks(config, host), only)
    memory = Memory(Path(config.paths.state))
    with Bar("checking this node", quiet=json):
        report = inspect(
            config,
            CheckContext.DEEP if deep else CheckContext.PERSON,
            host=host,
            memory=memory,
            now=time.time(),
            budget_s=BUDGET_S,
            job_gone=partial(no_other_job, host),
            only=only,
        )
    report = conclude(report, config, failing_runs(report, memory))
    is_root = os.geteuid() == 0
    show(parts_of(report), lambda _: render(report, is_root=is_root), json=json)
    return nagios(report)


def explain(pattern: str, *, json: bool, config_file: Path | None) -> int:
    """Explain checks: what they read and why. Raises :class:`NoSuchCheck`."""
    config = load(config_file or FILE)
    found = _named(all_checks(config, Host()), (pattern,))
    described = [_described(check, config) for check in found]
    show(described, lambda every: Group(*map(_explained, every)), json=json)
    return Nagios.OK


def record(*, json: bool, config_file: Path | None) -> int:
    """Record the node's present state as its baseline. Raises :class:`CannotRecord`."""
    config = load(config_file or FILE)
    facts, silent = baseline_facts(config, Host(), BUDGET_S)
    try:
        record_baseline(Path(config.paths.state), facts)
    except OSError as error:
        raise CannotRecord(f"the baseline could not be written: {error}") from error
    recorded = f"recorded in {config.paths.state}: {', '.join(sorted(facts)) or 'nothing'}"
    missing = [f"not recorded: {name}: {one_line(why)}" for name, why in silent.items()]
    show(
        {"recorded": sorted(facts), "not_recorded": silent},
        lambda _: "\n".join([recorded, *missing]),
        json=json,
    )
    return Nagios.WARNING if silent else Nagios.OK


def nagios(report: Report) -> Nagios:
    """Return critical for a failure that keeps jobs away, warning for any other; unknown only without one.

    Where no check found what it looks at, the node is not known to be good.
    """
    if report.causes:
        return Nagios.CRITICAL
    if report.warnings:
        return Nagios.WARNING
    return Nagios.UNKNOWN if report.unknown or not report.findings else Nagios.OK


def headline(report: Report) -> str:
    """Return the line that a monitoring system shows."""
    code = nagios(report)
    worst = next(iter((*report.causes, *report.warnings, *report.unknown)), None)
    cause = f": {f'{worst.subject} {worst.text}'.strip() or worst.check}" if worst else ""
    if not report.findings:
        cause = ": there is nothing here that the checks look at"
    parts = [
        f"{len(found)} {name}"
        for name, found in (
            ("failed", (*report.causes, *report.warnings)),
            ("unknown", report.unknown),
        )
        if found
    ]
    checks = len({finding.check for finding in report.findings})
    return f"{code.name}{cause} ({', '.join([count(checks, 'check'), *parts])} on {report.node})"


def render(report: Report, *, is_root: bool) -> RenderableType:
    """Return the whole screen: subjects, the worst first, and in each its findings, the worst first."""
    parts: list[RenderableType] = [Text(one_line(headline(report)), style="bold")]
    if report.findings:
        parts.append(_table(report.findings))
    parts += [
        Text(one_line(f"left out: {name} ({why})"), style="dim") for name, why in report.left_out.items()
    ]
    parts += [Text(one_line(f"broken: {name}: {why}"), style="red") for name, why in report.errors.items()]
    if not is_root and report.unknown:
        parts.append(Text("Only root can see some of this.", style="dim"))
    return Group(*parts)


def _table(findings: Iterable[Finding]) -> ScreenTable:
    table = ScreenTable()
    for name in ("subject", "result", "check", "what", "measured", "limit", "do"):
        table.add_column(name, overflow="fold", no_wrap=name == "result")
    groups = defaultdict(list)
    for finding in findings:
        groups[finding.subject].append(finding)
    for subject, group in sorted(
        groups.items(), key=lambda item: (min(f.outcome.order for f in item[1]), item[0])
    ):
        _add_group(table, subject or "node", sorted(group, key=lambda finding: finding.outcome.order))
    return table


def _add_group(table: ScreenTable, subject: str, findings: Sequence[Finding]) -> None:
    """Add a row for each failure, one for each reason of an unknown, and one for all that passed."""
    rows: dict[tuple[Outcome, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        failed = finding.outcome is Outcome.FAIL
        rows[finding.outcome, f"{finding.check} {finding.text}" if failed else finding.text].append(finding)
    passed = [finding for key in [*rows] if key[0] is Outcome.PASS for finding in rows.pop(key)]
    for (outcome, _), group in rows.items():
        _add_row(table, subject, outcome, group)
        subject = ""
    if passed:
        _add_row(table, subject, Outcome.PASS, passed)
    table.add_section()


def _add_row(table: ScreenTable, subject: str, outcome: Outcome, group: Sequence[Finding]) -> None:
    first, names = group[0], list(dict.fromkeys(finding.check for finding in group))
    cells = [", ".join(names), first.text, first.value, first.limit, first.suggestion.value]
    if outcome is Outcome.PASS:
        cells = [names[0]] if len(names) == 1 else [f"{len(names)} checks", ", ".join(names)]
    elif outcome is Outcome.FAIL:
        cells[-1] += f" ({first.blame.value})"
    else:
        cells[-1] = ""
    # Text, because a driver's message may contain what rich takes for markup.
    table.add_row(one_line(subject), Text(outcome.value, style=STYLES[outcome]), *map(one_line, cells))


def _described(check: AnyCheck, config: NodeConfig) -> dict[str, object]:
    rule = rule_of(config, check.name)
    return {
        "check": check.name,
        "explain": " ".join(check.explain.split()),
        "contexts": sorted(context.value for context in contexts_of(check, rule)),
        "source": check.source.name,
        "timeout_s": check.source.timeout_s,
        "enabled": rule.enabled is not False,
        "on_unknown": rule.on_unknown or "open",
        "written_by": check.written_by.value,
        "second": check.second,
        "confirm": rule.confirm or check.confirm,
        "suggestion": rule.suggestion or "its own",
    }


def _explained(facts: dict[str, object]) -> RenderableType:
    state = "" if facts["enabled"] else "  (switched off)"
    contexts = facts["contexts"]
    assert isinstance(contexts, list)
    where = (
        f"runs in: {', '.join(contexts)}; reads {facts['source']} in at most {facts['timeout_s']:g} s; "
        f"unknown is {facts['on_unknown']}; written by: {facts['written_by']}; counts after "
        f"{facts['confirm']} periodic run(s)"
    )
    return Group(
        Text(one_line(f"{facts['check']}{state}"), style="bold"),
        Text(one_line(str(facts["explain"]))),
        Text(where, style="dim"),
        "",
    )


def _named(checks: Iterable[AnyCheck], patterns: Sequence[str]) -> list[AnyCheck]:
    every = list(checks)
    for pattern in patterns:
        if not any(fnmatchcase(check.name, pattern) for check in every):
            raise NoSuchCheck(f"no check is named {pattern!r}")
    return [c for c in every if not patterns or any(fnmatchcase(c.name, p) for p in patterns)]
