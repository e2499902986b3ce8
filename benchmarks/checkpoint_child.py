"""One measurement of the checkpoint benchmark in a process of its own.

``python -m benchmarks.checkpoint_child ORDER``: ``ORDER`` is JSON of one of :data:`ORDERS` by its name in
``order``; the last line of the output is JSON of the result, or of ``refused`` where something does not
work on this machine.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.checkpoint_contenders import CONTENDERS
from benchmarks.checkpoint_ours import Ours
from benchmarks.checkpoint_state import BareCopy, Contender, NotRunnable, Training, batch_for
from benchmarks.checkpoint_stores import STORES

GPU_TURNS, GPU_STEPS = 4, 5

Result = dict[str, Any]
DrainLock = list[dict[str, float]]


def main() -> int:
    """Carry out the order; always 0, what fails raises."""
    order = json.loads(sys.argv[1])
    torch.set_num_threads(order.pop("threads", 1))
    try:
        result = ORDERS[order.pop("order")](**order)
    except NotRunnable as error:
        result = {"refused": str(error)}
    print(json.dumps(result), flush=True)
    return 0


def calibrate(mb: int, shm: str, ratio: float) -> Result:
    """The bare copy, and the batch with which forward and backward take ``ratio`` times as long."""
    training = _trained(Training(mb))
    copy = BareCopy(Path(shm), training.tensors())
    memcpy = statistics.median(copy.out() for _ in range(5))
    batch = batch_for(_timer(training), ratio * memcpy)
    return {"bytes": training.nbytes(), "memcpy": memcpy, "batch": batch, "compute": _timer(training)(batch)}


def blocking(
    contender: str, mb: int, batch: int, at_once: bool, turns: int, steps: int, disk: str, shm: str
) -> Result:
    """Durations of steps with and without a checkpoint, in turns of ``steps``."""
    training = _trained(Training(mb))
    measured = CONTENDERS[contender](training, Path(disk), Path(shm))
    result = _turns(Loop(training, measured, batch, at_once=at_once), measured.warm, turns, steps)
    measured.close()
    return {"bytes": training.nbytes(), **result}


def _turns(loop: Loop, warm: int, turns: int, steps: int) -> Result:
    loop.turn(warm, save=True)
    loop.turn(1, save=False)
    with_it: list[DrainLock] = []
    without: list[DrainLock] = []
    for number in range(turns):
        for save in (True, False) if number % 2 else (False, True):
            (with_it if save else without).append(loop.turn(steps, save=save))
    return {"with": with_it, "without": without}


class Loop:
    """A training loop: a step is from one checkpoint to the next.

    ``at_once``: the checkpoint is taken just before the update, which changes all that it holds, and not
    just after it.
    """

    def __init__(
        self, training: Training, contender: Contender, batch: int, *, at_once: bool = False
    ) -> None:
        self._at_once = at_once
        self._training = training
        self._contender = contender
        self._batch = batch
        self._step = 0

    def turn(self, steps: int, *, save: bool) -> DrainLock:
        """So many steps, each with a checkpoint or none; at the end nothing goes on in the background.

        Of each step: its duration, that of the call which takes the checkpoint, that of the update.
        """
        found = []
        for _ in range(steps):
            began = time.perf_counter()
            if save:
                self._contender.save(self._step)
            saved = time.perf_counter()
            if self._at_once:
                update = self._update(save)
            self._training.forward_backward(self._batch)
            if not self._at_once:
                update = self._update(save)
            _synchronize(self._training)
            found.append({"step": time.perf_counter() - began, "save": saved - began, "update": update})
            self._step += 1
        self._contender.drain()
        return found

    def _update(self, save: bool) -> float:
        began = time.perf_counter()
        if save:
            self._contender.before_update()
        self._training.update()
        return time.perf_counter() - began


def keep(store: str, mb: int, folder: str) -> Result:
    """Write the state of a training, durable where ``folder`` is on a disk; what the next update gives."""
    training = _trained(Training(mb))
    result = STORES[store].keep(training, Path(folder))
    training.fix_gradients()
    training.update()
    return {"bytes": training.nbytes(), "digest": training.digest(), **result}


def restore(store: str, mb: int, folder: str, token: str, digest: str, stateful: bool, cold: bool) -> Result:
    """Read it into a training with other weights, whose optimizer has state already if ``stateful``.

    ``cold``: without the page cache. ``first_update``: that of the optimizer afterwards, which pays for
    what was only mapped. The digest is of the state after that update.
    """
    training = Training(mb, seed=1)
    if stateful:
        _trained(training)
        training.optimizer.zero_grad()
    if cold:
        _drop_cache(Path(folder))
    began = time.perf_counter()
    STORES[store].restore(training, Path(folder), token)
    restored = time.perf_counter()
    training.fix_gradients()
    fixed = time.perf_counter()
    training.update()
    updated = time.perf_counter()
    if training.digest() != digest:
        raise SystemExit(f"{store} did not restore the state bit for bit")
    training.update()
    again = time.perf_counter()
    training.update()
    return {
        "bytes": training.nbytes(),
        "restore": restored - began,
        "first_update": updated - fixed,
        "update": time.perf_counter() - again,
    }


def limits(mb: int, shm: str) -> Result:
    """The bare copy: into shared memory, back, and back with an optimizer whose state has no memory yet."""
    training = _trained(Training(mb))
    copy = BareCopy(Path(shm), training.tensors())
    model = len(list(training.model.parameters()))
    ways: dict[str, Callable[[], float]] = {
        "out": copy.out,
        "back": copy.back,
        "fresh": functools.partial(copy.back, live=model),
    }
    found = {name: statistics.median(way() for _ in range(5)) for name, way in ways.items()}
    return {"bytes": training.nbytes(), **found}


def gpu(mb: int, step_s: float, disk: str, shm: str) -> Result:
    """Ours with a state on a GPU: steps of ``step_s``, the rate of a snapshot, and of a plain pinned copy."""
    training = _trained(Training(mb, "cuda"))
    pinned = [torch.empty_like(t, device="cpu", pin_memory=True) for t in training.tensors()]

    def copy() -> float:
        began = time.perf_counter()
        for source, target in zip(training.tensors(), pinned, strict=True):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        return time.perf_counter() - began

    copy()
    plain = statistics.median(copy() for _ in range(5))
    ours = Ours(training, Path(disk), Path(shm))
    batch = batch_for(_timer(training), step_s)
    result = _turns(Loop(training, ours, batch), ours.warm, GPU_TURNS, GPU_STEPS)

    def snapshot(step: int) -> float:
        began = time.perf_counter()
        ours.save(step)
        ours.drain()
        return time.perf_counter() - began

    whole = statistics.median(snapshot(10**6 + number) for number in range(5))
    ours.close()
    nbytes = training.nbytes()
    return {"bytes": nbytes, "rate": nbytes / whole, "pinned_rate": nbytes / plain, **result}


def _timer(training: Training) -> Callable[[int], float]:
    """The best of some rounds of forward and backward with a batch, seconds."""

    def once(batch: int) -> float:
        began = time.perf_counter()
        training.forward_backward(batch)
        _synchronize(training)
        return time.perf_counter() - began

    def timed(batch: int) -> float:
        return min(once(batch) for _ in range(4))

    return timed


def _synchronize(training: Training) -> None:
    if training.device == "cuda":
        torch.cuda.synchronize()


def _trained(training: Training) -> Training:
    training.forward_backward(8)
    training.update()
    return training


def _drop_cache(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


ORDERS: dict[str, Callable[..., Result]] = {
    "calibrate": calibrate,
    "blocking": blocking,
    "keep": keep,
    "restore": restore,
    "limits": limits,
    "gpu": gpu,
}


if __name__ == "__main__":
    sys.exit(main())
