from __future__ import annotations

from slurm_robust.agent.allocation import find_shortage


def test_nothing_is_missing_outside_slurm() -> None:
    assert find_shortage({}, 2, 64) == []


def test_a_task_that_was_bound_to_one_cpu_is_reported() -> None:
    (note,) = find_shortage({"SLURM_CPUS_ON_NODE": "64"}, 1, 64)
    assert "1 of the 64 CPUs" in note


def test_more_cpus_configured_in_slurm_than_there_are_make_no_note() -> None:
    assert find_shortage({"SLURM_CPUS_ON_NODE": "64"}, 2, 2) == []


def test_missing_gpus_are_reported() -> None:
    environ = {"SLURM_GPUS_ON_NODE": "8", "CUDA_VISIBLE_DEVICES": "0,1"}
    (note,) = find_shortage(environ, 2, 2)
    assert "2 of the 8 GPUs" in note
    assert find_shortage({**environ, "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, 2, 2) == []
    assert find_shortage({"SLURM_GPUS_ON_NODE": "8"}, 2, 2) == []
    assert "0 of the 8" in find_shortage({"SLURM_GPUS_ON_NODE": "8", "CUDA_VISIBLE_DEVICES": ""}, 2, 2)[0]


def test_values_that_are_no_numbers_are_not_guessed_at() -> None:
    assert find_shortage({"SLURM_CPUS_ON_NODE": "many", "SLURM_GPUS_ON_NODE": "tesla:2"}, 1, 2) == []
