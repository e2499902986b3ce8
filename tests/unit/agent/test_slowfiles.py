from __future__ import annotations

import select
import threading
from pathlib import Path
from typing import NoReturn

import pytest

from slurm_robust.agent.slowfiles import EpochLooked, SlowFiles, look_up, make_log_folders, read_tail
from slurm_robust.model.job import JobDirectory


def collect(files: SlowFiles[str], count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        assert select.select([files.fileno()], [], [], 10)[0]
        found.extend(files.results())
    return found


@pytest.mark.parametrize("kind", [OSError, ValueError, MemoryError, RecursionError])
def test_results_come_in_order_and_failures_are_dropped(kind: type[Exception]) -> None:
    files: SlowFiles[str] = SlowFiles()

    def fail() -> str:
        raise kind("the server is gone")

    files.submit(lambda: "a")
    files.submit(fail)
    files.submit(lambda: "b")
    assert collect(files, 2) == ["a", "b"]
    files.close()


def test_a_job_that_hangs_holds_nobody() -> None:
    files: SlowFiles[str] = SlowFiles()
    release = threading.Event()

    def hang() -> str:
        release.wait(30)
        return "late"

    files.submit(hang)
    assert files.results() == []
    files.close(timeout_s=0.01)
    release.set()


@pytest.mark.parametrize("kind", [OSError, ValueError, MemoryError])
def test_whoever_looks_for_a_controller_is_told_whatever_happens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[Exception]
) -> None:
    """Else the agent would wait for this look for ever, and never look again."""

    def fail(_: Path) -> NoReturn:
        raise kind("no")

    monkeypatch.setattr("slurm_robust.agent.slowfiles.newest_epoch", fail)
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


def test_folders_for_output_are_made_without_a_result(tmp_path: Path) -> None:
    files: SlowFiles[str] = SlowFiles()
    job = JobDirectory(tmp_path)
    files.submit(lambda: make_log_folders(job, 2, (56, 63, 64, 71)))
    files.submit(lambda: "after it")
    assert collect(files, 1) == ["after it"]
    assert job.logs(2).is_dir()
    assert job.worker_log(2, 64, "out").parent.is_dir()
    files.close()
