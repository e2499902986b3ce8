"""A copy is whole, or there is none: files that change, storage that is full, a process that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_robust.model.release import Release
from slurm_robust.releases import take as taking
from slurm_robust.releases.select import CannotTakeCode, Chosen, CopyLimits, select
from slurm_robust.releases.store import ReleaseStore
from slurm_robust.releases.take import Taking, take
from slurm_robust.releases.unpack import unpack
from tests.unit.releases.conftest import Write
from tests.users import as_root

Change = Callable[[], None]


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Change], None]:
    """Do something after each file that was read, while the others are still to come."""

    def when(change: Change) -> None:
        read = taking._read

        def changing(*args: object) -> tuple[Chosen | None, bytes]:
            found = read(*args)  # type: ignore[arg-type]
            change()
            return found

        monkeypatch.setattr(taking, "_read", changing)

    return when


def leftovers(store: ReleaseStore) -> list[str]:
    return [name for name in os.listdir(store.folder) if name != ".key"]


def test_a_file_that_grows_on_and_on_is_named(
    store: ReleaseStore, wish: Taking, write: Write, code: Path, meanwhile: Callable[[Change], None]
) -> None:
    write({"train.py": "", "metrics.yaml": ""})

    def grow() -> None:
        with open(code / "metrics.yaml", "a") as file:
            file.write("1,2\n")

    meanwhile(grow)
    with pytest.raises(CannotTakeCode, match=r"change while they are copied: .*/metrics\.yaml$") as refused:
        take(store, wish)
    assert ".srobustignore" in refused.value.fix
    assert leftovers(store) == []


@pytest.mark.parametrize("what", ["edited", "added", "removed", "becomes a link", "becomes a pipe"])
def test_what_changes_once_is_taken_as_it_is_in_the_end(
    store: ReleaseStore,
    wish: Taking,
    write: Write,
    code: Path,
    tmp_path: Path,
    meanwhile: Callable[[Change], None],
    what: str,
) -> None:
    write({"train.py": "old", "model.py": "old", "z.py": "old"})
    done: list[str] = []

    def change() -> None:
        if done:
            return
        done.append(what)
        if what == "edited":
            write({"model.py": "new", "z.py": "new"})
        elif what == "added":
            write({"more.py": "new"})
        else:
            (code / "z.py").unlink()
        if what == "becomes a link":
            (code / "z.py").symlink_to("model.py")
        if what == "becomes a pipe":
            os.mkfifo(code / "z.py")

    meanwhile(change)
    release = take(store, wish)
    unpack(store.archive(release.name), release, tmp_path / "copy")
    copy = tmp_path / "copy/code"
    for path in code.iterdir():
        if path.is_file():
            assert (copy / path.name).read_text() == path.read_text()
    assert {path.name for path in copy.iterdir()} == {path.name for path in code.iterdir()}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "none", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@as_root
def test_storage_that_is_full_leaves_nothing_behind(small_disk: Path, wish: Taking, write: Write) -> None:
    write({"train.py": "", "a.py": "x" * 150_000, "b.py": "x" * 150_000})
    store = ReleaseStore(small_disk / "releases")
    with pytest.raises(CannotTakeCode, match="No space left on device") as refused:
        take(store, wish)
    assert "updates.keep" in refused.value.fix
    assert leftovers(store) == []
    write({"a.py": "", "b.py": ""})
    release = take(store, wish)
    assert store.names() == (release.name,)


KILLED = """
import os, signal, sys
from slurm_robust.model.job import CommandKind
from slurm_robust.releases.store import ReleaseStore
from slurm_robust.releases.take import Taking, take
from pathlib import Path

point, releases, code = sys.argv[1:]
count = 0

def hook(event, args):
    global count
    if event in ("open", "os.rename", "os.mkdir", "os.link") and releases in str(args[0]):
        count += 1
        if count == int(point):
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hook)
wish = Taking(kind=CommandKind.SCRIPT, command=("train.py",), cwd=code, roots=(code,), env={"A": "1"})
take(ReleaseStore(Path(releases)), wish)
"""


@pytest.mark.slow
def test_a_taker_that_is_killed_at_any_point_leaves_nothing_half(
    store: ReleaseStore, wish: Taking, write: Write, code: Path
) -> None:
    write({"train.py": "x", "a.py": "y"})
    ends = []
    for point in range(1, 40):
        command = [sys.executable, "-c", KILLED, str(point), str(store.folder), str(code)]
        ends.append(subprocess.run(command, check=False).returncode)
        for name in store.names():
            assert store.is_whole(store.read(name))
        if ends[-1] == 0:
            break
    assert set(ends[:-1]) == {-signal.SIGKILL}
    assert (len(ends) > 8, ends[-1]) == (True, 0)
    assert store.names() == (take(store, replace(wish, env={"A": "1"})).name,)


def test_ctrl_c_leaves_nothing_behind(
    store: ReleaseStore, wish: Taking, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write({"train.py": ""})

    def interrupted(*_: object) -> Release:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "publish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        take(store, wish)
    assert leftovers(store) == []


NAMES = [
    b"a b.py",
    b"line\nend.py",
    b"tab\tquote'\".py",
    b"\xff\xfe.py",
    "ünïcode-é.py".encode(),
    b"-rf",
    b"--checkpoint-action=exec=sh",
    b"x" * 255,
    b"\x1b[31mred.py",
    b" ",
    b"...",
    b"~",
]


def test_any_name_is_copied(
    store: ReleaseStore, wish: Taking, write: Write, code: Path, tmp_path: Path
) -> None:
    write({"train.py": ""})
    for number, name in enumerate(NAMES):
        Path(os.fsdecode(os.path.join(os.fsencode(code), name))).write_text(str(number))
    deep = code / "/".join(["deep"] * 60)
    deep.mkdir(parents=True)
    (deep / ("y" * 200)).write_text("bottom")
    release = take(store, wish)
    unpack(store.archive(release.name), release, tmp_path / "copy")
    copied = os.fsencode(tmp_path / "copy/code")
    for number, name in enumerate(NAMES):
        assert Path(os.fsdecode(os.path.join(copied, name))).read_text() == str(number)
    assert (tmp_path / "copy/code" / deep.relative_to(code) / ("y" * 200)).read_text() == "bottom"
    assert store.read(release.name) == release


def test_a_folder_without_any_file_is_a_release_without_code(
    store: ReleaseStore, wish: Taking, code: Path
) -> None:
    (code / "data").symlink_to("/")
    release = take(store, wish)
    assert (release.files, release.entry) == (0, "")


def test_two_names_of_one_file_are_two_files(
    store: ReleaseStore, wish: Taking, write: Write, code: Path, tmp_path: Path
) -> None:
    write({"train.py": "x"})
    os.link(code / "train.py", code / "same.py")
    release = take(store, wish)
    unpack(store.archive(release.name), release, tmp_path / "copy")
    assert (tmp_path / "copy/code/same.py").read_text() == "x"
    assert (tmp_path / "copy/code/same.py").stat().st_nlink == 1


def test_packages_in_place_are_copied_as_far_as_the_limits_go(
    store: ReleaseStore, wish: Taking, write: Write, tmp_path: Path
) -> None:
    write({"train.py": ""})
    for name, files in (("small/mylib", 2), ("large/other", 50)):
        (tmp_path / name).mkdir(parents=True)
        for number in range(files):
            (tmp_path / name / f"m{number}.py").write_text("x")
    packages = (f"{tmp_path}/small/mylib", f"{tmp_path}/large/other")
    release = take(store, replace(wish, packages=packages, limits=CopyLimits(max_files=20)))
    assert [root.path for root in release.roots] == [*wish.roots, packages[0]]
    assert release.left_out == (f"{packages[1]} (installed in place, and too large)",)


def test_another_checkout_has_the_data_and_the_outputs_of_the_folder_for_which_it_stands(
    store: ReleaseStore, wish: Taking, write: Write, code: Path, tmp_path: Path
) -> None:
    write(
        {"train.py": "old", ".gitignore": "data\nout\n", "data/a.bin": "", "out/1/x": "", "notes/a.txt": ""}
    )
    other = tmp_path / "other"
    (other / "out").mkdir(parents=True)
    (other / "train.py").write_text("new")
    (other / ".gitignore").write_text("data\nout\n")
    roots, stands_for = (str(other),), {str(other): str(code)}
    release = take(store, replace(wish, cwd=str(other), roots=roots, stands_for=stands_for))
    unpack(store.archive(release.name), release, tmp_path / "copy")
    found = {path.name: path for path in (tmp_path / "copy/code").iterdir()}
    assert found["train.py"].read_text() == "new"
    assert {name: os.readlink(path) for name, path in found.items() if path.is_symlink()} == {
        "data": f"{code}/data",
        "out": f"{code}/out",
        "notes": f"{code}/notes",
    }


def test_what_belongs_to_a_copy_is_found_again_in_the_same_order(code: Path, write: Write) -> None:
    write({f"{letter}/{number}.py": "" for letter in "zyx" for number in range(5)})
    budget = taking.Budget(CopyLimits())
    assert select(str(code), budget) == select(str(code), budget)
