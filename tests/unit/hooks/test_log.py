"""Events are lines of JSON; where they cannot be written nobody waits and nothing is raised."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import msgspec
import pytest

from slurm_robust.config.node import Paths
from slurm_robust.hooks import log as log_module
from slurm_robust.hooks.log import EventLog
from slurm_robust.model.findings import Finding, Outcome
from tests.alone import alone


def log_of(path: Path) -> EventLog:
    return EventLog(Paths(log=str(path), syslog=False), "n1")


def test_an_event_is_one_line_of_json_whatever_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "events.jsonl"
    finding = Finding(check="gpu.xid", outcome=Outcome.FAIL, text="two\nlines \x1b")
    log = log_of(path)
    log.write("run", findings=(finding,), took_s=0.1)
    log.write("drain", reason="XID 79", odd=object())
    first, second = (msgspec.json.decode(line) for line in path.read_bytes().splitlines())
    assert (first["node"], first["event"], first["took_s"]) == ("n1", "run", 0.1)
    assert abs(first["at"] - time.time()) < 60
    assert msgspec.convert(first["findings"][0], Finding) == finding
    assert second["reason"] == "XID 79"
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("name", "read"),
    [(os.fsdecode(b"job\xff"), "job?"), ("\x9b2J", "\x9b2J"), ("Jürgen \U0001f600", "Jürgen \U0001f600")],
)
def test_a_name_of_any_bytes_is_logged_and_no_terminal_obeys_it(tmp_path: Path, name: str, read: str) -> None:
    path = tmp_path / "events.jsonl"
    log_of(path).write("ended", job_name=name, nodes={name: (name,)}, plain=1)
    line = path.read_bytes()
    assert line.isascii()
    event = msgspec.json.decode(line)
    assert (event["job_name"], event["nodes"], event["plain"]) == (read, {read: [read]}, 1)


def test_a_line_has_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log_of(path).write("run", text="x" * 100_000)
    assert "left_out" in msgspec.json.decode(path.read_bytes())


@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "nowhere", "device"])
def test_a_file_that_is_not_ours_gets_nothing(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "events.jsonl", tmp_path / "other"
    other.touch()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(other)
    elif kind == "nowhere":
        path = other / "events.jsonl"
    else:
        path = Path("/dev/full")
    begun = time.monotonic()
    log_of(path).write("run")
    assert time.monotonic() - begun < 60
    assert other.read_bytes() == b""


@alone
def test_several_writers_do_not_mix_their_lines(tmp_path: Path) -> None:
    log_module.WRITE_S = 30.0  # a busy machine loses lines by design
    path = tmp_path / "events.jsonl"
    pids = []
    for writer in range(4):
        if pid := os.fork():
            pids.append(pid)
            continue
        for number in range(10):
            log_of(path).write("run", writer=writer, number=number, text="x" * 5000)
        os._exit(0)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4
    found = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    assert {(line["writer"], line["number"]) for line in found} == {
        (w, n) for w in range(4) for n in range(10)
    }


_TAG = " slurm-robust["


@pytest.mark.skipif(
    os.getuid() != 0 or os.path.exists("/dev/log"), reason="needs root and no syslog of its own"
)
def test_syslog_gets_a_tagged_line_unless_it_is_quiet(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("/dev/log")
        try:
            listener.settimeout(10)
            log = EventLog(Paths(log=str(tmp_path / "events.jsonl")), "n1")
            log.note("run")
            log.write("drain", reason="srobust: gpu3 'XID' 79\n", count=3)
            # Other programs of this machine may write there, too.
            line = next(text for text in iter(lambda: listener.recv(4096).decode(), "") if _TAG in text)
        finally:
            os.unlink("/dev/log")
    assert line.endswith("drain reason=srobust: gpu3 XID 79 count=3")
