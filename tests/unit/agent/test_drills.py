"""What an agent does for a drill, and what it refuses with the reason."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from slurm_robust.agent.drills import CannotDrill, plant
from slurm_robust.model.drill import DrillFault
from slurm_robust.wire.messages import Inject
from slurm_robust.worker.drilling import DrillOrder, order_path

WORKER = (
    "import ctypes, os, signal, sys\n"
    "from slurm_robust.worker import drilling\n"
    "if os.fork() == 0:\n"
    "    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)\n"  # it dies with the worker
    "    ctypes.CDLL(None).prctl(15, b'pt_data_worker', 0, 0, 0)\n"
    "    os.write(1, b'%d\\n' % os.getpid())\n"  # at once: the worker writes there, too
    "    signal.pause()\n"
    "drilling.prepare(sys.argv[1])\n"
    "os.write(1, b'ready\\n')\n"
    "print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)\n"
)


def order(fault: DrillFault) -> Inject:
    return Inject(epoch=1, rank=1, signal=0, fault=fault.value, drill=3)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "rank-00001.rec"


@pytest.fixture
def worker(record: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with the handler of drills and a child that is called like one of a data loader."""
    command = [sys.executable, "-c", WORKER, str(record)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as made:
        assert made.stdout is not None
        try:
            lines = [made.stdout.readline().strip() for _ in range(2)]
            assert sorted(line.isdigit() for line in lines) == [False, True], lines
            yield made
        finally:
            made.kill()


def test_a_process_of_the_data_loader_is_killed(worker: subprocess.Popen[str], record: Path) -> None:
    plant(order(DrillFault.KILL_LOADER), worker.pid, record)
    assert worker.stdout is not None
    assert worker.stdout.readline() == f"-{signal.SIGKILL}\n"


def test_a_worker_with_the_handler_takes_the_order(worker: subprocess.Popen[str], record: Path) -> None:
    plant(order(DrillFault.RAISE_ERROR), worker.pid, record)
    assert worker.stdout is not None
    assert worker.stdout.read() == ""
    assert worker.wait() == 1


def test_a_program_without_the_handler_is_refused_and_lives(record: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        with pytest.raises(CannotDrill, match="not a Python script that srobust runs"):
            plant(order(DrillFault.HANG_RANK), other.pid, record)
        with pytest.raises(CannotDrill, match="no process of a data loader"):
            plant(order(DrillFault.KILL_LOADER), other.pid, record)
        assert other.poll() is None
        other.kill()
    assert not order_path(record).exists()


def test_a_rank_that_does_not_run_and_a_fault_of_another_release_are_refused(record: Path) -> None:
    with pytest.raises(CannotDrill, match="rank 1 does not run"):
        plant(order(DrillFault.HANG_RANK), None, record)
    with pytest.raises(CannotDrill, match="does not know the fault 'burn'"):
        plant(Inject(epoch=1, rank=1, signal=0, fault="burn", drill=3), 1, record)


def test_an_order_is_read_as_it_was_written() -> None:
    made = DrillOrder(drill=3, fault=DrillFault.NAN_LOSS)
    assert msgspec.json.decode(msgspec.json.encode(made), type=DrillOrder) == made
