"""IMEX: what the daemon says of itself and of its domain, and for how long."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from slurm_robust.config.node import NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion
from slurm_robust.nodes.check import CheckContext
from slurm_robust.nodes.checks import imex
from slurm_robust.nodes.checks.imex import CHECKS, PROGRAM, SERVICES, ImexFacts, gather, judge
from tests.unit.nodes.host_files import only, plant, view

PASS, FAIL, UNKNOWN = Outcome.PASS, Outcome.FAIL, Outcome.UNKNOWN
NONE, MONITOR, RESET = Suggestion.NONE, Suggestion.MONITOR, Suggestion.RESET

# As AWS's guide for P6e shows it (drivers 570), with a node that is away.
DOMAIN = """\
Connectivity Table Legend:
I - Invalid - Node wasn't reachable, no connection status available
C - Connected - Ready for operation

5/4/2026 06:08:10.580
Nodes:
Node #0   - 172.31.48.81    - READY                - Version: 570.172
Node #1   - 172.31.48.98    - {other}                - Version: 570.172

 Nodes From\\To  0   1
       0        C   C
       1        C   C
Domain State: {domain}
"""


def machine(root: Path, says: dict[str, str], service: str = SERVICES[0]) -> Host:
    """With a running service and a stand-in for the program: what it does for each option."""
    host = plant(root, {service: "4711"})
    cases = "\n".join(f"{option}) {does};;" for option, does in says.items())
    program = host.path(PROGRAM)
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\ncase "$*" in\n{cases}\n*) exit 1;;\nesac\n')
    program.chmod(0o755)
    return host


def printing(text: str) -> str:
    return f"cat <<'END'\n{text}\nEND\n"


ALL_UP = printing(DOMAIN.format(other="READY", domain="UP"))
ONE_AWAY = printing(DOMAIN.format(other="UNAVAILABLE", domain="DEGRADED"))


@pytest.mark.parametrize(
    ("says", "state", "domain", "unready"),
    [
        ({"-q": "echo READY", "-N": ALL_UP}, "READY", "UP", ()),
        ({"-q": "echo READY", "-N": ONE_AWAY}, "READY", "DEGRADED", ("172.31.48.98 UNAVAILABLE",)),
        (
            # As of a driver of early 2025, without versions.
            {"-q": "echo READY", "-N": printing("Node #0   - 10.136.206.48   - READY\n\nDomain State: UP")},
            "READY",
            "UP",
            (),
        ),
        (
            {"-q": "echo READY", "-N": printing("Node #1 - * 10.0.0.2 - INIT_GPU\nDomain State: DOWN")},
            "READY",
            "DOWN",
            ("10.0.0.2 INIT_GPU",),
        ),
        ({"-q": "echo READY", "-N": "exit 1"}, "READY", "", ()),
        ({"-q": "echo READY", "-N": printing("Nodes:")}, "READY", "", ()),
        ({"-q": "echo INITIALIZING", "-N": "echo never asked >/dev/stderr"}, "INITIALIZING", "", ()),
        ({"-q": "echo WAITING_FOR_PEERS; exit 1"}, "WAITING_FOR_PEERS", "", ()),
        ({"-q": "echo 'connecting to 127.0.0.1'; echo UNAVAILABLE"}, "UNAVAILABLE", "", ()),
        ({"-q": "echo 'Error: connection refused'; exit 1"}, "", "", ()),
        ({"-q": "echo READY >&2; exit 1"}, "", "", ()),
        ({"-q": "exit 139"}, "", "", ()),
        ({"-q": "echo ready or not"}, "", "", ()),
    ],
)
def test_the_daemon_and_its_domain_are_asked(
    says: dict[str, str], state: str, domain: str, unready: tuple[str, ...], tmp_path: Path
) -> None:
    facts = gather(machine(tmp_path, says), NodeConfig())
    assert facts == ImexFacts(runs=True, state=state, domain=domain, unready=unready)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(facts), type=ImexFacts) == facts


def test_both_versions_of_cgroups_show_the_service(tmp_path: Path) -> None:
    host = machine(tmp_path, {"-q": "echo INIT_GPU"}, service=SERVICES[1])
    assert gather(host, NodeConfig()).state == "INIT_GPU"


def test_nobody_is_asked_without_service_or_program(tmp_path: Path) -> None:
    host = machine(tmp_path, {"-q": f"touch {tmp_path}/asked"})
    host.path(SERVICES[0]).write_text("")  # The service ended: its processes are no more.
    assert gather(host, NodeConfig()) == ImexFacts()
    assert not (tmp_path / "asked").exists()
    bare = plant(tmp_path / "bare", {SERVICES[0]: "4711"})
    assert gather(bare, NodeConfig()) == ImexFacts()
    assert list(judge(view(ImexFacts()), NodeConfig())) == []


@pytest.mark.parametrize(
    ("says", "state"), [({"-q": "exec sleep 60"}, ""), ({"-q": "echo READY", "-N": "exec sleep 60"}, "READY")]
)
def test_a_daemon_that_hangs_is_not_waited_for(
    says: dict[str, str], state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imex, "_ANSWER_S", 0.3)
    monkeypatch.setattr(imex, "_DOMAIN_S", 0.3)
    begun = time.monotonic()
    assert gather(machine(tmp_path, says), NodeConfig()) == ImexFacts(runs=True, state=state)
    assert time.monotonic() - begun < 10


def says(state: str, domain: str = "") -> ImexFacts:
    return ImexFacts(runs=True, state=state, domain=domain)


def judged(now: ImexFacts, *before: tuple[float, ImexFacts], boot_id: str = "b") -> Finding:
    finding = only(judge(view(now, *before, boot_id=boot_id), NodeConfig()))
    assert isinstance(finding, Finding)
    return finding


def since(age: int, *facts: ImexFacts) -> list[tuple[float, ImexFacts]]:
    """A run every 300 s, each of which saw one of these."""
    return [(float(at), facts[at // 300 % len(facts)]) for at in range(age, 0, -300)]


@pytest.mark.parametrize(
    ("now", "young", "suggestion"),
    [
        (says("INITIALIZING"), UNKNOWN, RESET),
        (says("STARTING_AUTH_SERVER"), UNKNOWN, RESET),
        (says("INIT_GPU"), UNKNOWN, RESET),
        (says("SHUTTING_DOWN"), UNKNOWN, RESET),
        (says("WAITING_FOR_PEERS"), UNKNOWN, MONITOR),
        (says("WAITING_FOR_RECOVERY"), UNKNOWN, MONITOR),
        (says("UNAVAILABLE"), UNKNOWN, MONITOR),
        (says("NOT_CONNECTED"), UNKNOWN, MONITOR),
        (says("SOMETHING_NEW"), UNKNOWN, MONITOR),
        (says("READY", "DEGRADED"), PASS, MONITOR),
        (says("READY", "DOWN"), PASS, MONITOR),
        (says("READY", "SPLIT"), PASS, MONITOR),
        (says("READY", "UP"), PASS, NONE),
        (says("READY"), PASS, NONE),
        (says(""), UNKNOWN, NONE),
    ],
)
def test_what_is_not_ready_for_15_minutes_will_not_be(
    now: ImexFacts, young: Outcome, suggestion: Suggestion
) -> None:
    for before in ([], since(600, now), [*since(3300, now)[:-1], (300.0, says("READY", "UP"))]):
        assert judged(now, *before).outcome is young
    assert judged(now, *since(3300, now), boot_id="later").outcome is young
    found = judged(now, *since(900, now))
    if suggestion is NONE:
        assert found.outcome is young
        return
    assert (found.outcome, found.suggestion) == (FAIL, suggestion)
    assert "for 15 minutes: CUDA allocations across nodes will fail" in found.text
    assert (now.domain or now.state) in found.text
    assert found.blame is (Party.SITE if suggestion is RESET else Party.FABRIC)


@pytest.mark.parametrize(
    ("now", "before", "suggestion"),
    [
        (says("INIT_GPU"), [says("INITIALIZING"), says("STARTING_AUTH_SERVER")], RESET),
        (says("WAITING_FOR_PEERS"), [says("UNAVAILABLE"), says("WAITING_FOR_RECOVERY")], MONITOR),
        # It waits for others half of the time: it is not stuck by itself.
        (says("INITIALIZING"), [says("WAITING_FOR_PEERS"), says("INITIALIZING")], NONE),
        (says("INITIALIZING"), [says("")], NONE),
        (says("INITIALIZING"), [ImexFacts()], NONE),
        (says("READY", "DEGRADED"), [says("READY", "DOWN")], MONITOR),
        (says("READY", "DEGRADED"), [says("READY")], NONE),
        (says("READY", "DEGRADED"), [says("WAITING_FOR_PEERS")], NONE),
    ],
)
def test_only_what_was_amiss_in_the_same_way_adds_up(
    now: ImexFacts, before: list[ImexFacts], suggestion: Suggestion
) -> None:
    assert judged(now, *since(1200, *before)).suggestion is suggestion


def test_nodes_that_are_not_ready_are_named() -> None:
    now = ImexFacts(runs=True, state="READY", domain="DEGRADED", unready=("10.0.0.2 UNAVAILABLE",))
    assert judged(now, *since(900, now)).text.endswith("see to 10.0.0.2 UNAVAILABLE")


def test_hooks_and_inspections_do_not_wait_for_it() -> None:
    assert only(CHECKS).contexts.isdisjoint((CheckContext.PROLOG, CheckContext.EPILOG, CheckContext.LIVE))
