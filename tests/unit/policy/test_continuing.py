"""What a new job takes over from an earlier one, and what it says first."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.model import events as ev
from slurm_robust.model.journal import fold
from slurm_robust.policy.continuing import (
    counted,
    first_lines,
    lineage,
    of_folder,
    other_training,
    steps_text,
    tells,
    undone,
    unheard,
    until,
)
from tests.builders.checkpoints import ref
from tests.builders.events import continued, run_started


def launched(generation: int) -> ev.GenerationLaunched:
    return ev.GenerationLaunched(t=3.0, generation=generation, slots=("n1", "n2"), master="n1", layout="dp2")


def ended(generation: int, step: int) -> ev.GenerationEnded:
    return ev.GenerationEnded(t=4.0, generation=generation, reason="", sealed_step=step)


STORED = [ref(1, 30), ref(1, 40), ref(2, 50), ref(2, 60), ref(3, 70), ref(3, 80)]


def test_a_job_that_was_killed_amid_its_second_generation() -> None:
    state = fold([run_started(run_id="7-a", job_id=7), launched(1), ended(1, 40), launched(2)])
    event = lineage(state, "/j/7", 9.0)
    assert (event.generation, event.sealed, event.unsealed) == (2, {1: 40}, (2,))
    assert (event.writers, event.runs, event.slots) == ({1: 7, 2: 7}, ("7-a",), 2)
    assert event.layouts == {1: "dp2", 2: "dp2"}


def test_the_third_job_knows_which_job_ran_each_generation() -> None:
    first = fold([run_started(run_id="7-a", job_id=7), launched(1), ended(1, 40)])
    second = fold(
        [run_started(run_id="8-b", job_id=8), lineage(first, "/j/7", 9.0), launched(2), ended(2, 60)]
    )
    third = lineage(second, "/j/8", 10.0)
    assert (third.writers, third.runs, third.sealed) == ({1: 7, 2: 8}, ("7-a", "8-b"), {1: 40, 2: 60})


def test_a_job_that_never_launched_hands_on_what_it_took_over() -> None:
    first = lineage(fold([run_started(job_id=7), launched(1), ended(1, 40)]), "/j/7", 9.0)
    idle = fold([run_started(job_id=8, run_id="8-b"), first])
    assert tells(idle)
    assert not tells(fold([run_started()]))
    event = lineage(idle, "/j/8", 10.0)
    assert (event.generation, event.sealed, event.writers, event.slots) == (1, {1: 40}, {1: 7}, 2)


def test_checkpoints_of_storage_that_count() -> None:
    assert counted(continued(), STORED) == [
        ref(3, 80),
        ref(3, 70),
        ref(2, 60),
        ref(2, 50),
        ref(1, 40),
        ref(1, 30),
    ]
    assert counted(continued(good_steps={3: 75}), STORED)[0] == ref(3, 70)
    assert counted(continued(unsealed=(), sealed={2: 55}), STORED) == [ref(2, 50)]


def test_a_chosen_step_is_the_newest_that_is_left() -> None:
    event = until(continued(), 60)
    assert counted(event, STORED)[0] == ref(2, 60)
    assert event.best_step == 60
    assert counted(until(continued(), 40), STORED)[0] == ref(1, 40)
    assert counted(until(continued(), 75), [*STORED, ref(3, 75)])[0] == ref(3, 75)


def test_steps_after_a_chosen_one_are_not_forgotten() -> None:
    """They do not count any more, but whoever does them again does so; also in the jobs after that one."""
    back = until(continued(), 60)
    assert (back.best_step, back.undone_step) == (60, continued().best_step)
    later = lineage(fold([run_started(job_id=8, run_id="8-b"), back]), "/j/8", 10.0)
    assert (later.best_step, later.undone_step) == (60, continued().best_step)
    assert until(continued(best_step=50), 60).undone_step == -1


def test_a_folder_without_a_job() -> None:
    event = of_folder("/some/where", {ref(4, 10): 2, ref(4, 20): 2, ref(5, 15): 3}, ("7-a",), 1.0)
    assert (event.sealed, event.generation, event.best_step) == ({4: 20, 5: 15}, 5, 20)
    assert counted(event, [ref(4, 10), ref(4, 20), ref(5, 15)])[0] == ref(4, 20)
    assert list(first_lines(event, [ref(4, 20)], {}, {})) == ["goes on from step 20 of /some/where"]


def test_the_log_names_the_job_that_wrote_the_step() -> None:
    event = continued(writers={1: 7, 2: 8, 3: 9}, from_job=9, banned=(), best_step=80, chapter=4)
    assert list(first_lines(event, STORED, {}, {})) == [
        "goes on with training gpt from step 80 of job 9 (chapter 4)"
    ]
    lost = list(first_lines(event, STORED[:3], {}, {8: "38_1"}))
    assert lost == [
        "goes on with training gpt from step 50 of job 38_1 (chapter 4)",
        "steps 51 to 80 had been done, but did not get onto storage: they are done again",
    ]
    by_hand = structs.replace(event, training="", chapter=0, reason="chosen by --step 50")
    assert (
        next(first_lines(by_hand, STORED[:3], {}, {})) == "goes on from step 50 of job 8; chosen by --step 50"
    )


def test_what_the_earlier_job_had_given_up_is_tried_again_and_said() -> None:
    event = continued(unsealed=(), best_step=60)
    lines = list(first_lines(event, STORED, {ref(2, 60): "training failed with it"}, {}))
    assert lines == [
        "goes on with training gpt from step 60 of job 1 (chapter 2)",
        "job 1 had passed over step 60 (training failed with it); it is tried again; to take an older one, "
        "submit a new job with --step 50",
    ]
    assert "--step" not in list(first_lines(event, [ref(2, 60)], {}, {}))[1]


def test_the_log_says_that_storage_has_nothing_or_does_not_answer() -> None:
    whose = "goes on with training gpt after job 1 (chapter 2)"
    nothing = f"{whose}, but storage has no checkpoint that counts"
    assert list(first_lines(continued(), [], {}, {})) == [f"{nothing}: training starts at step 0"]
    had = continued(stored=ref(1, 50))
    assert list(first_lines(had, [], {}, {})) == [f"{nothing}: no training starts unless step 50 comes back"]
    spoiled = continued(stored=ref(3, 99), unsealed=(3,), good_steps={3: 90})
    assert list(first_lines(spoiled, [], {}, {})) == [f"{nothing}: training starts at step 0"]
    silent = f"{whose}; storage does not list its checkpoints now, and is asked again before training starts"
    assert list(first_lines(continued(), None, {}, {})) == [silent]


def test_steps_that_a_chosen_one_leaves_out_are_named() -> None:
    event = continued()
    assert undone(event, event.best_step) == ""
    assert undone(until(event, 50), 51) == "step 51 does not count any more: an earlier step was chosen"
    assert undone(until(event, 50), 60) == "steps 51 to 60 do not count any more: an earlier step was chosen"


def test_a_later_start_names_what_it_does_not_do() -> None:
    assert unheard([], "7") == other_training("gpt", "gpt", "7") == ""
    text = "--from 3 and --step 5 had a say in the first start of job 7 only: it goes on where it was"
    assert unheard(["--from 3", "--step 5"], "7") == text
    assert other_training("other", "gpt", "7") == "job 7 belongs to training gpt, as it began"
    assert other_training("other", "", "7") == "job 7 has no training, as it began"


def test_steps_are_listed_in_words() -> None:
    assert steps_text([]) == "none"
    assert steps_text([ref(1, 5)]) == "step 5"
    assert steps_text([ref(2, 7), ref(1, 7), ref(1, 5)]) == "steps 7 and 5"
    assert steps_text([ref(1, n) for n in range(20, 0, -1)]).endswith("9 and 8 older ones")
