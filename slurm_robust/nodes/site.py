"""Checks of the site: executables with the Nagios convention, and functions in Python.

Like every source they run in a child that is killed with its process group when its time is over.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import stat
from collections.abc import Iterable, Iterator

import msgspec

from slurm_robust.config.node import NodeConfig, SiteCheck
from slurm_robust.kernel.host import Host
from slurm_robust.model.findings import Finding, Outcome, Suggestion, Writer
from slurm_robust.model.record import Record
from slurm_robust.nodes.check import ENVIRON, AnyCheck, Check, CheckContext, Hang, Probe, Source, View
from slurm_robust.util.text import one_line
from slurm_robust.util.trust import distrust

_TEXT, _VALUE, _OUTPUT = 160, 200, 2**16
_NO_CHECKS = ("~", ".bak", ".swp", ".rpmnew", ".rpmorig", ".rpmsave", ".dpkg-new", ".dpkg-old", ".dpkg-dist")
# Python ignores these, and children would inherit that.
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
_WARNING, _CRITICAL, _NOT_KNOWN = 1, 2, 3


class SiteFacts(Record):
    """What a command said, or the findings of a function."""

    code: int = 0
    """Exit code; negative: a signal."""

    text: str = ""
    value: str = ""
    """The values behind ``|``."""

    findings: tuple[Finding, ...] = ()


def checks(config: NodeConfig, host: Host = Host()) -> tuple[AnyCheck, ...]:  # noqa: B008 - only a path
    """Return the checks that the site has configured, and those that lie in its folder."""
    named = {check.name: check for check in config.site_checks}
    dropped = {check.name: check for check in _of_folder(host, config.site_checks_dir)}
    return tuple(_made(check) for check in (dropped | named).values())


def _of_folder(host: Host, folder: str) -> Iterator[SiteCheck]:
    for name in host.names(folder) if folder else ():
        path = f"{folder.rstrip('/')}/{name}"
        if name.startswith(".") or name.endswith(_NO_CHECKS):
            continue
        try:
            mode = host.path(path).stat().st_mode
        except OSError:
            continue
        if stat.S_ISREG(mode) and mode & 0o111:
            yield SiteCheck(name=re.sub(r"[^A-Za-z0-9._-]", "_", name), command=(path,))


def _made(check: SiteCheck) -> AnyCheck:
    def gather(host: Host, config: NodeConfig) -> SiteFacts:
        return _of_function(check, host) if check.python else _of_command(check, host)

    def judge(view: View[SiteFacts], config: NodeConfig) -> Iterable[Finding]:
        return view.facts.findings if check.python else (_judged(check, view.facts),)

    source = Source(
        name=f"site.{check.name}",
        facts=SiteFacts,
        gather=gather,
        timeout_s=check.timeout_s,
        hang=Hang(text=f"no answer in {check.timeout_s:g} s"),
    )
    return Check(
        name=source.name,
        source=source,
        judge=judge,
        written_by=Writer.ROOT,
        contexts=frozenset(CheckContext(name) for name in check.contexts),
        probe=Probe.NODE,
        hangs=True,
        explain=f"A check of this site: {check.python or ' '.join(check.command)}. Exit codes of a command: "
        f"0 pass, 1 warning (jobs go on), 2 failure ({check.suggestion}), anything else unknown.",
    )


def _judged(check: SiteCheck, facts: SiteFacts) -> Finding:
    outcome, suggestion = Outcome.PASS, Suggestion.NONE
    if facts.code == _WARNING:
        outcome, suggestion = Outcome.FAIL, Suggestion.MONITOR
    elif facts.code == _CRITICAL:
        outcome, suggestion = Outcome.FAIL, Suggestion(check.suggestion)
    elif facts.code:
        outcome = Outcome.UNKNOWN
    how = f"exit code {facts.code}" if facts.code >= 0 else f"ended by signal {-facts.code}"
    # What a broken command prints is no statement about the node.
    is_said = 0 <= facts.code <= _NOT_KNOWN and facts.text
    return Finding(
        check=f"site.{check.name}",
        subject=check.name,  # A drain's reason has no other place to say which of them.
        outcome=outcome,
        text="" if outcome is Outcome.PASS else facts.text if is_said else how,
        value=facts.value or (facts.text if outcome is Outcome.PASS else how),
        source=check.command[0],
        suggestion=suggestion,
    )


def _of_command(check: SiteCheck, host: Host) -> SiteFacts:
    """Run it. Raises ``RuntimeError`` for one that root must not run, ``OSError`` if it cannot be run."""
    named = check.command[0]
    if not named.startswith("/"):
        raise RuntimeError(f"{named} is not run: no absolute path")
    path = os.path.normpath(host.path(named))
    target = os.path.realpath(path)
    # The user who runs this may trust their own commands: an agent is not root.
    reason = distrust(path, {0, os.geteuid()}) or ("" if os.path.isfile(target) else "no file")
    if reason:
        raise RuntimeError(f"{named} is not run: {reason}")
    code, output = _run(target, [named, *check.command[1:]])
    text, _, value = output.partition("\n")[0].partition("|")
    return SiteFacts(code=code, text=one_line(text, _TEXT), value=one_line(value, _VALUE))


def _run(path: str, command: list[str]) -> tuple[int, str]:
    """Exit code and the beginning of the output. Without ``subprocess``, which is slow to import."""
    ours, theirs = os.pipe()
    null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 2)]
    try:
        pid = os.posix_spawn(
            path, command, ENVIRON, file_actions=[*null, (os.POSIX_SPAWN_DUP2, theirs, 1)],
            setsigmask=(), setsigdef=_IGNORED,
        )  # fmt: skip
    except OSError:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    output = b""
    try:
        while len(output) < _OUTPUT and (chunk := os.read(ours, _OUTPUT)):
            output += chunk
    finally:
        os.close(ours)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, output[:_OUTPUT].decode(errors="replace")


def _of_function(check: SiteCheck, host: Host) -> SiteFacts:
    """Call it. What it raises tells why nothing is known."""
    module, _, name = check.python.partition(":")
    answer = getattr(importlib.import_module(module), name)(host)
    found = (answer,) if isinstance(answer, Finding) else tuple(answer)
    if wrong := [item for item in found if not isinstance(item, Finding)]:
        raise RuntimeError(f"{check.python} returned {type(wrong[0]).__name__} and no Finding")
    return SiteFacts(findings=tuple(_cleaned(check, finding) for finding in found))


def _cleaned(check: SiteCheck, finding: Finding) -> Finding:
    is_open = finding.outcome is Outcome.FAIL and finding.suggestion is Suggestion.NONE
    return msgspec.structs.replace(
        finding,
        check=f"site.{check.name}",
        subject=one_line(finding.subject, _TEXT) or check.name,
        text=one_line(finding.text, _TEXT),
        value=one_line(finding.value, _VALUE),
        limit=one_line(finding.limit, _VALUE),
        source=one_line(finding.source or check.python, _VALUE),
        suggestion=Suggestion(check.suggestion) if is_open else finding.suggestion,
    )
