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
from slurm_robust.model.state import JobState
from slurm_robust.report.situation import JobSize
from slurm_robust.report.top.feed import LiveView, situation_of
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
    instead_of_nodes,
    job_heads,
    job_row,
    matching,
    more,
    node_lines,
    spark,
    wrapped,
)
from slurm_robust.slurm.need import Places
from slurm_robust.trainings.waiting import PendingJob
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
    made = structs.replace(made, **changes)
    return structs.replace(made, situation=situation_of(made, JobState(), 1.7e9))


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
    flat = " ".join(text.split())
    for part in (
        "job 4711 recovering", "generation 5, run 2", "live, 1.2 s ago", "step 1,200",
        "1.25 s/step (p50 1.2)",
        "loss 2.123", "97.3%, of the last hour 99.1%", "stops the ranks for 12 min: gpu0007 is silent",
        "incident 4 for 12 s: node lost", "evict gpu0007, sp1 takes its slot", "memory 1,200, peer 1,196",
        "storage 1,000 (4 min ago)", "4: 3 training, 1 silent", "standbys: 1 rehearsed",
    ):  # fmt: skip
        assert part in flat
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
            localise_s=1.0, recover_s=30.0, steps_repeated=2, lost_s=32.0,
        )
        for number in (1, 2)
    ]  # fmt: skip
    text = shown(incident_lines(rows, 80))
    assert text.index("   2  ") < text.index("   1  ")
    assert "blamed: node gpu0001, 32 s lost" in text
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


def test_a_list_of_jobs_of_80_columns_has_room_for_what_is_wrong() -> None:
    moment = live_status(incident=incident(number=1, actions="evict n1, n5 takes its slot"))
    assert "incident 1: evict n1, n5" in shown([job_row(view(moment), 80)])
    assert "loss" not in shown([job_heads(80)])
    assert "loss" in shown([job_heads(120)])
    lost = live_status(nodes=(live_node(0, state=NodeState.EVICTED),))
    assert "1 node wrong" in shown([job_row(view(lost), 80)])
    assert "1 node wrong" not in shown([job_row(view(structs.replace(lost, code=143)), 80)])


def test_the_help_of_top_fits_the_screen() -> None:
    assert max(cell_len(line) for line in shown(HELP).splitlines()) <= 80


def test_what_is_wrong_with_a_node_is_whole_below_its_row_if_that_has_no_room() -> None:
    why = "gpu3: XID 94 (contained ECC error), seen 12 s ago; its row of the table is too short for all of it"
    node = live_node(0, state=NodeState.SILENT, why=why)
    narrow = Columns((node,), 79)
    assert " ".join(shown(narrow.below(node)).split()) == why
    assert narrow.below(live_node(0, phase="x" * 200)) == [], "nothing is wrong with it"
    assert Columns((node,), 220).below(node) == []
    assert "memory" not in shown([narrow.heads()])
    assert "memory" in shown([Columns((node,), 120).heads()])


def test_a_tall_screen_shows_curves_incidents_and_the_output_of_rank_0() -> None:
    full = view(live_status(), losses=(5.0, 3.0, 2.5), step_times=(0.3, 0.3, 0.9), tail=tuple("abcdefgh"))
    text = shown(more(full, 132, 12))
    assert "█▂▁ 2.5 to 5, now 2.5" in text
    assert "▁▁█ 0.3 to 0.9, now 0.9" in text
    assert text.endswith("output of rank 0\nb\nc\nd\ne\nf\ng\nh")
    assert more(view(live_status()), 132, 12) == []
    assert len(more(full, 132, 5)) <= 5


def test_a_curve_has_no_more_blocks_than_columns_and_keeps_its_peaks() -> None:
    assert spark((), 10) == ""
    assert spark([1.0] * 5, 10) == "▁▁▁▁▁"
    values = [0.0] * 999
    values[500] = 1.0
    assert len(spark(values, 40)) <= 40
    assert spark(values, 40).count("█") == 1


def test_the_nodes_of_a_requeued_job_give_way_to_what_slurm_has_for_it() -> None:
    places = Places(free=("n1", "n2"), dead=("n3",), left_out=("n5",))
    waits = PendingJob(
        since=1.7e9 - 480,
        reason="Resources",
        least=4,
        most=5,
        places=places,
        command="",
        why="it lacks 2 nodes",
    )
    pending = view(live_status(), live=False, state="requeued", reason="n3 is lost", waiting=waits)
    lines = instead_of_nodes(pending, 80)
    assert lines is not None
    assert "free      2 nodes: n[1-2]" in shown(lines)
    text = " ".join(shown(head(pending, 80)).split())
    assert "waits in Slurm's queue for 8 min for 4 to 5 nodes: 2 nodes free" in text
    assert "4 training" not in text
    assert instead_of_nodes(view(live_status()), 80) is None


def test_a_live_job_without_standbys_says_what_its_next_lost_node_does() -> None:
    moment = live_status(nodes=(live_node(0), live_node(1)), lost_node="ends the job: slurm.requeue is false")
    said = "no standby left: the next lost node ends the job: slurm.requeue is false"
    assert said in " ".join(shown(head(view(moment), 132)).split())
    assert "the next lost node" not in shown(head(view(moment, live=False), 132))


def test_the_size_at_the_beginning_is_shown_if_it_was_another_one() -> None:
    moment = live_status(nodes=(live_node(0), live_node(1)), world=16)
    text = " ".join(shown(head(view(moment, began=JobSize(ranks=32, standbys=1)), 132)).split())
    assert "now 16 ranks + no standby, began with 32 ranks + 1 standby" in text
    assert "began" not in shown(head(view(moment, began=JobSize(ranks=16, standbys=0)), 132))


def test_steps_that_the_script_does_not_number_are_counted() -> None:
    text = shown(head(view(live_status(reports=False, step=46)), 80))
    assert "47 optimizer steps of this generation, 0.3 s ago" in text


def test_nodes_are_filtered_by_name_state_and_text() -> None:
    nodes = (live_node(0), live_node(1, state=NodeState.SILENT), live_node(2, alerts=("gpu.ecc gpu3",)))
    assert [node.slot for node in matching(nodes, "SILENT")] == [1]
    assert [node.slot for node in matching(nodes, "ecc")] == [2]
    assert matching(nodes, "") == nodes


def test_a_node_is_opened_with_its_ranks_alerts_and_last_output() -> None:
    node = live_node(3, failed=2, alerts=("gpu.ecc gpu3: XID 94",))
    text = shown(node_lines(node, live_status(), ("step 7 loss 2.1",), 80))
    assert "gpu0003  slot 3, ranks 24-31: training" in text
    assert "alert     gpu.ecc gpu3: XID 94" in text
    assert "last output of rank 24\nstep 7 loss 2.1" in text
    assert "rank 24 has written nothing" in shown(node_lines(node, live_status(), (), 80))


def test_a_job_whose_code_was_updated_says_what_runs_and_what_waits() -> None:
    lines = shown(head(view(live_status(release=CANDIDATE, update=WAITS, updates=2)), 110)).splitlines()
    assert [line for line in lines if line.startswith(("release", "update"))] == [
        "release   bbbbbbbbbbbb, candidate of update 1 since step 201; before it aaaaaaaaaaaa",
        "update    2 to release cccccccccccc waits for the next recovery, 2 h 0 min at most; by alice",
    ]


def test_a_job_that_was_never_updated_has_no_line_of_its_release() -> None:
    first = LiveRelease(name="aaaaaaaaaaaa", state="candidate")
    assert "release" not in shown(head(view(live_status(release=first)), 132))
