"""What a person sees of incidents. After an intended change, write the texts again:

SROBUST_WRITE_GOLDEN=1 pytest tests/unit/report/test_incident_view.py
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from rich.console import Console, RenderableType

from slurm_robust.model import events as ev
from slurm_robust.model.job import JobDirectory
from slurm_robust.report import incident_view
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
    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        console.print(shown)
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())


def is_golden(name: str, text: str) -> None:
    if os.environ.get("SROBUST_WRITE_GOLDEN"):
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text()


def shown(directory: JobDirectory, events: list[ev.AnyEvent], number: int, width: int = 80) -> str:
    found = incident_view.gather(directory, JobView(events=events), "stopped", number)
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


def test_what_was_only_observed_is_not_reported_as_done(tmp_path: Path) -> None:
    observed = [
        msgspec.structs.replace(e, carried_out=False) if isinstance(e, ev.Decided) else e for e in KILL[:10]
    ]
    text = shown(JobDirectory(tmp_path), observed, 1)
    assert "observed only: restart" in text
    assert "outcome  only observed: no action was taken" in text
    assert "the folder is empty: not written yet, or storage refused it" in text


def test_a_wrong_number_names_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(incident_view.NoSuchIncident, match=r"has no incident 9; it has 1-6$"):
        incident_view.gather(JobDirectory(tmp_path), JobView(events=incident_journal.whole()), "", 9)
    with pytest.raises(incident_view.NoSuchIncident, match=r"has no incident 1; it has none$"):
        incident_view.gather(JobDirectory(tmp_path), JobView(events=incident_journal.start()), "", 1)


def test_a_damaged_file_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    directory = incident_journal.bundle_of_all(tmp_path)
    (directory.incidents / "003" / "stacks.json").write_text('{"localisation"')
    text = shown(directory, incident_journal.whole(), 3)
    assert "stacks.json cannot be read: Input data was truncated" in text
    assert "In order" in text
