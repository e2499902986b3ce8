"""The page in a real browser: it draws, obeys the keyboard, says no error and asks for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_robust.report.page.page import page_of
from tests.browser import Page, browser, program
from tests.unit.report.test_job_report import job, report
from tests.unit.report.test_page import SEEN, hostile

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(program() is None, reason="no Chromium here (Debian: apt-get install chromium)"),
]

CHARTS = 'document.querySelectorAll(".plot canvas").length'
SHOWN = 'document.getElementById("shown").textContent'
SPOKEN = 'document.getElementById("spoken").textContent'


@pytest.fixture(scope="module")
def chromium() -> Iterator[Page]:
    with browser() as page:
        yield page


@pytest.fixture
def opened(chromium: Page, tmp_path: Path) -> Page:
    """The page on a screen of usual size."""
    path = tmp_path / "report.html"
    path.write_text(page_of(replace(report(job()), seen=(SEEN,))))
    chromium.look(width=1280, height=900, dark=False)
    chromium.said.clear()
    chromium.requests.clear()
    chromium.open(path)
    chromium.settle()
    return chromium


def quiet(page: Page) -> bool:
    """Nothing was said, and nothing but the file was asked for."""
    assert page.said == []
    assert [url for url in page.requests if not url.startswith(("file://", "data:"))] == []
    return True


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)])
def test_the_page_draws_on_every_screen_without_an_error_or_a_request(
    opened: Page, width: int, dark: bool, tmp_path: Path
) -> None:
    opened.look(width=width, height=900, dark=dark)
    opened.settle()
    assert opened.run(CHARTS) == 3  # the journal has neither loss nor gradient norm
    assert opened.run("document.documentElement.scrollWidth") == width  # nothing sticks out
    ground = opened.run("getComputedStyle(document.documentElement).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") is not dark
    opened.shoot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000
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
    opened.run('document.querySelector("[data-do=next]").click()')
    opened.settle()
    assert "Incident 1" in opened.run(SPOKEN)
    assert opened.run(SHOWN) != whole
    opened.run('location.hash = "incident-1"; new Promise(done => setTimeout(done))')
    assert opened.run('document.querySelector("#incident-1 details").open')
    assert quiet(opened)


def test_paper_is_white_and_has_the_charts(opened: Page, tmp_path: Path) -> None:
    opened.look(width=1280, height=900, dark=True)
    opened.print(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    opened.settle()
    assert opened.run(CHARTS) == 3
    assert quiet(opened)


def test_nothing_of_a_hostile_job_is_run(opened: Page, tmp_path: Path) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(page_of(hostile()))
    opened.open(path)
    opened.settle()
    assert opened.run(CHARTS) == 3
    assert quiet(opened)
