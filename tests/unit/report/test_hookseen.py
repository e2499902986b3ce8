"""What the hooks told of a job's nodes, in the reports of its owner."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from slurm_robust.model.findings import Finding, Outcome, Suggestion
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.nodeseen import MAX_BYTES, DriverError, HookSeen, NodeSeen
from slurm_robust.report.hookseen import MAX_CLIQUES, MAX_SHOWN, clique_notes, lines, seen_of, told
from tests.unit.report.test_incident_view import screen

BAD = Finding(
    check="gpu.xid", outcome=Outcome.FAIL, subject="gpu3", text="XID 94", suggestion=Suggestion.MONITOR
)
SEEN = NodeSeen(
    job_id=7,
    node="n3",
    prolog=HookSeen(at=100.0, skipped=True),
    epilog=HookSeen(at=200.0, findings=(BAD,)),
    errors=(DriverError(kind="xid", code=94, subject="0000:1b:00.0", at=150.0, count=3),),
    grown={"mlx5_0/1": {"link_downed": 2, "symbol_error": 9}},
)
QUIET = NodeSeen(job_id=7, node="n4", epilog=HookSeen(at=201.0))


@pytest.fixture
def directory(tmp_path: Path) -> JobDirectory:
    found = JobDirectory(tmp_path)
    found.nodes.mkdir()
    return found


def put(directory: JobDirectory, seen: NodeSeen, data: bytes = b"") -> Path:
    path = directory.nodes / f"{seen.node}.{int(seen.epilog.at)}.json"
    path.write_bytes(data or msgspec.json.encode(seen))
    return path


def test_nodes_with_something_to_tell_are_told_in_order(directory: JobDirectory) -> None:
    later = msgspec.structs.replace(SEEN, node="n1.example.org", epilog=HookSeen(at=300.0))
    for seen in (later, SEEN, QUIET):
        put(directory, seen)
    assert seen_of(directory) == (SEEN, later)
    text = screen(told((SEEN,))[-1], 200)
    assert "mlx5_0/1: link_downed +2, symbol_error +9" in text
    assert "XID 94 of 0000:1b:00.0 at " in text
    assert ", 3 lines" in text
    assert "epilog: gpu.xid gpu3: XID 94 (monitor)" in text
    assert "prolog: tested nothing, as the job asked" in text
    assert told((SEEN,), ("n9",)) == told(()) == ()


@pytest.mark.parametrize("data", [b"{}", b"[1]", b"\xff", b'{"job_id": 7', b"x" * (MAX_BYTES + 1)])
def test_what_is_no_record_was_never_told(directory: JobDirectory, data: bytes) -> None:
    put(directory, SEEN, data)
    put(directory, msgspec.structs.replace(SEEN, node="n5"))
    assert [seen.node for seen in seen_of(directory)] == ["n5"]


def test_links_and_pipes_are_not_read_and_no_folder_is_no_trouble(directory: JobDirectory) -> None:
    put(directory, SEEN).rename(directory.path / "elsewhere")
    (directory.nodes / "n3.200.json").symlink_to(directory.path / "elsewhere")
    os.mkfifo(directory.nodes / "n2.200.json")
    assert seen_of(directory) == ()
    assert seen_of(JobDirectory(directory.path / "nothing")) == ()


def test_many_lines_are_cut_and_no_text_obeys_the_terminal() -> None:
    evil = msgspec.structs.replace(SEEN, node="n\x1b]0;x\x07", grown={f"g\n{i}": {"x": 1} for i in range(40)})
    text = screen(told((evil,))[-2], 200) + screen(told((evil,))[-1], 200)
    assert len(text.splitlines()) == MAX_SHOWN + 1
    assert "\x1b" not in text
    assert len(list(lines(evil))) == 43


A, A2, B = "aaaa/1", "aaaa/2", "bbbb/1"


def ran(node: str, *cliques: str, begin: float = 100.0, end: float = 200.0, prolog: bool = True) -> NodeSeen:
    return NodeSeen(
        job_id=7,
        node=node,
        prolog=HookSeen(at=begin) if prolog else None,
        epilog=HookSeen(at=end, cliques=cliques),
    )


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ([ran("n1", A), ran("n2", A)], ""),
        ([ran("n1"), ran("n2")], ""),
        ([ran("n1", A), ran("n2")], ""),
        ([ran("n1", A)], ""),
        ([], ""),
        ([ran("n1", A), ran("n2", A), ran("n3", B)], "n[1-2] of aaaa/1; n3 of bbbb/1"),
        ([ran("n1", A), ran("n2", A2)], "n1 of aaaa/1; n2 of aaaa/2"),
        ([ran("n1", B), ran("n2", A, A2)], "n2 of aaaa/1 and aaaa/2; n1 of bbbb/1"),
        ([ran("n1", A), ran("n2", B), ran("n3")], "n1 of aaaa/1; n2 of bbbb/1"),
        # Clocks and epilogs differ by some seconds.
        ([ran("n1", A), ran("n2", B, begin=103.0, end=230.0)], "n1 of aaaa/1; n2 of bbbb/1"),
        # A spare that joined later is of the same run.
        ([ran("n1", A), ran("n2", A), ran("s1", B, begin=150.0)], "n[1-2] of aaaa/1; s1 of bbbb/1"),
        # Runs before and after a requeue, on other nodes or on the same.
        ([ran("n1", A, begin=10.0, end=90.0), ran("n2", B), ran("n3", B)], ""),
        ([ran("n1", A, begin=10.0, end=90.0), ran("n1", B), ran("n2", B)], ""),
        ([ran("n1", A, begin=10.0, end=90.0), ran("n2", B, begin=10.0, end=90.0), ran("n1", A)], ""),
        # Nobody knows when that began.
        ([ran("n1", A), ran("n2", B, prolog=False)], ""),
    ],
)
def test_unlike_cliques_of_one_run_are_a_note(
    directory: JobDirectory, seen: list[NodeSeen], words: str
) -> None:
    for one in seen:
        put(directory, one)
    notes = list(clique_notes(directory))
    assert [note.endswith(f": {words}") for note in notes] == ([True] if words else [])
    assert seen_of(directory) == (), "nothing is told of a node by itself"


def test_of_many_cliques_the_largest_are_named(directory: JobDirectory) -> None:
    for number in range(12):
        put(directory, ran(f"n{number}", f"u/{min(number, 8)}"))
    (note,) = clique_notes(directory)
    assert "of 9 NVLink cliques" in note
    assert f"n[8-11] of u/8; n0 of u/0; n1 of u/1; n2 of u/2; and {9 - MAX_CLIQUES} more" in note
    assert list(clique_notes(JobDirectory(directory.path / "nothing"))) == []
