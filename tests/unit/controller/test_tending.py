"""How fast training is, as its Beats tell."""

from __future__ import annotations

from slurm_robust.controller.effects import Now
from slurm_robust.controller.tending import Tempo
from slurm_robust.wire.messages import Progress


def seen(*sightings: tuple[float, int, float]) -> Tempo:
    """Each: when, step, age of the step."""
    tempo = Tempo()
    for mono, step, age in sightings:
        other = Progress(rank=1, step=step + 1, reported=True, age_s=0.0)
        slowest = Progress(rank=0, step=step, reported=True, age_s=age)
        tempo.see([other, slowest], Now(mono=mono, wall=0.0))
    return tempo


def test_unknown_before_the_second_step() -> None:
    assert seen().seconds_per_step == seen((10.0, 5, 0.0)).seconds_per_step == 0.0
    assert seen((10.0, 5, 0.0), (11.0, 5, 1.0)).fastest == 0.0


def test_the_times_of_completion_count_not_those_of_the_beats() -> None:
    tempo = seen((10.0, 5, 0.9), (13.0, 7, 0.9))
    assert tempo.seconds_per_step == tempo.fastest == 1.5


def test_only_the_last_steps_count() -> None:
    slow = [(10.0 * i, i, 0.0) for i in range(20)]
    fast = [(190.0 + i, 19 + i, 0.0) for i in range(1, 9)]
    assert seen(*slow, *fast).seconds_per_step == 1.0


def test_a_slow_step_does_not_hide_how_fast_they_can_be() -> None:
    tempo = seen((0.0, 0, 0.0), (4.0, 1, 0.0), (6.0, 2, 0.0))
    assert (tempo.seconds_per_step, tempo.fastest) == (3.0, 2.0)
    assert seen((0.0, 0, 0.0), (4.0, 1, 0.0), (4.0, 2, 0.0)).fastest == 0.5
