from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest

from slurm_robust.config.node import NetworkLimits, NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.model.findings import Outcome, Party, Suggestion
from slurm_robust.nodes.checks.ethernet import (
    CHECKS,
    EthernetFacts,
    Interface,
    gather,
    judge_errors,
    judge_flaps,
    judge_mtu,
    judge_speed,
    judge_state,
)
from tests.unit.nodes.host_files import only, plant, view
from tests.users import as_root

PASS, FAIL = Outcome.PASS, Outcome.FAIL
UP = Interface(is_up=True, carrier=True, gained=2, lost=1, speed_mb=25_000, mtu=9000)
CABLE_OUT = msgspec.structs.replace(UP, carrier=False, speed_mb=None, lost=2)
NEVER_UP = Interface(is_up=True, carrier=False, gained=0, lost=1, mtu=1500)
SET_DOWN = Interface(is_up=False, gained=2, lost=2, mtu=9000)
CONFIG = NodeConfig()


def config(**limits: object) -> NodeConfig:
    return NodeConfig(network=NetworkLimits(**limits))  # type: ignore[arg-type]


def eth(of: Interface = UP, **changes: object) -> EthernetFacts:
    return EthernetFacts(interfaces={"eth0": msgspec.structs.replace(of, **changes)})


def interface(name: str, **files: str) -> dict[str, str]:
    usual = {
        "flags": "0x1003", "type": "1", "carrier": "1", "speed": "25000", "mtu": "9000",
        "carrier_up_count": "2", "carrier_down_count": "1", "statistics/rx_errors": "3",
        "statistics/rx_crc_errors": "0", "statistics/tx_errors": "0",
    } | files  # fmt: skip
    return {f"/sys/class/net/{name}/{file}": text for file, text in usual.items()}


def test_physical_interfaces_are_read_and_no_others(tmp_path: Path) -> None:
    names = ("eth0", "eth1", "vf0", "ib0", "usb0", "bond0", "br0", "eno9")
    tree = {file: text for name in names for file, text in interface(name).items()}
    tree |= interface("ib0", type="32") | interface("eth1", flags="0x1002", speed="-1")
    tree |= interface("bond0", speed="4294967295")
    del tree["/sys/class/net/eth1/carrier"]
    device = "/sys/devices/pci0000:00/0000:00:02.0/"
    links = {
        f"/sys/class/net/{name}/device": f"{device}{name}" for name in ("eth0", "eth1", "vf0", "ib0", "eno9")
    }
    links |= {"/sys/class/net/usb0/device": f"{device}usb1/1-1", f"{device}vf0/physfn": f"{device}eth0"}
    host = plant(tmp_path, tree, links)
    settings = config(ethernet=("bond0",), ignore=("eno*",))
    found = gather(host, settings).interfaces
    assert list(found) == ["bond0", "eth0", "eth1"]
    assert found["eth0"] == msgspec.structs.replace(UP, errors={"rx_errors": 3})
    assert found["bond0"].speed_mb is None
    assert found["eth1"] == Interface(is_up=False, gained=2, lost=1, mtu=9000, errors={"rx_errors": 3})
    assert [finding.subject for finding in judge_state(view(gather(host, settings)), settings)] == ["bond0"]


def test_interfaces_of_the_real_machine_have_no_fault() -> None:
    facts = gather(Host(), CONFIG)
    found = [finding for check in CHECKS for finding in check.judge(view(facts, baseline=facts), CONFIG)]
    assert {finding.outcome for finding in found} <= {PASS}
    assert gather(Host(Path("/nonexistent")), CONFIG) == EthernetFacts()


@pytest.mark.parametrize(
    ("now", "before", "baseline", "settings", "outcome", "suggestion", "blame"),
    [
        (eth(), (), None, {}, PASS, Suggestion.NONE, Party.NODE),
        (eth(NEVER_UP), (), None, {}, PASS, Suggestion.NONE, Party.NODE),
        (eth(NEVER_UP), ((60.0, eth(NEVER_UP)),), None, {}, PASS, Suggestion.NONE, Party.NODE),
        (eth(CABLE_OUT), (), None, {}, FAIL, Suggestion.RESET, Party.FABRIC),
        (eth(SET_DOWN), (), None, {}, PASS, Suggestion.NONE, Party.NODE),
        (eth(SET_DOWN), ((60.0, eth()),), None, {}, FAIL, Suggestion.RESET, Party.SITE),
        (eth(SET_DOWN), (), eth(), {}, FAIL, Suggestion.RESET, Party.SITE),
        (eth(NEVER_UP), (), eth(), {}, FAIL, Suggestion.RESET, Party.FABRIC),
        (eth(CABLE_OUT), (), eth(NEVER_UP), {}, PASS, Suggestion.NONE, Party.NODE),
        (eth(NEVER_UP), (), None, {"ethernet": ("eth0",)}, FAIL, Suggestion.RESET, Party.FABRIC),
        (EthernetFacts(), (), None, {"ethernet": ("eth0",)}, FAIL, Suggestion.REBOOT, Party.NODE),
        (EthernetFacts(), (), eth(), {}, FAIL, Suggestion.REBOOT, Party.NODE),
    ],
)
def test_an_interface_must_have_its_link_where_it_was_meant_to(
    now: EthernetFacts,
    before: tuple[tuple[float, EthernetFacts], ...],
    baseline: EthernetFacts | None,
    settings: dict[str, object],
    outcome: Outcome,
    suggestion: Suggestion,
    blame: Party,
) -> None:
    finding = only(judge_state(view(now, *before, baseline=baseline), config(**settings)))
    assert (finding.outcome, finding.suggestion, finding.blame) == (outcome, suggestion, blame)
    assert finding.source == "/sys/class/net/eth0/carrier"
    assert bool(finding.text) == (outcome is FAIL)


def test_a_driver_that_tells_no_carrier_is_believed_to_have_one() -> None:
    assert only(judge_state(view(eth(carrier=None), baseline=eth()), CONFIG)).outcome is PASS


@pytest.mark.parametrize(
    ("speed", "baseline", "outcome"), [(25_000, 25_000, PASS), (40_000, 25_000, PASS), (24_999, 25_000, FAIL)]
)
def test_speed_may_not_be_below_the_baseline(speed: int, baseline: int, outcome: Outcome) -> None:
    finding = only(judge_speed(view(eth(speed_mb=speed), baseline=eth(speed_mb=baseline)), CONFIG))
    assert finding.outcome is outcome


@pytest.mark.parametrize(
    ("now", "baseline"),
    [
        (eth(), None),
        (eth(speed_mb=None), eth()),
        (eth(speed_mb=10), eth(speed_mb=None)),
        (eth(CABLE_OUT), eth()),
    ],
)
def test_speed_that_nobody_knows_is_not_judged(now: EthernetFacts, baseline: EthernetFacts | None) -> None:
    assert list(judge_speed(view(now, baseline=baseline), CONFIG)) == []


def test_another_mtu_is_reported() -> None:
    finding = only(judge_mtu(view(eth(mtu=1500), baseline=eth()), CONFIG))
    assert (finding.outcome, finding.suggestion) == (FAIL, Suggestion.MONITOR)
    assert finding.text == "MTU 1500 instead of 9000"
    assert only(judge_mtu(view(eth(), baseline=eth()), CONFIG)).outcome is PASS
    assert list(judge_mtu(view(eth()), CONFIG)) == []
    assert list(judge_mtu(view(eth(mtu=None), baseline=eth()), CONFIG)) == []
    assert list(judge_mtu(view(eth(mtu=1500), baseline=eth()), config(ethernet=("eth1",)))) == []
    assert only(judge_mtu(view(eth(mtu=1500), baseline=eth()), config(ethernet=("eth0",)))).outcome is FAIL


@pytest.mark.parametrize(
    ("error", "suggestion"),
    [
        ("rx_crc_errors", Suggestion.RESET),
        ("rx_errors", Suggestion.MONITOR),
        ("tx_errors", Suggestion.MONITOR),
    ],
)
def test_errors_fail_above_the_limit_of_an_hour(error: str, suggestion: Suggestion) -> None:
    for count, outcome in ((1000, PASS), (1001, FAIL)):
        finding = only(judge_errors(view(eth(errors={error: count}), (3600, eth())), CONFIG))
        assert finding.outcome is outcome
        assert finding.suggestion is (suggestion if outcome is FAIL else Suggestion.NONE)
    assert only(judge_errors(view(eth(errors={error: 9999})), CONFIG)).outcome is PASS
    assert only(judge_errors(view(eth(), (60, eth(errors={error: 9999}))), CONFIG)).outcome is PASS


@pytest.mark.parametrize(
    ("age", "lost", "outcome", "suggestion"),
    [
        (60, 1, PASS, Suggestion.NONE),
        (60, 2, FAIL, Suggestion.MONITOR),
        (600, 3, FAIL, Suggestion.RESET),
        (601, 3, FAIL, Suggestion.MONITOR),
        (601, 5, FAIL, Suggestion.RESET),
    ],
)
def test_one_lost_link_is_watched_and_flapping_keeps_jobs_away(
    age: float, lost: int, outcome: Outcome, suggestion: Suggestion
) -> None:
    finding = only(judge_flaps(view(eth(lost=lost), (age, eth())), CONFIG))
    assert (finding.outcome, finding.suggestion) == (outcome, suggestion)
    assert list(judge_flaps(view(eth(lost=None)), CONFIG)) == []


@as_root
@pytest.mark.slow
def test_a_real_link_that_flaps_is_found() -> None:
    """A pair of interfaces in a network namespace of its own; the other end is the switch."""
    code = """
        import subprocess
        from slurm_robust.config.node import NetworkLimits, NodeConfig
        from slurm_robust.nodes.checks.ethernet import gather, judge_flaps, judge_state
        from slurm_robust.kernel.host import Host
        from tests.unit.nodes.host_files import view

        def ip(words):
            subprocess.run(["ip", "link", *words.split()], check=True)

        def told(judge, *before):
            (found,) = judge(view(gather(Host(), config), *before), config)
            print(found.outcome.value, found.suggestion.value, found.text, sep=" | ")

        config = NodeConfig(network=NetworkLimits(ethernet=("up0",)))
        ip("add up0 type veth peer name switch")
        ip("set up0 up")
        told(judge_state)
        ip("set switch up")
        told(judge_state)
        begun = (60.0, gather(Host(), config))
        told(judge_flaps, begun)
        ip("set switch down"), ip("set switch up")
        told(judge_flaps, begun)
        ip("set switch down")
        told(judge_flaps, begun)
        told(judge_state)
        ip("del up0")
        told(judge_state)
    """
    shell = 'mount -t sysfs none /sys && exec "$@"'
    python = [sys.executable, "-c", textwrap.dedent(code)]
    words = ["unshare", "--net", "--mount", "sh", "-c", shell, "sh", *python]
    root = Path(__file__).resolve().parents[3]
    found = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=root)
    assert found.stderr == ""
    assert found.stdout.splitlines() == [
        "fail | reset | no link: cable, switch port or neighbour",
        "pass | none | ",
        "pass | none | ",
        "fail | monitor | link was lost once within an hour",
        "fail | reset | link was lost 2 times within an hour",
        "fail | reset | no link: cable, switch port or neighbour",
        "fail | reboot | the interface is gone",
    ]
