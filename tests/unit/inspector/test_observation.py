"""What of a run of the checks is a reason for an alert."""

from __future__ import annotations

from slurm_robust.config.node import CheckRule, NodeConfig
from slurm_robust.inspector.gpuevents import XidEvent, findings_of
from slurm_robust.inspector.observation import Observation, decode, encode, sort
from slurm_robust.model.findings import Effect, Finding, Outcome, Party, Suggestion
from slurm_robust.nodes.check import CheckContext
from slurm_robust.nodes.registry import CHECKS
from slurm_robust.nodes.verdict import Report, conclude


def finding(check: str, outcome: Outcome, suggestion: Suggestion = Suggestion.NONE) -> Finding:
    return Finding(check=check, outcome=outcome, subject="x", suggestion=suggestion)


def observation(*findings: Finding, **rules: CheckRule) -> Observation:
    report = Report(node="n1", at=0.0, boot_id="b", context=CheckContext.PERIODIC, findings=findings)
    checks = {name.replace("_", "."): rule for name, rule in rules.items()}
    return sort(conclude(report, NodeConfig(checks=checks), {}), CHECKS)


def test_failures_that_keep_jobs_away_and_some_warnings_are_reasons() -> None:
    lost = finding("gpu.lost", Outcome.FAIL, Suggestion.REBOOT)
    flap = finding("infiniband.flaps", Outcome.FAIL, Suggestion.MONITOR)
    full = finding("memory.pressure", Outcome.FAIL, Suggestion.MONITOR)
    watched = finding("gpu.clocks", Outcome.FAIL, Suggestion.MONITOR)
    passed = finding("gpu.ecc", Outcome.PASS)
    unknown = finding("clock.sync", Outcome.UNKNOWN)
    found = observation(lost, flap, full, watched, passed, unknown)
    assert set(found.failed) == {lost, flap, full}
    assert set(found.well) == {("gpu.clocks", "x"), ("gpu.ecc", "x")}
    assert found.unknown == (("clock.sync", "x"),)
    assert decode(encode(found)) == found


def test_unknown_is_never_a_reason_even_where_the_site_is_closed() -> None:
    found = observation(finding("gpu.lost", Outcome.UNKNOWN), gpu_lost=CheckRule(on_unknown="closed"))
    assert (found.failed, found.unknown) == ((), (("gpu.lost", "x"),))


def test_the_site_decides_what_keeps_jobs_away() -> None:
    lost = finding("gpu.lost", Outcome.FAIL, Suggestion.REBOOT)
    assert observation(lost, gpu_lost=CheckRule(suggestion="monitor")).failed == ()
    flap = finding("ethernet.flaps", Outcome.FAIL, Suggestion.MONITOR)
    assert observation(flap, ethernet_flaps=CheckRule(suggestion="none")).failed == ()


def test_events_of_the_driver_are_findings_if_they_mean_hardware() -> None:
    codes = {0: 79, 1: 31, 2: 0}
    events = [XidEvent(at=0.0, index=index, uuid="GPU-1", code=code) for index, code in codes.items()]
    (found,) = findings_of(events)
    assert (found.check, found.subject, found.blame) == ("kernel.xid", "gpu0", Party.NODE)
    assert found.text.startswith("XID 79, ")
    assert found.suggestion.keeps_jobs_away


def test_what_a_check_means_to_the_training_comes_with_its_failure() -> None:
    names = ("infiniband.state", "gpu.throttle", "gpu.lost")
    found = observation(*(finding(name, Outcome.FAIL, Suggestion.REPLACE) for name in names))
    assert found.effects == {"infiniband.state": Effect.LINK_DOWN, "gpu.throttle": Effect.SLOW}
    assert decode(encode(found)) == found


def test_checks_say_what_their_failure_means_to_the_training() -> None:
    by_effect = {effect: {c.name for c in CHECKS if c.effect is effect} for effect in Effect}
    links = {"infiniband.state", "infiniband.rate", "ethernet.state", "ethernet.speed", "gpu.nvlink"}
    assert by_effect[Effect.LINK_DOWN] == links
    assert by_effect[Effect.SLOW] == {"gpu.throttle", "gpu.temperature", "gpu.clocks", "gpu.pcie"}
    warning = {c.name for c in CHECKS if c.warns_training}
    assert warning == {"infiniband.flaps", "ethernet.flaps", "memory.pressure"}
