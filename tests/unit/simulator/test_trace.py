"""Failure traces: what is read, what is joined and said, and all mistakes at once, each with its place."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.model.errors import ExitCode
from slurm_robust.simulator.trace import DAY_S, FailureTrace, Outage, TraceInvalid, parse
from slurm_robust.simulator.trace_file import MAX_BYTES, TraceUnreadable, load, named

HEAD = "node,start_s,end_s,kind,description\n"


def trace(*lines: str, head: str = HEAD, nodes: int | None = None) -> FailureTrace:
    return parse((head + "\n".join(lines)).encode(), nodes)


def mistakes(text: str | bytes, nodes: int | None = None) -> tuple[str, ...]:
    with pytest.raises(TraceInvalid) as told:
        parse(text.encode() if isinstance(text, str) else text, nodes)
    assert told.value.exit_code == ExitCode.NO_INPUT
    return told.value.problems


# -- CSV ----------------------------------------------------------------------------------------------------


def test_a_line_is_an_outage() -> None:
    found = trace("# nodes: 4", "# from: 0", "# until: 100", "n1,10,20,GPU,XID 79", 'n2,30,,"a, b"')
    assert found == FailureTrace(
        nodes=4,
        span_s=100.0,
        outages=(
            Outage(node="n1", start=10.0, end=20.0, kind="GPU", description="XID 79"),
            Outage(node="n2", start=30.0, end=None, kind="a, b"),
        ),
    )
    assert found.lasted(found.outages[1]) == 70.0


@pytest.mark.parametrize(
    ("head", "line", "seconds"),
    [
        ("node,start_s,end_s", "n1,90,120", 30.0),
        ("node,start_hours,end_hours", "n1,1,2.5", 5400.0),
        ("END_days, Start_days, Node", "2,1,n1", DAY_S),
        ("node,start,end", "n1,2026-01-05T08:00+00:00,2026-01-05T09:00Z", 3600.0),
        ("node,start,end", "n1,2026-03-29 01:30:00+0100,2026-03-29 03:30:00+0200", 3600.0),
    ],
)
def test_times_have_a_unit_in_the_head_or_a_zone(head: str, line: str, seconds: float) -> None:
    (outage,) = trace(line, head=f"\ufeff{head}\r\n").outages
    assert (outage.node, outage.start, outage.end) == ("n1", 0.0, seconds)


def test_a_trace_that_does_not_say_its_nodes_and_its_span_is_told_so() -> None:
    found = trace("n1,10,20", "n2,40,50", head="node,start_s,end_s\n")
    assert (found.nodes, found.span_s, len(found.notes)) == (2, 40.0, 3)
    assert "all others are missing; add '# nodes: N'" in found.notes[0]
    assert trace("n1,10,20", nodes=9).nodes == 9


def test_outages_of_a_node_that_overlap_are_one() -> None:
    found = trace(
        "n1,10,50,GPU",
        "n1,20,30,NIC",
        "n1,40,60,NIC",
        "n1,60,70,Fan",
        "n2,15,20,Fan",
        "n1,80,,A",
        "n1,90,95,B",
    )
    own = [(o.start, o.end, o.kind) for o in found.outages if o.node == "n1"]
    assert own == [(0.0, 50.0, "GPU"), (50.0, 60.0, "Fan"), (70.0, None, "A")]
    assert any("3 outages within another one of the same node" in note for note in found.notes)
    assert any("line 3, line 4, line 8" in note for note in found.notes)


def test_a_long_pause_and_columns_that_are_not_read_are_told() -> None:
    lines = [f"n{i},{i * DAY_S},{i * DAY_S + 60},x" for i in (*range(100), *range(1000, 1100))]
    found = trace(*lines, head="node,start_s,end_s,rack\n")
    assert any("no outage began for 901 days after day 99" in note for note in found.notes)
    assert "columns that are not read: rack" in found.notes


def test_times_of_several_zones_count_each_with_its_own() -> None:
    found = trace("n1,2026-01-05T08:00+01:00,2026-01-05T08:00Z", head="node,start,end\n")
    assert found.outages[0].end == 3600.0
    assert any("2 zones (+0000, +0100)" in note for note in found.notes)


def test_all_mistakes_come_at_once_each_with_its_line_and_fix() -> None:
    text = "\n".join(
        [
            "# a site's trace",
            "# nodes: 2",
            "# until: soon",
            "node,start,end,kind",
            "n1,2026-01-05T08:00,2026-01-05T09:00Z,no zone",
            "n1,2026-01-05T09:00Z,2026-01-05T08:00Z,ends before it starts",
            "n1,,2026-01-05T08:00Z,no start",
            ",2026-01-05T08:00Z,,no node",
            "n1,5.3,yesterday,no dates",
            "n1,2026-01-05T08:00Z",
            "n2,2026-01-05T10:00Z,,good",
            "n3,2026-01-05T10:00Z,,too many nodes",
        ]
    )
    found = mistakes(text)
    for where, what in (
        ("line 3: until", "is no date such as"),
        ("line 5: start", "has no time zone; write"),
        ("line 6", "ends before it starts; exchange"),
        ("line 7", "an end without a start"),
        ("line 8", "no node; name"),
        ("line 9: start", "'5.3' is no date"),
        ("line 9: end", "'yesterday' is no date"),
        ("line 10", "2 columns, and the head has 4"),
        ("3 nodes have an outage, and the trace is of 2", "n3"),
    ):
        assert any(problem.startswith(where) and what in problem for problem in found), (where, what)
    assert len(found) == 9


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the file is empty"),
        ("  \n", "the file is empty"),
        ("# nodes: 3\n", "no line beside comments"),
        (HEAD, "no outage"),
        ("host,from,to\nn1,1,2\n", "line 1: no head of a trace: host,from,to; begin with the line"),
        ("node,start_s,end_days\nn1,1,2\n", "no head of a trace"),
        ("node,start,start,end\nn1,1,2,3\n", "no head of a trace"),
        ("%PDF-1.4\n", "no head of a trace"),
        (b"\x1f\x8b\x08\x00\xff", "byte 1: no UTF-8"),
        (HEAD + "n1,inf,2,x\n", "line 2: start 'inf' is no number"),
        (HEAD + 'n1,1,2,"x\n', "unexpected end of data; quote"),
        (HEAD + "# nodes: -3\nn1,1,2,x\n", "line 2: nodes '-3' is no number from 1"),
        (HEAD + "# from: 5\n# until: 50\nn1,1,2,x\nn2,49,51,x\n", "line 4: outside of the trace"),
        (HEAD + "n1,5,5,x\n", "the trace takes no time"),
        ('{"nodes": 3}', "a JSON object"),
        ("[{", "no whole JSON document"),
    ],
)
def test_what_is_no_trace_is_refused_with_what_to_do(text: str | bytes, why: str) -> None:
    assert why in "\n".join(mistakes(text))


def test_a_thousand_mistakes_are_counted_and_twenty_shown() -> None:
    with pytest.raises(TraceInvalid) as told:
        parse((HEAD + "n1,x,,\n" * 1000).encode())
    assert str(told.value).startswith("1000 mistakes in the trace:\nline 2: start 'x' is no number")
    assert str(told.value).endswith("and 980 more")
    assert len(str(told.value).splitlines()) == 22


@given(
    st.binary(max_size=300) | st.text(max_size=300).map(lambda text: (HEAD + text).encode("utf-8", "replace"))
)
def test_any_bytes_are_a_trace_or_mistakes(data: bytes) -> None:
    try:
        found = parse(data)
    except TraceInvalid:
        return
    assert all(0 <= outage.start <= found.span_s for outage in found.outages)


@pytest.mark.slow
def test_the_time_to_read_grows_as_the_lines_do() -> None:
    def cpu_s(lines: int) -> float:
        text = HEAD + "".join(f"n{i % 5000},{i * 10},{i * 10 + 5},x,\n" for i in range(lines))
        begin = time.process_time()
        assert len(parse(text.encode(), 5000).outages) == lines
        return time.process_time() - begin

    cpu_s(1000)
    assert cpu_s(160_000) < 8 * 3 * cpu_s(20_000)


# -- the JSON of InfiniteHBD-Trace --------------------------------------------------------------------------


def event(node: str, day: float, what: str = "start", kind: str = "GPU") -> dict[str, object]:
    fault = {"Level": "Hardware Failure", "Class": kind, "Desc": "GPU Lost"}
    return {"node_id": node, "event_time": day, "event_type": f"fault_{what}", "fault_type": fault}


def from_json(*events: object, nodes: int | None = 10) -> FailureTrace:
    return parse(json.dumps(events).encode(), nodes)


def test_starts_and_ends_of_a_node_and_class_are_paired() -> None:
    found = from_json(
        event("a", 1),
        event("a", 2, kind="NIC"),
        event("b", 3),
        event("a", 4, "end"),
        event("b", 5, "end"),
        event("c", 6),
    )
    assert found.nodes == 10
    outages = [(o.node, o.start / DAY_S, o.end and o.end / DAY_S, o.kind) for o in found.outages]
    # The NIC of a is out for ever, from within the outage of its GPU on.
    assert outages == [("a", 1.0, None, "GPU"), ("b", 3.0, 5.0, "GPU"), ("c", 6.0, None, "GPU")]
    assert found.outages[1].description == "GPU Lost"


def test_an_outage_of_no_time_is_one() -> None:
    found = from_json(event("a", 1, "end"), event("a", 1), event("b", 2))
    assert [(o.start, o.end) for o in found.outages if o.node == "a"] == [(DAY_S, DAY_S)]


def test_mistakes_of_entries_have_their_number() -> None:
    events = [event("a", 1, "end"), event("b", 1, "begin"), {"node_id": 5}, 7, event("c", 2)]
    found = mistakes(json.dumps(events), 10)
    assert len(found) == 4
    assert any(problem.startswith("entry 1: an end without a start of a") for problem in found)
    assert any("entry 2: event_type 'fault_begin' is neither" in problem for problem in found)
    assert {"entry 3", "entry 4"} < {problem.partition(":")[0] for problem in found}


# -- files --------------------------------------------------------------------------------------------------


def test_the_package_has_a_trace_by_name() -> None:
    assert named() == ("infinitehbd",)
    found = load("infinitehbd")
    assert (found.nodes, found.span_s / DAY_S, len(found.outages)) == (400, 349.0, 582)
    assert len(found.notes) == 1, "two faults lie within an outage"
    assert sum(outage.kind == "GPU" for outage in found.outages) == 158


def test_a_file_is_read_and_one_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEAD + "n1,1,5,x\n")
    assert load(str(path), 3).nodes == 3
    for source, why in (
        (str(tmp_path / "gone.csv"), "No such file"),
        (str(tmp_path), "Is a directory"),
        ("infinite", "No such file"),
        ("\0", "null"),
    ):
        with pytest.raises(TraceUnreadable, match=why) as told:
            load(source)
        assert "infinitehbd" in told.value.in_full()


def test_a_file_that_is_far_too_large_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES * 100)
    with pytest.raises(TraceUnreadable, match="larger than 256 MiB"):
        load(str(path))
