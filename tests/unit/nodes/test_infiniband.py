from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from slurm_robust.config.node import NetworkLimits, NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion
from slurm_robust.nodes.checks.infiniband import (
    CHECKS,
    ERRORS,
    InfinibandFacts,
    Port,
    gather,
    judge_errors,
    judge_flaps,
    judge_rate,
    judge_state,
)
from tests.unit.nodes.host_files import only, plant, view

PASS, FAIL, UNKNOWN = Outcome.PASS, Outcome.FAIL, Outcome.UNKNOWN
UP = Port(state="ACTIVE", physical="LinkUp", rate_gb=400.0, layer="InfiniBand", card="MT_838", counters={})
DOWN = msgspec.structs.replace(UP, state="DOWN", physical="Polling", rate_gb=10.0)
LOST = msgspec.structs.replace(DOWN, counters={"link_downed": 1})
CONFIG = NodeConfig()


def config(**limits: object) -> NodeConfig:
    return NodeConfig(network=NetworkLimits(**limits))  # type: ignore[arg-type]


def port(of: Port = UP, **changes: object) -> InfinibandFacts:
    return InfinibandFacts(ports={"mlx5_0/1": msgspec.structs.replace(of, **changes)})


def card(name: str, **port: str) -> dict[str, str]:
    files = {
        "state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand", "counters/link_downed": "0", "counters/symbol_error": "7",
    } | port  # fmt: skip
    folder = f"/sys/class/infiniband/{name}"
    return {f"{folder}/board_id": "MT_0000000838"} | {
        f"{folder}/ports/1/{file}": text for file, text in files.items()
    }


def pci(address: str, kind: str, id_: str, driver: str = "") -> dict[str, str]:
    lines = ([f"DRIVER={driver}"] if driver else []) + [f"PCI_CLASS={kind}", f"PCI_ID={id_}"]
    return {f"/sys/bus/pci/devices/{address}/uevent": "\n".join(lines)}


def test_ports_and_adapters_are_read(tmp_path: Path) -> None:
    tree = (
        card("mlx5_0")
        | card("mlx5_1", state="1: DOWN", phys_state="3: Disabled", rate="2.5 Gb/sec (1X SDR)")
        | card("mlx5_2", link_layer="Ethernet", **{"gid_attrs/ndevs/0": "eth2"})
        | card("mlx5_bond_0")
        | pci("0000:17:00.0", "20700", "15B3:1021", "mlx5_core")
        | {"/sys/bus/pci/devices/0000:17:00.0/infiniband/mlx5_0/node_type": "1: CA"}
        | pci("0000:18:00.0", "20700", "15B3:1021")
        | pci("0000:19:00.0", "20000", "15B3:1021")
        | pci("0000:1a:00.0", "20000", "8086:1521")
        | pci("0000:1b:00.0", "20000", "15B3:101E", "vfio-pci")
        | pci("0000:1c:00.0", "20700", "15B3:101E")
    )
    host = plant(tmp_path, tree, {"/sys/bus/pci/devices/0000:1c:00.0/physfn": "/sys/devices/x"})
    facts = gather(host, config(ignore=("mlx5_bond_*",)))
    assert facts.driven == ("0000:17:00.0",)
    assert facts.undriven == ("0000:18:00.0", "0000:19:00.0")
    assert list(facts.ports) == ["mlx5_0/1", "mlx5_1/1", "mlx5_2/1"]
    assert facts.ports["mlx5_0/1"] == Port(
        state="ACTIVE", physical="LinkUp", rate_gb=400.0, layer="InfiniBand", card="MT_0000000838",
        counters={"symbol_error": 7},
    )  # fmt: skip
    assert (facts.ports["mlx5_1/1"].state, facts.ports["mlx5_1/1"].rate_gb) == ("DOWN", 2.5)
    assert (facts.ports["mlx5_2/1"].layer, facts.ports["mlx5_2/1"].netdev) == ("Ethernet", "eth2")


def test_odd_files_are_reported_as_not_known(tmp_path: Path) -> None:
    host = plant(tmp_path, {"/sys/class/infiniband/x/ports/1/rate": "fast", "/sys/class/infiniband/abi": "1"})
    facts = gather(host, CONFIG)
    assert facts.ports == {"x/1": Port(state="")}
    finding = only(judge_state(view(facts, baseline=InfinibandFacts(ports={"x/1": UP})), CONFIG))
    assert (finding.outcome, finding.suggestion) == (UNKNOWN, Suggestion.NONE)
    assert [*judge_rate(view(facts), CONFIG), *judge_errors(view(facts), CONFIG)] == []


@pytest.mark.parametrize("root", ["/", "/nonexistent"])
def test_a_node_without_adapters_has_no_findings(root: str) -> None:
    facts = gather(Host(Path(root)), CONFIG)
    if not facts.ports and not facts.undriven:
        assert [finding for check in CHECKS for finding in check.judge(view(facts), CONFIG)] == []


ACTIVE_BEFORE = (60.0, port(UP))


@pytest.mark.parametrize(
    ("facts", "before", "baseline", "settings", "outcome", "suggestion", "word"),
    [
        (port(UP), (), None, {}, PASS, Suggestion.NONE, ""),
        (port(DOWN), (), None, {}, PASS, Suggestion.NONE, ""),
        (port(LOST), (), None, {}, FAIL, Suggestion.RESET, "Polling"),
        (port(LOST, physical="Disabled"), (), None, {}, PASS, Suggestion.NONE, ""),
        (port(DOWN), (ACTIVE_BEFORE,), None, {}, FAIL, Suggestion.RESET, "DOWN, Polling"),
        (port(DOWN), ((60.0, port(DOWN)),), None, {}, PASS, Suggestion.NONE, ""),
        (port(DOWN), (), port(UP), {}, FAIL, Suggestion.RESET, "DOWN"),
        (port(DOWN), (), port(DOWN), {}, PASS, Suggestion.NONE, ""),
        (port(DOWN), (), None, {"infiniband": ("mlx5_0/1",)}, FAIL, Suggestion.RESET, "DOWN"),
        (port(DOWN, netdev="eth2"), (), port(UP), {}, FAIL, Suggestion.RESET, "link of eth2 is DOWN"),
        (port(UP, state="INIT"), (), port(UP), {}, FAIL, Suggestion.RESET, "no subnet manager"),
        (InfinibandFacts(), (), port(UP), {}, FAIL, Suggestion.REBOOT, "gone"),
        (InfinibandFacts(), (), None, {"infiniband": ("mlx5_9/1",)}, FAIL, Suggestion.REBOOT, "gone"),
    ],
)  # fmt: skip
def test_a_port_must_be_up_where_it_was_meant_to_be(
    facts: InfinibandFacts,
    before: tuple[tuple[float, InfinibandFacts], ...],
    baseline: InfinibandFacts | None,
    settings: dict[str, object],
    outcome: Outcome,
    suggestion: Suggestion,
    word: str,
) -> None:
    finding = only(judge_state(view(facts, *before, baseline=baseline), config(**settings)))
    assert (finding.outcome, finding.suggestion) == (outcome, suggestion)
    assert word in finding.text
    assert bool(finding.text) == (outcome is FAIL)


def test_ports_that_are_named_are_the_only_ones_and_ignored_ones_are_none() -> None:
    facts = InfinibandFacts(ports={"mlx5_0/1": UP, "mlx5_1/1": DOWN})
    settings = config(infiniband=("mlx5_0/1",))
    assert only(judge_state(view(facts, baseline=facts), settings)).subject == "mlx5_0/1"
    assert only(judge_rate(view(facts), settings)).subject == "mlx5_0/1"
    assert list(judge_state(view(InfinibandFacts(), baseline=port(UP)), config(ignore=("mlx5_0",)))) == []


def test_an_adapter_without_driver_fails_only_where_it_had_one() -> None:
    facts = InfinibandFacts(undriven=("0000:17:00.0",))
    finding = only(judge_state(view(facts), CONFIG))
    assert (finding.outcome, finding.subject) == (UNKNOWN, "0000:17:00.0")
    finding = only(judge_state(view(facts, baseline=InfinibandFacts(driven=("0000:17:00.0",))), CONFIG))
    assert (finding.outcome, finding.suggestion, finding.blame) == (FAIL, Suggestion.RESET, Party.SITE)


TWO_CARDS = {"mlx5_0/1": UP, "mlx5_1/1": UP}


@pytest.mark.parametrize(
    ("rate", "settings", "baseline", "outcome", "suggestion"),
    [
        (400.0, {}, None, PASS, Suggestion.NONE),
        (200.0, {}, None, FAIL, Suggestion.MONITOR),
        (200.0, {}, {"mlx5_0/1": 200.0}, PASS, Suggestion.NONE),
        (199.9, {}, {"mlx5_0/1": 200.0}, FAIL, Suggestion.RESET),
        (200.0, {"min_rate_gb": 200.0}, None, PASS, Suggestion.NONE),
        (100.0, {"min_rate_gb": 200.0}, {"mlx5_0/1": 100.0}, FAIL, Suggestion.RESET),
    ],
)
def test_the_rate_is_held_against_limit_then_baseline_then_same_cards(
    rate: float,
    settings: dict[str, object],
    baseline: dict[str, float] | None,
    outcome: Outcome,
    suggestion: Suggestion,
) -> None:
    facts = InfinibandFacts(ports=TWO_CARDS | port(rate_gb=rate).ports)
    recorded = baseline and InfinibandFacts(ports=port(rate_gb=baseline["mlx5_0/1"]).ports)
    findings = judge_rate(view(facts, baseline=recorded or None), config(**settings))
    (finding,) = [finding for finding in findings if finding.subject == "mlx5_0/1"]
    assert (finding.outcome, finding.suggestion) == (outcome, suggestion)


def test_a_port_that_is_down_or_of_another_kind_of_card_sets_no_rate() -> None:
    other = msgspec.structs.replace(UP, card="MT_999", rate_gb=100.0)
    roce = msgspec.structs.replace(UP, layer="Ethernet", rate_gb=25.0)
    down = msgspec.structs.replace(DOWN, rate_gb=800.0)
    facts = InfinibandFacts(ports={"a/1": UP, "b/1": other, "c/1": roce, "d/1": down})
    assert [finding.outcome for finding in judge_rate(view(facts), CONFIG)] == [PASS] * 3
    assert all(f.outcome is PASS for f in judge_rate(view(facts), config(min_rate_gb=50.0)))


def test_ports_without_a_type_of_card_are_not_compared() -> None:
    bare = msgspec.structs.replace(UP, card="")
    slow = msgspec.structs.replace(bare, rate_gb=100.0)
    found = judge_rate(view(InfinibandFacts(ports={"a/1": bare, "b/1": slow})), CONFIG)
    assert [(finding.outcome, finding.limit) for finding in found] == [(PASS, "")] * 2


def test_counters_of_ports_that_are_not_named_do_not_matter() -> None:
    before, now = port(counters={}), port(counters={"symbol_error": 999, "link_downed": 9})
    for judge in (judge_errors, judge_flaps):
        assert only(judge(view(now, (60, before)), config(infiniband=("mlx5_0/1",)))).outcome is FAIL
        assert list(judge(view(now, (60, before)), config(infiniband=("mlx5_9/1",)))) == []


def errors(now: dict[str, int], *before: tuple[float, dict[str, int]]) -> list[Finding]:
    past = [(age, port(counters=counters)) for age, counters in before]
    return list(judge_errors(view(port(counters=now), *past), CONFIG))


@pytest.mark.parametrize(
    ("counter", "limit"), [(name, 120 if name == "symbol_error" else 10) for name in ERRORS]
)
def test_errors_fail_above_the_limit_of_an_hour(counter: str, limit: int) -> None:
    end = 2 ** ERRORS[counter].bits - 1
    assert only(errors({counter: limit}, (3600, {}))).outcome is PASS
    assert only(errors({counter: limit + 1}, (3601, {}))).outcome is PASS
    if limit + 1 < end:
        finding = only(errors({counter: limit + 1}, (3600, {})))
        assert (finding.outcome, finding.suggestion) == (FAIL, ERRORS[counter].suggestion)
        assert finding.value == f"{limit + 1} per hour"
        assert finding.source.endswith(f"/mlx5_0/ports/1/counters/{counter}")


def test_errors_from_before_the_first_run_and_after_a_reset_do_not_count() -> None:
    assert only(errors({"symbol_error": 60_000})).outcome is PASS
    assert only(errors({"symbol_error": 100}, (900, {"symbol_error": 5000}))).outcome is PASS
    assert only(errors({"symbol_error": 221}, (900, {"symbol_error": 100}))).outcome is FAIL
    old_boot = view(port(counters={"symbol_error": 900}), (60, port(counters={})), boot_id="other")
    assert only(judge_errors(old_boot, CONFIG)).outcome is PASS


@pytest.mark.parametrize(("counter", "end"), [("symbol_error", 65535), ("link_error_recovery", 255)])
def test_a_counter_at_its_end_is_unknown(counter: str, end: int) -> None:
    finding = only(errors({counter: end}, (60, {counter: end})))
    assert finding.outcome is UNKNOWN
    assert "perfquery" in finding.text
    assert only(errors({counter: end - 1}, (60, {counter: end - 1}))).outcome is PASS


@pytest.mark.parametrize(
    ("before", "now", "outcome", "suggestion"),
    [
        ([(60, 5)], 5, PASS, Suggestion.NONE),
        ([(60, 5)], 6, FAIL, Suggestion.MONITOR),
        ([(600, 5)], 7, FAIL, Suggestion.RESET),
        ([(601, 5)], 7, FAIL, Suggestion.MONITOR),
        ([(3000, 5), (2700, 7), (10, 7)], 7, FAIL, Suggestion.RESET),
        ([(3000, 5), (2000, 6), (1000, 7)], 8, FAIL, Suggestion.MONITOR),
        ([(3500, 5), (2600, 6), (1700, 7), (800, 8)], 9, FAIL, Suggestion.RESET),
        ([(3600, 5)], 6, FAIL, Suggestion.MONITOR),
        ([(3700, 5), (3601, 7)], 7, PASS, Suggestion.NONE),
        ([(60, 200)], 0, PASS, Suggestion.NONE),
        ([], 40, PASS, Suggestion.NONE),
    ],
)
def test_one_lost_link_is_watched_and_flapping_keeps_jobs_away(
    before: list[tuple[float, int]], now: int, outcome: Outcome, suggestion: Suggestion
) -> None:
    past = [(age, port(counters={"link_downed": count})) for age, count in before]
    finding = only(judge_flaps(view(port(counters={"link_downed": now}), *past), CONFIG))
    assert (finding.outcome, finding.suggestion) == (outcome, suggestion)
    lost = finding.value.split()[0]
    times = "once" if lost == "1" else f"{lost} times"
    assert finding.text == (f"link was lost {times} within an hour" if outcome is FAIL else "")


STUCK = msgspec.structs.replace(UP, state="INIT")
UNTOLD = Port(state="", physical="")
EVERY_5_MIN = (3300, 3000, 2700, 2400, 2100, 1800, 1500, 1200, 900, 600, 300)


def runs(of: Port, since: int, before: Port | None = None) -> list[tuple[float, InfinibandFacts]]:
    """``of`` in each run of the last ``since`` seconds, ``before`` in those of the hour before them."""
    kept = ((age, of if age <= since else before) for age in EVERY_5_MIN)
    return [(float(age), port(known)) for age, known in kept if known is not None]


@pytest.mark.parametrize(
    ("now", "since", "suggestion"),
    [
        (STUCK, 900, Suggestion.MONITOR),
        (STUCK, 3300, Suggestion.MONITOR),
        (msgspec.structs.replace(STUCK, state="ARMED"), 900, Suggestion.MONITOR),
        (msgspec.structs.replace(STUCK, state="DOWN"), 900, Suggestion.MONITOR),
        (msgspec.structs.replace(STUCK, physical="LinkErrorRecovery"), 900, Suggestion.MONITOR),
        (msgspec.structs.replace(DOWN, physical="PortConfigurationTraining"), 900, Suggestion.MONITOR),
        (msgspec.structs.replace(STUCK, layer=""), 900, Suggestion.MONITOR),
        (STUCK, 600, Suggestion.NONE),
        (STUCK, 0, Suggestion.NONE),
        (DOWN, 3300, Suggestion.NONE),
        (msgspec.structs.replace(DOWN, physical="Disabled"), 3300, Suggestion.NONE),
        (msgspec.structs.replace(DOWN, physical="Sleep"), 3300, Suggestion.NONE),
        (msgspec.structs.replace(DOWN, physical=""), 3300, Suggestion.NONE),
        (msgspec.structs.replace(STUCK, layer="Ethernet"), 3300, Suggestion.NONE),
        (UP, 3300, Suggestion.NONE),
    ],
)
def test_a_cabled_port_that_is_never_set_up_is_told_after_15_minutes(
    now: Port, since: int, suggestion: Suggestion
) -> None:
    finding = only(judge_state(view(port(now), *runs(now, since)), CONFIG))
    assert (finding.outcome, finding.suggestion) == (FAIL if suggestion.weight else PASS, suggestion)
    if suggestion.weight:
        assert f"cabled, but {now.state} for {since // 60} minutes" in finding.text
        assert "NCCL and MPI cannot use it" in finding.text
    for baseline in (port(now), port(DOWN)):
        seen = view(port(now), *runs(now, since), baseline=baseline)
        assert only(judge_state(seen, CONFIG)).outcome is PASS, "as it was when somebody called it healthy"
    other_boot = view(port(now), *runs(now, since), boot_id="later")
    assert only(judge_state(other_boot, CONFIG)).outcome is PASS


@pytest.mark.parametrize(
    ("now", "since", "text"),
    [
        (STUCK, 600, "port is INIT: no subnet manager has set it up"),
        (STUCK, 1200, "port is INIT for 20 minutes or more: no subnet manager has set it up"),
        (DOWN, 600, "link is DOWN, Polling"),
        (DOWN, 3300, "link is DOWN, Polling for 55 minutes or more"),
        (
            msgspec.structs.replace(DOWN, netdev="ib0"),
            900,
            "link of ib0 is DOWN, Polling for 15 minutes or more",
        ),
    ],
)
def test_a_port_that_was_in_use_says_for_how_long_it_is_not(now: Port, since: int, text: str) -> None:
    seen = view(port(now), *runs(now, since, UP), baseline=port(UP))
    finding = only(judge_state(seen, CONFIG))
    assert (finding.text, finding.suggestion) == (text, Suggestion.RESET)


@pytest.mark.parametrize("state", ["INIT", "ARMED"])
def test_steps_on_the_way_are_one_time_of_waiting(state: str) -> None:
    before = [(float(age), port(STUCK, state="ARMED" if age % 600 else "INIT")) for age in EVERY_5_MIN]
    assert only(judge_state(view(port(STUCK, state=state), *before), CONFIG)).suggestion is Suggestion.MONITOR
    before[-2:-1] = [(600.0, port(DOWN))]  # Somebody pulled the cable and put it in again.
    assert only(judge_state(view(port(STUCK, state=state), *before), CONFIG)).outcome is PASS


@pytest.mark.parametrize(
    ("state", "since", "before", "baseline", "settings", "suggestion"),
    [
        ("", 900, None, UP, {}, Suggestion.RESET),
        ("NOP", 900, None, UP, {}, Suggestion.RESET),
        ("UNKNOWN", 900, None, UP, {}, Suggestion.RESET),
        ("", 900, UP, None, {}, Suggestion.RESET),
        ("", 900, None, None, {"infiniband": ("mlx5_0/1",)}, Suggestion.RESET),
        ("", 600, UP, UP, {}, Suggestion.NONE),
        ("NOP", 0, UP, UP, {}, Suggestion.NONE),
        ("", 3300, None, None, {}, Suggestion.NONE),
        ("", 3300, None, DOWN, {}, Suggestion.NONE),
        ("UNKNOWN", 3300, None, UNTOLD, {}, Suggestion.NONE),
    ],
)
def test_a_state_that_is_not_told_grows_old_where_the_port_was_in_use(
    state: str,
    since: int,
    before: Port | None,
    baseline: Port | None,
    settings: dict[str, object],
    suggestion: Suggestion,
) -> None:
    now = msgspec.structs.replace(UNTOLD, state=state)
    known = port(baseline) if baseline else None
    finding = only(
        judge_state(view(port(now), *runs(now, since, before), baseline=known), config(**settings))
    )
    assert (finding.outcome, finding.suggestion) == (FAIL if suggestion.weight else UNKNOWN, suggestion)
    assert ("for 15 minutes" in finding.text) == bool(suggestion.weight)
