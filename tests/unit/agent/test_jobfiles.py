from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from slurm_robust.agent.jobfiles import EpochLooked, look_up, make_log_folders, read_tail
from slurm_robust.model.job import JobDirectory


@pytest.mark.parametrize("kind", [OSError, ValueError, MemoryError])
def test_whoever_looks_for_a_controller_is_told_whatever_happens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[Exception]
) -> None:
    """Else the agent would wait for this look for ever, and never look again."""

    def fail(_: Path) -> NoReturn:
        raise kind("no")

    monkeypatch.setattr("slurm_robust.agent.jobfiles.newest_epoch", fail)
    assert look_up(tmp_path) == EpochLooked(newest=None, failed=True)


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


def test_folders_for_output_are_made(tmp_path: Path) -> None:
    job = JobDirectory(tmp_path)
    make_log_folders(job, 2, (56, 63, 64, 71))
    assert job.logs(2).is_dir()
    assert job.worker_log(2, 64, "out").parent.is_dir()
