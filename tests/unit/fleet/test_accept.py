"""What of a summary counts: nothing that Slurm does not say, and nothing that is impossible."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from slurm_robust.fleet.accept import (
    CAUSES,
    CLOCKS_S,
    DAY_S,
    NodePlace,
    accept,
    held_by,
    places_of,
    shares_of,
    submitted_of,
)
from slurm_robust.ledger.classes import TimeClass
from slurm_robust.model.jobsummary import (
    FORMAT,
    JobSummary,
    NodeWork,
    SummaryOfTheFuture,
    SummaryRefused,
    decode_spooled,
    decode_summary,
    encode,
)
from slurm_robust.slurm.records import AccountingRow, Gres, SlurmNode, Switch
from tests.builders import records
from tests.unit.fleet.samples import BEGIN, HOUR, NODES, entry, incident, spooled, summary

NOW = BEGIN + 13 * HOUR
HELD = (NodeWork(nodes=NODES, start=BEGIN, end=BEGIN + 12 * HOUR),)


def test_an_honest_summary_is_taken_as_it_is() -> None:
    found = accept(spooled(), held=HELD, known=frozenset(NODES), cluster="alpha", now=NOW)
    assert (found.cluster, found.job_id, found.uid, found.user) == ("alpha", 7, 1001, "alice")
    assert (found.verified, found.work, found.incidents) == (True, HELD, (incident(),))
    assert (found.submitted, found.started, found.ended) == (int(BEGIN) - 60, BEGIN, BEGIN + 12 * HOUR)
    assert found.effective_s / found.since_start_s == pytest.approx(11 / 12)


def test_only_nodes_that_the_job_held_can_be_blamed() -> None:
    lies = summary(incidents=(incident(nodes=("n2", "n9", "../n1", "n2")),))
    for known, work in ((frozenset(NODES), None), (None, HELD)):
        found = accept(spooled(lies), held=work, known=known, cluster="", now=NOW)
        assert found.incidents[0].nodes == ("n2",)


def test_nodes_and_times_are_those_of_slurms_accounting() -> None:
    lies = summary(work=(NodeWork(nodes=("n1", "n9"), start=BEGIN - 1e6, end=BEGIN + 1e9),))
    found = accept(spooled(lies), held=HELD, known=frozenset(NODES), cluster="", now=NOW)
    assert found.work == HELD
    without = accept(spooled(lies), held=None, known=frozenset(NODES), cluster="", now=NOW)
    assert not without.verified
    assert [work.nodes for work in without.work] == [("n1",)]
    assert without.work_s <= 12 * HOUR + 65


def test_periods_that_a_job_claims_do_not_overlap() -> None:
    twice = tuple(NodeWork(nodes=NODES, start=BEGIN, end=BEGIN + 12 * HOUR) for _ in range(50))
    found = accept(spooled(summary(work=twice)), held=None, known=None, cluster="", now=NOW)
    assert found.work_s == 4 * 12 * HOUR


def test_a_job_counts_once_against_a_node() -> None:
    often = tuple(incident(number, t=BEGIN + number) for number in range(1, 900))
    lies = spooled(summary(incidents=often))
    found = accept(lies, held=HELD, known=None, cluster="", now=NOW)
    assert len(found.incidents) == 899
    assert sum(share.failures for share in shares_of(found).values()) == 1


def test_all_incidents_together_cost_no_more_than_the_job_had() -> None:
    dear = tuple(incident(n, lost_node_s={"detecting": 1e300, "made up": 5.0}) for n in (1, 2, 3))
    found = accept(spooled(summary(incidents=dear)), held=HELD, known=None, cluster="", now=NOW)
    assert sum(sum(one.lost_node_s.values()) for one in found.incidents) == pytest.approx(48 * HOUR)
    assert {name for one in found.incidents for name in one.lost_node_s} == {"detecting"}


@pytest.mark.parametrize("jump", [-1e9, -1e5, 1e5, 1e9, 1e300])
def test_times_of_a_clock_that_jumped_are_brought_into_the_jobs_life(jump: float) -> None:
    said = summary()
    far = structs.replace(
        said,
        submitted=BEGIN + jump,
        started=BEGIN + jump,
        ended=BEGIN + jump,
        wall_s=abs(jump),
        incidents=(incident(t=BEGIN + jump),),
    )
    found = accept(spooled(far), held=HELD, known=None, cluster="", now=NOW)
    for t in (found.started, found.ended or 0.0, found.incidents[0].t):
        assert found.submitted <= t <= NOW
    assert found.wall_s <= NOW + CLOCKS_S - found.submitted


def test_an_epilog_whose_clock_is_ahead() -> None:
    """What it spools in a year's time counts as of now."""
    late = spooled(t=NOW + 365 * DAY_S, started=None)
    found = accept(late, held=None, known=None, cluster="", now=NOW)
    assert found.work_s <= 4 * (13 * HOUR + CLOCKS_S)


def test_a_submit_time_that_cannot_be_is_that_of_slurms_start() -> None:
    assert submitted_of(spooled(summary(submitted=BEGIN + 2 * HOUR)), NOW) == BEGIN
    assert submitted_of(spooled(summary(submitted=None)), NOW) == BEGIN
    assert submitted_of(spooled(summary(submitted=-5.0), started=None), NOW) == BEGIN + 12 * HOUR + 5


def row(start: float, end: float | None, nodes: tuple[str, ...] = NODES, step: str = "") -> AccountingRow:
    return records.accounting_row(step=step, nodes=nodes, start_time=start, end_time=end)


def test_runs_of_another_job_with_the_same_id_do_not_count() -> None:
    rows = [
        row(BEGIN - 300 * DAY_S, BEGIN - 299 * DAY_S, ("old1",)),
        row(BEGIN, BEGIN + HOUR),
        row(BEGIN, BEGIN + HOUR, ("n1",), step="0"),
        row(BEGIN + 2 * HOUR, None, ("n1",)),
    ]
    assert held_by(rows, BEGIN - 60, BEGIN + 3 * HOUR) == (
        NodeWork(nodes=NODES, start=BEGIN, end=BEGIN + HOUR),
        NodeWork(nodes=("n1",), start=BEGIN + 2 * HOUR, end=BEGIN + 3 * HOUR),
    )


def test_work_over_midnight_is_divided_by_days() -> None:
    work = NodeWork(nodes=("n1",), start=BEGIN + 23 * HOUR, end=BEGIN + 26 * HOUR)
    shares = shares_of(entry(work=(work,), incidents=(incident(30, nodes=("n1",)),)))
    day = int(BEGIN // DAY_S)
    assert {key: (share.work_s / HOUR, share.failures) for key, share in shares.items()} == {
        (day, "n1"): (1, 0),
        (day + 1, "n1"): (2, 1),
    }


def test_the_switch_and_gpus_of_nodes() -> None:
    def node(name: str, *gres: Gres) -> SlurmNode:
        return records.node(name=name, gres=gres)

    gpus = Gres(name="gpu", type="h200", count=8)
    nodes = [node("r1n1", gpus), node("r1n2"), node("x", Gres(name="gpu", type="", count=4))]
    switches = [Switch(name="leaf1", level=0, nodes=("r1n1", "x")), Switch(name="top", level=1)]
    assert places_of(nodes, switches) == {
        "r1n1": NodePlace(type="8xh200", rack="leaf1"),
        "r1n2": NodePlace(type="cpu"),
        "x": NodePlace(type="4xgpu", rack="leaf1"),
    }
    assert places_of(nodes, switches, r"^(r\d+)")["r1n1"].rack == "r1"
    assert places_of(nodes, switches, r"^(r\d+)")["x"].rack == "leaf1"


# -- whatever a user writes ----------------------------------------------------------------------------------

TIMES = st.one_of(st.floats(BEGIN - 1e7, BEGIN + 1e7), st.floats(allow_nan=False, allow_infinity=False))
NAMES = st.one_of(st.sampled_from([*NODES, "n9"]), st.text(max_size=5))
INCIDENTS = st.builds(
    incident,
    number=st.integers(-5, 2**63),
    t=TIMES,
    symptom=st.text(max_size=5),
    cause=st.sampled_from([*CAUSES, "x\x1b[2J"]),
    nodes=st.lists(NAMES, max_size=4).map(tuple),
    recover_s=st.none() | TIMES,
    lost_node_s=st.dictionaries(st.sampled_from(["detecting", "idle", "x"]), TIMES, max_size=3),
)
SUMMARIES = st.builds(
    summary,
    submitted=st.none() | TIMES,
    started=st.none() | TIMES,
    ended=st.none() | TIMES,
    exit_code=st.none() | st.integers(-(2**63), 2**63),
    wall_s=TIMES,
    since_start_s=TIMES,
    effective_s=TIMES,
    nodes=st.integers(-(2**63), 2**63),
    generations=st.integers(-(2**63), 2**63),
    write_s=st.none() | TIMES,
    incidents=st.lists(INCIDENTS, max_size=4).map(tuple),
    work=st.lists(
        st.builds(NodeWork, nodes=st.lists(NAMES, max_size=4).map(tuple), start=TIMES, end=TIMES), max_size=3
    ).map(tuple),
)


@settings(max_examples=40)
@given(SUMMARIES, st.sampled_from([None, HELD]), st.sampled_from([None, frozenset(NODES)]))
def test_no_summary_says_what_cannot_be(
    said: JobSummary, held: tuple[NodeWork, ...] | None, known: frozenset[str] | None
) -> None:
    found = accept(spooled(said), held=held, known=known, cluster="alpha", now=NOW)
    names = {name for work in found.work for name in work.nodes}
    assert held is None or names <= set(NODES)
    assert 0 <= found.effective_s <= found.since_start_s <= found.wall_s
    assert found.nodes <= len(names)
    for one in found.incidents:
        assert set(one.nodes) <= names
        assert one.cause in CAUSES
        assert one.lost_node_s.keys() <= {time.value for time in TimeClass}
    assert sum(sum(one.lost_node_s.values()) for one in found.incidents) <= found.work_s * (1 + 1e-9) + 1e-6
    shares = shares_of(found)
    assert sum(share.work_s for share in shares.values()) == pytest.approx(found.work_s, abs=1e-3)
    assert all(share.failures + share.network <= 1 for share in shares.values())
    assert len(shares) <= len(names) * 8 * 400
    assert all(math.isfinite(share.work_s) for share in shares.values())
    msgspec.msgpack.encode(found)


# -- bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [b"", b"\n", b"{", encode(summary())[:-40], b"[]", b'"x"', b"\xff\xfe{}", b"[" * 100_000, b'{"format":1}',
     b'{"format": 0}', b'{"format": 1e400}', encode(summary()).replace(b'"job_id":7', b'"job_id":NaN')],
)  # fmt: skip
def test_torn_empty_and_foreign_files_are_refused(data: bytes) -> None:
    for decode in (decode_summary, decode_spooled):
        with pytest.raises(SummaryRefused):
            decode(data)


def test_a_summary_of_a_later_release_is_told_from_a_damaged_one() -> None:
    future = encode(structs.replace(summary(), format=FORMAT + 1)).replace(b'"node":"n1"', b'"node":{}')
    with pytest.raises(SummaryOfTheFuture) as told:
        decode_summary(future)
    assert "upgrade slurm_robust" in str(told.value)


@pytest.mark.parametrize(
    ("said", "kept"), [("gpt-7b", "gpt-7b"), ("", ""), ("../x", ""), ("a\nb", ""), ("x" * 101, "")]
)
def test_a_training_has_a_name_that_could_be_one(said: str, kept: str) -> None:
    found = accept(spooled(summary(training=said)), held=HELD, known=None, cluster="", now=NOW)
    assert found.training == kept
