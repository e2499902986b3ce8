"""The folder with a job's releases."""

from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_robust.model.job import CommandKind
from slurm_robust.model.release import Release
from slurm_robust.releases.manifest import DamagedRelease
from slurm_robust.releases.store import NoRelease, ReleaseStore
from slurm_robust.releases.take import Taking, take
from slurm_robust.util.ours import NotOurs
from tests.unit.releases.conftest import Write
from tests.users import NOBODY, as_root


def published(store: ReleaseStore, name: str, taken: float = 0.0) -> Release:
    release = Release(name=name, kind=CommandKind.SCRIPT, command=("train.py",), taken=taken)
    return store.publish(store.begin(), release, {})


@pytest.fixture
def three(store: ReleaseStore) -> ReleaseStore:
    for taken, name in enumerate(("3f2a91c04b7d", "3f2a00000000", "aaaaaaaaaaaa")):
        published(store, name, float(taken))
    return store


@pytest.mark.parametrize("prefix", ["3f2a9", "3F2A91C04B7D", " 3f2a91 "])
def test_the_beginning_of_a_name_is_enough(three: ReleaseStore, prefix: str) -> None:
    assert three.resolve(prefix).name == "3f2a91c04b7d"


@pytest.mark.parametrize(
    ("prefix", "why"),
    [
        ("3f2a", "several names: 3f2a00000000, 3f2a91c04b7d"),
        ("3f2", "give 4 digits"),
        ("", "give 4 digits"),
        ("bbbb", "no release has a name"),
        ("../..", "no release has a name"),
        ("*****", "no release has a name"),
    ],
)
def test_a_name_that_is_not_one_release_is_refused(three: ReleaseStore, prefix: str, why: str) -> None:
    with pytest.raises(NoRelease, match=why) as refused:
        three.resolve(prefix)
    assert f"srobust releases {three.folder.parent}" in refused.value.fix


@pytest.mark.parametrize("name", ["..", "../7", "x" * 12, "", "3f2a91c04b7d/.."])
def test_a_name_leads_nowhere_else(three: ReleaseStore, name: str) -> None:
    for ask in (three.read, three.archive, three.env, three.config_text):
        with pytest.raises(NoRelease):
            ask(name)


def test_releases_are_listed_in_the_order_in_which_they_were_taken(three: ReleaseStore) -> None:
    assert [one.name for one in three.all()] == ["3f2a91c04b7d", "3f2a00000000", "aaaaaaaaaaaa"]
    assert ReleaseStore(three.folder / "none").names() == ()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b'{"name": "bbbbbbbbbbbb"}'])
def test_a_damaged_record_is_an_error_of_its_own_and_hides_no_other(
    three: ReleaseStore, content: bytes
) -> None:
    (three.folder / "aaaaaaaaaaaa/release.json").write_bytes(content)
    with pytest.raises(DamagedRelease):
        three.read("aaaaaaaaaaaa")
    assert [one.name for one in three.all()] == ["3f2a91c04b7d", "3f2a00000000"]


@as_root
def test_what_another_user_put_there_is_not_read(three: ReleaseStore) -> None:
    os.chown(three.folder / "aaaaaaaaaaaa", NOBODY, NOBODY)
    with pytest.raises(NotOurs, match="belongs to uid"):
        three.read("aaaaaaaaaaaa")
    os.chown(three.folder / "3f2a00000000/release.json", NOBODY, NOBODY)
    with pytest.raises(NotOurs, match="belongs to uid"):
        three.read("3f2a00000000")


def test_the_oldest_are_removed_but_never_those_that_count(three: ReleaseStore) -> None:
    assert three.prune(keep=1, never={"3f2a91c04b7d"}) == ("3f2a00000000",)
    assert three.names() == ("3f2a91c04b7d", "aaaaaaaaaaaa")
    assert three.prune(keep=1, never={"3f2a91c04b7d"}) == ()
    assert three.prune(keep=0) == ("3f2a91c04b7d", "aaaaaaaaaaaa")


def test_what_dead_processes_have_left_is_removed_in_time(three: ReleaseStore) -> None:
    dead, alive = three.begin(), three.begin()
    old = time.time() - 7200
    os.utime(dead, (old, old))
    (three.folder / ".gone-aaaa").mkdir()
    three.prune(keep=10)
    assert (dead.exists(), alive.exists(), (three.folder / ".gone-aaaa").exists()) == (False, True, False)
    assert len(three.names()) == 3


def test_the_secret_of_the_job_makes_fingerprints_that_say_nothing_elsewhere(
    store: ReleaseStore, tmp_path: Path
) -> None:
    other = ReleaseStore(tmp_path / "other")
    found = store.fingerprints({"TOKEN": "x"})
    assert found == store.fingerprints({"TOKEN": "x"}) != store.fingerprints({"TOKEN": "y"})
    assert found != other.fingerprints({"TOKEN": "x"})
    assert stat.S_IMODE((store.folder / ".key").stat().st_mode) == 0o600


def test_many_takers_at_once_make_one_release(store: ReleaseStore, wish: Taking, write: Write) -> None:
    write({"train.py": "", "a.py": "x" * 1000})
    made: list[Release] = []
    threads = [threading.Thread(target=lambda: made.append(take(store, wish))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 6
    assert {one.name for one in made} == set(store.names())
    assert [name for name in os.listdir(store.folder) if name.startswith((".new", ".gone"))] == []


def test_a_damaged_release_is_replaced_when_it_is_taken_again(
    store: ReleaseStore, wish: Taking, write: Write
) -> None:
    write({"train.py": "x"})
    release = take(store, wish)
    store.archive(release.name).write_bytes(b"")
    assert not store.is_whole(release)
    assert take(store, wish).name == release.name
    assert store.is_whole(release)


def test_the_configuration_of_a_release_is_kept_with_it(
    store: ReleaseStore, wish: Taking, write: Write
) -> None:
    write({"train.py": ""})
    release = take(store, replace(wish, config_text="spares: 1  # ümlaut\n"))
    assert (release.has_config, store.config_text(release.name)) == (True, "spares: 1  # ümlaut\n")
