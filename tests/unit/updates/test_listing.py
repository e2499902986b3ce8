"""What the journal says of a job's releases."""

from __future__ import annotations

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.journal import fold
from slurm_robust.model.release import ReleaseState, UpdateEnd, When
from slurm_robust.model.updates import UpdateResult
from slurm_robust.terminal.console import show
from slurm_robust.updates.listing import (
    NoSuchRelease,
    StepSpan,
    good_before,
    history,
    listing,
    release_named,
)
from slurm_robust.updates.screen import releases
from tests.unit.updates.stories import ME, NEW, OLD, THIRD, Story, trained, updated


def named(story: Story, word: str) -> str:
    return release_named(word, fold(story.events), history(story.events))


def test_each_release_has_its_state_its_steps_and_its_updates() -> None:
    found = listing(updated().events)
    old, new = found.releases
    assert (old.state, new.state) == (ReleaseState.GOOD, ReleaseState.CANDIDATE)
    assert (old.running, new.running, found.running) == (False, True, NEW)
    assert (old.ran, new.ran) == ((StepSpan(after=-1, last=60),), (StepSpan(after=60, last=80),))
    (update,) = new.updates
    assert (update.result, update.step, update.message, update.by) == (
        UpdateResult.CANDIDATE,
        60,
        "smaller lr",
        ME,
    )


def test_launches_in_a_row_are_one_span_and_a_return_begins_another() -> None:
    story = updated().trains(NEW, 76, 90, restore=75).crashes(1).rolled_back(1, NEW, OLD, 60)
    found = listing(story.trains(OLD, 61, 70, restore=60).events)
    old, new = found.releases
    assert new.ran == (StepSpan(after=60, last=90),)
    assert old.ran == (StepSpan(after=-1, last=60), StepSpan(after=60, last=70))
    assert (new.state, old.running) == (ReleaseState.BAD, True)
    assert new.updates[0].result is UpdateResult.ROLLED_BACK


def test_an_update_that_waits_is_shown_by_itself() -> None:
    story = trained().taken(NEW).asked(1, NEW, When.LAZY, deadline=1_764_586_400.0).tried(1)
    waiting = listing(story.events).waiting
    assert waiting is not None
    assert (waiting.number, waiting.trial_s, waiting.deadline) == (1, 2.0, 1_764_586_400.0)


def test_in_a_job_that_has_ended_nothing_runs_or_waits(capsys: pytest.CaptureFixture[str]) -> None:
    story = trained().taken(NEW).asked(1, NEW)
    story.add(ev.RunEnded(t=story.t, code=0, reason="done", final=True))
    found = listing(story.events)
    assert (found.running, found.newest, found.waiting) == ("", OLD, None)
    assert not any(row.running for row in found.releases)
    show(found, releases, json=False)
    said = capsys.readouterr().out
    assert f"Release {OLD}, which ran last" in said
    assert "Waits" not in said
    assert ">" not in said


def test_an_update_that_another_replaced_no_longer_waits() -> None:
    story = trained().taken(NEW).asked(1, NEW, When.LAZY).ended(1, UpdateEnd.SUPERSEDED, "by update 2")
    story.taken(THIRD).asked(2, THIRD, When.LAZY)
    found = listing(story.events)
    assert found.waiting is not None
    assert found.waiting.release == THIRD
    assert found.releases[1].updates[0].result is UpdateResult.SUPERSEDED


def test_releases_are_named_by_words_and_by_unique_beginnings() -> None:
    story = updated().proven(NEW)
    assert named(story, "running") == named(story, "good") == named(story, "a81e") == NEW
    assert named(story, "previous") == named(story, OLD) == named(story, "3F2A") == OLD


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("3f2", "names no release"),
        ("latest", "names no release"),
        ("", "names no release"),
        ("../../etc", "names no release"),
        ("beef", "job 7 has no release beef"),
        ("3f2a91c04b7dd", "names no release"),
    ],
)
def test_what_names_no_release_is_refused(word: str, says: str) -> None:
    with pytest.raises(NoSuchRelease, match=says):
        named(updated(), word)


def test_a_beginning_of_two_releases_asks_for_more_digits() -> None:
    story = trained().taken("3f2a00000000")
    with pytest.raises(NoSuchRelease, match="beginning of 2 releases"):
        named(story, "3f2a")


def test_words_without_a_release_say_why() -> None:
    story = Story().taken(OLD)
    for word, says in (("good", "no release has been good yet"), ("previous", "no other release ran")):
        with pytest.raises(NoSuchRelease, match=says):
            named(story, word)


def test_a_rollback_goes_to_the_newest_good_release_that_ran_before() -> None:
    story = updated()
    assert good_before(fold(story.events), history(story.events)) == OLD
    story.proven(NEW)
    story.asked(2, OLD, rollback=True).applied(2, OLD, NEW, 80, 80).trains(OLD, 81, 90, restore=80)
    # A rollback of a rollback.
    assert good_before(fold(story.events), history(story.events)) == NEW


def test_a_release_that_was_bad_is_no_way_back() -> None:
    story = updated().crashes(1).rolled_back(1, NEW, OLD, 60).trains(OLD, 61, 70, restore=60)
    assert good_before(fold(story.events), history(story.events)) == ""
