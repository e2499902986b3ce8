"""Which files belong to a release."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from slurm_robust.releases.select import Budget, CannotTakeCode, CopyLimits, Selection, TooLarge, select
from tests.unit.releases.conftest import Write
from tests.users import NOBODY, as_root, run_as

LIMITS = CopyLimits()


def chosen(code: Path, limits: CopyLimits = LIMITS, never: tuple[str, ...] = ()) -> Selection:
    return select(os.path.realpath(code), Budget(limits), never)


def files(code: Path) -> list[str]:
    return [one.path for one in chosen(code).files]


def links(code: Path) -> dict[str, str]:
    return {one.path: one.reason for one in chosen(code).links}


TREE = ("train.py", "data/a.bin", "data/keep.py", "src/data/b.bin", "src/run.log", "notes.txt", "build/x.py")


@pytest.mark.parametrize(
    "patterns",
    [
        "data/\n",
        "/data/\n",
        "data\n",
        "*.log\n*.bin\n",
        "data/*\n!data/keep.py\n",
        "data/**\n!data/keep.py\n",
        "/*\n!/src\n!train.py\n",
        "**/data\n",
        "src/**/b.bin\n",
        "# a comment\n\n\\#odd\n*.txt   \nbuild/\n",
        "build/\n!build/x.py\n",
        "*\n!*/\n!*.py\n",
        "[a-d]*/\n",
        "x\\\n*.log\n",
        "/src/data\n!/src/data/b.bin\n",
        "*.py\n!train.py\n",
    ],
)
def test_a_gitignore_means_what_git_reads_in_it(code: Path, write: Write, patterns: str) -> None:
    write({**dict.fromkeys(TREE, "x"), ".gitignore": patterns})
    subprocess.run(["git", "init", "-q", str(code)], check=True)
    said = subprocess.run(
        ["git", "-C", str(code), "ls-files", "-oc", "--exclude-standard"],
        capture_output=True,
        check=True,
        text=True,
    )
    assert files(code) == sorted(said.stdout.splitlines())


def test_the_deepest_gitignore_counts(code: Path, write: Write) -> None:
    write(
        {
            ".gitignore": "*.txt",
            "a/.gitignore": "!keep.txt",
            "a/keep.txt": "",
            "a/b/keep.txt": "",
            "keep.txt": "",
        }
    )
    assert files(code) == [".gitignore", "a/.gitignore", "a/b/keep.txt", "a/keep.txt"]


def test_a_srobustignore_counts_before_every_gitignore(code: Path, write: Write) -> None:
    write(
        {
            "train.py": "",
            ".gitignore": "build/\n*.json\n",
            ".srobustignore": "!build/\n!config.json\ndocs/\n",
            "build/ops.py": "",
            "config.json": "{}",
            "other.json": "{}",
            "docs/page.md": "",
        }
    )
    assert files(code) == [".gitignore", ".srobustignore", "build/ops.py", "config.json", "train.py"]
    assert links(code) == {"docs": "in .srobustignore", "other.json": "in .gitignore"}


def test_the_gitignore_at_the_top_of_the_repository_counts_for_a_folder_in_it(
    code: Path, write: Write
) -> None:
    write({".gitignore": "*.pt\n/job/out\n", ".git/info/exclude": "secret\n"})
    write(dict.fromkeys(("job/train.py", "job/a.pt", "job/out/b", "job/secret"), "x"))
    assert files(code / "job") == ["train.py"]


def test_a_folder_that_its_repository_ignores_is_the_code_all_the_same(code: Path, write: Write) -> None:
    write({".gitignore": "scratch/\n", ".git/HEAD": "", "scratch/job/train.py": ""})
    assert files(code / "scratch/job") == ["train.py"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (".git/config", ""),
        ("srobust-jobs/7/journal.jsonl", ""),
        ("slurm-123.out", ""),
        (".venv/pyvenv.cfg", "a virtual environment"),
        ("web/node_modules/x.js", "packages of Node.js"),
    ],
)
def test_what_is_never_code_is_a_link(code: Path, write: Write, name: str, reason: str) -> None:
    write({"train.py": "", "web/app.js": "", name: "x"})
    assert files(code) == ["train.py", "web/app.js"]
    assert list(links(code).values()) == [reason]


def test_caches_of_python_are_neither_copied_nor_linked(code: Path, write: Write) -> None:
    write({"train.py": "", "__pycache__/train.cpython-311.pyc": "", "old.pyc": ""})
    assert (files(code), links(code)) == (["train.py"], {})


def test_a_folder_without_code_is_one_link(code: Path, write: Write) -> None:
    write(
        {
            "train.py": "",
            ".gitignore": "*.pt",
            "out/run1/a.pt": "",
            "out/run2/b.pt": "",
            "mixed/a.pt": "",
            "mixed/m.py": "",
        }
    )
    (code / "empty/deep").mkdir(parents=True)
    assert links(code) == {"empty": "", "out": "", "mixed/a.pt": "in .gitignore"}


def test_what_the_job_writes_is_never_code(code: Path, write: Write) -> None:
    write({"train.py": "", "runs/1/x": "", "job.log": ""})
    found = chosen(code, never=(f"{code}/runs", f"{code}/job.log"))
    assert [one.path for one in found.files] == ["train.py"]


def test_a_large_file_is_data_and_a_sparse_one_is_not_read(code: Path, write: Write) -> None:
    write({"train.py": ""})
    with open(code / "weights.bin", "wb") as file:
        file.truncate(10_000_000_000)
    assert links(code) == {"weights.bin": "10.0 GB"}


def test_links_within_the_tree_stay_and_others_keep_their_target(
    code: Path, write: Write, tmp_path: Path
) -> None:
    write({"train.py": "", "conf/a.yaml": ""})
    outside = tmp_path / "datasets"
    outside.mkdir()
    for name, target in {
        "now.yaml": "conf/a.yaml",
        "absolute.yaml": code / "conf/a.yaml",
        "conf/up.py": "../train.py",
        "data": outside,
        "relative": "../datasets",
        "gone": "nowhere",
        "gone-outside": "/nowhere/x",
        "loop": "loop",
        "a": "b",
        "b": "a",
        "self": ".",
    }.items():
        (code / name).symlink_to(target)
    found = {one.path: one.target for one in chosen(code).links}
    looping = {found.pop(name) for name in ("loop", "a", "b")}
    assert looping <= {"loop", "a", "b"}
    assert found == {
        "now.yaml": "conf/a.yaml",
        "absolute.yaml": "conf/a.yaml",
        "conf/up.py": "../train.py",
        "data": str(outside),
        "relative": str(outside),
        "gone": "nowhere",
        "gone-outside": "/nowhere/x",
        "self": ".",
    }
    assert links(code)["data"] == f"a link to {outside}"


def test_special_files_are_named_and_never_opened(code: Path, write: Write) -> None:
    write({"train.py": ""})
    os.mkfifo(code / "pipe")
    assert links(code) == {"pipe": "not a plain file"}


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (CopyLimits(max_files=20), "more than 20 files"),
        (CopyLimits(max_mb=0.001), "more than 0.001 MB"),
    ],
)
def test_a_folder_that_is_too_large_is_refused_and_its_largest_folders_are_named(
    code: Path, write: Write, limits: CopyLimits, reason: str
) -> None:
    write({f"cache/blobs/{number}": "x" * 100 for number in range(60)})
    write({"train.py": "", "lib/a.py": "x"})
    with pytest.raises(TooLarge, match=reason) as refused:
        chosen(code, limits)
    assert "the most of it in cache/blobs" in str(refused.value)
    assert ".srobustignore" in refused.value.fix


def test_the_time_has_a_bound(code: Path, write: Write) -> None:
    write({"train.py": ""})
    times = iter([0.0, 70.0])
    with pytest.raises(CannotTakeCode, match="within 60 s"):
        select(str(code), Budget(CopyLimits(), clock=lambda: next(times)))


@as_root
def test_what_cannot_be_read_is_named(tmp_path: Path, code: Path, write: Write) -> None:
    write({"train.py": "", "closed/a.py": ""})
    (code / "closed").chmod(0o700)
    for folder in (tmp_path, *tmp_path.parents):
        if "pytest-" in str(folder):  # others may look into it
            folder.chmod(0o755)
    said = run_as(NOBODY, lambda: chosen(code))
    assert said.startswith("CannotTakeCode: these cannot be read: closed")
