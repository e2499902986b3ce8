"""A file that is replaced is the old one or the new one, whatever ends the writer."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from slurm_robust.util import files
from slurm_robust.util.files import read_tail


@pytest.mark.parametrize("durable", [True, False])
def test_the_new_content_takes_the_place_of_the_old_one(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "state"
    for content in (b"one", b"two"):
        files.write_atomically(path, content, durable=durable, mode=0o600)
        assert path.read_bytes() == content
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["state"]


@pytest.mark.parametrize("durable", [True, False])
def test_after_an_error_the_old_content_is_there_and_nothing_else(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"old")

    def write() -> None:
        with files.replacing(path, durable=durable) as beside:
            beside.write_bytes(b"ne")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        write()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state"]


@pytest.mark.parametrize(("durable", "expected"), [(True, ["sync", "rename", "sync"]), (False, ["rename"])])
def test_a_durable_file_is_on_the_disk_before_its_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool, expected: list[str]
) -> None:
    """In front of the rename the content, behind it the name: a power cut in between leaves the old file."""
    path, done, synced = tmp_path / "state", [], []
    replace, fsync = os.replace, os.fsync

    def renaming(source: Path, target: Path) -> None:
        done.append("rename")
        replace(source, target)

    def syncing(descriptor: int) -> None:
        done.append("sync")
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "replace", renaming)
    monkeypatch.setattr(os, "fsync", syncing)
    files.write_atomically(path, b"new", durable=durable)
    assert done == expected
    if durable:
        assert Path(synced[0]).name.startswith(".state.")
        assert synced[1] == str(tmp_path)


def test_folders_are_made_as_far_as_they_are_missing(tmp_path: Path) -> None:
    files.make_folder(tmp_path / "a" / "b")
    files.make_folder(tmp_path / "a" / "b" / "c")
    assert files.names_in(tmp_path / "a" / "b") == ["c"]
    assert files.names_in(tmp_path / "missing") == []


def test_a_folder_that_must_be_there_is_not_made_and_what_is_made_in_it_is_closed(tmp_path: Path) -> None:
    job = tmp_path / "7"
    with pytest.raises(FileNotFoundError):
        files.make_folder(job / "a" / "b", below=job)
    assert not job.exists()
    job.mkdir()
    umask = os.umask(0o022)
    try:
        files.make_folder(job / "a" / "b", below=job)
    finally:
        os.umask(umask)
    assert [path.stat().st_mode & 0o777 for path in (job / "a", job / "a" / "b")] == [0o700, 0o700]


def test_the_tail_is_the_last_lines(tmp_path: Path) -> None:
    err = tmp_path / "err"
    err.write_text("".join(f"line {i}\n" for i in range(1000)))
    assert read_tail((err,), 3) == ("line 997", "line 998", "line 999")


def test_an_empty_stream_gives_way_to_the_next(tmp_path: Path) -> None:
    err, out = tmp_path / "err", tmp_path / "out"
    err.write_text("\n\n")
    out.write_text("hello")
    assert read_tail((tmp_path / "missing", err, out)) == ("hello",)
    assert read_tail((tmp_path / "missing",)) == ()


def test_a_huge_line_and_broken_text_are_bounded(tmp_path: Path) -> None:
    err = tmp_path / "err"
    err.write_bytes(b"\xff" * 1_000_000)
    (line,) = read_tail((err,))
    assert line == "\N{REPLACEMENT CHARACTER}" * 500
