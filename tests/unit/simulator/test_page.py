"""The page on simulated lives: what is in it, that texts are only text, and that a browser draws it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_robust.simulator.compare import Comparison, comparison
from slurm_robust.simulator.figures import LifeFigures
from slurm_robust.simulator.page.page import page_of
from slurm_robust.simulator.runs import live
from slurm_robust.simulator.spec import FaultOf, FaultSource, SimulatedCluster, SimulatedJob, Spec
from slurm_robust.simulator.what_if import variations
from tests.browser import Page, browser, program
from tests.unit.report.test_page import EVIL, Elements, hashes

SPEC = Spec(
    name="eight nodes",
    job=SimulatedJob(nodes=8, spares=1),
    cluster=SimulatedCluster(free=2, repair="1 day"),
    time="3 days",
    faults=(
        FaultSource(kind=FaultOf.NODE, rate="1 / day"),
        FaultSource(kind=FaultOf.CRASH, rate="2 / day", at_node=0.0),
    ),
)


@pytest.fixture(scope="module")
def played() -> tuple[Comparison, list[LifeFigures]]:
    others = variations(SPEC, ["spares=0..3", "limits.total=50,100"])
    own = [live(SPEC, seed) for seed in range(4)]
    lives = [own if one.spec == SPEC else [live(one.spec, seed) for seed in range(4)] for one in others]
    return comparison(SPEC.name, "policy", own, list(zip(others, lives, strict=True)), None), own


@pytest.fixture(scope="module")
def page(played: tuple[Comparison, list[LifeFigures]]) -> str:
    return page_of(*played, [("simulated", "8 nodes")])


def test_a_browser_may_run_the_scripts_of_the_package_and_nothing_else(page: str) -> None:
    (policy,) = [m["content"] or "" for m in Elements(page).of("meta") if m.get("http-equiv") is not None]
    rules = {rule.split()[0]: set(rule.split()[1:]) for rule in policy.split(";")}
    assert rules["default-src"] == {"'none'"}
    assert rules["script-src"] == hashes(page, "script")
    assert rules["style-src"] == hashes(page, "style")


def test_each_chart_has_its_figures_in_a_table(page: str) -> None:
    found = Elements(page)
    charts = [one["data-chart"] for one in found.of("div") if "data-chart" in one]
    assert charts == ["what-if-0", "what-if-1", "ettr", "hour", "lives", "standbys"]
    labels = [one.get("aria-label") or "" for one in found.of("div")]
    assert sum(label.endswith(" as a table") for label in labels) == len(charts)
    texts = {text.strip() for text in found.texts}
    assert {"spares=1 (own)", "broken nodes evicted", "good nodes evicted", "nobody"} <= texts


def test_no_text_of_a_spec_is_more_than_text(played: tuple[Comparison, list[LifeFigures]]) -> None:
    made, lives = played
    what_if = tuple(replace(one, settings={EVIL: f"{EVIL}{place}"}) for place, one in enumerate(made.what_if))
    made = replace(made, own=replace(made.own, name=EVIL), what_if=what_if, assumed=(EVIL,))
    found = Elements(page_of(made, lives, [(EVIL, EVIL)]))
    assert len(found.of("script")) == 2
    assert found.of("img") == []
    assert not [name for _, attributes in found.found for name in attributes if name.startswith("on")]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Page]:
    with browser() as page:
        yield page


@pytest.mark.slow
@pytest.mark.skipif(program() is None, reason="no Chromium here (Debian: apt-get install chromium)")
@pytest.mark.parametrize(("width", "dark"), [(1400, False), (1400, True), (390, False)])
def test_the_page_draws_on_every_screen_without_an_error_or_a_request(
    chromium: Page, page: str, width: int, dark: bool, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    path.write_text(page)
    chromium.said.clear()
    chromium.requests.clear()
    chromium.look(width=width, height=900, dark=dark)
    chromium.open(path)
    chromium.settle()
    assert chromium.run('[...document.querySelectorAll(".plot svg")].length') == 6
    assert chromium.run("document.documentElement.scrollWidth") == width  # nothing sticks out
    widths = '[...document.querySelectorAll(".plot svg")].map((one) => one.getBoundingClientRect().width)'
    assert min(chromium.run(widths)) > 0.4 * min(width, 1352)  # each has the room that there is
    ground = chromium.run("getComputedStyle(document.documentElement).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") is not dark
    assert chromium.said == []
    assert [url for url in chromium.requests if not url.startswith(("file://", "data:"))] == []


@pytest.mark.slow
@pytest.mark.skipif(program() is None, reason="no Chromium here (Debian: apt-get install chromium)")
def test_the_keyboard_reads_values_aloud(chromium: Page, page: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page)
    chromium.look(width=1400, height=900, dark=False)
    chromium.open(path)
    chromium.settle()
    spoken = 'document.getElementById("spoken").textContent'
    for chart, said in (("what-if-0", "0: "), ("ettr", "after "), ("lives", " to "), ("standbys", "after ")):
        plot = f'document.querySelector("#{chart} .plot")'
        for _ in range(2):
            chromium.run(f'{plot}.dispatchEvent(new KeyboardEvent("keydown", {{key: "ArrowRight"}}))')
            if chart == "what-if-0":
                assert chromium.run(spoken).startswith(said)
                said = "1: "
        assert said in chromium.run(spoken), chart
        assert chromium.run(f'document.getElementById("{chart}-readout").textContent') == chromium.run(spoken)
