"""From a journal to its summary."""

from __future__ import annotations

import pytest
from msgspec import structs

from slurm_robust.ledger import summarise
from slurm_robust.ledger.summarise import comment_of, save, summary_of_job, work_of
from slurm_robust.model import events as ev
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.jobsummary import MAX_BYTES, MAX_INCIDENTS, NodeWork, decode_summary, encode
from tests.unit.fleet.samples import incident, summary
from tests.unit.ledger.journals import SUBMITTED, Journal, at
from tests.unit.report import incident_journal


def test_a_journal_that_does_not_begin_has_none() -> None:
    assert summary_of_job([], 0.0) is None


def test_a_job_with_incidents() -> None:
    events = incident_journal.whole()
    now = events[-1].t + 1
    found = summary_of_job(events, now, "n1")
    assert found is not None
    assert (found.node, found.t) == ("n1", now)
    assert [one.number for one in found.incidents] == [
        e.incident for e in events if isinstance(e, ev.IncidentOpened)
    ]
    assert found.generations == sum(isinstance(e, ev.GenerationLaunched) for e in events)
    assert 0 <= found.effective_s <= found.since_start_s <= found.wall_s
    assert {one.cause for one in found.incidents} <= {"node", "network", "code", "nobody", "undecided"}
    assert comment_of(found).startswith("srobust: ETTR ")


def test_nodes_that_come_and_go() -> None:
    journal = Journal().controller(0).allocation(10, nodes=("n1", "n2", "n3"))
    journal.add(ev.NodeGivenBack(t=at(50), node="n3", how="shrunk"))
    journal.add(ev.CompanionStarted(t=at(60), job_id=9, node="n7"))
    journal.add(ev.CompanionEnded(t=at(80), job_id=9, reason=""))
    journal.add(ev.RequeueStarted(t=at(90), exclude=("n3",), reason="", failure=True))
    journal.allocation(200, 1, nodes=("n1", "n4"))
    assert list(work_of(journal.events, at(230))) == [
        NodeWork(nodes=("n1", "n2", "n3"), start=at(10), end=at(50)),
        NodeWork(nodes=("n1", "n2"), start=at(50), end=at(60)),
        NodeWork(nodes=("n1", "n2", "n7"), start=at(60), end=at(80)),
        NodeWork(nodes=("n1", "n2"), start=at(80), end=at(90)),
        NodeWork(nodes=("n1", "n4"), start=at(200), end=at(230)),
    ]


def test_a_clock_that_was_set_back_makes_no_negative_work() -> None:
    journal = Journal().controller(0).allocation(100)
    journal.add(ev.NodeGivenBack(t=at(-5000), node="n2", how="shrunk"))
    assert all(work.end > work.start for work in work_of(journal.events, at(200)))
    assert list(work_of(journal.events, SUBMITTED - 10**6)) == []


@pytest.mark.parametrize(("incidents", "nodes"), [(3, 10), (MAX_INCIDENTS, 20_000), (MAX_INCIDENTS, 100_000)])
def test_a_summary_fits_into_what_the_epilog_reads(tmp_path, incidents: int, nodes: int) -> None:  # type: ignore[no-untyped-def]
    many = tuple(incident(number, detail="x" * 200) for number in range(1, incidents + 1))
    names = tuple(f"cluster-node-{number:06d}" for number in range(nodes))
    work = tuple(NodeWork(nodes=names, start=float(run), end=run + 1.0) for run in range(3))
    directory = JobDirectory(tmp_path)
    save(directory, summary(incidents=many, work=work))
    data = directory.summary.read_bytes()
    assert len(data) <= MAX_BYTES
    found = decode_summary(data)
    assert len(found.incidents) + found.left_out == incidents
    assert directory.summary.stat().st_mode & 0o077 == 0


def test_the_comment_of_a_job_is_its_summary_in_a_line() -> None:
    assert comment_of(summary()) == "srobust: ETTR 91.7 %, 1 incident, 2 generations"
    assert summarise.COMMENT_TAG == "srobust:"


def test_a_chapter_has_the_name_of_its_training() -> None:
    started, *rest = incident_journal.whole()
    assert isinstance(started, ev.RunStarted)
    found = summary_of_job([structs.replace(started, training="gpt"), *rest], rest[-1].t)
    assert found is not None
    assert found.training == "gpt"
    assert decode_summary(encode(found)).training == "gpt"
