"""An update followed through the journal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.release import UpdateEnd, When
from slurm_robust.model.updates import UpdateResult
from slurm_robust.run.preflight import open_directory
from slurm_robust.testing.sim.environment import SimulatedRelease
from slurm_robust.updates.follow import UpdateFollower, UpdatePhase, progress_of, request_of
from slurm_robust.updates.listing import listing
from tests.unit.engine.test_updates import (
    FIRST,
    NO_TRIAL,
    SECOND,
    is_applied,
    is_rolled_back,
    is_tried,
    job,
)
from tests.unit.updates.stories import NEW, OLD, Story, trained, updated


def asked(when: When = When.NOW) -> Story:
    return trained().taken(NEW).asked(1, NEW, when)


@pytest.mark.parametrize(
    ("story", "phase", "is_done"),
    [
        (trained, UpdatePhase.ASKED, False),
        (asked, UpdatePhase.TRYING, False),
        (lambda: asked().tried(1), UpdatePhase.WAITING, False),
        (lambda: asked(When.LAZY).tried(1), UpdatePhase.WAITING, True),
        (lambda: asked().tried(1).stops(1), UpdatePhase.STOPPING, False),
        (lambda: asked().tried(1).stops(1).applied(1, NEW, OLD, 60, 60), UpdatePhase.STARTING, False),
        (updated, UpdatePhase.RUNNING, True),
        (lambda: asked().tried(1, ok=False, text="SyntaxError"), UpdatePhase.REFUSED, True),
        (lambda: asked(When.LAZY).ended(1, UpdateEnd.SUPERSEDED, "update 2"), UpdatePhase.SUPERSEDED, True),
        (lambda: asked(When.LAZY).ended(1, UpdateEnd.WITHDRAWN), UpdatePhase.WITHDRAWN, True),
        (lambda: updated().crashes(1).rolled_back(1, NEW, OLD, 60), UpdatePhase.ROLLED_BACK, True),
    ],
)
def test_each_phase_is_known_by_the_journal(
    story: Callable[[], Story], phase: UpdatePhase, is_done: bool
) -> None:
    known = progress_of(story().events, 1)
    assert (known.phase, known.is_done) == (phase, is_done)


def test_a_candidate_that_fails_before_its_first_step_is_seen_to_be_rolled_back() -> None:
    story = asked().tried(1).stops(1).applied(1, NEW, OLD, 60, 60).crashes(4)
    known = progress_of(story.rolled_back(4, NEW, OLD, 60).events, 1)
    assert (known.phase, known.incident) == (UpdatePhase.ROLLED_BACK, 4)
    assert "ValueError" in known.reason


def test_what_an_update_cost_is_counted_from_the_stop_to_the_first_step() -> None:
    known = progress_of(updated().events, 1)
    assert (known.applied_s, known.repeated) == (3.0, 0)


def test_steps_that_only_the_old_release_had_count_as_repeated() -> None:
    story = asked().tried(1).applied(1, NEW, OLD, step=60, kept=52, recovery=True)
    known = progress_of(story.trains(NEW, 53, 54, restore=52).events, 1)
    assert (known.applied_s, known.repeated) == (None, 8)


def test_steps_after_the_one_that_the_owner_goes_back_to_are_undone_and_not_repeated() -> None:
    story = trained().taken(NEW).asked(1, NEW, from_step=20).tried(1).stops(1)
    known = progress_of(
        story.applied(1, NEW, OLD, step=60, kept=20).trains(NEW, 21, 22, restore=20).events, 1
    )
    assert (known.restored, known.repeated, known.undone) == (20, 0, 40)


def test_another_update_says_nothing_of_this_one() -> None:
    assert progress_of(updated().events, 2).phase is UpdatePhase.ASKED


def test_a_job_that_ends_ends_the_wait_unless_it_is_requeued() -> None:
    story = asked(When.LAZY)
    ended = ev.RunEnded(t=story.t, code=143, reason="scancel", final=False)
    requeued = ev.RunEnded(t=story.t, code=75, reason="time limit", final=False, requeued=True)
    assert progress_of([*story.events, requeued], 1).phase is UpdatePhase.TRYING
    known = progress_of([*story.events, ended], 1)
    assert (known.phase, known.reason) == (UpdatePhase.JOB_ENDED, "scancel")


def test_a_request_without_an_answer_is_found_by_its_token() -> None:
    events = trained().taken(NEW).asked(3, NEW, token="a1").events
    found = request_of(events, "a1")
    assert found is not None
    assert found.update == 3
    assert request_of(events, "b2") is None


def test_the_journal_is_followed_as_it_grows(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "7")
    open_directory(directory)
    story, follower = updated(), UpdateFollower(directory, 1)
    phases = [follower.look().phase]
    for event in story.events:
        with directory.journal.open("ab") as file:
            file.write(ev.encode_event(event) + b"\n")
        phases.append(follower.look().phase)
    each = ["asked", "trying", "waiting", "stopping", "starting", "running"]
    assert [phase.value for phase in dict.fromkeys(phases)] == each


# -- journals of the engine --------------------------------------------------------------------------


def test_an_update_of_a_simulated_job_is_followed_to_its_first_step() -> None:
    sim = job(4)
    sim.update(SECOND, When.NOW)
    is_applied(sim)
    known = progress_of(sim.journal, 1)
    assert (known.phase, known.repeated) == (UpdatePhase.RUNNING, 0)
    assert known.applied_s is not None


def test_an_update_that_a_simulated_recovery_took_along_costs_nothing_of_its_own() -> None:
    sim = job(4)
    sim.update(SECOND, When.LAZY)
    is_tried(sim)
    assert progress_of(sim.journal, 1).is_done
    sim.drill(0)
    is_applied(sim)
    known = progress_of(sim.journal, 1)
    assert (known.phase, known.applied_s) == (UpdatePhase.RUNNING, None)
    assert known.applied is not None
    assert known.applied.recovery


def test_a_simulated_release_that_fails_is_seen_to_be_rolled_back_and_so_is_its_row() -> None:
    sim = job(config=NO_TRIAL)
    is_rolled_back(sim, SimulatedRelease(fails_at=65))
    known = progress_of(sim.journal, 1)
    assert (known.phase, known.incident) == (UpdatePhase.ROLLED_BACK, 1)
    first, second = listing(sim.journal).releases
    assert (first.name, first.running, second.updates[0].result) == (FIRST, True, UpdateResult.ROLLED_BACK)
    assert [span.after for span in first.ran] == [-1, second.ran[0].after]
