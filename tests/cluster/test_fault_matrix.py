"""Faults of the matrix that no other test plants, through its own table. All of them: ``make matrix``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import pytest

from benchmarks.fault_matrix.cases import CASES
from benchmarks.fault_matrix.confusion import marks
from benchmarks.fault_matrix.run import CONFIG, Matrix
from slurm_robust.sandbox import Sandbox

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

BY_NAME = {case.name: case for case in CASES}
SEED = 7


@pytest.fixture
def matrix(sandboxes: Callable[..., Sandbox]) -> Matrix:
    return Matrix(sandboxes(**asdict(CONFIG)), "act", SEED, print)


def run(matrix: Matrix, *names: str) -> None:
    matrix.run(BY_NAME[name] for name in names)
    assert [found.case for found in matrix.outcomes if marks(found).right] == list(names), matrix.outcomes
    matrix.compare()
    for ending in matrix.endings:
        assert (ending.code, ending.equal) == (0, ending.steps), ending


@pytest.mark.soak
def test_a_skipped_collective_and_memory_that_ends(matrix: Matrix) -> None:
    run(matrix, "OOM kill", "skipped collective")


@pytest.mark.soak
def test_a_loss_that_jumps_has_the_nodes_tested(matrix: Matrix) -> None:
    found = matrix.plant(BY_NAME["loss spike"])
    good = marks(found)
    assert good.symptom, found
    assert found.actions[0] == "diagnose", found
    assert found.went_on, found


def test_a_node_that_makes_numbers_wrong_is_found_by_tests(matrix: Matrix) -> None:
    found = matrix.plant(BY_NAME["silent corruption"])
    assert marks(found).symptom, found
    assert found.actions[0] == "diagnose", found
    assert found.node in found.evicted, found
    assert found.went_on, found


@pytest.mark.soak
def test_a_slow_rank_moves_to_another_node(matrix: Matrix) -> None:
    run(matrix, "slow rank")
