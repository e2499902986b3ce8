from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.controller.journal import PATIENCE_S, FileSystem, Journal
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.journal import JournalDamaged, fold, parse, read
from slurm_robust.testing.faulty_disk import FaultyDisk
from tests.contracts.disk import DiskContract
from tests.unit.controller.file_size_limit import room_for
from tests.users import run_as
from tests.waiting import HANG_S, wait_for

ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EROFS)
EVENTS = [ev.Noted(t=float(i), text=f"fact {i}\n« »", node="n1") for i in range(5)]


def write(path: Path) -> bytes:
    journal = Journal(path)
    for event in EVENTS:
        journal.append(event)
    journal.close()
    return path.read_bytes()


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    write(tmp_path / "j")
    assert read(tmp_path / "j") == EVENTS
    assert read(tmp_path / "none") == []


def test_lines_are_json_objects_that_jq_could_read(tmp_path: Path) -> None:
    import json

    lines = write(tmp_path / "j").splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["noted"] * 5


@given(cut=st.integers(min_value=0))
def test_a_journal_cut_anywhere_loses_at_most_its_last_line(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("j") / "journal.jsonl"
    data = write(path)
    cut %= len(data) + 1
    path.write_bytes(data[:cut])
    whole = data[:cut].count(b"\n")
    journal = Journal(path)
    assert journal.events == EVENTS[:whole]
    journal.append(EVENTS[0])
    journal.close()
    assert read(path) == [*EVENTS[:whole], EVENTS[0]]
    torn = data[:cut].rpartition(b"\n")[2]
    if torn:
        assert journal.torn is not None
        assert journal.torn.read_bytes() == torn  # set aside, not thrown away


def test_damage_in_the_middle_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    data = write(tmp_path / "j").splitlines(keepends=True)
    data[2] = b"\x00" * len(data[2])
    (tmp_path / "j").write_bytes(b"".join(data))
    with pytest.raises(JournalDamaged, match="line 3") as caught:
        Journal(tmp_path / "j")
    assert caught.value.exit_code == ExitCode.JOURNAL
    assert "written by another version of slurm_robust" in caught.value.fix
    assert (tmp_path / "j").read_bytes() == b"".join(data)


def test_the_fold_of_nothing_is_the_beginning() -> None:
    assert fold(parse(b"")[0]).world.generation == 0


@pytest.mark.parametrize("room", [0, 1, 40])
def test_what_storage_does_not_take_is_written_when_it_does(tmp_path: Path, room: int) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    journal.append(EVENTS[0])
    with room_for(path.stat().st_size + room):
        journal.append(EVENTS[1], EVENTS[2])
        journal.append(EVENTS[3])
        assert "File too large" in journal.trouble
        assert (journal.events, journal.written) == (EVENTS[:4], 1)
        assert read(path) == EVENTS[:1]
    journal.append(EVENTS[4])
    assert journal.close()
    assert (journal.trouble, journal.written) == ("", 5)
    assert read(path) == EVENTS


@pytest.mark.parametrize("only", ["", "write", "sync"])
@pytest.mark.parametrize("room", [0, 30])
@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
def test_each_kind_of_refusal_costs_nothing(tmp_path: Path, number: int, room: int, only: str) -> None:
    disk = FaultyDisk()
    journal = Journal(tmp_path / "j", disk)
    journal.append(EVENTS[0])
    disk.fail(number, room=room, only=only)
    journal.append(EVENTS[1])
    assert (journal.written, journal.trouble) == (1, os.strerror(number))
    journal.append(EVENTS[2])
    disk.heal()
    journal.append(EVENTS[3])
    assert journal.close()
    assert read(tmp_path / "j") == EVENTS[:4]


def test_storage_that_hangs_holds_up_nobody_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, woken = FaultyDisk(), threading.Event()
    journal = Journal(tmp_path / "j", disk)
    journal.append(EVENTS[0])
    journal.wake = woken.set
    disk.hang()
    journal.append(EVENTS[1])
    assert disk.wait_hanging(10)
    began = time.monotonic()
    journal.append(EVENTS[2])
    journal.append(EVENTS[3])
    assert time.monotonic() - began < PATIENCE_S, "who is behind already waits for nothing"
    assert (journal.written, journal.trouble) == (1, "")
    monkeypatch.setattr("slurm_robust.controller.journal.HANGS_S", 0.0)
    assert "storage has not answered" in journal.trouble
    assert not journal.close(0.0)
    assert not woken.is_set()
    disk.heal()
    assert woken.wait(60)
    assert journal.settle(10)
    assert read(tmp_path / "j") == EVENTS[:4]


@pytest.mark.parametrize("kind", [MemoryError, ValueError, SystemExit])
def test_a_dead_writer_thread_is_reported(tmp_path: Path, kind: type[BaseException]) -> None:
    class Broken(FileSystem):
        def sync(self, fd: int) -> None:
            raise kind("no")

    journal = Journal(tmp_path / "j", Broken())
    journal.append(EVENTS[0])
    with pytest.raises(RuntimeError, match="has died"):
        journal.append(EVENTS[1])
    with pytest.raises(RuntimeError, match="has died"):
        _ = journal.written


def test_a_torn_line_is_cut_off_also_where_there_is_no_room_for_it(tmp_path: Path) -> None:
    data = write(tmp_path / "j")
    (tmp_path / "j").write_bytes(data[:-5])
    with room_for(0):
        journal = Journal(tmp_path / "j")
        assert (journal.torn, journal.events) == (None, EVENTS[:4])
        assert list(tmp_path.iterdir()) == [tmp_path / "j"]
    journal.append(EVENTS[4])
    journal.close()
    assert read(tmp_path / "j") == EVENTS


def test_storage_that_refuses_once_does_not_begin_a_new_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``exists()`` of Python 3.14 says no then; a journal is absent only where storage says so."""
    data = write(tmp_path / "j")
    monkeypatch.setattr(Path, "exists", lambda path: False)
    journal = Journal(tmp_path / "j")
    assert (journal.events, journal.written) == (EVENTS, len(EVENTS))
    journal.close()
    assert (tmp_path / "j").read_bytes() == data


@pytest.mark.skipif(os.geteuid() != 0, reason="root reads everything, and only root can be another user")
def test_a_journal_that_storage_does_not_show_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o700)
    write(folder / "j")
    assert "Permission denied" in run_as(65534, lambda: Journal(folder / "j"))
    assert "Permission denied" in run_as(65534, lambda: read(folder / "j"))


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage that has refused is tried again soon."""
    monkeypatch.setattr("slurm_robust.controller.journal.AGAIN_S", 0.01)


@given(left=st.integers(min_value=0), stale=st.booleans())
def test_events_that_storage_had_taken_and_lost_are_written_again(
    tmp_path_factory: pytest.TempPathFactory, left: int, stale: bool
) -> None:
    """Wherever the file was cut, whether or not storage refused before, also what was read at the start."""
    path, disk = tmp_path_factory.mktemp("j") / "journal.jsonl", FaultyDisk()
    first = Journal(path)
    first.append(*EVENTS[:2])
    first.close()
    journal = Journal(path, disk)
    journal.append(EVENTS[2])
    wait_for(lambda: journal.written == 3)
    data = path.read_bytes()
    left %= len(data) + 1
    if stale:
        disk.fail(errno.ESTALE)
        journal.append(EVENTS[3])
        wait_for(lambda: journal.trouble)
    os.truncate(path, left)
    disk.heal()
    journal.append(EVENTS[4])
    assert journal.close(HANG_S)
    expected = [*EVENTS[:3], EVENTS[3], EVENTS[4]] if stale else [*EVENTS[:3], EVENTS[4]]
    assert read(path) == expected
    assert journal.restored == 3 - data[:left].count(b"\n")


class RefusesOnce(FileSystem):
    """Storage that takes its time to refuse the first write."""

    def __init__(self) -> None:
        self.refuses = threading.Event()
        self._has_refused = False

    def write(self, fd: int, data: bytes) -> int:
        if not self._has_refused:
            self.refuses.wait()
            self._has_refused = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().write(fd, data)


def test_what_storage_refuses_while_the_journal_is_closed_is_tried_once_more(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", disk := RefusesOnce())
    journal.append(EVENTS[0])
    assert not journal.close(0.0)
    disk.refuses.set()
    assert journal.close(HANG_S)
    assert read(tmp_path / "j") == EVENTS[:1]


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("only", ["", "write", "sync"])
@pytest.mark.parametrize("room", [0, 30, 150])
def test_storage_that_refuses_while_lost_events_are_written_again(
    tmp_path: Path, room: int, only: str
) -> None:
    path, disk = tmp_path / "j", FaultyDisk()
    journal = Journal(path, disk)
    journal.append(*EVENTS[:3])
    os.truncate(path, 10)
    disk.fail(errno.EIO, room=room, only=only)
    journal.append(EVENTS[3])
    wait_for(lambda: journal.trouble)
    os.truncate(path, min(path.stat().st_size, 5))
    disk.heal()
    wait_for(lambda: journal.written == 4)
    assert (read(path), journal.restored) == (EVENTS[:4], 3)
    journal.append(EVENTS[4])
    assert journal.close()
    assert (read(path), journal.restored) == (EVENTS, 3)


@pytest.mark.usefixtures("soon")
def test_an_older_copy_in_the_journals_place_is_completed(tmp_path: Path) -> None:
    """And so is the newer one, when storage shows that one again."""
    path, disk = tmp_path / "j", FaultyDisk()
    newer, older = tmp_path / "newer", tmp_path / "older"
    journal = Journal(path, disk)
    journal.append(EVENTS[0])
    older.write_bytes(path.read_bytes())
    journal.append(EVENTS[1])
    newer.hardlink_to(path)
    for number, copy in ((2, older), (3, newer)):
        disk.fail(errno.ESTALE, only="write")
        journal.append(EVENTS[number])
        copy.replace(path)
        opened = disk.calls.count("open")
        wait_for(lambda opened=opened: disk.calls.count("open") > opened)
        disk.heal()
        wait_for(lambda number=number: journal.written == number + 1)
        assert read(path) == EVENTS[: number + 1]
    assert journal.close()


@pytest.mark.usefixtures("soon")
def test_lost_events_are_not_written_where_another_controller_has_gone_on_without_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / "j"
    old = Journal(path)
    old.append(*EVENTS[:3])
    os.truncate(path, len(path.read_bytes().splitlines(keepends=True)[0]) + 7)
    new = Journal(path)
    new.append(EVENTS[4])
    old.append(EVENTS[3])
    wait_for(lambda: old.trouble)
    assert "lost" in old.trouble
    new.append(EVENTS[1])
    assert new.close()
    assert not old.close()
    assert (read(path), old.restored) == ([EVENTS[0], EVENTS[4], EVENTS[1]], 0)


def test_what_another_controller_has_written_is_not_cut_off(tmp_path: Path) -> None:
    disk = FaultyDisk()
    old = Journal(tmp_path / "j", disk)
    old.append(EVENTS[0])
    disk.fail(errno.EIO, room=30)
    old.append(EVENTS[3])
    new = Journal(tmp_path / "j")  # which sets a torn line aside
    new.append(EVENTS[1], EVENTS[2])
    disk.heal()
    assert old.close()
    assert read(tmp_path / "j") == EVENTS[:4]
    new.close()


def test_events_that_wait_when_another_controller_took_over_are_not_written(tmp_path: Path) -> None:
    path, disk = tmp_path / "j", FaultyDisk()
    journal = Journal(path, disk)
    journal.append(EVENTS[0])
    disk.fail(errno.ENOSPC)
    journal.append(EVENTS[1])
    journal.abandon()
    disk.heal()
    assert journal.close()
    assert read(path) == EVENTS[:1]


# -- The journal's storage: the real one and the fake, held to one contract ------------------------


class RealWorld:
    def __init__(self, folder: Path) -> None:
        self.disk, self.folder = FileSystem(), folder

    def room_for(self, nbytes: int) -> AbstractContextManager[None]:
        return room_for(nbytes)


class FakeWorld:
    def __init__(self, folder: Path) -> None:
        self.disk, self.folder = FaultyDisk(), folder

    @contextmanager
    def room_for(self, nbytes: int) -> Iterator[None]:
        self.disk.fail(errno.ENOSPC, room=nbytes)
        yield
        self.disk.heal()


class TestDisk(DiskContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> RealWorld:
        return RealWorld(tmp_path)


class TestFaultyDisk(DiskContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> FakeWorld:
        return FakeWorld(tmp_path)


# -- two controllers -----------------------------------------------------------------------------------


def started(epoch: int, known: int = -1) -> ev.ControllerStarted:
    return ev.ControllerStarted(t=0.0, epoch=epoch, host="h", pid=1, port=1, known=known)


def noted(text: str, epoch: int = 0) -> ev.Noted:
    return ev.Noted(t=0.0, text=text, epoch=epoch)


def lines(*events: ev.AnyEvent) -> bytes:
    return b"".join(ev.encode_event(event) + b"\n" for event in events)


def texts(data: bytes) -> list[str]:
    return [event.text for event in parse(data)[0] if isinstance(event, ev.Noted)]


def test_events_of_an_old_controller_after_the_next_one_began_do_not_count() -> None:
    data = lines(started(1, 0), noted("a", 1), started(2, 2), noted("late", 1), noted("b", 2))
    assert texts(data) == ["a", "b"]
    assert parse(data)[1] == len(data)
    assert fold(parse(data)[0]).epoch == 2


def test_events_that_an_old_controller_wrote_while_the_next_one_was_reading_do_not_count() -> None:
    data = lines(started(1, 0), noted("a", 1), noted("unseen", 1), started(2, 2), noted("b", 2))
    assert texts(data) == ["a", "b"]


def test_an_old_controller_that_begins_late_does_not_count() -> None:
    data = lines(started(1, 0), started(3, 1), started(2, 1), noted("late", 2), noted("b", 3))
    assert texts(data) == ["b"]
    assert fold(parse(data)[0]).epoch == 3


def test_journals_without_epochs_count_whole() -> None:
    assert texts(lines(started(1), noted("a"), started(2), noted("b"))) == ["a", "b"]


def test_each_event_has_the_epoch_of_its_controller(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.epoch = 4
    journal.append(noted("a"))
    assert journal.close()
    assert [e.epoch for e in read(tmp_path / "j")] == [4]
    assert journal.events == read(tmp_path / "j")


def test_a_journal_with_lines_that_do_not_count_is_written_again_where_storage_lost_its_end(
    tmp_path: Path,
) -> None:
    path = tmp_path / "j"
    path.write_bytes(lines(started(1, 0), started(2, 1), noted("late", 1)))
    journal = Journal(path)
    journal.epoch = 3
    journal.append(started(3, 2), noted("b"))
    whole = path.read_bytes()
    os.truncate(path, len(whole) - 5)
    journal.append(noted("c"))
    assert journal.close()
    assert path.read_bytes() == whole + lines(noted("c", 3))


def test_what_storage_refused_is_not_tried_again_when_another_controller_has_the_job(tmp_path: Path) -> None:
    path, disk = tmp_path / "j", FaultyDisk()
    journal = Journal(path, disk)
    journal.epoch = 1
    journal.append(noted("a"))
    disk.fail(errno.ESTALE)
    journal.append(noted("late"))
    journal.is_ours = lambda: False
    disk.heal()
    wait_for(lambda: journal.trouble == "another controller has taken over")
    journal.abandon()
    journal.close()
    assert texts(path.read_bytes()) == ["a"]
