"""A site's own rules for logs: refused before the job starts, obeyed while it runs, never in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.cli.main import main
from slurm_robust.config.job import DetectConfig, JobConfig
from slurm_robust.controller import preflight
from slurm_robust.controller.preflight import PreflightError
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.report.incidents import incident_reports
from tests.unit.controller.fake_job import Job

RULES = """
- name: board-burnt
  symptom: driver_error
  blame: infrastructure
  action: evict
  any: ['fabric-agent: board \\d{1,3} burnt']
- name: neighbour-lost
  symptom: secondary
  blame: secondary
  action: none
  tier: effect
  any: ['fabric-agent: neighbour lost']
"""
BURNT = "fabric-agent: board 3 burnt"
LOST = "fabric-agent: neighbour lost"


def config(*names: str) -> JobConfig:
    return JobConfig(detect=DetectConfig(log_rules=names))


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return path


def crashed(rules: Path | None = None) -> Job:
    """Two ranks have failed; the first to be seen only lost the other one."""
    loaded, trouble = (
        preflight.load_log_rules(config(rules.name), rules.parent) if rules is not None else (None, "")
    )
    assert not trouble
    job = Job(spares=("n3",), log_rules=loaded)
    job.train_to(7)
    for rank, line, age_s in ((0, LOST, 2.0), (1, BURNT, 1.0)):
        job.dead.add(f"n{rank + 1}")  # both are told in one moment
        job.kill_rank(rank, signal=None, code=1, tail=(line,), age_s=age_s)
    job.dead.clear()
    for heartbeat in job.heartbeats.values():
        job.core.on_heartbeat(heartbeat, job.now())
    job.act(job.core.on_tick(job.now()))
    job.until(lambda: job.core.state.generation == 2)
    return job


def test_the_controller_obeys_them(rules: Path) -> None:
    assert not crashed().events(ev.NodeEvicted)
    job = crashed(rules)
    assert [event.node for event in job.events(ev.NodeEvicted)] == ["n2"]
    (report,) = incident_reports(job.journal)
    assert report.root is not None  # whoever reads the journal may not have the rules
    assert report.root.exit.rank == 1


def test_a_broken_file_is_refused_with_its_line(rules: Path) -> None:
    preflight.check_log_rules(config(rules.name), rules.parent)
    rules.write_text(RULES.replace("action: evict", "action: explode"))
    with pytest.raises(PreflightError) as error:
        preflight.check_log_rules(config(rules.name), rules.parent)
    assert error.value.exit_code == ExitCode.CONFIG
    assert str(error.value).startswith(f"detect.log_rules: {rules}, line 5: rules[0].action must be one of")
    assert error.value.fix


def test_srobust_run_refuses_it_before_anything_is_made(
    rules: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(rules.parent)
    for name, value in (("JOB_ID", "7"), ("JOB_NODELIST", "n1"), ("SUBMIT_DIR", str(rules.parent))):
        monkeypatch.setenv(f"SLURM_{name}", value)
    words = ["run", "--set", "detect.log_rules=gone.yaml", "--", "true"]
    assert main(words) == ExitCode.CONFIG
    said = capsys.readouterr().err
    assert "detect.log_rules: " in said
    assert "gone.yaml: the rules cannot be read: No such file or directory" in said
    assert not (rules.parent / "srobust-jobs").exists()


def test_a_file_that_was_lost_meanwhile_costs_only_its_rules(rules: Path) -> None:
    rules.unlink()
    known, trouble = preflight.load_log_rules(config(str(rules)), Path("/"))
    assert {rule.name for rule in known.rules}
    assert not any(rule.site for rule in known.rules)
    assert trouble.startswith("logs are read by the built-in rules only; detect.log_rules: ")
    assert "cannot be read" in trouble
