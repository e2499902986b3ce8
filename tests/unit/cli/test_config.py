"""``srobust config``: what it shows is a file that says the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_robust.cli.main import main
from slurm_robust.config.job import JobConfig
from slurm_robust.config.reader import Layers
from slurm_robust.model.errors import ExitCode


def test_both_commands_print_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("spares: 2\n")
    bad.write_text("spare: 1\n")
    assert main(["config", "check", "--json", str(good), str(bad)]) == ExitCode.CONFIG
    found = json.loads(capsys.readouterr().out)
    assert found["good"] == {str(good): "1 key"}
    assert [text.partition(": ")[2] for text in found["problems"]] == [
        "unknown key spare; did you mean spares?"
    ]
    assert main(["config", "show", "--json", "--config", str(good)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["spares"] == {"value": 2, "origin": f"{good}, line 1"}


@pytest.fixture(autouse=True)
def no_settings_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("slurm_robust.config.jobfile.SITE_FILE", tmp_path / "none.yaml")


def test_show_prints_a_file_that_means_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show"]) == 0
    layers = Layers(JobConfig)
    layers.add_yaml(capsys.readouterr().out.encode(), "shown")
    assert layers.build() == JobConfig()


def test_show_names_the_origin_of_each_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("spares: 3\nlimits:\n  total: 7\n")
    monkeypatch.setenv("SROBUST_CONFIG_NODES", "5")
    assert main(["config", "show", "--config", str(file), "--set", "slurm.requeue=false"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "nodes: 5 # environment variable SROBUST_CONFIG_NODES" in lines
    assert f"spares: 3 # {file}, line 1" in lines
    assert f"total: 7 # {file}, line 3" in lines
    assert "requeue: false # option --set slurm.requeue=false" in lines
    assert "keep: 2 # default" in lines


def test_check_accepts_good_files_and_refuses_bad(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("spares: 1\n")
    bad.write_text("spare: 1\n")
    assert main(["config", "check", str(good)]) == 0
    assert "good.yaml: good, 1 key\n" in capsys.readouterr().out
    assert main(["config", "check", str(good), str(bad)]) == 78
    assert "bad.yaml, line 1: unknown key spare; did you mean spares" in capsys.readouterr().err


def test_check_reports_the_problems_of_all_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, good, second = tmp_path / "first.yaml", tmp_path / "good.yaml", tmp_path / "second.yaml"
    first.write_text("spare: 1\nnodes: four\n")
    good.write_text("spares: 1\n")
    second.write_text("limits: [\n")
    assert main(["config", "check", str(first), str(good), str(second), str(tmp_path / "none.yaml")]) == 78
    out, err = capsys.readouterr()
    assert "good.yaml: good, 1 key\n" in out
    assert "first.yaml, line 1: unknown key spare" in err
    assert "first.yaml, line 2: nodes must be an integer" in err
    assert "second.yaml, line 2, column 1: not valid YAML" in err
    assert "none.yaml cannot be read: No such file" in err
    assert "--config" not in err


def test_check_opens_the_rules_for_logs_that_a_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("detect: {log_rules: [rules.yaml]}\n")
    assert main(["config", "check", "job.yaml"]) == 78
    assert "rules.yaml: the rules cannot be read" in capsys.readouterr().err
    (tmp_path / "rules.yaml").write_text("- {name: x, symptom: disk_full, any: [full], action: explode}\n")
    assert main(["config", "check", "job.yaml"]) == 78
    assert "rules.yaml, line 1: " in capsys.readouterr().err
