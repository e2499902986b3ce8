"""XIDs as they happen, from the stand-in library through the real ``pynvml``."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from slurm_robust.sandbox.gpus import StandInGpus
from tests.unit.nodes.fake_nvml import start

# Prints each event as it comes, for as long as standard input is open or half a minute.
WATCHER = """
import sys, msgspec
from slurm_robust.inspector.gpuevents import XidEvents
with XidEvents() as events:
    print("ready", flush=True)
    for line in sys.stdin:
        for event in events.within(float(line)):
            print(msgspec.json.encode(event).decode(), flush=True)
        print("over", flush=True)
"""


class Watcher:
    def __init__(self, gpus: StandInGpus) -> None:
        self.process = start(WATCHER, gpus)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def wait(self, seconds: float) -> None:
        assert self.process.stdin is not None
        print(seconds, file=self.process.stdin, flush=True)

    def event(self) -> tuple[int | None, str, int]:
        found = json.loads(self.line())
        return found["index"], found["uuid"], found["code"]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def gpus(tmp_path: Path) -> StandInGpus:
    made = StandInGpus(tmp_path / "state", "n1", 4)
    made.reset()
    return made


@pytest.fixture
def watcher(gpus: StandInGpus) -> Iterator[Watcher]:
    with closing(Watcher(gpus)) as made:
        yield made


def test_events_come_in_order_with_their_gpu(gpus: StandInGpus, watcher: Watcher) -> None:
    gpus.xid(0, 13)  # Not waited for yet: it may be seen or not, but never twice.
    assert watcher.line() == "ready"
    gpus.xid(3, 79)
    gpus.xid(1, 48)
    watcher.wait(60)
    seen = [watcher.event()]
    while seen[-1][2] != 48:
        seen.append(watcher.event())
    wanted = [(3, gpus.uuid(3), 79), (1, gpus.uuid(1), 48)]
    assert seen[-2:] == wanted
    assert seen[:-2] in ([], [(0, gpus.uuid(0), 13)])
    # One that happens while it waits.
    gpus.xid(2, 94)
    assert watcher.event() == (2, gpus.uuid(2), 94)


def test_waiting_ends_in_time_and_goes_on_where_it_was(gpus: StandInGpus, watcher: Watcher) -> None:
    assert watcher.line() == "ready"
    watcher.wait(0.05)
    assert watcher.line() == "over"
    gpus.xid(3, 79)
    watcher.wait(0.2)
    assert watcher.event() == (3, gpus.uuid(3), 79)
    assert watcher.line() == "over"


def test_a_gpu_that_is_lost_ends_the_waiting(gpus: StandInGpus, watcher: Watcher) -> None:
    assert watcher.line() == "ready"
    gpus.set(3, lost=True)
    watcher.wait(60)
    assert watcher.event() == (None, "", 0)
    assert watcher.line() == "over"


def test_the_event_of_a_lost_gpu_has_its_name(gpus: StandInGpus, watcher: Watcher) -> None:
    assert watcher.line() == "ready"
    gpus.xid(3, 79)
    gpus.set(3, lost=True)
    watcher.wait(60)
    assert watcher.event() == (3, gpus.uuid(3), 79)


def test_a_gpu_lost_before_the_watch_does_not_hide_the_others(gpus: StandInGpus) -> None:
    gpus.set(0, lost=True)
    with closing(Watcher(gpus)) as watcher:
        assert watcher.line() == "ready"
        gpus.xid(1, 31)
        watcher.wait(60)
        assert watcher.event() == (1, gpus.uuid(1), 31)


@pytest.mark.parametrize(
    ("state", "error"),
    [("", "NvmlError: Driver Not Loaded"), ("system count 1\nsystem init 18\n", "version mismatch")],
)
def test_a_driver_that_does_not_start_is_an_error_with_its_reason(
    gpus: StandInGpus, state: str, error: str
) -> None:
    gpus.path.write_text(state) if state else gpus.path.unlink()
    process = start(f"import sys; sys.stderr = sys.stdout\n{WATCHER}", gpus)
    try:
        out, _ = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert error in out
