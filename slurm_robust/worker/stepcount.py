"""Counts optimizer steps from outside the script, so that progress is seen without our API."""

from __future__ import annotations

import sys

from slurm_robust.worker.step_record import RecordError, StepRecord


def count_optimizer_steps(record: str) -> None:
    """Count every ``step()`` of every torch optimizer of this process into the step record.

    Does nothing in a process without torch, or whose record cannot be opened: training comes first.
    """
    if "torch" not in sys.modules:
        return
    try:
        steps = StepRecord.open(record)
    except (OSError, RecordError) as error:
        print(f"slurm_robust: steps are not counted: {error}", file=sys.stderr)
        return
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def count(optimizer: object, args: object, kwargs: object) -> None:
        try:
            steps.count_optimizer_step()
        except Exception:  # noqa: BLE001 - nothing here may end a training of weeks
            pass

    # A compiled step() must not try to trace this: it is called between the graphs instead.
    register_optimizer_step_post_hook(torch.compiler.disable(count))  # type: ignore[no-untyped-call]
