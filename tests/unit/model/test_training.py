"""A training's chapters, and the state of a job that goes on from an earlier one."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from slurm_robust.model import events as ev
from slurm_robust.model.journal import fold, parse
from slurm_robust.model.training import Chapter, TrainingDirectory, encoded, is_name, training_of, trainings
from tests.builders.events import continued, run_started

FIRST = Chapter(job_id=1, run_id="1-a", folder="1", t=10.0, cluster="c", submitted=9.0, node="n1")
SECOND = Chapter(job_id=38, run_id="38-b", folder="38", t=20.0, array_task="38_1")


def made(root: Path, name: str, *chapters: Chapter) -> TrainingDirectory:
    training = TrainingDirectory.of(root, name)
    training.path.mkdir()
    training.chapters.write_bytes(b"".join(map(encoded, chapters)))
    return training


def test_chapters_are_read_as_they_were_written(tmp_path: Path) -> None:
    training = made(tmp_path, "gpt", FIRST, SECOND)
    assert training.read() == (FIRST, SECOND)
    assert training.name == "gpt"
    assert training.job(SECOND).path == tmp_path / "38"
    assert [chapter.job for chapter in training.read()] == ["1", "38_1"]


def test_a_chapter_whose_job_died_before_its_line_was_written_keeps_its_place(tmp_path: Path) -> None:
    training = made(tmp_path, "gpt", FIRST, SECOND)
    dead = structs.replace(FIRST, job_id=17, run_id="dead", folder="17")
    for number, chapter in enumerate((FIRST, dead, SECOND), start=1):
        training.claim(number).write_bytes(encoded(chapter))
    assert training.read() == (FIRST, dead, SECOND)


def test_a_training_that_is_not_there_has_no_chapters(tmp_path: Path) -> None:
    assert TrainingDirectory.of(tmp_path, "gpt").read() == ()
    assert trainings(tmp_path / "nowhere") == ()


@pytest.mark.parametrize("odd", [b'{"job_id":', b"\x00\x00", b'{"of":"another release"}\n', b"\xff\n", b"\n"])
def test_a_torn_or_foreign_line_is_left_out(tmp_path: Path, odd: bytes) -> None:
    training = made(tmp_path, "gpt", FIRST)
    with training.chapters.open("ab") as file:
        file.write(odd)
    assert training.read() == (FIRST,)


def test_a_training_that_was_moved_aside_keeps_its_name_and_is_found_by_its_jobs(tmp_path: Path) -> None:
    old = made(tmp_path, "gpt", FIRST)
    old.path.rename(tmp_path / "training-gpt.old-2026-01-02T03:04")
    made(tmp_path, "gpt", SECOND)
    new, aside = trainings(tmp_path)
    assert (new.name, aside.name) == ("gpt", "gpt")
    found = training_of(aside.job(FIRST), "gpt", FIRST.run_id)
    assert found is not None
    assert found.path == aside.path
    assert training_of(aside.job(FIRST), "gpt", "of another run") is None


@pytest.mark.parametrize("name", ["gpt", "gpt-7b_v1.2", "1", "_", "a" * 100])
def test_names_of_trainings(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "-x", "a/b", "a b", "ä", "a\n", "a" * 101, "x.old-2026"])
def test_words_that_are_no_name_of_a_training(name: str) -> None:
    assert not is_name(name)


def test_a_job_that_goes_on_takes_over_what_counts() -> None:
    event = continued()
    state = fold([run_started(training="gpt"), event])
    assert (state.training, state.continued) == ("gpt", event)
    assert (state.world.generation, state.world.next_generation, state.world.running) == (3, 4, False)
    assert (state.world.sealed, state.world.unsealed, state.world.best_step) == ({1: 40, 2: 60}, (3,), 77)
    assert state.world.banned == {}  # this job may take it again
    assert state.world.attempts == ()


def test_a_checkpoint_that_is_sealed_later_counts_beside_what_was_taken_over() -> None:
    sealed = ev.GenerationSealed(t=3.0, generation=3, sealed_step=70)
    state = fold([run_started(), continued(), sealed])
    assert (state.world.sealed, state.world.unsealed) == ({1: 40, 2: 60, 3: 70}, ())


def test_a_journal_holds_it_and_one_of_an_earlier_release_has_no_training() -> None:
    line = ev.encode_event(continued()) + b"\n"
    assert parse(line)[0] == [continued()]
    bare = b'{"event":"continued","t":2.0,"from_job":1,"from_folder":"/j/1","generation":0}\n'
    assert parse(bare)[0] == [ev.Continued(t=2.0, from_job=1, from_folder="/j/1", generation=0)]
    assert fold([structs.replace(run_started(), training="")]).training == ""
