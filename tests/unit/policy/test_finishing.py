"""A signal that ends a worker after its work is noted; everything else is a fault."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from msgspec import structs

from slurm_robust.model.exits import WorkerError, WorkerExit
from slurm_robust.model.incident import NodeExit
from slurm_robust.model.progress import CHECKPOINT, FINISHED, RETURNED, Progress
from slurm_robust.policy.finishing import WAIT_S, LastExits, judge

WORLD = 4
BUG = WorkerError(type="ValueError", message="no", file="train.py", line=3)


def records(step: int = 9, **phases: str) -> list[Progress]:
    """Of all ranks; ``r2="…"``: the phase of rank 2."""
    return [
        Progress(rank=rank, step=step, reported=True, age_s=1.0, phase=phases.get(f"r{rank}", ""))
        for rank in range(WORLD)
    ]


def ended(*failed: WorkerExit, well: tuple[int, ...] | None = None) -> list[NodeExit]:
    """``failed``, and those of ``well`` with code 0 (all others)."""
    ranks = {exit.rank for exit in failed}
    good = tuple(rank for rank in range(WORLD) if rank not in ranks) if well is None else well
    exits = (*failed, *(WorkerExit(rank=rank, code=0) for rank in good))
    return [NodeExit(node=f"n{exit.rank + 1}", exit=exit) for exit in exits]


def aborted(rank: int, number: int = signal.SIGABRT, **fields: Any) -> WorkerExit:
    return WorkerExit(rank=rank, signal=number, **fields)


def test_all_with_code_0_is_the_end() -> None:
    assert judge(ended(), records(), WORLD) == LastExits(is_done=True)
    assert judge(ended(well=(0, 1)), records(), WORLD) == LastExits(is_done=False)
    assert judge(ended(), [], WORLD).is_done


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_signal_after_the_script_has_returned_is_noted(rank: int, number: int) -> None:
    found = judge(ended(aborted(rank, number)), records(**{f"r{rank}": RETURNED}), WORLD)
    assert found.is_done
    assert f"{signal.Signals(number).name} ended rank {rank} on n{rank + 1} after its work" in found.reason


def test_all_may_have_returned_and_aborted() -> None:
    phases = dict.fromkeys(("r0", "r1", "r2", "r3"), RETURNED)
    found = judge(ended(*(aborted(rank) for rank in range(WORLD))), records(**phases), WORLD)
    assert found.is_done
    assert "rank 0 on n1 and 3 other ranks" in found.reason


def test_an_abort_after_the_newest_step_is_noted_where_all_others_ended_well() -> None:
    assert judge(ended(aborted(2)), records(), WORLD).is_done


FAULTS = {
    "rank 0 may have had results to save": (aborted(0), records()),
    "another signal in the script": (aborted(2, signal.SIGSEGV), records()),
    "killed from outside": (aborted(2, signal.SIGKILL), records(r2=RETURNED)),
    "ordered to end": (aborted(2, signal.SIGTERM), records(r2=RETURNED)),
    "want of memory": (aborted(2, oom="oom"), records(r2=RETURNED)),
    "an exception": (WorkerExit(rank=2, code=1, error=BUG), records(r2=RETURNED)),
    "an exit code": (WorkerExit(rank=2, code=3), records(r2=RETURNED)),
    "no step was ever done": (aborted(2), records(step=-1)),
    "others are further": (aborted(2), [structs.replace(r, step=8) if r.rank == 2 else r for r in records()]),
    "nothing is known of it": (aborted(2), []),
}


@pytest.mark.parametrize("case", FAULTS)
def test_everything_else_is_a_fault(case: str) -> None:
    exit, known = FAULTS[case]
    assert judge(ended(exit), known, WORLD) == LastExits(is_done=False)
    assert judge(ended(exit, well=()), known, WORLD) == LastExits(is_done=False)


def test_the_others_are_waited_for_as_long_as_they_may_end() -> None:
    """In the middle of a training nobody has ended: an abort is a fault at once."""
    assert not judge(ended(aborted(2), well=()), records(), WORLD).waits
    assert judge(ended(aborted(2), well=(1,)), records(), WORLD).waits
    assert judge(ended(aborted(2), well=()), records(r0=FINISHED), WORLD).waits
    assert not judge(ended(aborted(2, age_s=WAIT_S + 1), well=(1,)), records(), WORLD).waits
    assert not judge(ended(aborted(2), well=()), records(r0=CHECKPOINT), WORLD).waits
    late = aborted(2, age_s=1e6)
    assert judge(ended(late, well=()), records(r2=RETURNED), WORLD).waits  # its work is done, others work
    assert not judge(ended(late), records(r2=RETURNED), WORLD).waits
