"""Releases taken of real folders, and unpacked again."""

from __future__ import annotations

import os
import shutil
import stat
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_robust.model.job import CommandKind
from slurm_robust.model.release import Release
from slurm_robust.releases.manifest import DamagedRelease
from slurm_robust.releases.store import ReleaseStore
from slurm_robust.releases.take import Taking, in_place, take
from slurm_robust.releases.unpack import unpack
from tests.unit.releases.conftest import Write


def unpacked(store: ReleaseStore, release: Release, into: Path) -> dict[str, str]:
    """Files by path with their content, links with their target."""
    unpack(store.archive(release.name), release, into)
    found = {}
    for folder, folders, files in os.walk(into):
        for name in (*folders, *files):
            path = Path(folder, name)
            if path.is_symlink():
                found[str(path.relative_to(into))] = f"-> {os.readlink(path)}"
            elif path.is_file():
                found[str(path.relative_to(into))] = path.read_text()
    return found


def test_a_release_is_a_copy_that_later_edits_do_not_change(
    store: ReleaseStore, wish: Taking, write: Write, tmp_path: Path
) -> None:
    write({"train.py": "import model", "model.py": "size = 1", "layers/mlp.py": "wide = 2"})
    release = take(store, wish)
    write({"model.py": "size = 2"})

    assert unpacked(store, release, tmp_path / "copy") == {
        "code/train.py": "import model",
        "code/model.py": "size = 1",
        "code/layers/mlp.py": "wide = 2",
    }
    assert (release.entry, release.files) == ("code/train.py", 3)
    assert store.read(release.name) == release
    assert stat.S_IMODE((tmp_path / "copy/code/model.py").stat().st_mode) == 0o644


def test_the_name_is_that_of_the_content_wherever_and_whenever_it_was_written(
    store: ReleaseStore, wish: Taking, write: Write, code: Path, tmp_path: Path
) -> None:
    write({"train.py": "import model", "model.py": "size = 1"})
    first = take(store, wish)
    other = tmp_path / "elsewhere"
    other.mkdir()
    for name in ("model.py", "train.py"):
        (other / name).write_bytes((code / name).read_bytes())
        os.utime(other / name, (1, 1))
    again = take(store, replace(wish, cwd=str(other), roots=(str(other),)))

    assert again == first
    assert store.names() == (first.name,)
    assert in_place(wish).code == first.code


def test_another_checkout_stands_for_the_folder_of_the_code(
    store: ReleaseStore, wish: Taking, write: Write, code: Path, tmp_path: Path
) -> None:
    write({"train.py": "import model", "model.py": "size = 1"})
    other = tmp_path / "checkout"
    other.mkdir()
    (other / "train.py").write_text("size = 2")
    release = take(store, replace(wish, roots=(str(other),), stands_for={str(other): str(code)}))

    assert [root.path for root in release.roots] == [str(code)]
    assert release.entry == "code/train.py"
    assert unpacked(store, release, tmp_path / "copy") == {"code/train.py": "size = 2"}


@pytest.mark.parametrize(
    "other",
    [
        {"command": ("train.py", "--lr", "1")},
        {"env": {"LR": "1"}},
        {"config_text": "spares: 1"},
        {"image": "/images/new.sqsh"},
        {"workdir": True},
    ],
)
def test_all_that_ranks_run_by_is_in_the_name(
    store: ReleaseStore, wish: Taking, write: Write, other: dict[str, object]
) -> None:
    write({"train.py": ""})
    first, second = take(store, wish), take(store, replace(wish, **other))
    assert (first.name != second.name, first.code) == (True, second.code)


def test_a_file_that_may_be_executed_is_another_one(
    store: ReleaseStore, wish: Taking, write: Write, code: Path, tmp_path: Path
) -> None:
    write({"train.py": "", "run.sh": "exit 0"})
    before = take(store, wish)
    (code / "run.sh").chmod(0o755)
    release = take(store, wish)
    unpacked(store, release, tmp_path / "copy")
    assert before.code != release.code
    assert os.access(tmp_path / "copy/code/run.sh", os.X_OK)


def test_what_was_left_out_is_a_link_to_its_place(
    store: ReleaseStore, wish: Taking, write: Write, code: Path, tmp_path: Path
) -> None:
    write({"train.py": "", ".gitignore": "data/\n", "data/a.bin": "1", "srobust-jobs/7/journal.jsonl": ""})
    (code / "out").mkdir()
    release = take(store, wish)
    copy = unpacked(store, release, tmp_path / "copy")
    assert copy["code/data"] == f"-> {code}/data"
    assert copy["code/out"] == f"-> {code}/out"
    assert copy["code/srobust-jobs"] == f"-> {code}/srobust-jobs"
    assert release.left_out == ("data (in .gitignore)",)


def test_outputs_and_state_change_neither_the_name_nor_what_is_read(
    store: ReleaseStore, wish: Taking, write: Write, code: Path, tmp_path: Path
) -> None:
    write({"train.py": "", "conf.yaml": ""})
    first = take(store, wish)
    outputs = ("ckpt.pt", "last.json", "state.db", "outputs/1/.hydra/config.yaml")
    write(dict.fromkeys(outputs, "1"))
    assert take(store, wish) == first
    write({"train.py": "lr = 2"})
    release = take(store, wish)
    write(dict.fromkeys(outputs, "2"))

    copy = unpacked(store, release, tmp_path / "copy")
    assert {name: (tmp_path / "copy/code" / name).read_text() for name in outputs} == dict.fromkeys(
        outputs, "2"
    )
    assert (copy["code/last.json"], release.files) == (f"-> {code}/last.json", 2)
    assert release.left_out == (
        "outputs (no source file in it)",
        "3 files that are no code, such as ckpt.pt, last.json, state.db",
    )


@pytest.mark.parametrize(
    ("kind", "command"), [(CommandKind.SCRIPT, ("main.txt",)), (CommandKind.EXEC, ("./main.txt", "state.db"))]
)
def test_what_the_command_runs_is_code_whatever_its_name(
    store: ReleaseStore, wish: Taking, write: Write, code: Path, kind: CommandKind, command: tuple[str, ...]
) -> None:
    write({"main.txt": "", "state.db": "", "ops.py": ""})
    (code / "main.txt").chmod(0o755)
    found = in_place(replace(wish, kind=kind, command=command))
    assert [os.fsdecode(file.path) for file in found.manifest.files] == ["code/main.txt", "code/ops.py"]


def test_values_of_variables_are_in_one_file_that_nobody_else_reads(
    store: ReleaseStore, wish: Taking, write: Write
) -> None:
    write({"train.py": ""})
    release = take(store, replace(wish, env={"TOKEN": "hf_secret"}))
    folder = store.folder / release.name
    assert store.env(release.name) == {"TOKEN": "hf_secret"}
    holders = [path.name for path in folder.iterdir() if b"hf_secret" in path.read_bytes()]
    assert holders == ["env.json"]
    assert stat.S_IMODE((folder / "env.json").stat().st_mode) == 0o600


def test_a_copy_is_made_whole_again_and_what_was_added_stays(
    store: ReleaseStore, wish: Taking, write: Write, tmp_path: Path
) -> None:
    write({"train.py": "a", "model.py": "b"})
    release, copy = take(store, wish), tmp_path / "copy"
    unpacked(store, release, copy)
    (copy / "code/model.py").unlink()
    (copy / "code/result.txt").write_text("42")
    assert unpacked(store, release, copy) == {
        "code/train.py": "a",
        "code/model.py": "b",
        "code/result.txt": "42",
    }


def test_what_programs_have_put_in_the_place_of_files_stays_when_a_copy_is_made_whole(
    store: ReleaseStore, wish: Taking, write: Write, code: Path, tmp_path: Path
) -> None:
    files = ("state.yaml", "table.so", "runs/a.py", "cut.py")
    write(dict.fromkeys(files, "whole"))
    for name in files:
        os.utime(code / name, (1, 1))
    release, copy = take(store, wish), tmp_path / "copy"
    unpacked(store, release, copy)
    led, written, folder, cut = (
        copy / "code" / name for name in ("state.yaml", "table.so", "runs", "cut.py")
    )
    led.unlink()
    led.symlink_to(code / "state.yaml")  # as worker/creations.py does
    written.write_text("by a library in C")
    shutil.rmtree(folder)
    shutil.rmtree(code / "runs")
    (code / "runs").mkdir()
    folder.symlink_to(code / "runs")
    cut.write_text("")
    os.utime(cut, (1, 1))  # this node had a power failure
    assert unpacked(store, release, copy) == {
        "code/state.yaml": f"-> {code}/state.yaml",
        "code/table.so": "by a library in C",
        "code/runs": f"-> {code}/runs",
        "code/cut.py": "whole",
    }


def test_a_damaged_archive_is_not_unpacked(
    store: ReleaseStore, wish: Taking, write: Write, tmp_path: Path
) -> None:
    write({"train.py": "lr = 1e-4"})
    release = take(store, wish)
    archive = store.archive(release.name)
    archive.write_bytes(archive.read_bytes().replace(b"lr = 1e-4", b"lr = 1e-3"))
    with pytest.raises(DamagedRelease, match="is not what was taken"):
        unpack(archive, release, tmp_path / "copy")
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".copy")]


@pytest.mark.slow
def test_two_thousand_files_take_no_time_that_a_start_would_show(
    store: ReleaseStore, wish: Taking, write: Write, tmp_path: Path
) -> None:
    write({f"pkg{number // 50}/m{number}.py": f"x = {number}\n" * 100 for number in range(2000)})
    began = time.process_time()  # whatever else this machine does
    release = take(store, wish)
    taken = time.process_time()
    unpack(store.archive(release.name), release, tmp_path / "copy")
    assert (release.files, taken - began < 1, time.process_time() - taken < 1) == (2000, True, True)
