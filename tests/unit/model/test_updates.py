"""What the state of a job says of checkpoints after an update that chose one, or left the optimizer out."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.incident import Restart, RollBack
from slurm_robust.model.release import Candidate, ReleaseState, Requester, When
from slurm_robust.model.state import JobState, apply
from slurm_robust.model.world import World

OLD = CheckpointId(step=50, generation=1)
BEFORE = JobState(
    release="a" * 12,
    worlds={
        ev.TRAIN: World(
            generation=3,
            best_step=100,
            sealed={1: 60, 2: 100},
            unsealed=(3,),
            newest_on_storage=CheckpointId(step=100, generation=2),
        )
    },
)
NEW = "b" * 12


def requested(**asked: object) -> ev.UpdateRequested:
    asked = {"update": 1, "release": NEW, "when": When.NOW, "by": Requester(user="eva", uid=1000), **asked}
    return ev.UpdateRequested(t=1.0, **asked)  # type: ignore[arg-type]


def applied(state: JobState, checkpoint: CheckpointId, **asked: object) -> JobState:
    event = ev.UpdateApplied(
        t=2.0, update=1, release=NEW, before=state.release, step=100, checkpoint=checkpoint
    )
    return apply(event, apply(requested(**asked), state))


def test_what_is_later_than_the_step_of_an_update_never_comes_back() -> None:
    world = applied(BEFORE, OLD, from_step=55).world
    assert world.sealed == {1: 50, 2: 50}
    assert world.good_steps == {3: 50}  # nodes that were silent may still tell of that generation
    assert (world.best_step, world.newest_on_storage) == (50, None)


def test_without_such_a_step_all_counts_as_before() -> None:
    assert applied(BEFORE, CheckpointId(step=100, generation=2)).world == BEFORE.world


def test_the_optimizer_is_left_out_of_checkpoints_of_the_releases_before_only() -> None:
    state = applied(BEFORE, OLD, discard_optimizer=True)
    assert state.discards_optimizer_of(OLD)
    assert not state.discards_optimizer_of(CheckpointId(step=101, generation=4))
    assert not state.discards_optimizer_of(None)


def test_the_release_before_takes_its_optimizer_back() -> None:
    state = structs.replace(applied(BEFORE, OLD, discard_optimizer=True), release=BEFORE.release)
    assert not state.discards_optimizer_of(OLD)


def test_a_later_update_to_the_same_release_leaves_nothing_out_unless_it_is_asked() -> None:
    state = applied(applied(BEFORE, OLD, discard_optimizer=True), OLD)
    assert not state.discards_optimizer_of(OLD)


def test_the_way_back_of_an_update_leads_to_what_has_made_steps_before_there_is_a_good_release() -> None:
    ran = structs.replace(BEFORE, candidate=Candidate(release=BEFORE.release, update=0, before="", since=1.0))
    began = structs.replace(BEFORE, candidate=Candidate(release=BEFORE.release, update=0, before=""))
    ways = [applied(state, OLD).candidate for state in (ran, began, structs.replace(ran, last_good="c" * 12))]
    assert [way.before if way else None for way in ways] == [BEFORE.release, "", "c" * 12]
    again = applied(structs.replace(BEFORE, candidate=None), OLD).candidate  # after a way back
    assert again is not None
    assert again.before == BEFORE.release


def test_a_release_to_which_the_way_back_led_before_it_was_good_is_judged_by_its_next_steps() -> None:
    unjudged = structs.replace(BEFORE, releases={BEFORE.release: ReleaseState.CANDIDATE})
    back = RollBack(release=NEW, to=BEFORE.release, step=50)
    decided = ev.Decided(t=9.0, incident=1, actions=(back, Restart()), reason="it raises")
    state = apply(decided, applied(structs.replace(unjudged, last_good=""), OLD))
    assert state.candidate is not None
    found = state.candidate
    assert (found.release, found.before, found.first_step, found.since) == (BEFORE.release, "", 51, 9.0)
    good = apply(ev.ReleaseProven(t=10.0, release=BEFORE.release, reason="steps", step=151), state)
    assert (good.releases[BEFORE.release], good.candidate) == (ReleaseState.GOOD, None)
