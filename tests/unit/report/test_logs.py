"""The training's output: of one rank or all, of the past and as it comes, over generations to the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_robust.cli.main import main
from slurm_robust.model import events as ev
from slurm_robust.model.job import JobDirectory
from slurm_robust.report.logs import Logs, LogSelection, RunEnd, wait
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.trainings.find import NoSuchJob
from tests.builders.events import run_started

STARTED = run_started(job_id=7, nproc_per_node=2)
ENDED = ev.RunEnded(t=2.0, code=0, reason="every rank ended with code 0")


@pytest.fixture
def job(tmp_path: Path) -> JobDirectory:
    directory = JobDirectory(tmp_path / "7")
    directory.path.mkdir()
    journal(directory, STARTED)
    return directory


def journal(directory: JobDirectory, event: ev.AnyEvent) -> None:
    with directory.journal.open("ab") as file:
        file.write(ev.encode_event(event) + b"\n")


def write(
    directory: JobDirectory, text: str, generation: int = 1, rank: int = 0, stream: str = "out"
) -> None:
    path = directory.worker_log(generation, rank, stream)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def numbers(count: int) -> str:
    return "".join(f"step {i}\n" for i in range(count))


def test_the_last_lines_of_rank_0_of_the_newest_generation(
    job: JobDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    write(job, "old\n")
    write(job, numbers(60), generation=2)
    assert main(["logs", str(job.path)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [f"step {i}" for i in range(10, 60)]
    assert err == f"==> generation 2: {job.worker_log(2, 0, 'out')}\n"
    assert main(["logs", str(job.path), "--generation", "1"]) == 0
    assert capsys.readouterr().out == "old\n"


def test_a_generation_whose_files_were_only_made_ahead_is_passed_over(
    job: JobDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    write(job, "now\n")
    write(job, "", generation=2)
    job.logs_ahead(2).touch()
    assert main(["logs", str(job.path)]) == 0
    assert capsys.readouterr().out == "now\n"
    job.logs_ahead(2).unlink()
    assert main(["logs", str(job.path)]) == 0
    assert "generation 2" in capsys.readouterr().err


def test_a_damaged_journal_hides_no_output(job: JobDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    write(job, "old\n")
    job.journal.write_bytes(b"garbage\n" + job.journal.read_bytes())
    assert main(["logs", str(job.path)]) == 0
    assert capsys.readouterr().out == "old\n"


@pytest.mark.parametrize(("lines", "first"), [("3", 9997), ("all", 0), ("9999", 1), ("10001", 0)])
def test_the_requested_number_of_lines_of_a_long_file(
    job: JobDirectory, capsys: pytest.CaptureFixture[str], lines: str, first: int
) -> None:
    write(job, numbers(10000) + "no end")
    assert main(["logs", str(job.path), "-n", lines]) == 0
    expected = [f"step {i}" for i in range(10000)] + ["no end"]
    assert capsys.readouterr().out.splitlines() == expected[first + 1 if first else 0 :]


def test_no_lines_are_shown_if_none_are_wanted(job: JobDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    write(job, numbers(3))
    assert main(["logs", str(job.path), "-n", "0"]) == 0
    assert capsys.readouterr().out == ""


def test_all_ranks_with_their_numbers_and_for_programs(
    job: JobDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    write(job, "a\n", rank=0, stream="err")
    write(job, "b\n", rank=1, stream="err")
    assert main(["logs", str(job.path), "--rank", "all", "--err"]) == 0
    assert capsys.readouterr().out == "rank 0 | a\nrank 1 | b\n"
    assert main(["logs", str(job.path), "--rank", "1", "--err", "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line == {"generation": 1, "rank": 1, "stream": "err", "line": "b"}


def test_nothing_of_the_output_is_obeyed_by_the_terminal(
    job: JobDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    write(job, "10%\r20%\r\x1b[31mred\x1b[0m\x07\tend\n")
    assert main(["logs", str(job.path)]) == 0
    assert capsys.readouterr().out == "red?    end\n"


@pytest.mark.parametrize(
    ("options", "text", "fix"),
    [
        (["--rank", "9"], "no output of rank 9 in generation 11", "give one of 0-1"),
        (["--generation", "3"], "generation 3 has no output", "give one of 1-2,11"),
        (["--err"], "no output of rank 0 in generation 11", "-f waits"),
        (["--rank", "x"], "neither a number from 0 nor 'all'", "--help"),
    ],
)
def test_missing_output_is_reported_with_what_exists(
    job: JobDirectory, options: list[str], text: str, fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for generation, rank in ((1, 0), (2, 0), (11, 0), (11, 1)):
        write(job, "x\n", generation, rank)
    assert main(["logs", str(job.path), *options]) in (64, 66)
    said = capsys.readouterr().err
    assert text in said
    assert fix in said


def test_before_the_first_worker_the_logs_say_how_to_wait_for_output(
    job: JobDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", str(job.path)]) == 66
    assert "-f waits for the output" in capsys.readouterr().err


class Future:
    """What happens while somebody follows: one thing at each pause."""

    def __init__(self, *happens: Callable[[], object]) -> None:
        self._happens = list(happens)

    def __call__(self, seconds: float) -> None:
        self._happens.pop(0)()


def follow(job: JobDirectory, future: Future, slurm: FakeSlurm | None = None, **wanted: object) -> list[str]:
    slurm = slurm or running()
    logs = Logs(job, LogSelection(follow=True, **wanted))  # type: ignore[arg-type]
    return [
        f"{line.generation} {line.rank} {line.line}" for line in logs.follow(RunEnd(job, slurm, 7), future)
    ]


def running() -> FakeSlurm:
    slurm = FakeSlurm()
    while slurm.submit(SubmitRequest(command=("train.sh",))) < 7:
        pass
    return slurm


def test_following_goes_over_generations_to_the_end_of_the_run(job: JobDirectory) -> None:
    future = Future(
        lambda: write(job, "first\nsec"),
        lambda: write(job, "ond\nlost its e"),
        lambda: write(job, "again\n", generation=2),
        lambda: write(job, "last", generation=2),
        lambda: journal(job, ENDED),
    )
    assert follow(job, future) == ["1 0 first", "1 0 second", "1 0 lost its e", "2 0 again", "2 0 last"]


def test_following_all_ranks_finds_those_that_come_late(job: JobDirectory) -> None:
    write(job, "a\nb\n")
    future = Future(lambda: write(job, "c\n", rank=1), lambda: journal(job, ENDED))
    assert follow(job, future, rank=None, lines=1) == ["1 0 b", "1 1 c"]


def test_following_one_generation_ends_with_it(job: JobDirectory) -> None:
    write(job, "a\n")
    assert follow(job, Future(lambda: write(job, "b\n", generation=2)), generation=1) == ["1 0 a"]


def test_following_ends_when_slurm_has_ended_the_job(job: JobDirectory) -> None:
    slurm = running()
    write(job, "a\n")
    slurm.cluster.finish(7, "CANCELLED")
    assert follow(job, Future(lambda: None), slurm) == ["1 0 a"]


def test_following_a_run_that_is_over_shows_what_there_is(job: JobDirectory) -> None:
    journal(job, ENDED)
    with pytest.raises(NoSuchJob, match="has been started yet"):
        follow(job, Future())
    write(job, "a\n")
    assert follow(job, Future()) == ["1 0 a"]


def test_following_a_pending_job_waits_until_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    slurm = FakeSlurm()
    number = str(slurm.submit(SubmitRequest(command=("train.sh",), hold=True, work_dir=str(tmp_path))))
    directory = JobDirectory(tmp_path / "srobust-jobs" / number)

    def begin() -> None:
        directory.path.mkdir(parents=True)
        journal(directory, STARTED)

    def unreachable(there: bool) -> None:
        slurm.cluster.unreachable = there

    future = Future(lambda: None, lambda: unreachable(True), lambda: unreachable(False), begin)
    assert wait(number, None, slurm, future).path == directory.path
    said = capsys.readouterr().err
    assert said.count("is pending (JobHeldUser): it has not started yet; waiting for it") == 2
    assert "Slurm does not answer" in said


def test_following_a_job_that_ends_without_a_journal_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    slurm = running()
    with pytest.raises(NoSuchJob, match=r"job 7 has ended \(FAILED"):
        wait("7", None, slurm, Future(lambda: slurm.cluster.finish(7, "FAILED")))
