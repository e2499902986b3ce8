"""A drill of a job that is over is told so, as all commands tell it that ask the controller."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.cli.main import main
from slurm_robust.model import events as ev
from slurm_robust.model.state import JobState
from slurm_robust.report.live import unanswered
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.wire.epochs import take_epoch
from tests.unit.report.test_logs import ENDED, STARTED


@pytest.mark.parametrize("words", [["drill", "JOB", "kill-rank"], ["stacks", "JOB"]])
def test_a_job_that_has_ended(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = b"".join(ev.encode_event(event) + b"\n" for event in (STARTED, ENDED))
    (tmp_path / "journal.jsonl").write_bytes(events)
    assert main([str(tmp_path) if word == "JOB" else word for word in words]) == 66
    assert "job 7 has ended: every rank ended with code 0" in capsys.readouterr().err


def test_a_controller_that_is_silent_because_slurm_ended_the_job(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    state = JobState(job_id=slurm.submit(SubmitRequest(command=("train.sh",))))
    epoch = take_epoch(tmp_path, host="n1", addresses=("10.0.0.1",), port=7, pid=1, run_id="r")
    assert "does not answer; Slurm: RUNNING" in str(unanswered(state.job_id, epoch, slurm))
    slurm.cluster.finish(state.job_id, "CANCELLED")
    assert str(unanswered(state.job_id, epoch, slurm)) == "job 1 has ended: Slurm says CANCELLED"
