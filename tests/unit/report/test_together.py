"""The report on a training: what its jobs did one after the other, with one ledger."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from msgspec import structs

from slurm_robust.cli.main import main
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.incident import Blame, Evict, Restart, Symptom
from slurm_robust.model.job import JobDirectory
from slurm_robust.report import job_main
from slurm_robust.report.incident_view import listing_of_training
from slurm_robust.report.job_report import JobReport
from slurm_robust.report.job_text import CsvTable, csv_text
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.trainings.jobs import Begun, ChapterState, jobs_of
from tests.builders import updates
from tests.builders.events import continued, run_started
from tests.unit.ledger.journals import Journal, at
from tests.unit.report.trainings import make_training, write


def job(
    number: int, begin: float, generation: int, steps: range, *, incident: bool = False
) -> list[ev.AnyEvent]:
    """A job on n1 and n2 that was cancelled at last; one step a second from ten seconds after ``begin``."""
    journal = Journal()
    journal.epoch = 1
    journal.add(run_started(t=at(begin), epoch=1, job_id=number, run_id=f"{number}-a", training="gpt"))
    if generation > 1:
        went_on = continued(
            t=at(begin), epoch=1, generation=generation - 1, best_step=49, sealed={1: 49}, unsealed=()
        )
        journal.add(went_on)
    journal.add(ev.ControllerStarted(t=at(begin), epoch=1, host="n1", pid=1, port=1))
    journal.allocation(begin, submitted=begin - 5, queued_s=5)
    journal.launch(begin + 1, generation, restore=steps.start - 1).first(begin + 10, generation, steps.start)
    end = begin + 10
    for step in steps[1:]:
        end += 1
        journal.progress(end, generation, step)
    if incident:
        journal.opened(end + 10, 1, generation, 9, Symptom.HANG).ended(end + 11, generation, steps[-1])
        journal.decided(end + 12, 1, Evict(node="n2"), Restart(), blame=Blame.NODE, suspects=("n2",))
        journal.add(ev.NodeEvicted(t=at(end + 12), epoch=1, node="n2", reason="its worker hangs", incident=1))
        end += 12
    else:
        journal.ended(end + 1, generation, steps[-1])
    journal.add(ev.RunEnded(t=at(end + 2), epoch=1, code=143, reason="cancelled by its user"))
    return journal.events


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A training of two jobs, on a machine without Slurm; the second repeats 20 steps."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "srobust-jobs"
    make_training(root, "gpt", 7, 9)
    write(root / "7", job(7, 20, 1, range(50), incident=True))
    write(root / "9", job(9, 400, 2, range(30, 80), incident=True))
    return root


def report(root: Path, slurm: FakeSlurm | None = None) -> JobReport:
    found = job_main.named("gpt", str(root))
    assert isinstance(found, job_main.TrainingDirectory)
    return job_main.of_training(found, slurm or FakeSlurm())


def test_the_jobs_in_their_order(root: Path) -> None:
    found = report(root)
    assert (found.training, found.job_id) == ("gpt", 9)
    first, second = found.chapters
    assert (first.job, first.from_step, first.to_step, first.repeated) == ("7", -1, 49, 0)
    assert (second.job, second.from_step, second.to_step, second.repeated) == ("9", 29, 79, 20)
    assert first.state is ChapterState.ENDED
    assert (first.how, first.exit_code) == ("stopped: cancelled by its user", 143)
    assert (first.started, first.end) == (at(20), at(93))
    assert (first.folder, second.folder) == ("7", "9")


def test_one_ledger_whose_classes_add_up(root: Path) -> None:
    found = report(root)
    ledger = found.ledger
    assert sum(ledger.classes.values()) == ledger.wall_ms
    assert found.end - found.begin == pytest.approx(ledger.wall_ms / 1000)
    assert ledger.classes[next(one for one in ledger.classes if one.value == "between jobs")] == 302_000
    assert (ledger.steps, ledger.repeated) == (80, 20)
    single = [job_main.of_job(JobDirectory(root / name), FakeSlurm()) for name in ("7", "9")]
    assert ledger.effective_ms == sum(one.ledger.effective_ms for one in single)
    assert ledger.lost.node_hours == pytest.approx(sum(one.ledger.lost.node_hours for one in single))


def test_incidents_have_the_names_by_which_they_are_asked_for(root: Path) -> None:
    found = report(root)
    assert [entry.row.name for entry in found.incidents] == ["7/1", "9/1"]
    assert [entry.row.number for entry in found.incidents] == [1, 2]
    assert all(entry.cost is not None and entry.cost.lost.ms > 0 for entry in found.incidents)
    assert [cost.number for cost in found.ledger.incidents] == [1, 2]
    (blamed,) = [line for line in found.nodes if line.incidents]
    assert (blamed.nodes, blamed.incidents) == ("n2", (1, 2))
    assert {one.number: one.incident for one in found.generations} == {1: 0, 2: 0}
    listed = listing_of_training(job_main.TrainingDirectory(root / "training-gpt"), None, FakeSlurm())
    assert [row.name for row in listed.incidents] == ["7/1", "9/1"]


def test_what_the_next_job_repeats_is_the_cost_of_the_incident_that_ended_the_one_before(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [entry.row.steps_repeated for entry in report(root).incidents] == [20, 0]
    for name in ("gpt", "7"):
        listed = json.loads(printed(capsys, "incidents", name, "--json"))
        assert listed["incidents"][0]["steps_repeated"] == 20
    assert json.loads(printed(capsys, "incident", "7/1", "--json"))["incident"]["steps_repeated"] == 20
    assert job_main.of_job(JobDirectory(root / "7"), FakeSlurm()).incidents[0].row.steps_repeated == 20


def test_between_jobs_nodes_do_nothing(root: Path) -> None:
    found = report(root)
    (line,) = [line for line in found.nodes if line.nodes == "n1"]
    assert [(piece.begin - at(0), piece.end - at(0)) for piece in line.pieces] == [(20, 93), (400, 473)]


def test_a_job_that_is_only_waiting_is_part_of_the_report(root: Path) -> None:
    slurm = FakeSlurm()
    waiting = slurm.submit(SubmitRequest(command=("train.sh",), hold=True))
    training = make_training(root, "held", 7, waiting)
    found = job_main.of_training(training, slurm)
    assert [row.state for row in found.chapters] == [ChapterState.ENDED, ChapterState.PENDING]
    assert found.phase == "pending"
    assert "PENDING" in found.chapters[1].how
    assert sum(found.ledger.classes.values()) == found.ledger.wall_ms
    assert not found.ended


def test_a_job_whose_folder_is_gone_is_said_to_be(root: Path) -> None:
    make_training(root, "old", 5, 7)
    rows = jobs_of(job_main.TrainingDirectory(root / "training-old"), FakeSlurm())
    gone, there = rows
    assert not isinstance(gone, Begun)
    assert isinstance(there, Begun)
    assert gone.how == "has ended, and its folder is gone"


def test_a_damaged_journal_takes_only_its_job_out_of_the_report(root: Path) -> None:
    (root / "7" / "journal.jsonl").write_bytes(b"nonsense\n" + (root / "9" / "journal.jsonl").read_bytes())
    found = report(root)
    assert [row.state for row in found.chapters] == [ChapterState.GONE, ChapterState.ENDED]
    assert "cannot be read" in found.chapters[0].how


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def test_the_commands_take_the_name(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "report", "gpt")
    assert "Jobs of the training" in text
    assert "between jobs" in text
    assert "9/1" in text
    text = printed(capsys, "incidents", "gpt")
    assert "training gpt" in text
    assert "'srobust incident 9/1'" in text
    for name, first in (
        ("gpt", "training    gpt, its newest job (chapter 2); all jobs: srobust report gpt"),
        ("7", "training    gpt, chapter 1; its newest job is 9"),
    ):
        assert printed(capsys, "status", name).splitlines()[0].split() == first.split()
        assert printed(capsys, "status", "--phases", name).splitlines()[0].split() == first.split()
    text = printed(capsys, "trace", "gpt")
    assert "job 7 of training gpt" in text
    assert "job 9 of training gpt" in text
    traces = json.loads(printed(capsys, "trace", "gpt", "--json"))
    assert traces["jobs"]["9"] == json.loads(printed(capsys, "trace", "9", "--json"))
    assert traces["jobs"]["9"]["attributes"]["srobust.training"] == "gpt"
    for words in (["9/1"], ["9", "1"], ["gpt", "7/1"], ["gpt", "1"]):
        assert "Incident 1 of job" in printed(capsys, "incident", *words)
    assert main(["incident", "gpt", "9"]) == ExitCode.NO_INPUT
    assert "'srobust incidents gpt' lists them" in capsys.readouterr().err
    for name in ("gpt", "9"):
        assert main(["incident", name]) == ExitCode.USAGE
        text = capsys.readouterr().err
        assert f"which incident of {name}?" in text
        assert f"'srobust incidents {name}' lists them" in text
    assert "Job 9" not in printed(capsys, "report", "gpt", "--html", "-")
    assert json.loads(printed(capsys, "report", "gpt", "--json"))["training"] == "gpt"
    assert json.loads(printed(capsys, "status", "gpt", "--json"))["job_id"] == 9


@pytest.mark.parametrize(("name", "jobs"), [("gpt", ["7", "9"]), ("9", ["9"])])
def test_a_table_of_the_jobs(
    root: Path, capsys: pytest.CaptureFixture[str], name: str, jobs: list[str]
) -> None:
    rows = list(csv.DictReader(io.StringIO(printed(capsys, "report", name, "--csv", "--table", "chapters"))))
    assert [row["job"] for row in rows] == jobs
    assert {row["state"] for row in rows} == {"ended"}
    steps = list(csv.DictReader(io.StringIO(printed(capsys, "report", name, "--csv", "--table", "steps"))))
    assert len(steps) == 50 * len(jobs)


def test_updates_of_all_jobs_are_named_by_their_job(root: Path) -> None:
    for number, begin in ((7, 30), (9, 410)):
        asked = structs.replace(updates.requested(0, 1, updates.BATCH), t=at(begin), epoch=1)
        events = job(number, begin - 10, 1 if number == 7 else 2, range(50) if number == 7 else range(30, 80))
        write(root / str(number), [*events[:-1], asked, events[-1]])
    found = report(root)
    assert [row.name for row in found.updates] == ["7/1", "9/1"]
    text = csv_text(found, CsvTable.UPDATES)
    assert [line.partition(",")[0] for line in text.splitlines()] == ["update", "7/1", "9/1"]
    training = job_main.named("gpt", str(root))
    assert isinstance(training, job_main.TrainingDirectory)
    listed = listing_of_training(training, None, FakeSlurm())
    assert [row.name for row in listed.updates] == ["7/1", "9/1"]
