"""The folder that an incident leaves: what is in it, its bounds, and what a failed write costs."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from slurm_robust.evidence import bundle
from slurm_robust.evidence.incidents import IncidentReport
from slurm_robust.evidence.stacks import SavedStacks
from slurm_robust.model import events as ev
from slurm_robust.model.exits import WorkerError, WorkerExit
from slurm_robust.model.incident import NodeExit
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.stacks import Frame, Localisation, ProcessKind, ProcessStacks, RankStacks, ThreadStack
from tests.unit.report import incident_journal

KILLED = [*incident_journal.start(), *incident_journal.rank_killed()]


@pytest.fixture
def directory(tmp_path: Path) -> JobDirectory:
    return JobDirectory(tmp_path)


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def report_in(folder: Path) -> IncidentReport:
    return msgspec.json.decode((folder / "incident.json").read_bytes(), type=IncidentReport)


def failing_everywhere(ranks: int, text: str = "") -> list[ev.AnyEvent]:
    """The rank killed, but with ``ranks`` failed ranks."""
    error = WorkerError(type="RuntimeError", message="Connection closed by peer", traceback=text)
    exits = [
        NodeExit(node="n1", exit=WorkerExit(rank=r, code=1, error=error)) for r in range(ranks) if r != 3
    ]
    return [
        msgspec.structs.replace(e, exits=(*exits, e.exits[0])) if isinstance(e, ev.GenerationEnded) else e
        for e in KILLED
    ]


def test_the_folder_has_the_report_and_output_from_before_and_after(directory: JobDirectory) -> None:
    for generation in (1, 2):
        incident_journal.write_logs(directory, generation, range(8))
    folder = bundle.save(directory, 1, KILLED)
    failed_and_four_more = {0, 1, 2, 3, 4, 5}
    logs = {f"logs/gen-{g:03d}/rank-{r:05d}.err" for g in (1, 2) for r in failed_and_four_more}
    assert tree(folder) == {"README.txt", "incident.json", *logs}
    assert report_in(folder).root == KILLED[8].exits[0]  # type: ignore[union-attr]
    text = (folder / "README.txt").read_text()
    assert "blamed    nobody: the cause is not known (by the end of the workers alone)" in text
    assert "logs/gen-002/    last output of the ranks of generation 2, launched after it" in text


def test_a_lost_node_has_no_exits_but_its_ranks_last_output_is_kept(directory: JobDirectory) -> None:
    incident_journal.write_logs(directory, 2, range(8))
    folder = bundle.save(
        directory,
        2,
        [*incident_journal.start(), *incident_journal.rank_killed(), *incident_journal.node_lost()],
    )
    assert {"logs/gen-002/rank-00002.err", "logs/gen-002/rank-00003.err"} < tree(folder)  # those of n2


def test_only_the_end_of_a_log_is_kept_byte_by_byte(directory: JobDirectory) -> None:
    noise = os.urandom(3 * bundle.MAX_TAIL)
    directory.logs(1).mkdir(parents=True)
    directory.worker_log(1, 3, "out").write_bytes(noise)
    directory.worker_log(1, 3, "err").touch()
    folder = bundle.save(directory, 1, KILLED)
    assert (folder / "logs/gen-001/rank-00003.out").read_bytes() == noise[-bundle.MAX_TAIL :]
    assert not (folder / "logs/gen-001/rank-00003.err").exists()  # nothing in it


def test_of_many_launches_the_first_and_the_last_are_kept(directory: JobDirectory) -> None:
    again = [ev.GenerationLaunched(t=0, generation=g, slots=("n1",), master="") for g in range(2, 7)]
    journal = KILLED[:9]
    for upto in (2, 5):  # what an earlier save kept goes when it is no longer among the last
        for generation in range(1, 7):
            incident_journal.write_logs(directory, generation, range(8))
        folder = bundle.save(directory, 1, [*journal, *again[:upto]])
    assert sorted(os.listdir(folder / "logs")) == ["gen-001", "gen-002", "gen-003", "gen-005", "gen-006"]
    assert {name.split("/")[1] for name in tree(folder) if "/" in name} == {"gen-001", "gen-005", "gen-006"}


def test_the_bounds_add_up() -> None:
    logs = bundle.MAX_TAIL * bundle.MAX_RANKS * len(bundle.STREAMS) * bundle.MAX_GENERATIONS
    texts = 3 * bundle.MAX_LINES
    assert logs + texts + bundle.MAX_JSON + bundle.MAX_STACKS + bundle.MAX_ALERTS <= 64_000_000


def test_the_logs_of_a_large_job_are_bounded(directory: JobDirectory) -> None:
    ranks = bundle.MAX_RANKS + 20
    for rank in range(ranks):
        log = directory.worker_log(1, rank, "err")
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"x")
        os.truncate(directory.worker_log(1, rank, "err"), 2**40)  # a hole: a terabyte that costs nothing
    folder = bundle.save(directory, 1, failing_everywhere(ranks))
    kept = sorted(os.listdir(folder / "logs/gen-001"))
    assert len(kept) == bundle.MAX_RANKS
    assert sum((folder / "logs/gen-001" / name).stat().st_size for name in kept) == (
        bundle.MAX_RANKS * bundle.MAX_TAIL
    )


def test_a_thousand_tracebacks_are_cut_down(directory: JobDirectory) -> None:
    folder = bundle.save(directory, 1, failing_everywhere(2000, "x" * 5000))
    size = (folder / "incident.json").stat().st_size
    assert size <= bundle.MAX_JSON
    report = report_in(folder)
    assert len(report.failed) == bundle.MAX_RANKS
    assert report.root is not None
    assert report.root.exit.rank == 3
    endless = failing_everywhere(bundle.MAX_RANKS, "x" * 200_000)
    assert report_in(bundle.save(directory, 1, endless)).events == ()


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file of this process can grow beyond ``size`` bytes: what a full disk is to a writer."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_a_full_disk_costs_the_news_and_not_what_was_there(directory: JobDirectory) -> None:
    folder = bundle.save(directory, 1, KILLED)
    before = {name: (folder / name).read_bytes() for name in tree(folder)}
    with room_for(200), pytest.raises(OSError, match="too large"):
        bundle.save(directory, 1, failing_everywhere(8))
    assert {name: (folder / name).read_bytes() for name in tree(folder)} == before


def test_a_log_that_cannot_be_read_is_reported_and_costs_no_other(directory: JobDirectory) -> None:
    incident_journal.write_logs(directory, 1, range(8))
    bad = directory.worker_log(1, 3, "err")
    bad.unlink()
    bad.mkdir()
    with pytest.raises(IsADirectoryError):
        bundle.save(directory, 1, KILLED)
    folder = directory.incidents / "001"
    assert {"README.txt", "incident.json", "logs/gen-001/rank-00000.err"} <= tree(folder)


def test_what_a_killed_controller_left_goes_and_another_thread_is_left_alone(directory: JobDirectory) -> None:
    folder = directory.incidents / "001"
    folder.mkdir(parents=True)
    (folder / ".README.txt.1-1").touch()
    mine = folder / f".README.txt.{os.getpid()}-1"
    mine.touch()
    bundle.save(directory, 1, KILLED)
    assert [name for name in tree(folder) if name.startswith(".")] == [mine.name]


def test_an_incident_that_the_journal_does_not_have_leaves_nothing(directory: JobDirectory) -> None:
    assert not bundle.save(directory, 7, KILLED).exists()


def test_stacks_for_people_begin_with_who_is_unlike_most(directory: JobDirectory) -> None:
    bundle.save_stacks(directory, 3, incident_journal.STACKS, incident_journal.PLACED)
    lines = (directory.incidents / "003" / "stacks.txt").read_text().splitlines()
    assert lines[4:6] == [
        "  1  1 rank (4 on n3), unlike most: is in the kernel and cannot be interrupted: "
        "linear torch/nn/modules/linear.py < train_step train.py:88",
        "  2  7 ranks (0-3,5-7 on n[1-4]): waits for other ranks: "
        "all_reduce torch/distributed/distributed_c10d.py < train_step train.py:90",
    ]
    assert (
        "  dp_0 (8 ranks): rank 4 in #411 all_reduce, completed; ranks 0-3,5-7 in #412 all_reduce, started"
        in lines
    )
    saved = msgspec.json.decode((directory.incidents / "003" / "stacks.json").read_bytes(), type=SavedStacks)
    ranks = [*(group.example for group in saved.groups), *saved.ranks]
    assert (
        sorted(ranks, key=lambda stack: stack.rank) == incident_journal.STACKS
    )  # nothing is lost while there is room


def ranks_with(frames: int, ranks: int, *, alike: bool) -> list[RankStacks]:
    return [
        RankStacks(
            rank=rank, node=f"n{rank // 8}",
            processes=(ProcessStacks(pid=1, kind=ProcessKind.WORKER, threads=(ThreadStack(frames=calls),)),),
        )
        for common in [tuple(Frame(function=f"f{i}", file="/x/y.py", line=i) for i in range(frames))]
        for rank in range(ranks)
        for calls in [common if alike else (Frame(function=f"g{rank}"), *common)]
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("alike", [True, False])
def test_stacks_of_a_large_job_are_bounded(directory: JobDirectory, alike: bool) -> None:
    stacks = ranks_with(64, 9600, alike=alike)
    bundle.save_stacks(directory, 1, stacks, Localisation(outliers=(9599,)))
    folder = directory.incidents / "001"
    assert (folder / "stacks.json").stat().st_size <= bundle.MAX_STACKS
    assert (folder / "stacks.txt").stat().st_size <= bundle.MAX_LINES
    saved = msgspec.json.decode((folder / "stacks.json").read_bytes(), type=SavedStacks)
    if alike:
        (only,) = saved.groups
        assert len(only.ranks) == 9600 == 1 + len(saved.ranks) + saved.left_out
        assert saved.left_out > 0
    else:
        assert saved.groups[0].ranks == (9599,)
        assert saved.groups[0].example == stacks[9599]
        assert saved.groups[-1].example.processes == ()  # no room for all examples, but for the ranks


def test_of_too_many_alerts_the_newest_stay(directory: JobDirectory) -> None:
    (alert,) = incident_journal.ALERTS["n6"][:1]
    many = {
        f"n{node}": [
            msgspec.structs.replace(alert, number=i, age_s=node + i / 100, text="x" * 300) for i in range(32)
        ]
        for node in range(200)
    }
    bundle.save_alerts(directory, 1, many)
    folder = directory.incidents / "001"
    assert (folder / "alerts.json").stat().st_size <= bundle.MAX_ALERTS
    lines = (folder / "alerts.txt").read_text().splitlines()
    assert lines[0].startswith("n0  ")
    assert lines[-1] == f"and {200 * 32 - len(lines) + 1} older ones"
