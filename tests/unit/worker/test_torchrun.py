"""What workers inherit, and the release of torch."""

from __future__ import annotations

import pytest

from slurm_robust.worker.torchrun import prepare_inherited, torch_release

RECORDER = {"TORCH_NCCL_ENABLE_TIMING": "1", "TORCH_FR_BUFFER_SIZE": "2000"}


@pytest.mark.parametrize(
    ("given", "torch", "expected"),
    [
        ({"TORCHELASTIC_USE_AGENT_STORE": "True", "SLURM_TASK_PID": "7"}, (2, 13), RECORDER),
        ({}, (2, 8), {**RECORDER, "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}),
        ({}, None, {**RECORDER, "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}),
    ],
)
def test_what_workers_inherit(
    given: dict[str, str], torch: tuple[int, ...] | None, expected: dict[str, str]
) -> None:
    prepare_inherited(given, torch)
    assert given == expected


@pytest.mark.parametrize(
    "own",
    [
        {"TORCH_NCCL_ENABLE_TIMING": "0", "TORCH_FR_BUFFER_SIZE": "0"},
        {"TORCH_NCCL_ENABLE_TIMING": "0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "50"},
        {**RECORDER, "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"},
    ],
)
def test_what_the_user_has_set_stays(own: dict[str, str]) -> None:
    environ = dict(own)
    prepare_inherited(environ)
    assert environ == own


def test_the_release_of_torch_is_known_without_importing_it() -> None:
    release = torch_release()
    assert release is not None
    assert release >= (2, 4)
