from __future__ import annotations

import pytest

from slurm_robust.slurm.environment import allocation_from_environment, array_task, time_limit
from slurm_robust.slurm.errors import NotInAllocation

BATCH = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[3,1-2]",
    "SLURM_GPUS_ON_NODE": "8",
    "SLURM_RESTART_COUNT": "2",
    "SLURM_JOB_END_TIME": "1795251045",
}


def test_a_batch_script_s_environment() -> None:
    held = allocation_from_environment(BATCH)
    assert held.job_id == 7
    assert held.nodes == ("n3", "n1", "n2")
    assert set(held.gpus_per_node.values()) == {8}
    assert held.batch_host == "n3"
    assert held.restart_count == 2
    assert held.end_time == 1795251045.0


def test_a_task_of_an_array_has_the_id_that_squeue_shows() -> None:
    assert array_task({**BATCH, "SLURM_ARRAY_JOB_ID": "38", "SLURM_ARRAY_TASK_ID": "1"}) == "38_1"
    assert array_task(BATCH) == ""


def test_the_time_limit_of_this_run() -> None:
    assert time_limit(BATCH | {"SLURM_JOB_START_TIME": "1795250985"}) == 60.0
    assert time_limit(BATCH) is None


def test_variables_of_slurm_that_may_be_missing() -> None:
    held = allocation_from_environment({"SLURM_JOB_ID": "7", "SLURM_NODELIST": "n1", "SLURM_JOB_GPUS": "0,3"})
    assert (held.nodes, held.restart_count, held.end_time) == (("n1",), 0, None)
    assert held.gpus_per_node == {"n1": 2}
    assert held.tasks_per_node == 0


def test_the_tasks_per_node_that_were_asked_for() -> None:
    assert allocation_from_environment(BATCH | {"SLURM_NTASKS_PER_NODE": "3"}).tasks_per_node == 3


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "SLURM_JOB_ID is not set"),
        ({"SLURM_JOB_ID": "7"}, "SLURM_JOB_NODELIST is not set"),
        ({"SLURM_JOB_ID": "x", "SLURM_JOB_NODELIST": "n1"}, "not a number"),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n["}, "brackets"),
    ],
)
def test_outside_a_job_there_is_no_allocation_in_the_environment(environ: dict[str, str], words: str) -> None:
    with pytest.raises(NotInAllocation, match=words) as caught:
        allocation_from_environment(environ)
    assert "sbatch" in caught.value.fix
    assert "salloc" in caught.value.fix
