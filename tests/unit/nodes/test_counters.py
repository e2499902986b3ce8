from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.model.record import Record
from slurm_robust.nodes.check import View
from slurm_robust.nodes.counters import grown, most_within, readings


class Facts(Record):
    count: int | None = None


def test_only_rises_between_two_readings_of_the_time_count() -> None:
    track = [(0.0, 0), (99.0, 50), (100.0, 53), (150.0, 53), (200.0, 60)]
    assert grown(track, 100.0, now=200.0) == 7
    assert grown(track, 101.0, now=200.0) == 10
    assert grown(track, 50.0, now=200.0) == 7
    assert grown(track, 49.0, now=200.0) == 0
    assert grown(track[:1], 100.0, now=0.0) == 0
    assert grown([], 100.0, now=0.0) == 0


def test_a_reset_counts_as_no_event() -> None:
    assert grown([(0.0, 500), (1.0, 0), (2.0, 3)], 10.0, now=2.0) == 3
    assert most_within([(0.0, 2**32 - 1), (1.0, 0)], 10.0) == 0


def test_the_densest_stretch_is_found_wherever_it_lies() -> None:
    track = [(0.0, 0), (60.0, 1), (600.0, 1), (610.0, 2), (620.0, 4), (1000.0, 4)]
    assert most_within(track, 20.0) == 3
    assert most_within(track, 10.0) == 2
    assert most_within(track, 9.0) == 0
    assert most_within(track, 1000.0) == 4
    assert most_within([], 10.0) == 0


steps = st.lists(st.tuples(st.floats(0.1, 500), st.integers(0, 5), st.booleans()), max_size=30)


@given(steps, st.floats(1, 2000))
def test_nothing_is_counted_that_did_not_happen(moves: list[tuple[float, int, bool]], window: float) -> None:
    """Whatever was reset in between: never more than the true events since the window began."""
    times = list(accumulate(step for step, _, _ in moves))
    track, count = [], 0
    for at, (_, events, is_reset) in zip(times, moves, strict=True):
        count = events if is_reset else count + events
        track.append((at, count))
    if not track:
        return
    now = times[-1]
    true = sum(events for at, (_, events, _) in zip(times, moves, strict=True) if at > now - window)
    assert 0 <= grown(track, window, now) <= true
    assert most_within(track, window) <= sum(events for _, events, _ in moves)
    assert grown(track, window, now) <= most_within(track, window)


def test_readings_are_of_this_boot_and_not_of_the_future() -> None:
    before = (
        View(at=1.0, boot_id="old", facts=Facts(count=9)),
        View(at=2.0, boot_id="new", facts=Facts(count=1)),
        View(at=3.0, boot_id="new", facts=Facts(count=None)),
        View(at=8.0, boot_id="new", facts=Facts(count=7)),
    )
    view = View(facts=Facts(count=2), at=5.0, boot_id="new", before=before)
    assert readings(view, lambda facts: facts.count) == [(2.0, 1), (5.0, 2)]
