"""How long hooks took by the event log, and what counts as near a limit."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slurm_robust.admin.verify import measured_points
from slurm_robust.hooks.times import MIN_RUNS, HookTimes, is_near, meets_prologs, read_times, times_of

NOW = 1_700_000_000.0


def line(hook_s: object = 0.5, **more: object) -> bytes:
    event = {"at": NOW - 60, "node": "n1", "event": "run", "hook": "prolog", "wall_s": 0.3, "hook_s": hook_s}
    return json.dumps(event | more, separators=(",", ":")).encode()


def test_runs_are_counted_by_hook_and_node() -> None:
    lines = [line(), line(2.0, node="n2", at=NOW - 900), line(7, hook="epilog"), line(hook="periodic")]
    found = times_of(lines, NOW)
    assert list(found) == ["prolog", "epilog"]
    assert found["prolog"] == HookTimes(runs=2, nodes=2, since=NOW - 900, usual_s=0.5, longest_s=2.0)
    assert found["epilog"].longest_s == 7


def test_an_earlier_release_logged_the_time_of_the_checks_alone() -> None:
    assert times_of([line(None)], NOW)["prolog"].longest_s == 0.3


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        line()[:-5],
        b"\xff" + line(),
        b"[" * 100_000 + b'"prolog"',
        line(event="hook_failed"),
        line("9"),
        line(True),
        line(0),
        line(-3.0),
        line(1e9),
        line(5.0).replace(b"5.0", b"1e999"),
        line(5.0).replace(b"5.0", b"NaN"),
        line(at=0),
        line(at=NOW + 1e8),
        line(at="now"),
        line(node=None),
    ],
)
def test_what_is_torn_or_absurd_is_left_out(bad: bytes) -> None:
    assert times_of([bad], NOW) == {}
    assert times_of([bad, line()], NOW)["prolog"].runs == 1


def test_only_a_regular_file_is_read_and_of_a_long_one_the_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "", "absent"):
        with pytest.raises(OSError, match=r"not a regular file|directory"):
            read_times(tmp_path / name, NOW)
    log = tmp_path / "events.jsonl"
    log.write_bytes(line(9.0) + b"\n" + b"x" * 2**24 + b"\n" + line(1.0) + b"\n" + line(2.0)[:-9])
    assert read_times(log, NOW)["prolog"] == HookTimes(
        runs=1, nodes=1, since=NOW - 60, usual_s=1.0, longest_s=1.0
    )


def test_one_slow_run_is_near_no_limit_but_slow_runs_are() -> None:
    for usual in (MIN_RUNS - 1, 99, 5000):
        times = times_of([*[line(0.4)] * usual, line(60.0)], NOW)["prolog"]
        assert times.longest_s == 60.0
        assert not is_near(times, 10)
    assert is_near(times_of([*[line(0.4)] * 900, *[line(9.0)] * 100], NOW)["prolog"], 10)
    assert not is_near(times_of([line(9.0)] * (MIN_RUNS - 1), NOW)["prolog"], 10)


@pytest.mark.parametrize("limit", [None, 0, 65534, 4294967295, 100])
def test_no_limit_and_a_far_one_are_not_near(limit: int | None) -> None:
    assert not is_near(times_of([line(60.0)] * MIN_RUNS, NOW)["prolog"], limit)


def test_only_deferred_launches_meet_no_prolog() -> None:
    assert meets_prologs(frozenset())
    assert meets_prologs(frozenset({"alloc", "serial"}))
    assert meets_prologs(frozenset({"deferbatch", "nohold"}))
    assert not meets_prologs(frozenset({"alloc", "deferbatch"}))


LIVE = {"prologepilogtimeout": ("120 sec",), "batchstarttimeout": ("10 sec",), "prologflags": ("Alloc",)}


@pytest.mark.parametrize(
    ("took_s", "more", "bad"),
    [
        (0.4, {}, []),
        (9.0, {}, ["BatchStartTimeout: 10 s"]),
        (9.0, {"prologflags": ("Alloc,DeferBatch",)}, []),
        (9.0, {"batchstarttimeout": ()}, []),
        (9.0, {"batchstarttimeout": ("0 sec",), "prologepilogtimeout": ("INFINITE",)}, []),
        (100.0, {"batchstarttimeout": ("600 sec",)}, ["99 % of 20 prologs took 100 s or less"]),
        (100.0, {"batchstarttimeout": (), "prologtimeout": ("600",)}, []),
    ],
)
def test_verify_compares_what_was_measured(
    took_s: float, more: dict[str, tuple[str, ...]], bad: list[str]
) -> None:
    times = times_of([line(took_s)] * MIN_RUNS, NOW)
    found = [point.what for point in measured_points(LIVE | more, times, "") if not point.good]
    assert [what.partition(",")[0] for what in found] == bad


@pytest.mark.parametrize("unread", ["", "events.jsonl: Permission denied"])
def test_verify_warns_of_nothing_that_was_not_measured(unread: str) -> None:
    found = list(measured_points(LIVE, {}, unread))
    assert all(point.good and "not measured" in point.what for point in found)
    assert unread in found[0].what
