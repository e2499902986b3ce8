"""What a person sees of incidents. After an intended change, write the texts again:

SROBUST_WRITE_GOLDEN=1 pytest tests/unit/report/test_incident_view.py
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console, RenderableType

from slurm_robust.evidence import incident_text
from slurm_robust.evidence.incidents import NoSuchIncident, incident_reports
from slurm_robust.model import events as ev
from slurm_robust.model.exits import WorkerExit
from slurm_robust.model.incident import NodeExit, Symptom
from slurm_robust.model.job import JobDirectory
from slurm_robust.report import incident_view
from slurm_robust.report.incident_table import incident_table
from slurm_robust.report.job_view import JobView
from tests.unit.report import incident_journal

GOLDEN = Path(__file__).with_name("golden")


@pytest.fixture(scope="module", autouse=True)
def utc() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture(scope="module")
def directory(utc: None, tmp_path_factory: pytest.TempPathFactory) -> JobDirectory:
    return incident_journal.bundle_of_all(tmp_path_factory.mktemp("jobs") / str(incident_journal.JOB))


def screen(shown: RenderableType, width: int) -> str:
    console = Console(width=width, highlight=False, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(shown)
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())


def is_golden(name: str, text: str) -> None:
    if os.environ.get("SROBUST_WRITE_GOLDEN"):
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text()


def shown(directory: JobDirectory, events: list[ev.AnyEvent], number: int, width: int = 80) -> str:
    found = incident_view.gather(directory, JobView(events=events), "stopped", number, "7")
    found = msgspec.structs.replace(found, folder=f"JOB/incidents/{number:03d}")
    return re.sub(r"\d+ kB", "N kB", screen(incident_view.render(found), width))


def listed(events: list[ev.AnyEvent], last: int | None = None, width: int = 120) -> str:
    return screen(
        incident_view.render_list(incident_view.listing(JobView(events=events), "training", last)), width
    )


@pytest.mark.parametrize("width", [80, 120])
def test_the_list_of_incidents_fits_the_terminal(width: int) -> None:
    text = screen(
        incident_view.render_list(
            incident_view.listing(JobView(events=incident_journal.whole()), "stopped", None)
        ),
        width,
    )
    is_golden(f"incidents-{width}.txt", text)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6])
def test_the_report_of_each_kind_of_incident(number: int, directory: JobDirectory) -> None:
    is_golden(f"incident-{number}.txt", shown(directory, incident_journal.whole(), number))


@pytest.mark.parametrize(
    ("number", "name"), [(3, "README.txt"), (3, "stacks.txt"), (4, "README.txt"), (5, "alerts.txt")]
)
def test_the_folder_says_the_same(number: int, name: str, directory: JobDirectory) -> None:
    is_golden(f"bundle-{number}-{name}", (directory.incidents / f"{number:03d}" / name).read_text())


def test_the_newest_are_shown_and_the_others_counted() -> None:
    text = listed(incident_journal.whole(), last=2)
    assert text.startswith("job 4711 (training): 2 incidents (4 older ones not shown)\n")
    assert "hang" not in text


def test_a_job_without_incidents() -> None:
    assert listed(incident_journal.start()) == "job 4711 (training): no incident\n"


KILL = [*incident_journal.start(), *incident_journal.rank_killed()]
TESTED = [*incident_journal.start(), *incident_journal.not_a_number()]
REQUEUED = [*incident_journal.start(), *incident_journal.network_alert()]


@pytest.mark.parametrize(
    ("events", "blamed", "outcome"),
    [
        (KILL[:8], "-", "open: not decided yet"),
        (KILL[:10], "nobody", "open: decided, not launched yet"),
        (KILL[:11], "nobody", "open: generation 2 was launched and has completed no step yet"),
        (KILL[:12], "nobody", "open: generation 2 runs, but has made no new step yet"),
        (TESTED[:9], "not known yet", "open: nodes are held for tests"),
        (REQUEUED[:10], "node n6", "open: the job is being requeued"),
        (REQUEUED[:13], "node n6", "open: run 1 of the Slurm job has not launched yet"),
    ],
)
def test_an_open_incident_says_how_far_it_is(events: list[ev.AnyEvent], blamed: str, outcome: str) -> None:
    (row,) = incident_view.listing(JobView(events=events), "recovering", None).incidents
    assert (row.blamed, row.outcome) == (blamed, outcome)
    assert outcome in listed(events, width=400)


OPENED = next(event for event in KILL if isinstance(event, ev.IncidentOpened))
PLACE = KILL.index(OPENED)
BEFORE = [event for event in KILL[:PLACE] if not isinstance(event, ev.Noted)]


def test_a_row_says_in_short_what_was_seen_and_what_it_cost() -> None:
    long = "n2 is dead: no beacon for 0.81 s; its kernel answered no probe. " + "And more of it. " * 20
    opened = replace(OPENED, symptom=Symptom.NODE_LOST, detail=long)
    (row,) = incident_view.listing(JobView(events=[*KILL[:PLACE], opened]), "recovering", None).incidents
    assert (row.what, row.lost_s) == ("n2 is dead: no beacon for 0.81 s", None)
    (row,) = incident_view.listing(JobView(events=KILL), "training", None).incidents
    assert row.lost_s == pytest.approx(row.detect_s + (row.localise_s or 0) + (row.recover_s or 0))
    assert row.what == "rank 3 on n2: SIGKILL"


def test_no_row_takes_more_than_six_lines_of_a_terminal() -> None:
    words = " ".join(["word"] * 60)
    (row,) = incident_view.listing(JobView(events=KILL), "training", None).incidents
    one = replace(row, what=words, done=words, blamed="node gpu[0001-0004,0007-0009]")
    lines = screen(incident_table(4711, [one, replace(one, number=2)]), 80).splitlines()
    first, second = (n for n, line in enumerate(lines) if line.startswith((" 1 ", " 2 ")))
    assert second - first <= 6
    assert max(map(len, lines)) <= 80


def noted(text: str, node: str = "", after: float = -1.0) -> ev.Noted:
    return ev.Noted(t=OPENED.t + after, node=node, text=text)


def texts_of(*notes: ev.Noted, more: Sequence[ev.AnyEvent] = ()) -> list[str]:
    (report,) = incident_reports([*BEFORE, *notes, OPENED, *more])
    return [entry.text for entry in incident_text.timeline(report)]


def test_what_is_no_evidence_is_not_shown_as_evidence() -> None:
    unread = "inspection: kernel log not read: /dev/kmsg: Operation not permitted"
    standing = [noted(unread, f"n{i}") for i in range(1, 6)]
    found = texts_of(*standing, noted("the kernels of n[1-5] answer probes by TCP"))
    assert found == [f"worker exit: {OPENED.detail}"]
    assert texts_of(noted(OPENED.detail, "n2")) == found, "what was seen stands once"


def test_equal_notes_of_several_nodes_are_one_line() -> None:
    found = texts_of(noted("the link is down", "n1"), noted("it is hot"), noted("the link is down", "n2"))
    assert found[:2] == ["n[1-2]: the link is down", "it is hot"]


def test_agents_that_a_requeue_ends_are_no_evidence() -> None:
    text = "no beacon of the agent of n1 comes, but its kernel answers: the node is not dead"
    silent = noted(text, after=4.0)
    requeue = ev.RequeueStarted(t=OPENED.t + 3.0, exclude=("n1",), reason="no standby", failure=True)
    assert text not in texts_of(more=[requeue, silent])
    assert text in texts_of(more=[silent])


def test_a_script_that_does_not_number_its_steps_is_not_said_to_be_at_step_0() -> None:
    (report,) = incident_reports(KILL)
    report = replace(report, steps_repeated=None)
    assert "the script makes steps again" in incident_text.outcome(report)
    assert incident_text.timeline(report)[-1].text == "the script makes steps again (generation 2)"


def test_no_time_is_shown_as_minus_zero() -> None:
    (report,) = incident_reports([*BEFORE, noted("x", after=-0.01), OPENED])
    assert f"{incident_text.timeline(report)[0].after_s:.1f}" == "0.0"


@pytest.mark.parametrize(("quiet_s", "shown"), [(8.2, False), (0.5, True), (None, True)])
def test_an_old_warning_does_not_explain_a_kill(quiet_s: float | None, shown: bool) -> None:
    warning = "find_unused_parameters=True was specified"
    exit = WorkerExit(rank=3, signal=9, tail=(warning,), quiet_s=quiet_s)
    failed = (NodeExit(node="n2", exit=exit),)
    ended = ev.GenerationEnded(t=OPENED.t + 1.0, generation=1, reason="x", exits=failed)
    (report,) = incident_reports([*KILL[:PLACE], OPENED, ended])
    name, lines = incident_text.deciding_lines(report)
    assert name == "rank 3: SIGKILL on n2"
    assert (lines == [warning]) is shown
    assert shown or "wrote no error message in its last 8 s" in lines[0]
    assert not replace(exit, signal=None, code=1).says_nothing, "a program that ends may have said why before"


def test_what_was_only_observed_is_not_reported_as_done(tmp_path: Path) -> None:
    observed = [
        msgspec.structs.replace(e, carried_out=False) if isinstance(e, ev.Decided) else e for e in KILL[:10]
    ]
    text = shown(JobDirectory(tmp_path), observed, 1)
    assert "observed only: restart" in text
    assert "outcome  only observed: no action was taken" in text
    assert "the folder is empty: not written yet, or storage refused it" in text


def test_a_wrong_number_names_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(NoSuchIncident, match=r"has no incident 9; it has 1-6$"):
        incident_view.gather(JobDirectory(tmp_path), JobView(events=incident_journal.whole()), "", 9, "7")
    with pytest.raises(NoSuchIncident, match=r"has no incident 1; it has none$"):
        incident_view.gather(JobDirectory(tmp_path), JobView(events=incident_journal.start()), "", 1, "7")


def test_a_damaged_file_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    directory = incident_journal.bundle_of_all(tmp_path)
    (directory.incidents / "003" / "stacks.json").write_text('{"localisation"')
    text = shown(directory, incident_journal.whole(), 3)
    assert "stacks.json cannot be read: Input data was truncated" in text
    assert "In order" in text
