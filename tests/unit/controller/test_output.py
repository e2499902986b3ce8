"""Lines for the job's own output, which may hang or be full."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

from slurm_robust.controller import output
from tests.waiting import wait_for


class Sink:
    """Where descriptor 1 leads to."""

    def __init__(self) -> None:
        self.took: list[bytes] = []
        self.open = threading.Event()
        self.error: OSError | None = None

    def write(self, fd: int, data: bytes) -> int:
        assert fd == 1
        self.open.wait()
        if self.error is not None:
            raise self.error
        self.took.append(data)
        return len(data)


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Sink:
    sink = Sink()
    monkeypatch.setattr(output, "_output", output._Output())
    monkeypatch.setattr("slurm_robust.controller.output.os.write", sink.write)
    return sink


def test_a_job_whose_output_hangs_is_not_held_up(sink: Sink) -> None:
    output.say("first")
    began = time.monotonic()
    for number in range(1000):
        output.say(f"line {number}")
    assert time.monotonic() - began < output.PATIENCE_S
    assert sink.took == []
    sink.open.set()
    wait_for(lambda: len(sink.took) == 1001, 10)
    assert [line.split()[-1] for line in sink.took[1:]] == [str(n).encode() for n in range(1000)]


def test_a_full_output_costs_its_lines_alone(sink: Sink) -> None:
    sink.open.set()
    sink.error = OSError(28, os.strerror(28))
    output.say("lost")
    sink.error = None
    output.say("there")
    assert [line.split()[-1] for line in sink.took] == [b"there"]


def test_what_was_said_is_out_when_all_goes_well(capfd: pytest.CaptureFixture[str]) -> None:
    said: Callable[[], str] = lambda: capfd.readouterr().out  # noqa: E731
    output.say("one\ntwo")
    text = said()
    assert text.startswith("srobust: ")
    assert text.endswith(" one\n  two\n")
