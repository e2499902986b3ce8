"""One run of the checks: within its time, with an answer for everything, and remembered."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from slurm_robust.config.node import CheckRule, NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.model.findings import Finding, Outcome, Suggestion, Writer
from slurm_robust.model.record import Record
from slurm_robust.nodes.check import (
    EVERYWHERE,
    AnyCheck,
    AnySource,
    Check,
    CheckContext,
    Hang,
    Probe,
    Source,
    View,
)
from slurm_robust.nodes.memory import Memory
from slurm_robust.nodes.runner import choose, failing_runs, inspect
from slurm_robust.nodes.verdict import Report
from slurm_robust.util.isolate import CallResult, directly
from tests.waiting import wait_for

PASS, FAIL, UNKNOWN = Outcome.PASS, Outcome.FAIL, Outcome.UNKNOWN


class Fans(Record):
    rpm: int


def rpm(host: Host, config: NodeConfig) -> Fans:
    return Fans(rpm=int(host.read("/rpm")))


def too_slow(view: View[Fans], config: NodeConfig) -> Iterable[Finding]:
    """Fails below 100, and below what it was before."""
    before = [sample.facts.rpm for sample in view.before]
    floor = max([100, *before, view.baseline.rpm if view.baseline else 0])
    outcome = FAIL if view.facts.rpm < floor else PASS
    yield Finding(check="fans.speed", outcome=outcome, subject="fan0", suggestion=Suggestion.REPLACE)


def hang(host: Host, config: NodeConfig) -> Fans:
    while True:
        signal.pause()


def refuse(host: Host, config: NodeConfig) -> Fans:
    raise RuntimeError("the driver does not say")


def lie(host: Host, config: NodeConfig) -> Fans:
    return "fast"  # type: ignore[return-value]


def break_down(view: View[Fans], config: NodeConfig) -> Iterable[Finding]:
    raise KeyError("rpm")


def source(name: str, gather: Callable[[Host, NodeConfig], Fans], **more: object) -> AnySource:
    return Source(name=name, facts=Fans, gather=gather, **more)  # type: ignore[arg-type]


def check(
    name: str,
    source: AnySource,
    judge: Callable[[View[Fans], NodeConfig], Iterable[Finding]],
    contexts: frozenset[CheckContext] = EVERYWHERE,
    *,
    hangs: bool = False,
) -> AnyCheck:
    return Check(name, source, judge, "", Writer.KERNEL, contexts, Probe.NODE, hangs=hangs)


FANS = source("fans", rpm, history_s=1e6)
SPEED: AnyCheck = check("fans.speed", FANS, too_slow, hangs=True)
BROKEN: AnyCheck = check("fans.broken", FANS, break_down)
DEAD = source("dead", hang, timeout_s=0.2, hang=Hang(FAIL, "the driver hangs", Suggestion.REBOOT))
STUCK: AnyCheck = check("dead.stuck", DEAD, too_slow, hangs=True)
BESIDE: AnyCheck = check("dead.beside", DEAD, too_slow)


class Node:
    """A machine with one fan."""

    def __init__(self, folder: Path) -> None:
        self.root, self.state = folder / "root", folder / "state"
        self.root.mkdir()
        self.boot("b1")
        self.spin(500)

    def spin(self, rpm: int) -> None:
        (self.root / "rpm").write_text(str(rpm))

    def boot(self, boot_id: str) -> None:
        path = self.root / "proc/sys/kernel/random/boot_id"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(boot_id)

    def run(
        self,
        *checks: AnyCheck,
        context: CheckContext = CheckContext.PERIODIC,
        now: float = 1000.0,
        config: NodeConfig = NodeConfig(),  # noqa: B008 - frozen
        budget_s: float = 10.0,
    ) -> Report:
        memory = Memory(self.state)
        options = {"host": Host(self.root), "memory": memory, "now": now, "budget_s": budget_s}
        report = inspect(config, context, checks=checks or (SPEED,), **options)  # type: ignore[arg-type]
        self.runs = failing_runs(report, memory)
        return report


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def outcomes(report: Report) -> dict[str, Outcome]:
    return {finding.check: finding.outcome for finding in report.findings}


def test_a_run_says_all_about_itself(node: Node) -> None:
    report = node.run()
    assert (report.at, report.boot_id, report.context) == (1000.0, "b1", CheckContext.PERIODIC)
    assert outcomes(report) == {"fans.speed": PASS}
    assert list(report.took_s) == ["fans"]
    assert 0 < report.took_s["fans"] <= report.wall_s
    assert (report.reused, report.left_out, report.errors) == ((), {}, {})


def test_what_hangs_is_the_fault_of_one_check_and_unknown_to_its_neighbours(node: Node) -> None:
    report = node.run(STUCK, BESIDE, SPEED)
    stuck, beside, well = report.findings
    assert (stuck.outcome, stuck.text, stuck.suggestion) == (FAIL, "the driver hangs", Suggestion.REBOOT)
    assert (stuck.limit, stuck.value[:12]) == ("0.2 s", "no answer in")
    assert (beside.outcome, beside.text) == (UNKNOWN, "no answer in time")
    assert well.outcome is PASS


def test_what_the_budget_cuts_is_unknown_and_not_hung(node: Node) -> None:
    patient = source("dead", hang, timeout_s=600.0, hang=DEAD.hang)
    begun = time.monotonic()
    report = node.run(check("dead.stuck", patient, too_slow, hangs=True), SPEED, budget_s=0.5)
    assert time.monotonic() - begun < 60
    assert outcomes(report) == {"dead.stuck": UNKNOWN, "fans.speed": PASS}
    assert report.findings[0].text.startswith("left out, budget")
    assert report.left_out == {"dead.stuck": "budget"}


def test_what_may_take_longest_begins_first(node: Node) -> None:
    """A mount that hangs is only found to hang if the budget lasts as long as it may take to answer."""
    begun: list[str] = []

    def in_order(
        tasks: Mapping[str, Callable[[], bytes]], *limits: object, **options: object
    ) -> dict[str, CallResult]:
        begun.extend(tasks)
        return directly(tasks, {}, 0.0)

    slow, quick = (source(name, rpm, timeout_s=limit) for name, limit in (("slow", 25.0), ("quick", 1.0)))
    checks = [check(one.name, one, too_slow) for one in (quick, FANS, slow)]
    host = Host(node.root)
    report = inspect(
        NodeConfig(),
        CheckContext.PERIODIC,
        checks=checks,
        host=host,
        memory=None,
        now=1.0,
        budget_s=9.0,
        calls=in_order,
    )
    assert begun == ["slow", "fans", "quick"]
    assert len(report.findings) == 3


def test_what_cannot_be_read_or_judged_is_unknown(node: Node) -> None:
    mute = check("mute", source("mute", refuse), too_slow)
    liar = check("liar", source("liar", lie), too_slow)
    report = node.run(mute, liar, BROKEN, SPEED)
    assert [finding.outcome for finding in report.findings] == [UNKNOWN, UNKNOWN, UNKNOWN, PASS]
    assert report.findings[0].text == "the driver does not say"
    assert report.errors.keys() == {"liar", "fans.broken"}
    assert report.errors["fans.broken"] == "KeyError: 'rpm'"


def test_a_prolog_uses_what_the_periodic_run_has_just_found(node: Node) -> None:
    node.run()
    node.spin(300)
    report = node.run(context=CheckContext.PROLOG, now=1060.0)
    assert (report.reused, report.took_s) == (("fans",), {})
    assert outcomes(report) == {"fans.speed": PASS}
    assert node.run(context=CheckContext.PROLOG, now=1060.5).reused == ()


@pytest.mark.parametrize(
    "context", [CheckContext.EPILOG, CheckContext.PERIODIC, CheckContext.DEEP, CheckContext.PERSON]
)
def test_a_run_in_another_context_measures_anew(node: Node, context: CheckContext) -> None:
    node.run()
    assert node.run(context=context, now=1001.0).reused == ()


def test_a_prolog_measures_anew_what_was_bad_or_of_another_boot(node: Node) -> None:
    node.spin(50)
    assert outcomes(node.run()) == {"fans.speed": FAIL}
    node.spin(150)
    report = node.run(context=CheckContext.PROLOG, now=1001.0)
    assert (report.reused, outcomes(report)) == ((), {"fans.speed": PASS})
    node.boot("b2")
    assert node.run(context=CheckContext.PROLOG, now=1002.0).reused == ()


def test_judges_see_earlier_runs(node: Node) -> None:
    node.spin(500)
    assert outcomes(node.run(now=1000.0)) == {"fans.speed": PASS}
    node.spin(400)
    assert outcomes(node.run(now=1001.0)) == {"fans.speed": FAIL}


def test_failures_in_a_row_are_counted_by_periodic_runs_only(node: Node) -> None:
    node.spin(1)
    counts = []
    for number, context in enumerate(
        [
            CheckContext.PERIODIC,
            CheckContext.PROLOG,
            CheckContext.PERIODIC,
            CheckContext.DEEP,
            CheckContext.PROLOG,
        ]
    ):
        node.run(context=context, now=1000.0 + number)
        counts.append(node.runs["fans.speed fan0"])
    assert counts == [1, 1, 2, 2, 2]


def test_without_a_memory_everything_is_measured(node: Node) -> None:
    report = inspect(
        NodeConfig(),
        CheckContext.PROLOG,
        host=Host(node.root),
        memory=None,
        now=1.0,
        budget_s=5.0,
        checks=(SPEED, STUCK),
    )
    assert outcomes(report) == {"fans.speed": PASS, "dead.stuck": FAIL}
    assert failing_runs(report, None) == {"dead.stuck": 1}


def test_checks_are_chosen_by_context_rule_and_name() -> None:
    idle = check("fans.idle", FANS, too_slow, frozenset({CheckContext.DEEP}))
    config = NodeConfig(
        checks={"fans.*": CheckRule(contexts=("prolog",)), "fans.broken": CheckRule(enabled=False)}
    )

    def names(context: CheckContext, *only: str, config: NodeConfig = NodeConfig()) -> list[str]:  # noqa: B008
        return [check.name for check in choose((SPEED, BROKEN, STUCK, idle), config, context, only)[0]]

    assert names(CheckContext.PROLOG) == ["fans.speed", "fans.broken", "dead.stuck"]
    assert names(CheckContext.DEEP) == ["fans.speed", "fans.broken", "dead.stuck", "fans.idle"]
    assert names(CheckContext.DEEP, "fans.i*", "dead.stuck") == ["dead.stuck", "fans.idle"]
    assert names(CheckContext.PROLOG, config=config) == ["fans.speed", "dead.stuck", "fans.idle"]
    assert names(CheckContext.PERIODIC, config=config) == ["dead.stuck"]
    left_out = choose((SPEED, BROKEN), config, CheckContext.PROLOG)[1]
    assert left_out == {"fans.broken": "switched off in the configuration"}


def test_gathering_leaves_no_process(node: Node) -> None:
    before = living_children()
    node.run(STUCK, SPEED)
    wait_for(lambda: living_children() <= before)


def living_children() -> set[str]:
    found = set()
    for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        try:
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            found.add(child)
    return found
