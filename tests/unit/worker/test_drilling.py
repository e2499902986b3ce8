"""Faults that a worker plants in itself: on an order beside its step record, and without one never."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from slurm_robust.model.drill import DrillFault, drill_text
from slurm_robust.worker.drilling import DrillOrder, order_path

PREPARE = "import os, sys, time\nfrom slurm_robust.worker import drilling\ndrilling.prepare(sys.argv[1])\n"
ORDER = "os.kill(os.getpid(), drilling.DRILL_SIGNAL)\n"


def run(
    record: Path, code: str = "", fault: DrillFault | None = None, *, before: str = ""
) -> subprocess.CompletedProcess[str]:
    """A worker that gets the signal after ``before``, and then does the rest of the script."""
    if fault is not None:
        order_path(record).write_bytes(msgspec.json.encode(DrillOrder(drill=3, fault=fault)))
    return subprocess.run(
        [sys.executable, "-c", PREPARE + before + ORDER + code, str(record)],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "rank-00001.rec"


def test_the_signal_without_an_order_does_nothing(record: Path) -> None:
    done = run(record, "print('trains')")
    assert (done.stdout, done.stderr, done.returncode) == ("trains\n", "", 0)


def test_an_order_that_cannot_be_read_does_nothing(record: Path) -> None:
    order_path(record).write_bytes(b'{"drill":1,"fault":"burn"}')
    done = run(record, "print('trains')")
    assert (done.stdout, done.stderr, done.returncode) == ("trains\n", "", 0)


def test_an_exception_of_a_drill_names_it_and_is_raised_once(record: Path) -> None:
    done = run(record, fault=DrillFault.RAISE_ERROR)
    assert done.returncode == 1
    assert f"PlantedError: {drill_text(3)}" in done.stderr
    assert not order_path(record).exists()
    assert run(record, "print('trains')").stdout == "trains\n"


def test_a_loss_is_reported_as_nan_and_a_script_that_reports_none_reports_none(record: Path) -> None:
    code = (
        "from pathlib import Path\n"
        "from slurm_robust.worker.step_record import StepRecord\n"
        "made = StepRecord.create(Path(sys.argv[1] + '.made'), generation=1, rank=1)\n"
        "made.report(1, 2.5, 0.5)\n"
        "first = made.progress(time.monotonic())\n"
        "made.report(2, None)\n"
        "print(first.loss, first.grad_norm, made.progress(time.monotonic()).loss)\n"
    )
    loss, norm, none = run(record, code, DrillFault.NAN_LOSS).stdout.split()
    assert (math.isnan(float(loss)), norm, none) == (True, "0.5", "None")


@pytest.mark.parametrize("fault", [DrillFault.HANG_RANK, DrillFault.LOCK_RANK])
def test_other_threads_run_on_beside_a_hang_unless_it_keeps_the_lock(fault: DrillFault, record: Path) -> None:
    """A thread that ends the process shows that it ran; without it an alarm does."""
    before = (
        "import signal, threading\n"
        "signal.setitimer(signal.ITIMER_REAL, 3.0)\n"
        "threading.Timer(0.3, os._exit, (7,)).start()\n"
    )
    done = run(record, fault=fault, before=before)
    assert done.returncode == (7 if fault is DrillFault.HANG_RANK else -signal.SIGALRM)
