"""An update followed through the journal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

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


def test_ranks_that_a_fault_ends_while_they_stop_for_an_update_are_not_stopped_for_it() -> None:
    known = progress_of(asked().tried(1).stops(1).crashes(4).events, 1)
    assert (known.phase, known.incident) == (UpdatePhase.WAITING, 4)


def test_an_update_that_another_one_replaces_before_its_first_step_is_over() -> None:
    story = asked().tried(1).applied(1, NEW, OLD, 60, 60).asked(2, OLD).applied(2, OLD, NEW, 60, 60)
    known = progress_of(story.trains(OLD, 61, 62, restore=60).events, 1)
    assert (known.phase, known.reason) == (UpdatePhase.SUPERSEDED, "update 2 took its place")


def test_a_candidate_that_fails_before_its_first_step_is_seen_to_be_rolled_back() -> None:
    story = asked().tried(1).stops(1).applied(1, NEW, OLD, 60, 60).crashes(4)
    known = progress_of(story.rolled_back(4, NEW, OLD, 60).events, 1)
    assert (known.phase, known.incident) == (UpdatePhase.ROLLED_BACK, 4)
    assert "ValueError" in known.reason


def test_what_an_update_cost_is_counted_from_the_stop_to_the_first_step() -> None:
    known = progress_of(updated().events, 1)
    assert known.row is not None
    assert (known.row.stopped_s, known.repeated) == (3.0, 0)


def test_steps_that_only_the_old_release_had_count_as_repeated() -> None:
    story = asked().tried(1).applied(1, NEW, OLD, step=60, kept=52, recovery=True)
    known = progress_of(story.trains(NEW, 53, 54, restore=52).events, 1)
    assert known.row is not None
    assert (known.row.stopped_s, known.repeated) == (None, 8)


def test_steps_after_the_one_that_the_owner_goes_back_to_are_undone_and_not_repeated() -> None:
    story = trained().taken(NEW).asked(1, NEW, from_step=20).tried(1).stops(1)
    known = progress_of(
        story.applied(1, NEW, OLD, step=60, kept=20).trains(NEW, 21, 22, restore=20).events, 1
    )
    assert known.row is not None
    assert (known.row.restored, known.repeated, known.undone) == (20, 0, 40)


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


def phases(directory: JobDirectory, events: list[ev.AnyEvent]) -> list[str]:
    """What the follower says at first, and after each event of a journal that grows."""
    open_directory(directory)
    follower = UpdateFollower(directory, 1)
    found = [follower.look().phase]
    for event in events:
        with directory.journal.open("ab") as file:
            file.write(ev.encode_event(event) + b"\n")
        found.append(follower.look().phase)
    return [phase.value for phase in found]


def test_the_journal_is_followed_as_it_grows(tmp_path: Path) -> None:
    found = phases(JobDirectory(tmp_path / "7"), updated().events)
    each = ["asked", "trying", "waiting", "stopping", "starting", "running"]
    assert list(dict.fromkeys(found)) == each


def test_what_a_takeover_makes_void_is_no_part_of_the_progress(tmp_path: Path) -> None:
    asked_for, tried = asked().events, asked().tried(1).events[-1]
    taken_over = ev.ControllerStarted(t=tried.t, epoch=2, host="n2", pid=1, port=1, known=len(asked_for))
    events = [*asked_for, structs.replace(tried, epoch=1), taken_over]
    assert phases(JobDirectory(tmp_path / "7"), events)[-3:] == ["trying", "waiting", "trying"]


# -- journals of the engine --------------------------------------------------------------------------


def test_an_update_of_a_simulated_job_is_followed_to_its_first_step() -> None:
    sim = job(4)
    sim.update(SECOND, When.NOW)
    is_applied(sim)
    known = progress_of(sim.journal, 1)
    assert (known.phase, known.repeated) == (UpdatePhase.RUNNING, 0)
    assert known.row is not None
    assert known.row.stopped_s is not None


def test_an_update_that_a_simulated_recovery_took_along_costs_nothing_of_its_own() -> None:
    sim = job(4)
    sim.update(SECOND, When.LAZY)
    is_tried(sim)
    assert progress_of(sim.journal, 1).is_done
    sim.drill(0)
    is_applied(sim)
    known = progress_of(sim.journal, 1)
    assert known.phase is UpdatePhase.RUNNING
    assert known.row is not None
    assert (known.row.stopped, known.row.stopped_s, known.row.recovery) == (None, None, 1)


def test_a_simulated_release_that_fails_is_seen_to_be_rolled_back_and_so_is_its_row() -> None:
    sim = job(config=NO_TRIAL)
    is_rolled_back(sim, SimulatedRelease(fails_at=65))
    known = progress_of(sim.journal, 1)
    assert (known.phase, known.incident) == (UpdatePhase.ROLLED_BACK, 1)
    found = listing(sim.journal)
    first, second = found.releases
    assert (first.name, found.newest, second.updates[0].result) == (FIRST, FIRST, UpdateResult.ROLLED_BACK)
    assert [span.after for span in first.ran] == [-1, second.ran[0].after]
