"""From the marks of a training to its recovery time."""

from __future__ import annotations

import json
from collections.abc import Iterable

from benchmarks import timeline
from benchmarks.contenders import phases
from benchmarks.timeline import Mark, NeverRecovered, Recovery
from slurm_robust.model import events as ev
from tests.builders import incidents

KILL = 100.0


def life(run: int, start: float, ranks: Iterable[int], step: int | None) -> list[Mark]:
    """Marks of one run: rank r is r tenths of a second late at each of them."""
    names = ("python", "imported", "group", "built", "ready")
    marks = [
        Mark(start + i + r / 10, name, r, 4 if name == "ready" else -1, run, 10 * run + r)
        for r in ranks
        for i, name in enumerate(names)
    ]
    if step is not None:
        marks += [Mark(start + 5 + r / 10, "step", r, step, run, 10 * run + r) for r in ranks]
    return marks


def killed() -> list[Mark]:
    before = [Mark(KILL - 1, "step", r, 3, 0, r) for r in (0, 1)]
    return [*before, Mark(KILL, "kill", 1, 4, 0, 1)]


def test_recovery_counts_until_the_last_rank_has_done_the_step() -> None:
    found = timeline.recovery([*killed(), *life(1, KILL + 1, (0, 1), 4)], step=4, ranks=2)
    assert isinstance(found, Recovery)
    rounded = [round(t, 3) for t in (found.respawn, found.python, found.group, found.ready, found.step)]
    assert rounded == [1.0, 1.1, 3.1, 5.1, 6.1]
    assert (found.restarts, found.resumed_at) == (1, 4)


def test_a_run_that_fails_on_its_way_is_a_restart_that_did_not_recover() -> None:
    marks = [*killed(), *life(1, KILL + 1, (0, 1), None), *life(2, KILL + 10, (0, 1), 4)]
    found = timeline.recovery(marks, step=4, ranks=2)
    assert isinstance(found, Recovery)
    assert (found.restarts, round(found.step, 3)) == (2, 15.1)


def test_a_step_that_only_one_rank_did_is_not_done() -> None:
    marks = [*killed(), *life(1, KILL + 1, (0,), 4)]
    found = timeline.recovery(marks, step=4, ranks=2)
    assert isinstance(found, NeverRecovered)
    assert (found.restarts, found.last_sign_s) == (1, 6.0)


def test_without_a_kill_there_is_nothing_to_recover_from() -> None:
    assert timeline.recovery(life(0, 1.0, (0, 1), 4), step=4, ranks=2) is None


def test_a_torn_last_line_is_left_out() -> None:
    line = json.dumps({"t": 1.0, "name": "group", "rank": 0, "step": -1, "run": 0, "pid": 7})
    assert [Mark(1.0, "group", 0, -1, 0, 7)] == timeline.parse(f"{line}\n{line[:20]}")


def test_our_phases_follow_each_other_without_a_gap() -> None:
    marks = [*killed(), *life(1, KILL + 0.5, (0, 1), 4)]
    found = timeline.recovery(marks, step=4, ranks=2)
    assert isinstance(found, Recovery)
    journal: list[ev.AnyEvent] = [
        launched(1, KILL - 50),
        incidents.opened(t=KILL + 0.1, best_step=3),
        ev.GenerationEnded(t=KILL + 0.3, generation=1, reason=""),
        launched(2, KILL + 0.4),
    ]
    split = phases(journal, marks, found)
    assert {name: round(split[name], 3) for name in ("detect", "stop", "decide")} == {
        "detect": 0.1,
        "stop": 0.2,
        "decide": 0.1,
    }
    assert round(found.step, 6) == round(sum(split.values()), 6)


def launched(generation: int, t: float) -> ev.GenerationLaunched:
    return ev.GenerationLaunched(t=t, generation=generation, slots=("n1",), master="")
