"""``srobust admin monitoring`` writes what Grafana and Prometheus read, and overwrites nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from slurm_robust.cli.main import main
from slurm_robust.model.errors import ExitCode

FILES = Path(__file__).resolve().parents[3] / "monitoring"


def test_the_files_of_the_checkout_are_written_where_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "monitoring"
    assert main(["admin", "monitoring", "--dir", str(folder), "--json"]) == 0
    said = msgspec.json.decode(capsys.readouterr().out)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        path.name: path.read_bytes() for path in FILES.iterdir()
    }
    assert (said["folder"], {*said["files"]}) == (str(folder), {path.name for path in FILES.iterdir()})


def test_a_file_that_is_there_stays_unless_it_is_said_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "alerts.yml").write_text("ours")
    command = ["admin", "monitoring", "--dir", str(tmp_path)]
    assert main(command) == ExitCode.JOB_DIR
    assert "fix: --force" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["alerts.yml"]
    assert main([*command, "--force"]) == 0
    assert (tmp_path / "alerts.yml").read_text() != "ours"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["admin", "monitoring", "--dir", str(tmp_path / "file" / "x")]) == ExitCode.JOB_DIR
    assert "fix: --dir names another folder" in capsys.readouterr().err
