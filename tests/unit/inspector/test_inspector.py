"""The inspector as a process: it sees faults in time, holds nobody up, and is started again when it dies."""

from __future__ import annotations

import itertools
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from slurm_robust.inspector.inspection import Inspection
from slurm_robust.inspector.inspector import Inspector
from slurm_robust.inspector.observation import Observation
from slurm_robust.model.job import InspectionSpec
from tests.unit.agent.local_job import is_alive
from tests.unit.inspector.faulty_machine import XID, Machine
from tests.waiting import BUSY, HANG_S, wait_for

pytestmark = pytest.mark.slow

SPEC = InspectionSpec(kernel_s=1.0, gpu_s=0.5, network_s=0.5, node_s=2.0)

NO_LOG = "/dev/kmsg: No such file or directory"

# An agent that is killed before it can close anything.
PARENT = """
import json, sys, time
from slurm_robust.inspector.inspector import Inspector
from slurm_robust.model.job import InspectionSpec
inspector = Inspector(InspectionSpec(kernel_s=1.0, gpu_s=4.0, network_s=10.0, node_s=30.0), sys.argv[1:])
found = []
while len(found) < 4:
    found += inspector.read(time.monotonic())
print(inspector.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def arguments(machine: Machine) -> tuple[str, ...]:
    return ("--root", str(machine.root), "--config", str(machine.config))


@pytest.fixture
def inspector(machine: Machine) -> Iterator[Inspector]:
    made = Inspector(SPEC, arguments(machine))
    yield made
    made.close()


def read_until(
    inspector: Inspector, condition: Callable[[Observation], object], timeout_s: float = HANG_S
) -> Observation:
    """The first look that meets the condition."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for observation in inspector.read(time.monotonic()):
            if condition(observation):
                return observation
        select.select([inspector.fileno()] if inspector.fileno() >= 0 else [], [], [], 0.02)
    raise AssertionError(f"not within {timeout_s:g} s")


def sees(check: str) -> Callable[[Observation], bool]:
    return lambda observation: any(found.check == check for found in observation.failed)


def passes(check: str) -> Callable[[Observation], bool]:
    return lambda observation: any(name == check for name, _ in observation.well)


def notes(inspection: Inspection) -> list[str]:
    inspection.follow(time.monotonic(), 1)
    return inspection.notes()


def family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children()]


def test_faults_are_seen_in_time(machine: Machine, inspector: Inspector) -> None:
    read_until(inspector, passes("kernel.panic"))
    begun = time.monotonic()
    machine.says(XID)
    read_until(inspector, sees("kernel.xid"))
    assert time.monotonic() - begun < 2.0 * BUSY
    read_until(inspector, passes("infiniband.state"))
    machine.goes_down()
    read_until(inspector, sees("infiniband.state"))


def test_the_inspector_gives_way_to_the_workers_and_loads_no_torch(inspector: Inspector) -> None:
    read_until(inspector, passes("kernel.panic"))
    processes = family(inspector.pid)
    assert len(processes) >= 5
    assert {process.nice() for process in processes} == {min(19, os.nice(0) + 10)}
    assert not any("torch" in mapped.path for mapped in processes[0].memory_maps())


def test_a_killed_inspector_is_started_again_and_leaves_no_process(inspector: Inspector) -> None:
    read_until(inspector, passes("kernel.panic"))
    first = family(inspector.pid)
    os.kill(inspector.pid, signal.SIGKILL)
    observation = read_until(inspector, lambda observation: observation.notes)
    assert "started again" in observation.notes[0]
    assert inspector.fileno() == -1
    read_until(inspector, passes("kernel.panic"))
    assert inspector.pid not in (0, first[0].pid)
    wait_for(lambda: not any(is_alive(process.pid) for process in first))


def test_slurms_term_to_all_of_a_step_does_not_end_it(machine: Machine, inspector: Inspector) -> None:
    read_until(inspector, passes("kernel.panic"))
    pid = inspector.pid
    for process in family(pid):
        process.send_signal(signal.SIGTERM)
    machine.says(XID)
    observation = read_until(
        inspector, lambda observation: observation.notes or sees("kernel.xid")(observation)
    )
    assert (observation.notes, inspector.pid) == ((), pid)


def test_one_process_that_ends_takes_the_others_along(inspector: Inspector) -> None:
    read_until(inspector, passes("kernel.panic"))
    first = family(inspector.pid)
    first[2].kill()
    read_until(inspector, lambda observation: observation.notes)
    wait_for(lambda: not any(is_alive(process.pid) for process in first))


def test_an_inspector_that_is_stopped_is_replaced(machine: Machine) -> None:
    brief = InspectionSpec(kernel_s=0.2, gpu_s=0.2, network_s=0.2, node_s=1.0)
    with closing(Inspector(brief, arguments(machine))) as inspector:
        read_until(inspector, passes("kernel.panic"))
        psutil.Process(inspector.pid).suspend()  # it may still be starting children
        first = family(inspector.pid)
        for process in first:
            process.suspend()
        read_until(inspector, lambda observation: observation.notes)
        read_until(inspector, passes("kernel.panic"))
        wait_for(lambda: not any(is_alive(process.pid) for process in first))


def test_the_inspector_ends_with_the_agent(machine: Machine) -> None:
    words = [sys.executable, "-c", PARENT, *arguments(machine)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        processes = family(int(agent.stdout.readline()))
        agent.kill()
    wait_for(lambda: not any(is_alive(process.pid) for process in processes))


def test_closing_leaves_no_process(machine: Machine) -> None:
    inspector = Inspector(SPEC, arguments(machine))
    read_until(inspector, passes("kernel.panic"))
    processes = family(inspector.pid)
    inspector.close()
    assert inspector.pid == 0
    wait_for(lambda: not any(is_alive(process.pid) for process in processes))


def test_an_agent_tells_of_each_note_once(machine: Machine) -> None:
    machine.host.path("/dev/kmsg").unlink()
    with closing(Inspection(Inspector(SPEC, arguments(machine)), wait_s=0.0)) as inspection:
        wait_for(lambda: notes(inspection) == [f"inspection: kernel log not read: {NO_LOG}"])
        machine.goes_down()
        wait_for(lambda: inspection.follow(time.monotonic(), 1))
        assert "infiniband.state" in [alert.check for alert in inspection.alerts(time.monotonic())]
        assert inspection.notes() == []


def test_an_agent_tells_of_the_traffic_of_each_generation(machine: Machine) -> None:
    machine.carries(0)
    inspection = Inspection(Inspector(SPEC, arguments(machine)), wait_s=0.0)
    carried = itertools.count(10**9, 10**9)

    def talks(generation: int) -> bool:
        machine.carries(next(carried))
        inspection.follow(time.monotonic(), generation)
        return inspection.traffic is not None

    try:
        wait_for(lambda: talks(1))
        inspection.follow(time.monotonic(), 2)
        assert inspection.traffic is None
        wait_for(lambda: talks(2))
    finally:
        inspection.close()


def test_without_an_inspector_nothing_is_seen() -> None:
    inspection = Inspection(None)
    assert inspection.fileno() == -1
    assert not inspection.follow(0.0, 1)
    assert (inspection.alerts(0.0), inspection.notes(), inspection.traffic) == ((), [], None)
    inspection.close()
