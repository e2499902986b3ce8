"""Phases are in the step record for as long as they last, whoever announces them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import slurm_robust as sr
from slurm_robust.checkpoint.errors import MissingCheckpoint
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.progress import CHECKPOINT, FINISHED
from slurm_robust.worker.environment import RECORD
from slurm_robust.worker.environment import RESTORE as RESTORE_VARIABLE
from slurm_robust.worker.phases import PhaseSwitch
from slurm_robust.worker.step_record import StepRecord
from tests.builders.workers import worker


class Spy:
    """An entry that notes which phase is shown while its state is taken."""

    def __init__(self, record: StepRecord) -> None:
        self._record = record
        self.taken: list[str] = []

    def state_dict(self) -> dict[str, int]:
        self.taken.append(shown(self._record))
        return {"n": 1}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing to put back."""


def shown(record: StepRecord) -> str:
    return record.progress(time.monotonic()).phase


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StepRecord]:
    """That of the only worker of a generation without memory for snapshots."""
    made, environment = worker(tmp_path)
    for name, value in {**environment.to_env(), "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    yield made
    made.close()


def test_a_phase_lasts_as_long_as_its_block(record: StepRecord) -> None:
    before = time.monotonic()
    with sr.phase("evaluation"):
        progress = record.progress(time.monotonic())
        assert progress.phase == "evaluation"
        assert progress.phase_s <= time.monotonic() - before
    ended = record.progress(time.monotonic())
    assert (ended.phase, math.isfinite(ended.phase_s)) == ("", True)


def test_after_an_inner_phase_the_outer_one_goes_on(record: StepRecord) -> None:
    with sr.phase("epoch end"):
        outer = record.phase
        with sr.phase("upload"):
            assert shown(record) == "upload"
        assert record.phase == outer
    assert shown(record) == ""


def test_what_phases_took_is_added_up_by_name(record: StepRecord) -> None:
    before = time.monotonic()
    for _ in range(2):
        with sr.phase("evaluation"):
            while time.monotonic() - before < 0.02:
                pass
            before = time.monotonic()
    spent = record.spent
    assert set(spent) == {"evaluation"}
    assert 0.02 <= spent["evaluation"] < 60.0


def test_the_time_of_an_inner_phase_is_not_the_outers(record: StepRecord) -> None:
    begun = time.monotonic()
    with sr.phase("epoch end"), sr.phase("upload"):
        inner = time.monotonic()
        while time.monotonic() - inner < 0.05:
            pass
    took = time.monotonic() - begun
    spent = record.spent
    assert spent["upload"] >= 0.05
    assert spent["epoch end"] + spent["upload"] <= took


def test_more_names_than_there_is_room_for_share_the_last_one(record: StepRecord) -> None:
    for n in range(20):
        record.spend(f"phase {n}", 1.0)
    record.spend("", 1.0)
    assert record.spent == {f"phase {n}": 1.0 for n in range(7)} | {"phase 7": 13.0}


def test_a_name_may_be_long_and_not_ascii(record: StepRecord) -> None:
    record.spend("é" * 100, 1.0)
    record.spend("é" * 100, 2.0)
    assert record.spent == {"é" * 12: 3.0}


def test_a_phase_that_fails_is_over(record: StepRecord) -> None:
    with pytest.raises(ZeroDivisionError), sr.phase("evaluation"):
        raise ZeroDivisionError
    assert shown(record) == ""


def test_a_switch_holds_one_phase_at_a_time(record: StepRecord) -> None:
    switch = PhaseSwitch()
    switch.end()
    with sr.phase("training"):
        for name in ("evaluation", "checkpoint"):
            switch.begin(name)
            assert (shown(record), bool(switch)) == (name, True)
        switch.end()
        assert (shown(record), bool(switch)) == ("training", False)


def test_elsewhere_a_phase_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RECORD, raising=False)
    with sr.phase("evaluation"), sr.Checkpointer.phase("upload"):
        pass


def test_a_record_that_is_gone_does_not_end_training(
    record: StepRecord, caplog: pytest.LogCaptureFixture
) -> None:
    record.path.unlink()
    done = False
    with sr.phase("evaluation"):
        done = True
    assert done
    assert "is not announced" in caplog.text


def test_a_checkpointer_announces_what_it_does_itself(record: StepRecord) -> None:
    spy = Spy(record)
    checkpointer = sr.Checkpointer({"spy": spy})
    for step in range(checkpointer.restore(), 2):
        checkpointer.step(step)
        assert shown(record) == ""
    assert spy.taken == [CHECKPOINT, CHECKPOINT]
    with checkpointer.phase("evaluation"):
        assert shown(record) == "evaluation"
    checkpointer.close()
    checkpointer.close()
    assert shown(record) == FINISHED


def test_a_second_checkpointer_means_that_training_goes_on(record: StepRecord) -> None:
    with sr.phase("set-up"):
        sr.Checkpointer({"spy": Spy(record)}).close()
        assert shown(record) == FINISHED
        sr.Checkpointer({"spy": Spy(record)})
        assert shown(record) == ""


def test_a_restore_is_a_phase(record: StepRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    assert record.progress(time.monotonic()).phase_s == math.inf
    monkeypatch.setenv(RESTORE_VARIABLE, str(CheckpointId(generation=1, step=0)))
    begin = time.monotonic()
    with pytest.raises(MissingCheckpoint):
        sr.Checkpointer({"spy": Spy(record)}).restore()
    ended = record.progress(time.monotonic())
    assert ended.phase == ""
    assert ended.phase_s <= time.monotonic() - begin
