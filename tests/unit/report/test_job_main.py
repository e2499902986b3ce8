"""``srobust report``: what it reads, whatever state that is in, and what it writes."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import msgspec
import pytest

from slurm_robust.cli.main import main
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.journal import JournalDamaged
from slurm_robust.model.nodeseen import HookSeen, NodeSeen
from slurm_robust.report import job_main
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.trainings.find import NoSuchJob
from tests.builders.events import run_started
from tests.there import there
from tests.unit.ledger.journals import Journal, at
from tests.unit.report.test_job_report import job

FUTURE = b'{"event":"meteor_struck","t":1000150.0,"epoch":1,"crater":{"m":3}}\n'
CHANGED = b'{"event":"incident_opened","t":1000151.0,"epoch":1,"incident":2,"symptom":"ennui"}\n'


def lines(events: list[ev.AnyEvent]) -> bytes:
    return b"".join(ev.encode_event(event) + b"\n" for event in events)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of job 7 on a machine without Slurm."""
    monkeypatch.setenv("PATH", "/nowhere")
    path = tmp_path / "7"
    path.mkdir()
    (path / "journal.jsonl").write_bytes(lines(job().events))
    return path


def printed(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> str:
    assert main(["report", str(folder), *words]) == 0
    return capsys.readouterr().out


def failed(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> tuple[int, str]:
    code = main(["report", str(folder), *words])
    return code, capsys.readouterr().err


# -- on a machine without Slurm ----------------------------------------------------------------------


def test_a_copied_folder_is_reported_without_slurm(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, folder, "--json"))
    assert found["job_id"] == 7
    assert found["end"] == at(161)
    assert [note for note in found["notes"] if "ends with the journal" in note]
    assert found["slurm"] == ""
    assert "ETTR" in printed(capsys, folder)
    assert printed(capsys, folder, "--csv").startswith("incident,t,")
    assert printed(capsys, folder, "--csv", "--table", "steps").count("\n") == 5


def test_unlike_cliques_are_a_note_and_blame_nobody(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = json.loads(printed(capsys, folder, "--json"))
    nodes = JobDirectory(folder).nodes
    nodes.mkdir()
    for node, clique in (("n1", "rack-1/1"), ("n2", "rack-1/1"), ("n3", "rack-2/1")):
        seen = NodeSeen(
            job_id=7, node=node, prolog=HookSeen(at=1.0), epilog=HookSeen(at=9.0, cliques=(clique,))
        )
        (nodes / f"{node}.9.json").write_bytes(msgspec.json.encode(seen))
    after = json.loads(printed(capsys, folder, "--json"))
    assert [note for note in after["notes"] if note.endswith("n[1-2] of rack-1/1; n3 of rack-2/1")]
    assert (after["seen"], after["nodes"]) == ([], before["nodes"])
    assert "2 NVLink cliques" in printed(capsys, folder)


def test_the_page_is_one_file(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "wrote" in printed(capsys, folder, "--html", str(tmp_path / "out.html"))
    assert (tmp_path / "out.html").read_text().startswith("<!DOCTYPE html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["7", "out.html"]


def test_a_page_to_standard_output_is_nothing_else(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = printed(capsys, folder, "--html", "-")
    assert page.startswith("<!DOCTYPE html>")
    assert page.rstrip().endswith("</html>")
    assert [path.name for path in tmp_path.iterdir()] == ["7"]
    code, said = failed(capsys, folder, "--html", "-", "--json")
    assert (code, "give --html a file" in said) == (ExitCode.USAGE, True)


def test_evidence_of_incidents_is_on_the_page(folder: Path) -> None:
    incident = folder / "incidents" / "001"
    incident.mkdir(parents=True)
    (incident / "stacks.txt").write_text("rank 3 waits in all_reduce\n" * 1000)
    (incident / "alerts.txt").symlink_to("/etc/passwd")
    found = job_main.gather(JobDirectory(folder), job().events)
    assert found[1].files == {"stacks.txt": 27_000}
    head = found[1].heads["stacks.txt"]
    assert len(head) < job_main.MAX_HEAD + 100
    assert head.endswith("\n… stacks.txt has more")


# -- journals in every state ---------------------------------------------------------------------------


def test_a_torn_last_line_is_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = folder / "journal.jsonl"
    journal.write_bytes(journal.read_bytes() + b'{"event":"prog')
    assert json.loads(printed(capsys, folder, "--json"))["end"] == at(161)


def test_events_of_a_newer_release_are_left_out_with_a_note(folder: Path) -> None:
    journal = folder / "journal.jsonl"
    journal.write_bytes(journal.read_bytes() + FUTURE + CHANGED + FUTURE)
    events, (note,) = job_main.load(JobDirectory(folder))
    assert "3 events" in note
    assert "meteor_struck (2), incident_opened (1)" in note
    assert len(events) == len(job().events) + 3  # a note stands for each


@pytest.mark.parametrize("data", [b"", b"{}", b"\x00\x01\x02 no journal"])
def test_what_has_no_event_is_no_journal(
    folder: Path, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "journal.jsonl").write_bytes(data)
    code, said = failed(capsys, folder)
    assert code == ExitCode.NO_INPUT
    assert "journal" in said


@pytest.mark.parametrize(
    "data", [b"no journal\nat all\n", b'{"level":"info"}\n{"level":"info"}\n', b"\xff\xfe\n\n\n"]
)
def test_a_file_of_another_program_is_refused_by_its_line(folder: Path, data: bytes) -> None:
    (folder / "journal.jsonl").write_bytes(data)
    with pytest.raises(JournalDamaged, match="line 1"):
        job_main.load(JobDirectory(folder))


def test_a_folder_that_disappears_meanwhile_is_missed(folder: Path) -> None:
    directory = JobDirectory(folder)
    (folder / "journal.jsonl").unlink()
    with pytest.raises(NoSuchJob, match="removed meanwhile"):
        job_main.load(directory)
    folder.rmdir()
    assert job_main.gather(directory, job().events) == {}


# -- what Slurm says -----------------------------------------------------------------------------------


def journal_of(slurm: FakeSlurm) -> Journal:
    """Of the fake's job 1."""
    journal = Journal().controller(0)
    submitted = there(slurm.job(1).submit_time)
    journal.events[0] = run_started(t=submitted, epoch=1, job_id=1, command=("x",))
    return journal.allocation(1, submitted=submitted - at(0))


def test_a_running_job_is_reported_until_now(slurm: FakeSlurm) -> None:
    found = job_main.ask(slurm, journal_of(slurm).events)
    assert (found.state, found.ended, found.notes) == ("RUNNING", False, ())
    assert found.now is not None


def test_an_ended_job_is_reported_until_its_end(slurm: FakeSlurm) -> None:
    events = journal_of(slurm).events
    slurm.cluster.finish(1, "CANCELLED")
    del slurm.cluster.jobs[1]  # slurmctld forgets it
    found = job_main.ask(slurm, events)
    assert (found.state, found.ended, found.now) == ("CANCELLED", True, None)
    assert found.runs[0].ended is not None


def test_another_job_of_the_same_id_says_nothing(slurm: FakeSlurm) -> None:
    journal = journal_of(slurm)
    submitted = there(slurm.job(1).submit_time)
    other = Journal().controller(0)
    other.events[0] = journal.events[0]
    other.allocation(1, submitted=submitted - at(0) - 1e6)
    slurm.cluster.finish(1, "CANCELLED")
    del slurm.cluster.jobs[1]
    found = job_main.ask(slurm, other.events)
    assert (found.state, found.runs, found.ended) == ("", (), False)
    assert "does not know the job" in found.notes[0]


def test_silence_of_slurm_leaves_the_job_going_on(slurm: FakeSlurm) -> None:
    events = journal_of(slurm).events
    slurm.cluster.unreachable = True
    found = job_main.ask(slurm, events)
    assert found.now is not None
    assert "no answer from sacct" in found.notes[0]


# -- what is written -----------------------------------------------------------------------------------


def test_a_page_for_which_there_is_no_room_leaves_what_was_there(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "out.html"
    page.write_text("the page of yesterday")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))  # the kernel refuses what goes beyond
    try:
        code, said = failed(capsys, folder, "--html", str(page))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code == ExitCode.JOB_DIR
    assert "cannot be written: File too large" in said
    assert "fix: free 0.1 MB" in said
    assert page.read_text() == "the page of yesterday"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["7", "out.html"]


def test_a_folder_that_is_not_there_gets_no_page(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = failed(capsys, folder, "--html", str(tmp_path / "nowhere" / "out.html"))
    assert code == ExitCode.JOB_DIR
    assert "cannot be written: No such file or directory" in said
    assert f"fix: make the folder first: mkdir -p {tmp_path / 'nowhere'}" in said


def test_what_is_no_regular_file_is_not_replaced(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code, said = failed(capsys, folder, "--html", str(pipe))
    assert code == ExitCode.JOB_DIR
    assert "is no regular file" in said
    assert pipe.is_fifo()


def test_a_page_is_for_its_owner_and_links_are_followed(folder: Path, tmp_path: Path) -> None:
    page, link = tmp_path / "page.html", tmp_path / "link.html"
    link.symlink_to(page)
    assert main(["report", str(folder), "--html", str(link)]) == 0
    assert link.is_symlink()
    assert page.stat().st_mode & 0o777 == 0o600


def test_options_that_contradict_each_other_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failed(capsys, folder, "--table", "nodes")[0] == ExitCode.USAGE
    assert failed(capsys, folder, "--json", "--csv")[0] == ExitCode.USAGE
