"""The page: what is in it, and that no text of a job is more than text in it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from slurm_robust.model import events as ev
from slurm_robust.model.exits import WorkerExit
from slurm_robust.model.findings import Finding, Outcome, Suggestion
from slurm_robust.model.incident import NodeExit
from slurm_robust.model.nodeseen import DriverError, HookSeen, NodeSeen
from slurm_robust.report.job_report import Evidence, JobReport, SlurmFacts, job_report
from slurm_robust.report.page.page import MAX_SEEN, MAX_SEEN_LINES, page_of
from tests.builders import events
from tests.unit.ledger.journals import Journal, at
from tests.unit.report.test_job_report import job, report

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}\x1b[2J\u202e\u2028'\"`"


DOWN = Finding(
    check="gpu.nvlink", outcome=Outcome.FAIL, subject="gpu3", text="16 of 18 NVLinks up",
    suggestion=Suggestion.RESET,
)  # fmt: skip
SEEN = NodeSeen(
    job_id=7,
    node="n2",
    prolog=HookSeen(at=at(60), findings=(replace(DOWN, check="nic.link", subject="mlx5_1/1", text="slow"),)),
    epilog=HookSeen(at=at(161), findings=(DOWN,)),
    errors=(DriverError(kind="xid", code=74, subject="0000:1b:00.0", at=at(118), count=3),),
    grown={"mlx5_0/1": {"link_downed": 2, "symbol_error": 9}, "gpu3": {"link_errors": 40}},
)


class Elements(HTMLParser):
    """Every element with its attributes, and the text in each kind."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def hostile() -> JobReport:
    """A job of which every text is an attack."""
    journal = job()
    started = journal.events[0]
    assert isinstance(started, ev.RunStarted)
    journal.events[0] = events.run_started(
        t=started.t,
        epoch=1,
        job_id=7,
        command=(EVIL,),
        slots=2,
        spares=1,
        nproc_per_node=8,
        version=EVIL,
        cluster=EVIL,
    )
    exit = WorkerExit(rank=0, signal=9, tail=(EVIL, "x" * 1_000_000))
    journal.opened(162, 2, 2).add(
        ev.GenerationEnded(
            t=at(163), epoch=1, generation=2, reason=EVIL, exits=(NodeExit(node=EVIL, exit=exit),), root=0
        )
    )
    journal.add(ev.NodeEvicted(t=at(164), epoch=1, node=EVIL, reason=EVIL, incident=2))
    journal.add(ev.Noted(t=at(165), epoch=1, node=EVIL, text=EVIL + "y" * 1_000_000))
    journal.controller(166, taken_from=EVIL, reason=EVIL)
    journal.add(events.allocation_taken((EVIL,), (EVIL + "2",), t=at(167), epoch=2, restart_count=1))
    journal.launch(168, 3)
    evidence = {2: Evidence(folder=EVIL, files={EVIL: 3}, heads={"stacks.txt": EVIL})}
    found = job_report(journal.events, at(1000), SlurmFacts(state=EVIL, notes=(EVIL,)), evidence, (EVIL,))
    finding = replace(DOWN, check=EVIL, subject=EVIL, text=EVIL + "z" * 100_000)
    error = DriverError(kind=EVIL, code=1, subject=EVIL, at=at(99))
    saw = HookSeen(at=at(200), findings=(finding,) * 64)
    seen = NodeSeen(job_id=7, node=EVIL, epilog=saw, errors=(error,), grown={EVIL: {EVIL: 1}})
    return replace(found, seen=(seen,))


@pytest.fixture(scope="module")
def page() -> str:
    return page_of(report(job()))


def hashes(page: str, tag: str) -> set[str]:
    """Of the contents of all elements that a browser would run or apply."""
    texts = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    return {f"'sha256-{base64.b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in texts}


def test_a_browser_may_run_the_scripts_of_the_package_and_nothing_else(page: str) -> None:
    (policy,) = [
        m["content"] for m in Elements(page).of("meta") if m.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    rules = {rule.split()[0]: set(rule.split()[1:]) for rule in policy.split(";")}
    assert rules["default-src"] == {"'none'"}
    assert rules["script-src"] == hashes(page, "script")
    assert rules["style-src"] == hashes(page, "style")
    assert len(rules["script-src"]) == len(rules["style-src"]) == 1


def test_the_page_loads_nothing(page: str) -> None:
    places = [
        value
        for tag, attributes in Elements(page).found
        for name, value in attributes.items()
        if name in ("src", "href", "action", "data", "poster", "srcset")
    ]
    assert [place for place in places if place is None or not place.startswith(("#", "data:,"))] == []
    assert "@import" not in page
    assert set(re.findall(r"url\(.", page)) <= {"url(#"}  # what the page itself defines


def test_no_text_of_a_job_is_more_than_text() -> None:
    page = page_of(hostile())
    found = Elements(page)
    assert len(found.of("script")) == 2  # the data and what draws them
    assert found.of("img") == []
    assert not [name for _, attributes in found.found for name in attributes if name.startswith("on")]
    assert "{{ 7*7 }}" in "".join(found.texts)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page)
    assert "alert(1)" in "".join(found.texts)
    assert len(page) < 300_000  # a line of a megabyte is cut


def cells(page: str) -> list[str]:
    """Of the table of what the hooks saw."""
    _, _, after = page.partition('id="seen"')
    return Elements(after.partition("</table>")[0]).texts


def test_what_the_hooks_saw_is_a_table_that_names_who_saw_it() -> None:
    page = page_of(replace(report(job()), seen=(SEEN, replace(SEEN, node="n9", prolog=None, errors=()))))
    texts = cells(page)
    for text in (
        "gpu.nvlink gpu3: 16 of 18 NVLinks up (reset)",
        "nic.link mlx5_1/1: slow (reset)",
        "mlx5_0/1: link_downed +2, symbol_error +9",
        "gpu3: link_errors +40",
    ):
        assert text in texts
    xid = next(text for text in texts if text.startswith("XID 74 of 0000:1b:00.0 at "))
    assert xid.endswith(", 3 lines")
    assert texts.index("n9") < texts.index("not known") < texts.index("n2"), "the newest first"


def test_a_page_of_nodes_of_which_there_is_nothing_to_tell_has_no_such_table(page: str) -> None:
    assert 'id="seen"' not in page
    assert "prolog" not in page


def test_many_nodes_and_many_lines_are_cut_and_the_page_says_so() -> None:
    ports = {f"mlx5_{number}/1": {"symbol_error": 1} for number in range(2 * MAX_SEEN_LINES)}
    seen = [replace(SEEN, node=f"n{number}", grown=ports) for number in range(MAX_SEEN + 2)]
    texts = cells(page_of(replace(report(job()), seen=tuple(seen))))
    assert "n1" not in texts
    assert texts.count(f"and {MAX_SEEN_LINES + 1} more in --json") == MAX_SEEN
    assert "The 2 earlier rows are in --json." in "".join(texts)


def test_the_data_of_the_charts_is_json_whatever_it_holds() -> None:
    page = page_of(hostile())
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    assert data["begin"] == at(0)
    assert [one["number"] for one in data["incidents"]] == [1, 2]
    assert "alert" in json.dumps(data["lanes"])
    assert "alert" in json.dumps(data["marks"])


def test_each_link_leads_somewhere_and_each_id_is_there_once(page: str) -> None:
    found = Elements(page).found
    ids = [attributes["id"] for _, attributes in found if attributes.get("id")]
    assert len(ids) == len(set(ids))
    links = {href[1:] for _, attributes in found if (href := attributes.get("href")) and href[0] == "#"}
    assert links - set(ids) == set()
    labels = {one for _, attributes in found if (one := attributes.get("aria-labelledby"))}
    assert labels - set(ids) == set()


def test_each_chart_has_a_table_that_says_the_same(page: str) -> None:
    found = Elements(page)
    charts = [attributes["data-chart"] for attributes in found.of("div") if "data-chart" in attributes]
    assert charts == ["timeline", "loss", "steps_s", "step_s", "grad_norm", "ettr"]
    assert all(a.get("aria-label") for a in found.of("div") if "data-chart" in a)
    text = "".join(found.texts)
    for words in ("ETTR as a table", "Step time as a table", "held a slot", "PROGRAM_STARTUP"):
        assert words in text, words


def test_the_bar_of_shares_and_the_lost_time_by_cause_add_up(page: str) -> None:
    parts = [
        float((one["width"] or "").rstrip("%")) for one in Elements(page).of("svg") if "data-part" in one
    ]
    assert len(parts) > 2
    assert sum(parts) == pytest.approx(100, abs=0.01)
    rows = re.findall(
        r"<th scope=\"row\">(.*?)</th>", page.partition('id="causes"')[2].partition("</table>")[0]
    )
    assert rows[-2:] == ["outside of incidents", "all"]


def test_a_tile_has_one_number_and_nothing_that_the_job_does_not_have(page: str) -> None:
    tiles = page.partition('<dl class="tiles">')[2].partition("</dl>")[0]
    assert re.findall(r"<dt>(.*?)</dt>", tiles)[:3] == ["ETTR", "incidents", "lost"]
    assert all(re.fullmatch(r"[\d.,]+", number) for number in re.findall(r"<b>(.*?)</b>", tiles))
    assert "last hour" not in page.partition("</main>")[0]
    without_gpus = page_of(report(Journal().controller(64).allocation(65).launch(70, 1).first(81, 1, 0)))
    assert "GPU hours" not in without_gpus


def test_a_job_that_has_only_begun_has_a_page() -> None:
    text = page_of(report(Journal().controller(0)))
    assert "Training has not begun" in text
    assert "None." in text
