"""Following a journal that is written, torn, replaced, and taken over."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.journal import fold
from slurm_robust.notify.follow import JournalFollower
from tests.unit.notify.test_narrate import CLOSED, OPENED, STARTED, TAKEN


@pytest.fixture
def directory(tmp_path: Path) -> JobDirectory:
    return JobDirectory(tmp_path)


def write(directory: JobDirectory, *events: ev.AnyEvent, end: bytes = b"") -> None:
    with directory.journal.open("ab") as file:
        file.write(b"".join(ev.encode_event(event) + b"\n" for event in events) + end)


def names(follower: JournalFollower) -> list[str]:
    return [type(followed.event).__name__ for followed in follower.read()]


def controller(epoch: int, known: int = -1) -> ev.ControllerStarted:
    return ev.ControllerStarted(t=5.0, epoch=epoch, host="h", pid=1, port=1, known=known)


def test_what_was_added_is_read_once_and_a_torn_line_when_it_is_whole(directory: JobDirectory) -> None:
    follower = JournalFollower(directory)
    assert names(follower) == []
    write(directory, STARTED, TAKEN, end=ev.encode_event(OPENED)[:20])
    assert names(follower) == ["RunStarted", "AllocationTaken"]
    assert names(follower) == []
    write(directory, end=ev.encode_event(OPENED)[20:] + b"\n")
    assert names(follower) == ["IncidentOpened"]


def test_what_nobody_can_read_is_passed_over(directory: JobDirectory) -> None:
    write(directory, STARTED, end=b'{"event": "of a later release"}\n\xff\n\n' + b"[" * 100_000 + b"\n")
    write(directory, TAKEN)
    follower = JournalFollower(directory)
    assert names(follower) == ["RunStarted", "AllocationTaken"]
    assert follower.unreadable == 4


def test_a_journal_that_is_replaced_is_read_anew(directory: JobDirectory) -> None:
    write(directory, STARTED, TAKEN, OPENED)
    follower = JournalFollower(directory)
    assert len(names(follower)) == 3
    directory.journal.write_bytes(b"")
    write(directory, STARTED)
    assert names(follower) == ["RunStarted"]


def test_after_a_takeover_the_state_is_that_of_the_new_controller(directory: JobDirectory) -> None:
    evicted = ev.NodeEvicted(t=6.0, node="n4", reason="x", incident=1, epoch=1)
    write(directory, STARTED, controller(1), TAKEN, evicted, controller(2, known=3))
    write(directory, ev.NodeEvicted(t=7.0, node="n3", reason="x", incident=1, epoch=1), CLOSED)
    found = list(JournalFollower(directory).read())
    assert [type(one.event).__name__ for one in found][3:] == [
        "NodeEvicted",
        "ControllerStarted",
        "IncidentClosed",
    ]
    (before,) = [one.before for one in found if one.before is not None]
    assert fold(before).spares == ("n3", "n4")
    assert found[-1].offset == directory.journal.stat().st_size


def test_a_restart_of_the_controller_changes_no_state(directory: JobDirectory) -> None:
    write(directory, STARTED, controller(1), TAKEN, controller(2, known=3))
    assert [one.before for one in JournalFollower(directory).read()] == [None] * 4
