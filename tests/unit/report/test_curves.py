"""Curves keep their extremes however few points are left."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.ledger.ledger import times_of
from slurm_robust.report.curves import TrainingCurves, progress, thinned
from tests.unit.ledger.journals import Journal, at

VALUES = st.one_of(st.none(), st.floats(-1e9, 1e9))


@given(st.lists(st.tuples(st.floats(0, 1e6), VALUES), min_size=1, max_size=200), st.integers(1, 50))
def test_thinning_keeps_ends_and_extremes(points: list[tuple[float, float | None]], most: int) -> None:
    points.sort(key=lambda point: point[0])
    times = [t for t, _ in points]
    values = [value for _, value in points]
    kept = thinned(times, [values], most)
    assert kept == sorted(set(kept))
    assert (kept[0], kept[-1]) == (0, len(times) - 1)
    assert len(kept) <= max(4, most)
    known = [value for value in values if value is not None]
    left = [value for place in kept if (value := values[place]) is not None]
    if known:
        assert (min(left), max(left)) == (min(known), max(known))


def training() -> Journal:
    """A step a second, but for 4 s in a checkpoint; a restart repeats two of them."""
    journal = Journal().controller(0).allocation(0).launch(0, 1).first(10, 1, 0)
    journal.progress(20, 1, 10).progress(34, 1, 20, checkpoint=4.0).ended(35, 1, 18)
    return journal.launch(36, 2, 18).first(41, 2, 19).progress(51, 2, 29)


def test_a_step_takes_what_is_left_without_checkpoints_within_one_generation() -> None:
    events = training().events
    assert progress(events, times_of(events)) == TrainingCurves(
        t=(at(10), at(20), at(34), at(41), at(51)),
        generation=(1, 1, 1, 2, 2),
        step=(0, 10, 20, 19, 29),
        loss=(None,) * 5,
        grad_norm=(None,) * 5,
        step_s=(None, 1.0, 1.0, None, 1.0),
        known=5,
    )


def test_a_long_curve_keeps_the_ends_of_generations() -> None:
    journal = Journal().controller(0).allocation(0)
    for number in range(1, 6):
        journal.launch(1000 * number, number).first(1000 * number + 1, number, 100 * number)
        for step in range(1, 50):
            journal.progress(1000 * number + 1 + step, number, 100 * number + step)
    found = progress(journal.events, times_of(journal.events), 40)
    assert found.known == 250
    assert len(found.t) < 60
    for number in range(1, 6):
        steps = [s for g, s in zip(found.generation, found.step, strict=True) if g == number]
        assert (steps[0], steps[-1]) == (100 * number, 100 * number + 49)


def test_a_journal_without_steps_has_no_curve() -> None:
    assert progress([], []) == TrainingCurves()
