"""What keeps jobs away from a node, and the reason that Slurm gets."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.config.node import CheckRule, NodeConfig
from slurm_robust.model.findings import Finding, Outcome, Suggestion
from slurm_robust.nodes.check import CheckContext
from slurm_robust.nodes.verdict import REASON_BYTES, Report, conclude, reason, rule_of
from slurm_robust.util.text import ascii_line

XID = Finding(
    check="kernel.xid",
    outcome=Outcome.FAIL,
    subject="gpu3",
    text="XID 79, fell off the bus",
    suggestion=Suggestion.REBOOT,
)
HOT = Finding(
    check="gpu.temperature", outcome=Outcome.FAIL, subject="gpu1", text="91 C", suggestion=Suggestion.MONITOR
)
MUTE = Finding(check="mounts.answer", outcome=Outcome.UNKNOWN, subject="/home", text="no permission")
WELL = Finding(check="memory.size", outcome=Outcome.PASS)


def judged(*findings: Finding, context: CheckContext = CheckContext.PERIODIC, **rules: CheckRule) -> Report:
    config = NodeConfig(checks={name.replace("__", "."): rule for name, rule in rules.items()})
    report = Report(node="n1", at=1.0, boot_id="b", context=context, findings=findings)
    return conclude(report, config, {})


def test_a_failure_that_needs_a_remedy_keeps_jobs_away_and_others_warn() -> None:
    found = judged(WELL, HOT, MUTE, XID)
    assert (found.fit, found.suggestion) == (False, Suggestion.REBOOT)
    assert (found.causes, found.warnings, found.unknown) == ((XID,), (HOT,), (MUTE,))
    assert found.reason == "srobust: gpu3 XID 79, fell off the bus"


def test_what_is_unknown_lets_jobs_start_unless_the_site_says_otherwise() -> None:
    assert judged(MUTE, WELL).fit
    closed = judged(MUTE, WELL, mounts__answer=CheckRule(on_unknown="closed"))
    assert (closed.fit, closed.causes, closed.unknown) == (False, (MUTE,), ())
    assert closed.reason == "srobust: /home unknown: no permission"


def test_the_worst_cause_is_named_first_and_the_others_are_counted() -> None:
    dead = Finding(
        check="a", outcome=Outcome.FAIL, subject="gpu0", text="lost", suggestion=Suggestion.REPLACE
    )
    reset = Finding(check="b", outcome=Outcome.FAIL, text="stuck", suggestion=Suggestion.RESET)
    found = judged(MUTE, reset, XID, dead, mounts__answer=CheckRule(on_unknown="closed"))
    assert found.causes == (dead, XID, reset, MUTE)
    assert found.reason == "srobust: gpu0 lost (+3)"


def test_a_site_changes_what_a_failure_suggests() -> None:
    mild = judged(XID, kernel__xid=CheckRule(suggestion="monitor"))
    assert (mild.fit, mild.warnings[0].suggestion) == (True, Suggestion.MONITOR)
    hard = judged(HOT, gpu__temperature=CheckRule(suggestion="reset"))
    assert (hard.fit, hard.suggestion) == (False, Suggestion.RESET)


@pytest.mark.parametrize(
    ("context", "runs", "fit"),
    [
        (CheckContext.PERIODIC, {"kernel.xid gpu3": 1}, True),
        (CheckContext.PERIODIC, {"kernel.xid gpu3": 2}, True),
        (CheckContext.PERIODIC, {"kernel.xid gpu3": 3}, False),
        (CheckContext.PERIODIC, {"kernel.xid gpu2": 3}, True),
        (CheckContext.PERIODIC, {}, True),
        (CheckContext.PROLOG, {"kernel.xid gpu3": 2}, True),
        (CheckContext.PROLOG, {"kernel.xid gpu3": 3}, False),
        (CheckContext.DEEP, {}, False),
        (CheckContext.PERSON, {}, False),
    ],
)
def test_a_failure_to_be_confirmed_counts_after_that_many_runs(
    context: CheckContext, runs: dict[str, int], fit: bool
) -> None:
    config = NodeConfig(checks={"kernel.*": CheckRule(confirm=3)})
    report = Report(node="n1", at=1.0, boot_id="b", context=context, findings=(XID,))
    found = conclude(report, config, runs)
    assert found.fit is fit
    assert found.warnings == ((XID,) if fit else ())


USERS = msgspec.structs.replace(XID, check="disks.space", subject="/tmp", confirm=3)


@pytest.mark.parametrize("context", CheckContext)
@pytest.mark.parametrize(("runs", "fit"), [(0, True), (1, True), (2, True), (3, False), (9, False)])
def test_what_users_can_write_counts_when_it_stays_in_every_context(
    context: CheckContext, runs: int, fit: bool
) -> None:
    report = Report(node="n1", at=1.0, boot_id="b", context=context, findings=(USERS, WELL))
    assert conclude(report, NodeConfig(), {"disks.space /tmp": runs} if runs else {}).fit is fit


def test_a_site_decides_how_often_what_users_can_write_must_be_seen() -> None:
    assert not judged(USERS, disks__space=CheckRule(confirm=1)).fit
    config = NodeConfig(checks={"disks.*": CheckRule(confirm=9)})
    report = Report(node="n1", at=1.0, boot_id="b", context=CheckContext.PERIODIC, findings=(USERS,))
    assert conclude(report, config, {"disks.space /tmp": 8}).fit
    assert not conclude(report, config, {"disks.space /tmp": 9}).fit


def test_later_patterns_override_earlier_ones_and_a_name_overrides_all() -> None:
    checks = {
        "gpu.ecc": CheckRule(confirm=5),
        "gpu.*": CheckRule(confirm=2, enabled=False),
        "*": CheckRule(confirm=1, on_unknown="closed"),
    }
    config = NodeConfig(checks=checks)
    assert rule_of(config, "gpu.ecc") == CheckRule(confirm=5, enabled=False, on_unknown="closed")
    assert rule_of(config, "gpu.xid").confirm == 1
    assert rule_of(NodeConfig(), "gpu.ecc") == CheckRule()


def test_an_empty_report_is_fit() -> None:
    assert judged().fit


@given(
    st.lists(
        st.builds(
            Finding, check=st.just("c"), outcome=st.just(Outcome.FAIL), text=st.text(), subject=st.text()
        )
    )
)
def test_whatever_a_check_says_the_reason_is_short_and_clean(causes: list[Finding]) -> None:
    text = reason(causes)
    assert len(text.encode()) <= REASON_BYTES
    assert all(" " <= letter <= "~" and letter not in "\"'`|\\$" for letter in text)
    assert text.startswith("srobust: ") == bool(causes)


@pytest.mark.parametrize(
    ("text", "most", "line"),
    [
        ("a\nb\tc", 100, "a b c"),
        ("\x1b[31mred\x00", 100, "?[31mred?"),
        ("say 'x' | \"y\" `z` $w", 100, "say x y z w"),
        ("Zürich", 100, "Z?rich"),
        ("0123456789x", 10, "0123456..."),
        ("0123456789", 10, "0123456789"),
    ],
)
def test_text_is_made_safe(text: str, most: int, line: str) -> None:
    assert ascii_line(text, most) == line
