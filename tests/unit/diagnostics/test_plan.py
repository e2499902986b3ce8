from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.diagnostics.plan import BY_NAME, PROGRAMS, neighbours, plan

SIZES = st.integers(min_value=2, max_value=60)


def names(count: int) -> list[str]:
    return [f"n{index}" for index in range(count)]


@given(SIZES)
def test_everybody_meets_both_neighbours_and_is_in_one_pair_of_a_round(count: int) -> None:
    nodes = names(count)
    rounds = neighbours(nodes)
    assert len(rounds) == (1 if count == 2 else 2 + count % 2)
    for pairs in rounds:
        met = [node for pair in pairs for node in pair]
        assert len(met) == len(set(met))
    edges = {frozenset(pair) for pairs in rounds for pair in pairs}
    ring = [*pairwise(nodes), (nodes[-1], nodes[0])]
    assert edges == {frozenset(pair) for pair in ring}
    assert sum(map(len, rounds)) == len(edges)


@pytest.mark.parametrize("count", [0, 1])
def test_without_two_nodes_there_are_no_neighbours(count: int) -> None:
    assert neighbours(names(count)) == ()
    found = plan(names(count), bitwise=True, gpus=False, storage="")
    assert all(len(group) == 1 for r in found.rounds for group in r.groups)
    assert found.left_out["all_gather"] == "it takes two nodes"


def test_what_is_asked_decides_what_is_run() -> None:
    nodes = names(4)
    usual = plan(nodes, bitwise=False, gpus=True, storage="/scratch")
    assert usual.rounds[0].programs == ("dcgm", "gemm", "memory", "all_to_all", "storage")
    assert [r.programs for r in usual.rounds[1:]] == [("all_gather",), ("all_gather",)]
    assert usual.left_out == {}
    bitwise = plan(nodes, bitwise=True, gpus=False, storage="")
    assert "reference" in bitwise.rounds[0].programs
    assert bitwise.left_out == {"dcgm": "not every node has GPUs", "storage": "no folder was named"}
    chosen = plan(nodes, bitwise=True, gpus=True, storage="", tests=("memory",))
    assert [r.programs for r in chosen.rounds] == [("memory", "reference")]
    with pytest.raises(KeyError):
        plan(nodes, bitwise=False, gpus=False, storage="", tests=("nonsense",))


def test_all_that_a_gpu_job_needs_fits_into_the_usual_time() -> None:
    found = plan(names(4), bitwise=True, gpus=True, storage="/scratch")
    without_dcgm = sum(r.needs_s for r in found.rounds) - BY_NAME["dcgm"].needs_s
    assert without_dcgm <= 330.0


def test_every_program_has_its_module() -> None:
    folder = __import__("slurm_robust.diagnostics.programs", fromlist=["x"]).__path__[0]
    from pathlib import Path

    found = {path.stem for path in Path(folder).glob("*.py")} - {"__init__"}
    assert found == {program.name for program in PROGRAMS}
