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


def track(code: Path) -> None:
    """Let Git track all that it does not ignore."""
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", "-C", str(code), *command], check=True)


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
    found = select(os.path.realpath(code), Budget(LIMITS), run=TREE)  # all of it is code
    assert [one.path for one in found.files] == sorted(said.stdout.splitlines())


def test_the_deepest_gitignore_counts(code: Path, write: Write) -> None:
    write(
        {
            ".gitignore": "*.py",
            "a/.gitignore": "!keep.py",
            "a/keep.py": "",
            "a/b/keep.py": "",
            "keep.py": "",
        }
    )
    assert files(code) == [".gitignore", "a/.gitignore", "a/b/keep.py", "a/keep.py"]


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
    write({"train.py": "", "web/app.py": "", name: "x"})
    assert files(code) == ["train.py", "web/app.py"]
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


OUTPUTS = {
    "ckpt.pt": "1",
    "last.json": "{}",
    "state.db": "",
    "log": "",
    "train.log": "",
    "events.out.tfevents.1": "",
    "outputs/2026-01-01/.hydra/config.yaml": "lr: 1",
    "outputs/2026-01-01/w.pt": "",
    "run/config.toml": "",
    "run/step-1.json": "",
}


def test_outputs_and_state_are_no_code(code: Path, write: Write) -> None:
    sources = (
        "train.py",
        "pkg/ops.cu",
        "pkg/conf/a.py",
        "pkg/conf/a.yaml",
        "run.toml",
        "requirements-gpu.txt",
    )
    write({**dict.fromkeys(sources, "x"), **OUTPUTS})
    assert files(code) == sorted(sources)
    assert links(code) == {
        **{name: "no code" for name in OUTPUTS if "/" not in name},
        "outputs": "no source file in it",
        "run": "no source file in it",
    }


def test_what_git_tracks_is_code_whatever_its_name(code: Path, write: Write) -> None:
    tracked = ("train.py", "conf/a.yaml", "ds_config.json", "vocab.txt", "lib/sub/merges.txt")
    write(dict.fromkeys(tracked, "x"))
    track(code)
    write(OUTPUTS)
    assert files(code) == sorted(tracked)
    assert files(code / "lib") == ["sub/merges.txt"]


def test_a_repository_in_the_folder_tells_of_its_own_files(code: Path, write: Write) -> None:
    write({"train.py": "", "third/gpt/vocab.json": "", "third/gpt/ops.py": ""})
    track(code / "third/gpt")
    write({"third/gpt/cache.json": ""})
    assert files(code) == ["third/gpt/ops.py", "third/gpt/vocab.json", "train.py"]


@as_root
def test_a_repository_of_another_user_is_not_asked(code: Path, write: Write) -> None:
    write({"train.py": "", "vocab.json": ""})
    track(code)
    for folder in (code, code / ".git"):
        os.chown(folder, NOBODY, NOBODY)
    assert files(code) == ["train.py"]


def test_a_srobustignore_names_code(code: Path, write: Write) -> None:
    write(
        {
            "train.py": "",
            ".srobustignore": "!ds_config.json\n!conf/**\n!out/\n",
            "ds_config.json": "",
            "other.json": "",
            "conf/deep/a.json": "",
            "out/a.json": "",
        }
    )
    assert files(code) == [".srobustignore", "conf/deep/a.json", "ds_config.json", "train.py"]


def test_scripts_without_an_ending_are_code(code: Path, write: Write) -> None:
    write({"train.py": "", "launch": "#!/bin/sh", "plain": "#!/bin/sh", "binary": "\x7fELF"})
    for name in ("launch", "binary"):
        (code / name).chmod(0o755)
    assert files(code) == ["launch", "train.py"]


def test_settings_are_code_in_a_folder_that_was_named_as_code(code: Path, write: Write) -> None:
    write({"a.yaml": "", "deep/b.yaml": ""})
    assert files(code) == ["a.yaml", "deep/b.yaml"]


def test_outputs_reach_no_limit_of_the_code(code: Path, write: Write) -> None:
    write({"train.py": "", **{f"out/{number}/config.yaml": "x" * 100 for number in range(60)}})
    assert [one.path for one in chosen(code, CopyLimits(max_files=20, max_mb=0.001)).files] == ["train.py"]


def test_no_more_is_looked_at_than_a_folder_with_code_may_have(code: Path, write: Write) -> None:
    write({"train.py": "", **{f"data/images/{number}.png": "" for number in range(60)}})
    with pytest.raises(TooLarge, match=r"more than \d+ files to look at, the most of it in data/images"):
        chosen(code, CopyLimits(max_files=5))


def test_what_the_job_writes_is_never_code(code: Path, write: Write) -> None:
    write({"train.py": "", "runs/1/x": "", "job.log": ""})
    found = chosen(code, never=(f"{code}/runs", f"{code}/job.log"))
    assert [one.path for one in found.files] == ["train.py"]


def test_a_large_file_is_data_and_a_sparse_one_is_not_read(code: Path, write: Write) -> None:
    write({"train.py": ""})
    with open(code / "native.so", "wb") as file:
        file.truncate(10_000_000_000)
    assert links(code) == {"native.so": "10.0 GB"}


LINKS = {
    "now.yaml": "conf/a.yaml",
    "conf/up.py": "../train.py",
    "package": "conf",
    "self": ".",
    "last": "runs/7",
    "best.pt": "w.pt",
    "gone": "nowhere",
    "gone-outside": "/nowhere/x",
    "data": "../datasets",
    "loop": "loop",
    "a": "b",
    "b": "a",
}


def linked(code: Path, write: Write, tmp_path: Path) -> None:
    write({"train.py": "", "conf/a.yaml": "", "conf/a.py": "", "runs/7/w.pt": "", "w.pt": ""})
    (tmp_path / "datasets").mkdir()
    for name, target in LINKS.items():
        (code / name).symlink_to(target)
    (code / "absolute.yaml").symlink_to(code / "conf/a.yaml")


def test_links_to_code_stay_and_others_are_followed_in_their_place(
    code: Path, write: Write, tmp_path: Path
) -> None:
    linked(code, write, tmp_path)
    found = chosen(code)
    kept = ("now.yaml", "conf/up.py", "package", "self")
    assert {one.path: one.target for one in found.links if one.is_code} == {
        **{name: LINKS[name] for name in kept},
        "absolute.yaml": "conf/a.yaml",
    }
    assert {one.path: one.target for one in found.links if not one.is_code} == {
        name: f"{code}/{name}" for name in (*LINKS.keys() - kept, "runs", "w.pt")
    }
    assert links(code)["data"] == f"a link to {tmp_path}/datasets"


def test_links_that_git_tracks_are_code_wherever_they_lead(code: Path, write: Write, tmp_path: Path) -> None:
    linked(code, write, tmp_path)
    track(code)
    found = {one.path: one.target for one in chosen(code).links if one.is_code}
    looping = {found.pop(name) for name in ("loop", "a", "b")}
    assert looping <= {"loop", "a", "b"}
    assert found == {
        **{name: target for name, target in LINKS.items() if name not in ("loop", "a", "b")},
        "absolute.yaml": "conf/a.yaml",
        "data": f"{tmp_path}/datasets",
    }


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
    write({f"cache/blobs/{number}.py": "x" * 100 for number in range(60)})
    write({"train.py": "", "lib/a.py": "x"})
    with pytest.raises(TooLarge, match=reason) as refused:
        chosen(code, limits)
    assert "the most of it in cache/blobs" in str(refused.value)
    assert ".srobustignore" in refused.value.fix


def test_the_time_has_a_bound(code: Path, write: Write) -> None:
    write({"train.py": ""})
    times = iter([0.0])
    with pytest.raises(CannotTakeCode, match="within 60 s"):
        select(str(code), Budget(CopyLimits(), clock=lambda: next(times, 70.0)))


@as_root
def test_what_cannot_be_read_is_named(tmp_path: Path, code: Path, write: Write) -> None:
    write({"train.py": "", "closed/a.py": ""})
    (code / "closed").chmod(0o700)
    for folder in (tmp_path, *tmp_path.parents):
        if "pytest-" in str(folder):  # others may look into it
            folder.chmod(0o755)
    said = run_as(NOBODY, lambda: chosen(code))
    assert said.startswith("CannotTakeCode: these cannot be read: closed")
