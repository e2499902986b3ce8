"""The fabric between GPUs: how long it may take, what is degraded, and which clique a node is of."""

from __future__ import annotations

import msgspec
import pytest

from slurm_robust.model.findings import Suggestion
from slurm_robust.nodes.check import View
from slurm_robust.nodes.gpus.facts import GpuFacts
from slurm_robust.nodes.gpus.links import together
from tests.unit.nodes.kernel_logs import judged
from tests.unit.nodes.kernel_logs import view as log_view
from tests.unit.nodes.sample_gpus import (
    FAIL,
    GOOD,
    MONITOR,
    NONE,
    REBOOT,
    RESET,
    UNKNOWN,
    facts,
    gpu,
    judge,
    said,
)

NOW = 1_700_000_000.0
WAITS = (UNKNOWN, NONE, "NVLink fabric is being initialised")


def view(fabric: str, uptime_s: float | None, *before: tuple[float, str], boot: str = "b") -> View[GpuFacts]:
    samples = tuple(View(at=NOW - ago, boot_id=boot, facts=facts(gpu(fabric=state))) for ago, state in before)
    return View(facts=facts(gpu(fabric=fabric), uptime_s=uptime_s), at=NOW, boot_id="b", before=samples)


def out(minutes: int, state: str = "in progress") -> tuple[object, ...]:
    text = f"NVLink fabric {state} for {minutes} minutes: CUDA will fail with 802"
    return FAIL, RESET, f"{text}; restart nvidia-fabricmanager, else reboot"


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (view("in progress", 70.0), WAITS),
        (view("in progress", 5400.0), out(90)),
        (view("in progress", 899.0), WAITS),
        (view("in progress", 900.0), out(15)),
        (view("in progress", 5400.0, (600.0, "in progress")), out(90)),
        # A GPU that was reset while the node runs.
        (view("in progress", 5400.0, (120.0, "completed")), WAITS),
        (view("in progress", 5400.0, (1800.0, "completed"), (600.0, "in progress")), out(30)),
        (view("in progress", 5400.0, (120.0, "completed"), boot="earlier"), out(90)),
        (view("in progress", None), WAITS),
        (view("in progress", None, (1200.0, "in progress"), (600.0, "not started")), out(20)),
        (view("not started", 70.0), WAITS),
        (view("not started", 3600.0), out(60, "not started")),
        (view("completed", 70.0, (60.0, "in progress")), GOOD),
        (view("completed", 5400.0), GOOD),
    ],
)
def test_a_fabric_that_is_not_ready_grows_old(seen: View[GpuFacts], expected: tuple[object, ...]) -> None:
    assert said(judge("nvlink", seen)) == expected


def test_without_a_fabric_there_is_nothing_to_say() -> None:
    assert judge("nvlink", View(facts=facts(gpu(fabric=None, links=None), uptime_s=9e9), at=NOW)) == []
    assert judge("fabric", View(facts=facts(gpu(clique="")), at=NOW)) == []


def test_a_degraded_fabric_is_worth_attention_and_drains_nobody() -> None:
    seen = View(facts=facts(gpu(fabric_health=("bandwidth degraded", "route unhealthy"))), at=NOW)
    assert said(judge("nvlink", seen)) == (
        FAIL,
        MONITOR,
        "NVLink fabric: bandwidth degraded, route unhealthy",
    )


@pytest.mark.parametrize(
    ("cliques", "baseline", "text"),
    [
        (("u/1", "u/1"), (), ""),
        (("u/1", "u/1"), ("u/1",), ""),
        (("u/1", ""), ("u/1",), ""),
        (("u/1", "u/2"), (), "GPUs are of 2 NVLink cliques: u/1, u/2"),
        (("u/2", "u/2"), ("u/1",), "NVLink clique is not the one of the baseline"),
        (("u/1",), ("",), ""),
    ],
)
def test_the_clique_is_a_fact_of_the_node(
    cliques: tuple[str, ...], baseline: tuple[str, ...], text: str
) -> None:
    now, then = (
        facts(*(gpu(index=at, uuid=f"{at}", clique=clique) for at, clique in enumerate(named)))
        for named in (cliques, baseline)
    )
    seen = View(facts=now, at=NOW, baseline=then if baseline else None)
    assert said(judge("fabric", seen)) == ((FAIL, MONITOR, text) if text else GOOD)


RX = "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!"


@pytest.mark.parametrize(
    ("links", "line", "expected"),
    [
        ((True,) * 17, RX, REBOOT),
        ((True,) * 18, RX, MONITOR),
        ((True,) * 17, "NVRM: loading NVIDIA UNIX Open Kernel Module", RESET),
    ],
)
def test_links_that_are_down_and_cannot_be_detected_need_a_reboot(
    links: tuple[bool, ...], line: str, expected: Suggestion
) -> None:
    gpus = View(facts=facts(gpu(links=links)), at=NOW)
    kernel = judged("kernel.gpu", log_view((9_990.0, line)))
    found = together([*judge("nvlink", gpus, min_nvlinks=18), *kernel])
    assert max((each.suggestion for each in found), key=lambda each: each.weight) is expected


def test_links_that_are_down_are_known_whatever_the_finding_says_of_them() -> None:
    links = judge("nvlink", View(facts=facts(gpu(links=(True,) * 17)), at=NOW), min_nvlinks=18)
    reworded = [msgspec.structs.replace(one, text="too few") for one in links]
    found = together([*reworded, *judged("kernel.gpu", log_view((9_990.0, RX)))])
    assert (found[0].suggestion, found[0].text.partition(";")[0]) == (REBOOT, "too few")


def test_a_fabric_that_is_broken_is_no_link_that_is_down() -> None:
    broken = judge("nvlink", View(facts=facts(gpu(fabric="error 1")), at=NOW))
    found = together([*broken, *judged("kernel.gpu", log_view((9_990.0, RX)))])
    assert broken[0].outcome is FAIL
    assert found[0] == broken[0]
