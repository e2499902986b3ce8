"""The step record keeps its promise to a reader outside: never torn, never waiting."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.model.progress import RESERVE
from slurm_robust.wire.messages import Heartbeat, Phase, decode_to_controller, encode
from slurm_robust.worker.step_record import NO_STEP, Mark, RankPhase, RecordError, StepRecord


@pytest.fixture
def record(tmp_path: Path) -> Iterator[StepRecord]:
    made = StepRecord.create(tmp_path / "rank-3", generation=2, rank=3)
    yield made
    made.close()


def seen_from_outside(record: StepRecord) -> StepRecord:
    return StepRecord.open(record.path)


def test_a_new_record_shows_no_step_and_its_own_age(record: StepRecord) -> None:
    progress = record.progress(record.created + 5.0)
    assert (progress.rank, progress.step, progress.reported) == (3, NO_STEP, False)
    assert progress.age_s == pytest.approx(5.0)
    assert (progress.loss, progress.grad_norm) == (None, None)
    assert record.start_phases == {}
    assert (progress.checkpoint, record.requested_checkpoint) == (NO_STEP, NO_STEP)


def test_header_survives_opening(record: StepRecord) -> None:
    other = seen_from_outside(record)
    assert (other.rank, other.generation, other.created) == (3, 2, record.created)
    other.close()
    other.close()


def test_file_is_for_its_owner_only(record: StepRecord) -> None:
    assert record.path.stat().st_mode & 0o777 == 0o600


def test_optimizer_steps_are_shown_while_nothing_is_reported(record: StepRecord) -> None:
    agent = seen_from_outside(record)
    for _ in range(5):
        record.count_optimizer_step()
    progress = agent.progress(time.monotonic() + 1.0)
    assert (progress.step, progress.reported) == (4, False)
    assert 1.0 <= progress.age_s < 60.0


def test_reports_take_the_place_of_counted_steps(record: StepRecord) -> None:
    record.count_optimizer_step()
    record.announce_reports()
    assert (record.progress(0.0).step, record.progress(0.0).reported) == (NO_STEP, True)
    record.report(70, loss=0.5, grad_norm=2.0)
    record.count_optimizer_step()
    progress = record.progress(time.monotonic())
    assert (progress.step, progress.reported, progress.loss, progress.grad_norm) == (70, True, 0.5, 2.0)


def test_values_that_are_not_given_are_none_and_bad_values_are_shown(record: StepRecord) -> None:
    record.report(1, loss=math.nan)
    progress = record.progress(0.0)
    assert progress.loss is not None
    assert math.isnan(progress.loss)
    assert progress.grad_norm is None
    record.report(2, grad_norm=math.inf)
    assert (record.progress(0.0).loss, record.progress(0.0).grad_norm) == (None, math.inf)


def test_a_checkpoint_is_kept_beside_the_step(record: StepRecord) -> None:
    record.report(10)
    record.set_checkpoint(10)
    record.report(11)
    progress = seen_from_outside(record).progress(0.0)
    assert (progress.step, progress.checkpoint) == (11, 10)


def test_marks_divide_the_start_into_phases_and_count_once(record: StepRecord) -> None:
    agent = seen_from_outside(record)
    for mark in Mark:
        if mark is not Mark.STEPPED:
            record.mark(mark)
    record.count_optimizer_step()
    record.report(0)
    whole = time.monotonic() - record.created
    found = agent.start_phases
    assert list(found) == ["worker", "imports", "process group", "model", "restore", "first step"]
    assert all(seconds >= 0 for seconds in found.values())
    assert 0 < sum(found.values()) <= whole
    record.mark(Mark.SCRIPT)
    record.count_optimizer_step()
    record.report(1)
    assert agent.start_phases == found
    agent.close()


def test_the_time_until_a_mark_that_nobody_sets_counts_to_the_next_phase(record: StepRecord) -> None:
    record.mark(Mark.RESTORED)  # a script may restore before it has a process group, or without any
    record.mark(Mark.JOINED)
    assert list(record.start_phases) == ["restore", "process group"]


def test_a_request_reaches_the_worker(record: StepRecord) -> None:
    seen_from_outside(record).request_checkpoint(12_345_678_901)
    assert record.requested_checkpoint == 12_345_678_901


def test_a_worker_is_held_after_the_step_that_was_asked_for_last(record: StepRecord) -> None:
    agent = seen_from_outside(record)
    agent.request_checkpoint(7, hold_s=30.0)
    assert [record.hold_s(step) for step in (6, 7, 8)] == [0.0, 30.0, 0.0]
    agent.request_checkpoint(9, hold_s=20.0)
    assert [record.hold_s(step) for step in (7, 9)] == [0.0, 20.0]
    agent.request_checkpoint(9)
    assert record.hold_s(9) == 0.0
    agent.close()


def test_a_process_that_opens_it_again_goes_on_counting(record: StepRecord) -> None:
    for _ in range(3):
        record.count_optimizer_step()
    record.report(7)
    again = seen_from_outside(record)
    again.count_optimizer_step()
    again.set_checkpoint(7)
    assert (record.progress(0.0).step, record.progress(0.0).checkpoint) == (7, 7)


def test_a_half_written_slot_does_not_exist(record: StepRecord) -> None:
    record.report(1, loss=1.0)
    record.report(2, loss=2.0)
    content = record.path.read_bytes()
    newest = content.index((2).to_bytes(8, "little"), 256)
    with record.path.open("r+b") as file:
        file.seek(newest + 8)
        file.write(b"\xff\xff\xff")
    assert (record.progress(0.0).step, record.progress(0.0).loss) == (1, 1.0)


def test_damage_to_both_slots_is_an_error(record: StepRecord) -> None:
    record.report(1)
    record.report(2)
    with record.path.open("r+b") as file:
        file.seek(256)
        file.write(b"\x55" * 192)
    with pytest.raises(RecordError, match="damaged"):
        record.progress(0.0)


def test_foreign_files_are_refused(tmp_path: Path, record: StepRecord) -> None:
    short = tmp_path / "short"
    short.write_bytes(b"x")
    with pytest.raises(RecordError, match="1024 bytes"):
        StepRecord.open(short)
    zeros = tmp_path / "zeros"
    zeros.write_bytes(bytes(576))
    with pytest.raises(RecordError, match="not a step record"):
        StepRecord.open(zeros)
    with pytest.raises(FileNotFoundError):
        StepRecord.open(tmp_path / "none")


def test_a_phase_is_shown_with_its_age_until_it_ends(record: StepRecord) -> None:
    agent = seen_from_outside(record)
    assert (agent.progress(5.0).phase, agent.progress(5.0).phase_s) == ("", math.inf)
    record.set_phase(RankPhase(name="evaluation", begin=100.0))
    assert (agent.progress(107.5).phase, agent.progress(107.5).phase_s) == ("evaluation", 7.5)
    record.set_phase(RankPhase(begin=110.0))
    assert (agent.progress(111.0).phase, agent.progress(111.0).phase_s) == ("", 1.0)
    assert agent.progress(109.0).phase_s == 0.0


def test_progress_crosses_the_wire_and_grows_older_as_a_whole(record: StepRecord) -> None:
    fresh = record.progress(record.created + 1.0)
    record.set_phase(RankPhase(name="evaluation", begin=record.created))
    busy = record.progress(record.created + 2.0)
    heartbeat = Heartbeat(node="n1", agent="a", seq=1, epoch=1, phase=Phase.RUNNING, progress=(fresh, busy))
    assert decode_to_controller(encode(heartbeat)) == heartbeat
    assert (fresh.aged(5.0).age_s, fresh.aged(5.0).phase_s) == (pytest.approx(6.0), math.inf)
    assert (busy.aged(5.0).age_s, busy.aged(5.0).phase_s) == (pytest.approx(7.0), pytest.approx(7.0))


def test_a_reservation_is_a_phase_that_ends_without_a_step(record: StepRecord) -> None:
    agent = seen_from_outside(record)
    with record.reserving():
        assert agent.progress(time.monotonic()).phase == RESERVE
        assert agent.progress(time.monotonic() + 5.0).phase_s == pytest.approx(5.0, abs=1.0)
        record.set_phase(RankPhase(name="evaluation", begin=time.monotonic()))
        assert agent.progress(time.monotonic()).phase == "evaluation"
        record.set_phase(RankPhase(begin=time.monotonic()))
        assert agent.progress(time.monotonic()).phase == RESERVE
    shown = agent.progress(time.monotonic() + 5.0)
    assert (shown.phase, shown.phase_s) == ("", pytest.approx(5.0, abs=1.0))


def test_a_reservation_may_end_after_the_record_is_closed(record: StepRecord) -> None:
    agent = seen_from_outside(record)
    with record.reserving():
        record.close()
    assert agent.progress(time.monotonic()).phase == RESERVE


def test_any_text_is_a_phase_of_32_bytes(record: StepRecord) -> None:
    for name, shown in [("é" * 40, "é" * 16), ("x" + "é" * 40, "x" + "é" * 15), ("\udcff", "?")]:
        record.set_phase(RankPhase(name=name, begin=0.0))
        assert record.phase.name == shown


def test_phases_are_written_by_whoever_has_the_record_open(record: StepRecord) -> None:
    other = seen_from_outside(record)
    for number in range(5):
        (record if number % 2 else other).set_phase(RankPhase(name=str(number), begin=float(number)))
        assert record.phase == other.phase == RankPhase(name=str(number), begin=float(number))


def test_a_half_written_phase_does_not_exist(record: StepRecord) -> None:
    record.set_phase(RankPhase(name="one", begin=1.0))
    record.set_phase(RankPhase(name="two", begin=2.0))
    newest = record.path.read_bytes().index(b"two")
    with record.path.open("r+b") as file:
        file.seek(newest)
        file.write(b"three")
    assert record.phase.name == "one"


WRITER = """
import sys
from slurm_robust.worker.step_record import StepRecord
record = StepRecord.open(sys.argv[1])
step = 0
while True:
    record.report(step, loss=float(step), grad_norm=float(-step))
    record.count_optimizer_step()
    step += 1
"""


def test_a_reader_never_sees_a_torn_record_even_of_a_killed_writer(record: StepRecord) -> None:
    """Loss and gradient norm must always be those of the step beside them, while it races and after KILL."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, os.fspath(record.path)])
    try:
        deadline = time.monotonic() + 60.0
        reads, last = 0, NO_STEP
        while last < 20_000 and time.monotonic() < deadline:
            progress = record.progress(time.monotonic())
            if progress.reported:
                assert progress.loss == float(progress.step)
                assert progress.grad_norm == float(-progress.step)
                assert progress.step >= last
                last = progress.step
                reads += 1
        assert last >= 20_000
        assert reads > 100
        writer.send_signal(signal.SIGKILL)
        writer.wait(60.0)
        assert record.progress(0.0).loss == float(record.progress(0.0).step)
    finally:
        writer.kill()
        writer.wait(60.0)
