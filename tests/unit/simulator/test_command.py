"""``srobust simulate`` as people and scripts use it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from slurm_robust.cli.main import main
from slurm_robust.model.errors import ExitCode
from slurm_robust.simulator import runs
from slurm_robust.simulator.figures import LifeFigures
from slurm_robust.simulator.spec import Spec

JOB = "tests/data/journals/0.2.0/killed-rank-and-dead-node"


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(
        "job: {nodes: 4, spares: 1}\ntime: 2 days\nseeds: 3\nfaults: [{kind: node, rate: 1 / day}]\n"
    )
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["simulate", *words, "--processes", "1"]) == 0
    return capsys.readouterr().out


def test_a_replay_shows_how_well_it_agrees_and_what_other_standbys_bring(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = run(capsys, "--like", JOB, "--seeds", "3", "--what-if", "spares=0..2")
    assert "in reality 33.5 %" in out
    assert "spares=1 (own)" in out
    assert "repair=1 day" in out  # what is assumed is said
    assert "spares=2 changes nothing here" in out


def test_json_has_reality_and_each_setting(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "--like", JOB, "--seeds", "2", "--what-if", "spares=0,2", "--json"))
    assert found["real"]["ettr"] == pytest.approx(0.335, abs=0.001)
    assert [one["settings"] for one in found["what_if"]] == [{"spares": "0"}, {"spares": "2"}]
    assert found["what_if"][0]["gain"]["mean"] < -0.1
    assert found["own"]["figures"]["ettr"]["mean"] == pytest.approx(found["real"]["ettr"], abs=0.03)


def test_csv_has_a_line_for_each_life_and_setting(capsys: pytest.CaptureFixture[str], spec: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run(capsys, str(spec), "--csv", "--what-if", "spares=2"))))
    assert [row["what_if"] for row in rows] == [""] * 3 + ["spares=2"] * 3
    assert all(0 < float(row["ettr"]) <= 1 for row in rows)


def test_lives_that_are_kept_are_not_played_again(
    capsys: pytest.CaptureFixture[str], spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = str(tmp_path / "lives.jsonl")
    words = (str(spec), "--lives", kept, "--json", "--what-if", "spares=2")
    first = run(capsys, *words)
    monkeypatch.setattr(runs, "live", None)  # would fail
    assert run(capsys, *words) == first


def test_ctrl_c_says_what_was_kept(
    capsys: pytest.CaptureFixture[str], spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = runs.live

    def interrupted(one: Spec, seed: int) -> LifeFigures:
        if seed == 2:
            raise KeyboardInterrupt
        return played(one, seed)

    monkeypatch.setattr(runs, "live", interrupted)
    kept = tmp_path / "lives.jsonl"
    words = ["simulate", str(spec), "--processes", "1"]
    assert main([*words, "--lives", str(kept)]) == ExitCode.INTERRUPTED
    assert f"{kept} has 2 of 3 lives; the same command goes on from there" in capsys.readouterr().err
    assert main(words) == ExitCode.INTERRUPTED
    assert "with --lives FILE those that are done are kept" in capsys.readouterr().err


def test_a_file_that_holds_no_lives_is_not_written_to(
    capsys: pytest.CaptureFixture[str], spec: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("mine\n")
    assert main(["simulate", str(spec), "--lives", str(other)]) == ExitCode.USAGE
    assert "is no file of simulated lives" in capsys.readouterr().err
    assert other.read_text() == "mine\n"


@pytest.mark.parametrize("words", [[], ["spec.yaml", "--like", "7"]])
def test_either_a_spec_or_a_job_is_simulated(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main(["simulate", *words]) == ExitCode.USAGE
    assert "give either a SPEC or --like JOB" in capsys.readouterr().err


def test_what_is_wrong_with_other_settings_is_said_before_anything_is_played(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["simulate", "--like", JOB, "--what-if", "spars=1"]) == ExitCode.USAGE
    assert "did you mean spares" in capsys.readouterr().err


def test_a_page_is_one_file(capsys: pytest.CaptureFixture[str], spec: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert f"wrote {page}" in run(capsys, str(spec), "--html", str(page))
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert run(capsys, str(spec), "--html", "-").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("words", [["--html", "-", "--json"], ["--csv", "--json"], ["--csv", "--html", "x"]])
def test_two_outputs_are_refused(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main(["simulate", "byterobust-dense", *words]) == ExitCode.USAGE
    assert "fix: give --" in capsys.readouterr().err


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Return the folder of a job, of which the settings are not known."""
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "journal.jsonl").write_bytes((Path(JOB) / "journal.jsonl").read_bytes())
    return folder


def test_a_job_is_named_by_its_id_and_a_journal_that_breaks_off_is_played_as_far(
    capsys: pytest.CaptureFixture[str], job: Path
) -> None:
    with (job / "journal.jsonl").open("ab") as file:
        file.write(b'{"event":"run_en')
    out = run(capsys, "--like", "7", "--job-dir", str(job.parent), "--seeds", "2")
    assert "in reality 33.5 %" in out
    assert "which breaks off there" in " ".join(out.split())
    assert "the default settings, as plan.json cannot be read" in " ".join(out.split())


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (b'{"event":"of_the_future","t":1.0}\n', ExitCode.JOURNAL, "written by another version"),
        (b"", ExitCode.NO_INPUT, "training never began"),
    ],
)
def test_a_journal_that_cannot_be_played_is_refused_with_the_fix(
    capsys: pytest.CaptureFixture[str], job: Path, line: bytes, code: ExitCode, said: str
) -> None:
    path = job / "journal.jsonl"
    first, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + line + (b"".join(rest) if line else b""))
    assert main(["simulate", "--like", str(job)]) == code
    err = " ".join(capsys.readouterr().err.split())
    assert said in err
    assert "fix: " in err


def test_a_replay_with_other_settings_fits_a_terminal_of_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run(capsys, "--like", JOB, "--seeds", "2", "--what-if", "spares=0..8").splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
