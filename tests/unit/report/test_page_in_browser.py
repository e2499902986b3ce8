"""The page in a real browser: it draws, obeys the keyboard, says no error and asks for nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_robust.report.job_report import JobReport, SlurmFacts, job_report
from slurm_robust.report.page.page import page_of
from tests.browser import Page, browser, program
from tests.unit.ledger.journals import at
from tests.unit.report.pictured import short
from tests.unit.report.test_job_report import report
from tests.unit.report.test_page import SEEN, hostile

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(program() is None, reason="no Chromium here (Debian: apt-get install chromium)"),
]

CHARTS = '[...document.querySelectorAll(".plot")].filter((one) => one.querySelector("svg")).length'
SHOWN = 'document.getElementById("shown").textContent'
SPOKEN = 'document.getElementById("spoken").textContent'

# Pairs of labels that run into each other, of all charts.
OVERLAPS = """(() => {
  const found = [];
  for (const place of document.querySelectorAll(".plot")) {
    const labels = [...place.querySelectorAll(".tick, .ytick, .label, .badge text, text.lane, text.in")]
      .filter((one) => !one.closest(".rows") || one.matches(".lane, .in"))
      .map((one) => [one.textContent, one.getBoundingClientRect(), one.closest("svg")]);
    labels.forEach(([text, a, svg], place) => {
      for (const [other, b, same] of labels.slice(place + 1)) {
        if (svg !== same) continue;
        const apart = a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
        if (!apart) found.push(`${text} | ${other}`);
      }
    });
  }
  return found;
})()"""


def waiting() -> JobReport:
    """Of a job with an open incident, which waits in the queue."""
    return job_report(short().events, at(999), SlurmFacts(state="PENDING", now=at(153)), {})


def requeued() -> JobReport:
    """Of the same job, which goes on with fewer ranks."""
    return job_report(short(requeued=True).events, at(999), SlurmFacts(state="RUNNING", now=at(262)), {})


@pytest.fixture(scope="module")
def chromium() -> Iterator[Page]:
    with browser() as page:
        yield page


def see(page: Page, path: Path, found: JobReport) -> Page:
    """Open the page on a screen of usual size."""
    path.write_text(page_of(found))
    page.look(width=1280, height=900, dark=False)
    page.said.clear()
    page.requests.clear()
    page.open(path)
    page.settle()
    return page


@pytest.fixture
def opened(chromium: Page, tmp_path: Path) -> Page:
    """The page of a job that waits."""
    return see(chromium, tmp_path / "report.html", replace(waiting(), seen=(SEEN,)))


def quiet(page: Page) -> bool:
    """Nothing was said, and nothing but the file was asked for."""
    assert page.said == []
    assert [url for url in page.requests if not url.startswith(("file://", "data:"))] == []
    return True


def do(page: Page, action: str) -> Any:
    """Press a button of the toolbar."""
    page.run(f'document.querySelector("[data-do={action}]").click()')
    page.settle()
    page.settle()


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)])
def test_the_page_draws_on_every_screen_without_an_error_or_a_request(
    opened: Page, width: int, dark: bool, tmp_path: Path
) -> None:
    opened.look(width=width, height=900, dark=dark)
    opened.settle()
    opened.settle()
    assert opened.run(CHARTS) == 6
    assert opened.run("document.documentElement.scrollWidth") == width  # nothing sticks out
    ground = opened.run("getComputedStyle(document.documentElement).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") is not dark
    opened.shoot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000
    assert quiet(opened)


@pytest.mark.parametrize("width", [390, 800, 1400, 2560])
def test_no_labels_of_a_chart_run_into_each_other(opened: Page, width: int, tmp_path: Path) -> None:
    for number, found in enumerate((waiting(), requeued())):
        see(opened, tmp_path / f"{number}.html", found)
        opened.look(width=width, height=900, dark=False)
        opened.settle()
        opened.settle()
        for action in ("all", "axis", "in", "in"):
            do(opened, action)
            assert opened.run(OVERLAPS) == [], (number, action)
    opened.look(width=1280, height=900, dark=False)


def test_lanes_are_tall_enough_to_read_and_name_who_held_the_slot(opened: Page) -> None:
    bars = '[...document.querySelectorAll(".rows rect.slot")]'
    heights = opened.run(f"{bars}.map((one) => one.getBBox().height)")
    assert len(heights) == 5
    assert min(heights) >= 18
    named = opened.run('[...document.querySelectorAll(".rows text.in")].map((one) => one.textContent)')
    assert named == ["n1", "n2", "n5", "n3", "n4", "n5", "n2 evicted"]


def test_a_curve_has_no_line_where_training_stood_still(opened: Page) -> None:
    ends = opened.run(
        '[...document.querySelectorAll("#loss path.curve")].map((one) => {'
        " const box = one.getBBox(); return [box.x, box.x + box.width]; })"
    )
    assert len(ends) == 3, "one for each generation"
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ends))


def test_an_incident_has_its_number_in_each_chart_and_an_open_one_floods_none(opened: Page) -> None:
    for chart in ("timeline", "loss", "steps_s", "step_s", "grad_norm", "ettr"):
        badges = f'[...document.querySelectorAll("#{chart} .badge text")].map((one) => one.textContent)'
        assert opened.run(badges) == ["1", "2", "3"], chart
        fill = f'getComputedStyle(document.querySelector("#{chart} .band.open")).fill'
        assert opened.run(fill) == "none", chart


def test_a_band_leads_to_its_row_and_a_row_to_the_bands(opened: Page) -> None:
    link = '[...document.querySelectorAll("#loss a")].find((one) => one.dataset.i === "2")'
    assert opened.run(f'{link}.getAttribute("href")') == "#incident-2"
    opened.run(f'{link}.dispatchEvent(new MouseEvent("click", {{bubbles: true}}))')
    opened.run("new Promise(done => setTimeout(done))")
    assert opened.run('document.querySelector("#incident-2 details").open')
    over = 'new PointerEvent("pointerover", {bubbles: true})'
    opened.run(f'document.querySelector("#incident-1 summary").dispatchEvent({over})')
    lit = '[...document.querySelectorAll(".plot")].filter((one) => one.querySelector("a.hot")).length'
    assert opened.run(lit) == 6
    whole = opened.run(SHOWN)
    opened.run('document.querySelector("#incident-1 [data-incident]").click()')
    opened.settle()
    assert opened.run(SHOWN) != whole
    assert quiet(opened)


def test_the_mouse_reads_a_value_in_all_charts_and_drags_a_zoom(opened: Page) -> None:
    opened.run('document.querySelector("#loss").scrollIntoView()')
    opened.settle()
    place = 'document.querySelector("#loss .plot").getBoundingClientRect()'
    left, top = opened.run(f"{place}.left"), opened.run(f"{place}.top")

    def mouse(kind: str, x: float) -> None:
        opened.call(
            "Input.dispatchMouseEvent", type=kind, x=left + x, y=top + 100, button="left", clickCount=1
        )

    mouse("mouseMoved", 400)
    assert "step " in opened.run('document.getElementById("loss-readout").textContent')
    assert "step " in opened.run('document.getElementById("step_s-readout").textContent')
    assert "since the start" in opened.run('document.getElementById("ettr-readout").textContent')
    whole = opened.run(SHOWN)
    for kind, x in (("mousePressed", 400), ("mouseMoved", 500), ("mouseMoved", 600), ("mouseReleased", 600)):
        mouse(kind, x)
    opened.settle()
    assert opened.run(SHOWN) != whole
    assert quiet(opened)


def test_the_axis_of_the_curves_shows_steps_at_a_press(opened: Page) -> None:
    do(opened, "axis")
    ticks = '[...document.querySelectorAll("#loss .tick")].map((one) => one.textContent)'
    assert "step" in opened.run(ticks)
    assert "100" in opened.run(ticks)
    assert "100" not in opened.run(ticks.replace("#loss", "#ettr"))
    do(opened, "smooth")
    assert opened.run('document.querySelectorAll("#loss path.raw").length') == 3
    assert quiet(opened)


def test_the_keyboard_reads_values_and_zooms(opened: Page) -> None:
    opened.run('document.querySelector("[data-chart=ettr]").focus()')
    opened.press("ArrowRight")
    opened.settle()
    assert "since the start" in opened.run(SPOKEN)
    whole = opened.run(SHOWN)
    opened.press("+")
    opened.settle()
    assert opened.run(SHOWN) != whole
    opened.press("0")
    opened.settle()
    assert opened.run(SHOWN) == whole
    assert quiet(opened)


def test_a_button_goes_to_the_next_incident_and_a_link_opens_its_evidence(opened: Page) -> None:
    whole = opened.run(SHOWN)
    do(opened, "next")
    assert "Incident 1" in opened.run(SPOKEN)
    assert opened.run(SHOWN) != whole
    opened.run('location.hash = "incident-1"; new Promise(done => setTimeout(done))')
    assert opened.run('document.querySelector("#incident-1 details").open')
    assert quiet(opened)


def test_paper_is_white_and_has_the_charts_and_no_heading_alone(opened: Page, tmp_path: Path) -> None:
    opened.look(width=1280, height=900, dark=True)
    opened.print(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    opened.call("Emulation.setEmulatedMedia", media="print", features=[])
    folded = 'document.querySelectorAll("details.figures, .tools, nav")'
    assert opened.run(f"[...{folded}].every((one) => !one.offsetHeight)")
    assert opened.run("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    opened.settle()
    assert opened.run(CHARTS) == 6
    assert quiet(opened)


def test_paper_has_some_lanes_and_says_how_many_more_there_are(opened: Page, tmp_path: Path) -> None:
    many = waiting()
    lane = next(lane for lane in many.lanes if lane.count)
    found = replace(many, lanes=tuple(replace(lane, slots=str(number)) for number in range(40)))
    see(opened, tmp_path / "many.html", found)
    opened.run('dispatchEvent(new Event("beforeprint"))')
    assert opened.run('document.querySelectorAll(".rows text.lane").length') == 16
    assert "and 24 more lanes" in opened.run('document.querySelector(".rows").textContent')
    opened.run('dispatchEvent(new Event("afterprint"))')
    assert opened.run('document.querySelectorAll(".rows text.lane").length') == 40


def test_nothing_of_a_hostile_job_is_run(opened: Page, tmp_path: Path) -> None:
    see(opened, tmp_path / "hostile.html", hostile())
    assert opened.run(CHARTS) == 4  # no loss and no gradient norm
    assert quiet(opened)


def test_a_job_that_has_only_begun_has_a_page_without_curves(opened: Page, tmp_path: Path) -> None:
    journal = short()
    journal.events = journal.events[:3]
    see(opened, tmp_path / "begun.html", report(journal))
    assert opened.run(CHARTS) == 2  # the timeline, and an ETTR of 0
    assert quiet(opened)
