from __future__ import annotations

from collections import Counter
from pathlib import Path

from slurm_robust.model.job import JobDirectory

JOB = JobDirectory(Path("/jobs/7"))


def test_no_folder_holds_the_output_of_thousands_of_ranks() -> None:
    paths = [JOB.worker_log(3, rank, stream) for rank in range(10_000) for stream in ("out", "err")]
    assert len(set(paths)) == 20_000
    folders = Counter(path.parent for path in paths)
    assert max(folders.values()) == 128
    assert sum(folder.parent == JOB.logs(3) for folder in folders) < 200


def test_the_output_of_a_small_job_lies_in_one_folder() -> None:
    assert {JOB.worker_log(3, rank, "out").parent for rank in range(64)} == {JOB.logs(3)}
    assert JOB.worker_log(3, 64, "err") == Path("/jobs/7/logs/gen-003/ranks-00064/rank-00064.err")


def test_all_ranks_are_found_wherever_they_lie(tmp_path: Path) -> None:
    job = JobDirectory(tmp_path)
    for rank in (0, 63, 64, 9_999):
        path = job.worker_log(1, rank, "out")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert job.worker_logs(1, "out") == {r: job.worker_log(1, r, "out") for r in (0, 63, 64, 9_999)}
    assert job.worker_logs(1, "err") == {}
