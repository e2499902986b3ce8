"""The lines of top: they fit, they are clean, and without colors they say the same."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from rich.cells import cell_len

from slurm_robust.evidence.incident_text import IncidentRow
from slurm_robust.evidence.incidents import IncidentStatus
from slurm_robust.model.live_status import (
    LiveCompanion,
    LiveIncident,
    LiveNode,
    LiveRelease,
    LiveStatus,
    LiveUpdate,
    NodeState,
)
from slurm_robust.report.top.feed import LiveView
from slurm_robust.report.top.screen import (
    HELP,
    STYLES,
    Columns,
    Line,
    NodeOrder,
    age,
    arranged,
    fit,
    foot,
    head,
    incident_lines,
    job_heads,
    job_row,
    wrapped,
)
from tests.builders.live_statuses import live_node, live_status

WIDTHS = (80, 132)
CANDIDATE = LiveRelease(
    name="bbbbbbbbbbbb", state="candidate", update=1, before="aaaaaaaaaaaa", first_step=201
)
WAITS = LiveUpdate(number=2, release="cccccccccccc", when="lazy", by="alice", tried=True, left_s=7200.0)
PIECES = (
    "\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\x1b", "\x00", "\r", "\t", "\n", "\u202e", "\ud800", "[bold]",
    "[/]", "漢字", "e\u0301", "x" * 1000, "; ", " ",
)  # fmt: skip
HOSTILE = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)


def view(moment: LiveStatus, **changes: object) -> LiveView:
    made = LiveView(
        folder="/jobs/4711", live=True, source="", age_s=1.2, state="training", reason="", slurm="",
        moment=moment, incidents=(),
    )  # fmt: skip
    return structs.replace(made, **changes)


def shown(lines: Iterable[Line]) -> str:
    return "\n".join("".join(text for text, _ in line) for line in lines)


def incident(**changes: object) -> LiveIncident:
    made = LiveIncident(
        number=4, symptom="node lost", sign="gpu0007 has not responded for 6.2 s", age_s=12.0, step=1200,
        reason="gpu0007 does not respond", actions="evict gpu0007, sp1 takes its slot, restart", blame="node",
    )  # fmt: skip
    return structs.replace(made, **changes)


def test_the_head_answers_what_is_asked() -> None:
    nodes = (*(live_node(slot) for slot in range(3)), live_node(3, state=NodeState.SILENT))
    standby = LiveNode(node="sp1", state=NodeState.STANDBY, why="rehearsed", heard_s=0.2)
    moment = live_status(
        nodes=(*nodes, standby), incident=incident(), stage="stopping", stage_why="gpu0007 is silent"
    )
    text = shown(head(view(moment, state="recovering"), 80))
    for part in (
        "job 4711  recovering", "generation 5, run 2", "live, 1.2 s ago", "step 1,200",
        "1.25 s/step (p50 1.2)",
        "loss 2.123", "97.3%, of the last hour 99.1%", "stopping for 12 min: gpu0007 is silent",
        "incident 4 for 12 s: node lost", "evict gpu0007, sp1 takes its slot", "memory 1,200, peer 1,196",
        "storage 1,000 (4 min ago)", "4: 3 training, 1 silent", "standbys: 1 rehearsed",
    ):  # fmt: skip
        assert part in text
    assert max(map(cell_len, text.splitlines())) <= 90  # longer ones are cut by the screen


def test_a_journal_alone_is_named_as_such() -> None:
    quiet = view(live_status(), live=False, source="there is no moment.json", age_s=40.0, slurm="RUNNING")
    text = " ".join(shown(head(quiet, 132)).split())
    assert "by the journal alone" in text
    assert "there is no moment.json" in text
    assert "its newest event is 40 s old; Slurm: RUNNING" in text


def test_the_controllers_own_trouble_is_wrong() -> None:
    moment = live_status(held=True, trouble="No space left on device", behind=3, missed=1, non_finite=True)
    text = " ".join(shown(head(view(moment), 132)).split())
    assert "nothing is decided, since storage does not take the journal" in text
    assert "No space left on device (3 events in memory only)" in text
    assert "loss NaN or infinite" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_fill_the_width_exactly(width: int) -> None:
    nodes = (live_node(0), LiveNode(node="漢" * 30, state=NodeState.EVICTED, why="x" * 500))
    columns = Columns(nodes, width)
    for line in (
        columns.heads(),
        *map(columns.row, nodes),
        job_heads(width),
        job_row(view(live_status()), width),
    ):
        assert cell_len("".join(text for text, _ in line)) == width


def test_orders_and_the_filter() -> None:
    silent = live_node(2, state=NodeState.SILENT, step=1100, step_age_s=20.0)
    slow = live_node(1, step_s=9.0)
    alerted = live_node(3, alerts=("gpu.ecc gpu3: XID 94",))
    standby = LiveNode(node="a", state=NodeState.STANDBY)
    nodes = (standby, alerted, silent, slow, live_node(0))

    def first(order: NodeOrder) -> str:
        return arranged(nodes, order, wrong=False)[0].node

    assert first(NodeOrder.SLOT) == "gpu0000"
    assert first(NodeOrder.WRONG) == first(NodeOrder.STEP) == first(NodeOrder.AGE) == "gpu0002"
    assert first(NodeOrder.PACE) == "gpu0001"
    assert first(NodeOrder.NAME) == "a"
    assert [node.node for node in arranged(nodes, NodeOrder.SLOT, wrong=True)] == ["gpu0002", "gpu0003"]
    order = NodeOrder.SLOT
    for _ in NodeOrder:
        order = order.next
    assert order is NodeOrder.SLOT


def test_the_foot_tells_all_of_a_node() -> None:
    node = live_node(
        3, failed=2, alerts=("gpu.ecc gpu3: XID 94",), why="rank 24: SIGSEGV", phase="checkpoint"
    )
    text = shown(foot(node, live_status(), 80))
    assert "gpu0003  slot 3, ranks 24-31: training; heard 0.4 s ago" in text
    assert "2 workers failed; gpu.ecc gpu3: XID 94; rank 24: SIGSEGV; checkpoint" in text
    assert shown(foot(None, live_status(), 80)) == "no node is selected"


def test_incidents_are_listed_newest_first() -> None:
    rows = [
        IncidentRow(
            number=number, t=1.7e9, status=IncidentStatus.OVER, symptom="hang", signs=("no step",),
            blamed="node gpu0001", suspects=("gpu0001",), done="evict gpu0001", outcome="", detect_s=1.0,
            localise_s=1.0, recover_s=30.0, steps_repeated=2,
        )
        for number in (1, 2)
    ]  # fmt: skip
    text = shown(incident_lines(rows, 80))
    assert text.index("   2  ") < text.index("   1  ")
    assert "blamed: node gpu0001, recovered in 30 s" in text
    assert shown(incident_lines((), 80)) == "no incident so far"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.44, "0.4"),
        (9.94, "9.9"),
        (9.96, "10"),
        (599, "599"),
        (600, "10m"),
        (6000, "2h"),
        (1e6, "12d"),
    ],
)
def test_ages_take_little_room(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


@given(HOSTILE, st.integers(0, 40))
@settings(max_examples=50, deadline=None)
def test_hostile_text_fits_and_is_clean(text: str, width: int) -> None:
    found = fit(text, width)
    assert found.isprintable()
    assert cell_len(found) == width
    for line in wrapped(text, width + 1):
        assert line.isprintable()
        assert cell_len(line) <= width + 1


@given(HOSTILE)
@settings(max_examples=25, deadline=None)
def test_no_hostile_text_leaves_the_lines(text: str) -> None:
    node = LiveNode(node=text, state=NodeState.ASIDE, why=text, phase=text, alerts=(text,))
    moment = live_status(
        0, host=text, stage=text, stage_why=text, ending=text, trouble=text, mode=text,
        companions=(LiveCompanion(job_id=1, source=text), LiveCompanion(job_id=2, source="", node=text)),
        incident=incident(sign=text, reason=text, actions=text, symptom=text),
    )  # fmt: skip
    moment = structs.replace(moment, nodes=(node,))
    bad = view(
        moment, folder=text, live=False, source=text, state=text, reason=text, slurm=text, trouble=text
    )
    columns = Columns(moment.nodes, 79)
    lines = [
        *head(bad, 80, text),
        columns.heads(),
        columns.row(node),
        *foot(node, moment, 80),
        job_row(bad, 79),
    ]
    assert len(lines) < 40
    for line in lines:
        for piece, style in line:
            assert style in STYLES
            assert piece.isprintable(), piece


def test_the_help_of_top_fits_the_screen() -> None:
    assert max(cell_len(line) for line in shown(HELP).splitlines()) <= 80


def test_a_job_whose_code_was_updated_says_what_runs_and_what_waits() -> None:
    lines = shown(head(view(live_status(release=CANDIDATE, update=WAITS, updates=2)), 110)).splitlines()
    assert [line for line in lines if line.startswith(("release", "update"))] == [
        "release   bbbbbbbbbbbb, candidate of update 1 since step 201; before it aaaaaaaaaaaa",
        "update    2 to release cccccccccccc waits for the next recovery, 2 h 0 min at most; by alice",
    ]


def test_a_job_that_was_never_updated_has_no_line_of_its_release() -> None:
    first = LiveRelease(name="aaaaaaaaaaaa", state="candidate")
    assert "release" not in shown(head(view(live_status(release=first)), 132))
