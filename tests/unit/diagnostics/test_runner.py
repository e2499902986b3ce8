"""Diagnosers, the fake one and the one that starts processes, with nodes that are bad for real."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from slurm_robust.diagnostics.places import HerePlace, SlurmPlace
from slurm_robust.diagnostics.runner import Diagnoser, PlaceDiagnoser
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import Diagnosis
from slurm_robust.slurm.records import Allocation
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_diagnoser import FakeDiagnoser
from slurm_robust.testing.fake_slurm import FakeSlurm
from tests.contracts.diagnoser import NODES, DiagnoserContract
from tests.unit.diagnostics.forked_place import ForkedPlace
from tests.waiting import wait_for


class FakeWorld:
    def diagnoser(self, *, wrong: tuple[str, ...] = (), silent: tuple[str, ...] = ()) -> Diagnoser:
        return FakeDiagnoser(dict.fromkeys(wrong, "reference"), silent=silent)


class TestFakeDiagnoser(DiagnoserContract):
    @pytest.fixture
    def world(self) -> FakeWorld:
        return FakeWorld()


class ProcessWorld:
    """Processes of this machine that take part as nodes."""

    def diagnoser(self, *, wrong: tuple[str, ...] = (), silent: tuple[str, ...] = ()) -> Diagnoser:
        faults = {**dict.fromkeys(wrong, "arithmetic"), **dict.fromkeys(silent, "stop")}
        return PlaceDiagnoser(ForkedPlace(NODES, faults), tests=("memory",))


@pytest.mark.slow
class TestProcesses(DiagnoserContract):
    @pytest.fixture
    def world(self) -> ProcessWorld:
        return ProcessWorld()


@pytest.mark.slow
def test_a_part_is_an_interpreter_of_its_own() -> None:
    diagnoser = PlaceDiagnoser(HerePlace(("n1",)), tests=("storage",))
    found = diagnoser.diagnose(("n1",), bitwise=True, storage="", budget_s=120.0)
    (result,) = found.results
    assert (result.node, result.test, result.outcome) == ("n1", "reference", Outcome.PASS)
    assert found.left_out["storage"] == "no folder was named"


@pytest.mark.slow
def test_neighbours_exchange_what_they_have() -> None:
    told: list[str] = []
    diagnoser = PlaceDiagnoser(ForkedPlace(NODES), tests=("all_to_all", "all_gather"), report=told.append)
    found = diagnoser.diagnose(NODES, bitwise=False, storage="", budget_s=240.0)
    assert found.suspects == (), found.reason
    pairs = {r.peers for r in found.results if r.test == "all_gather"}
    assert pairs == {("n1", "n2"), ("n2", "n3"), ("n3", "n1")}
    assert all(r.rate > 0 or r.outcome is Outcome.UNKNOWN for r in found.results)
    assert len(told) >= 4  # more where a busy core asked for retries


@pytest.fixture
def slurm() -> FakeSlurm:
    return FakeSlurm()


def running(slurm: FakeSlurm) -> Allocation:
    job_id = slurm.submit(SubmitRequest(command=("true",), nodes=2))
    return slurm.allocation(job_id)


def test_a_diagnosis_that_is_stopped_ends_its_step(slurm: FakeSlurm) -> None:
    held = running(slurm)
    told = threading.Event()
    diagnoser = PlaceDiagnoser(
        SlurmPlace(slurm, held), tests=("memory", "all_gather"), report=lambda _: told.set()
    )
    found: list[Diagnosis] = []
    thread = threading.Thread(
        target=lambda: found.append(diagnoser.diagnose(held.nodes, bitwise=False, storage="", budget_s=200.0))
    )
    thread.start()
    assert told.wait(60.0)
    wait_for(lambda: slurm.cluster.launched)
    diagnoser.stop()
    thread.join(60.0)
    (step,) = slurm.cluster.launched
    assert step.request.nodes == held.nodes
    assert step.request.command[1:4] == ("-m", "slurm_robust.diagnostics", "memory")
    assert step.exit_code is not None  # nothing of it is left
    assert found[0].suspects == ()
    assert found[0].left_out == {"memory": "it was stopped", "all_gather": "it was stopped"}


def test_what_slurm_says_of_a_step_that_cannot_start_is_reported(slurm: FakeSlurm) -> None:
    held = running(slurm)
    slurm.cancel(held.job_id)
    found = PlaceDiagnoser(SlurmPlace(slurm, held), tests=("memory",)).diagnose(
        held.nodes, bitwise=False, storage="", budget_s=60.0
    )
    assert found.suspects == ()
    assert "memory" in found.left_out


def test_nodes_with_unlike_gpus_get_a_step_each(slurm: FakeSlurm, tmp_path: Path) -> None:
    held = running(slurm)
    unlike = Allocation(
        job_id=held.job_id, nodes=held.nodes, gpus_per_node=dict(zip(held.nodes, (4, 8), strict=True))
    )
    place = SlurmPlace(slurm, unlike)
    launched = place.launch(held.nodes, ("true",), tmp_path)
    assert [step.request.gpus_per_node for step in slurm.cluster.launched] == [4, 8]
    assert not launched.ended()
    launched.end()
    assert launched.ended()
