"""The journal on real file systems that refuse: events are on them once they take it, and only once."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from slurm_robust.controller import journal
from slurm_robust.controller.journal import Journal
from slurm_robust.controller.supervisor import storage_error
from slurm_robust.model import events as ev
from slurm_robust.model.journal import read
from slurm_robust.sandbox import linux
from tests.stand_ins.faulty_mount import FaultyMount
from tests.users import run_as
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount"),
]

# More than what is left of blocks that are there already.
EVENTS = [ev.Noted(t=float(i), text=f"fact {i} " + "x" * 20_000, node="n1") for i in range(6)]
REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EROFS)


def run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def alone(do: Callable[[], None], again_s: float = 0.1) -> None:
    """In a process of its own, whose mounts end with it, and which asks storage again so soon."""

    def there() -> None:
        linux.unshare(linux.CLONE_NEWNS)
        linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
        journal.AGAIN_S = again_s
        do()

    assert run_as(0, there) == "None"


class Small:
    """A small file system in memory at ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"
        linux.mount("tmpfs", str(folder), "tmpfs", 0, "size=3m")

    def fill(self) -> None:
        """Until there is no room left."""
        with self._filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            list(map(file.write, itertools.repeat(bytes(4096))))

    def make_room(self) -> None:
        self._filler.unlink()


@contextmanager
def thin(small: Small, folder: Path) -> Iterator[str]:
    """ext4 on an image without room of its own: it takes writes, and says at the end that they are lost."""
    image = small.folder / "image"
    with image.open("wb") as file:
        file.truncate(8 << 20)
    run("mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", "-E", "lazy_itable_init=0,nodiscard", image)
    device = run("losetup", "--find", "--show", image)
    try:
        run("mount", "-o", "errors=remount-ro", device, folder)
        yield device
    finally:
        linux.unmount(str(folder))
        run("losetup", "--detach", device)


def loses_nothing(
    path: Path,
    refuse: Callable[[], object],
    heal: Callable[[], object],
    text: str,
    seconds: float = 0.0,
) -> None:
    """A journal whose storage refuses for a while is whole afterwards, and never damaged meanwhile."""
    kept = Journal(path)
    kept.append(EVENTS[0])
    wait_for(lambda: kept.written == 1)
    refuse()
    kept.append(*EVENTS[1:4])
    wait_for(lambda: kept.trouble)
    assert text in kept.trouble
    assert kept.written == 1
    kept.append(EVENTS[4])
    assert read(path) == EVENTS[: len(read(path))]
    until = time.monotonic() + seconds
    wait_for(lambda: time.monotonic() >= until, seconds + 5)
    assert kept.written == 1
    heal()
    wait_for(lambda: kept.written == 5)
    kept.append(EVENTS[5])
    assert kept.close()
    assert (kept.trouble, read(path)) == ("", EVENTS)


def test_a_full_file_system(tmp_path: Path) -> None:
    def scenario() -> None:
        small = Small(tmp_path)
        loses_nothing(tmp_path / "j", small.fill, small.make_room, "No space left")

    alone(scenario)


def test_a_file_system_that_reports_only_at_the_end_that_it_is_full(tmp_path: Path) -> None:
    """What it seems to hold after that is in memory, and gone with it."""
    (tmp_path / "small").mkdir()
    (tmp_path / "thin").mkdir()

    def scenario() -> None:
        small, folder = Small(tmp_path / "small"), tmp_path / "thin"
        with thin(small, folder) as device:
            loses_nothing(folder / "j", small.fill, small.make_room, "No space left")
            run("umount", folder)
            run("mount", device, folder)
            assert read(folder / "j") == EVENTS

    alone(scenario)


def refuses(probe: Path) -> bool:
    try:
        probe.touch()
    except OSError:
        return True
    return False


def test_a_file_system_that_an_error_makes_read_only(tmp_path: Path) -> None:
    """No controller begins there, and none takes the journal for another one; after a repair one goes on."""
    (tmp_path / "small").mkdir()
    (tmp_path / "thin").mkdir()

    def scenario() -> None:
        small, path = Small(tmp_path / "small"), tmp_path / "thin" / "j"
        with thin(small, path.parent) as device:
            kept = Journal(path)
            kept.append(EVENTS[0])
            Path(f"/sys/fs/ext4/{Path(device).name}/trigger_fs_error").write_text("no error of ours")
            wait_for(lambda: refuses(path.with_name("probe")))
            kept.append(EVENTS[1])
            wait_for(lambda: "Read-only" in kept.trouble)
            assert not kept.close()
            with pytest.raises(OSError, match="Read-only file system") as refused:
                Journal(path)
            assert storage_error(refused.value) is not None
            assert read(path) == EVENTS[:1]
            run("umount", path.parent)
            run("mount", device, path.parent)
            repaired = Journal(path)
            assert repaired.events == EVENTS[:1]
            repaired.append(*EVENTS[1:])
            assert repaired.close()
            assert read(path) == EVENTS

    alone(scenario)


@pytest.mark.parametrize("only_sync", [False, True])
@pytest.mark.parametrize("number", REFUSALS, ids=errno.errorcode.get)
@pytest.mark.parametrize(
    "seconds", [0.0, pytest.param(600.0, marks=[pytest.mark.soak, pytest.mark.timeout(700)])]
)
def test_a_file_server_that_reports_an_error(
    tmp_path: Path, seconds: float, number: int, *, only_sync: bool
) -> None:
    def scenario() -> None:
        mount = FaultyMount(str(tmp_path))
        with mount as folder:
            refuse = partial(mount.fail, number, only_sync=only_sync)
            loses_nothing(Path(folder) / "j", refuse, mount.heal, os.strerror(number), seconds)

    alone(scenario, again_s=1.0 if seconds else 0.1)


def test_a_file_server_that_throws_this_client_out(tmp_path: Path) -> None:
    """What was open is dead for good, and what is opened anew is not."""

    def scenario() -> None:
        mount = FaultyMount(str(tmp_path))
        with mount as folder:
            kept = Journal(Path(folder) / "j")
            kept.append(EVENTS[0])
            wait_for(lambda: kept.written == 1)
            mount.throw_out()
            kept.append(*EVENTS[1:])
            wait_for(lambda: kept.written == len(EVENTS))
            assert kept.close()
            assert read(Path(folder) / "j") == EVENTS

    alone(scenario)


@pytest.mark.parametrize("nbytes", [1, 3 * len(EVENTS[0].text), 1 << 30], ids=["a byte", "lines", "all"])
@pytest.mark.parametrize("stale", [False, True])
def test_a_file_server_that_loses_what_it_had_taken(tmp_path: Path, nbytes: int, *, stale: bool) -> None:
    """After a crash, with or without stale handles: what is missing is written again, with the next event."""

    def scenario() -> None:
        mount = FaultyMount(str(tmp_path))
        with mount as folder:
            kept = Journal(Path(folder) / "j")
            kept.append(*EVENTS[:4])
            wait_for(lambda: kept.written == 4)
            data = (Path(folder) / "j").read_bytes()
            if stale:
                mount.fail(errno.ESTALE)
                kept.append(EVENTS[4])
                wait_for(lambda: kept.trouble)
            mount.lose(nbytes)
            mount.heal()
            kept.append(*EVENTS[4 + stale :])
            wait_for(lambda: kept.written == len(EVENTS))
            assert kept.close()
            assert (kept.trouble, read(Path(folder) / "j")) == ("", EVENTS)
            assert kept.restored == min(4, 1 + nbytes // len(data.splitlines()[0]))

    alone(scenario)


def test_a_file_system_that_comes_back_shorter_than_it_was(tmp_path: Path) -> None:
    """ext4 with the journal of this morning in its place, as after a restore of the volume."""
    (tmp_path / "small").mkdir()
    (tmp_path / "thin").mkdir()

    def scenario() -> None:
        small, path = Small(tmp_path / "small"), tmp_path / "thin" / "j"
        with thin(small, path.parent):
            kept = Journal(path)
            kept.append(*EVENTS[:4])
            wait_for(lambda: kept.written == 4)
            os.truncate(path, 30_000)
            kept.append(*EVENTS[4:])
            wait_for(lambda: kept.written == len(EVENTS))
            assert kept.close()
            assert (read(path), kept.restored) == (EVENTS, 3)

    alone(scenario)


def test_one_controller_goes_on_from_a_journal_that_lost_its_end(tmp_path: Path) -> None:
    """The newer one, from what was left; the older one adds nothing to it and says why."""
    (tmp_path / "small").mkdir()
    (tmp_path / "thin").mkdir()

    def scenario() -> None:
        small, path = Small(tmp_path / "small"), tmp_path / "thin" / "j"
        with thin(small, path.parent):
            old = Journal(path)
            old.append(*EVENTS[:3])
            wait_for(lambda: old.written == 3)
            os.truncate(path, 30_000)
            new = Journal(path)
            assert new.events == EVENTS[:1]
            new.append(EVENTS[5])
            wait_for(lambda: new.written == 2)
            old.append(EVENTS[3])
            wait_for(lambda: old.trouble)
            assert "this controller did not write" in old.trouble
            new.append(EVENTS[4])
            assert new.close()
            assert not old.close()
            assert read(path) == [EVENTS[0], EVENTS[5], EVENTS[4]]

    alone(scenario)
