"""What a training script uses: ``slurm_robust.Checkpointer``."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from slurm_robust.checkpoint.errors import NotWritten, UnreadableCopy, WrongUse
from slurm_robust.checkpoint.fit import learning_rates, other_rates
from slurm_robust.checkpoint.gpus import CUDA, GpuEvent, Gpus
from slurm_robust.checkpoint.shards import dtensor
from slurm_robust.checkpoint.state import Stateful, Training, apply, refuse_incomplete
from slurm_robust.worker.phases import phase
from slurm_robust.worker.runs import run_of

_log = logging.getLogger(__name__)


class Checkpointer:
    """Reports each step and takes checkpoints from which training goes on bitwise the same.

    ::

        ckpt = sr.Checkpointer({"model": model, "optimizer": optimizer, "loader": loader}, every=10)
        for step in range(ckpt.restore(), steps):
            loss, grad_norm = train_step(...)
            ckpt.step(step, loss=loss, grad_norm=grad_norm)

    ``entries`` are objects with ``state_dict`` and ``load_state_dict``, by names of your choice; pass
    the module as it is trained (wrapped in ``DistributedDataParallel``), then its parameters and the
    optimizer's state are written once and not by every rank (``deduplicate=False`` for training that
    lets the replicas differ). The global random number generators of Python, NumPy, torch and CUDA are
    always included.

    ``every``: steps from one checkpoint to the next, counted from step 0. Under ``srobust run`` a checkpoint
    is a snapshot in the node's memory (after steps that are multiples of ``every``), if there is room; the
    controller says which go to storage, which to restore and which to remove. Elsewhere ``path`` is the
    folder of checkpoints, of which the newest ``keep`` are kept.

    ``overlap``: parameters and state of the optimizers among the entries are copied while the next step
    computes; the optimizer's update waits for it. False if the script changes them by other means: then all
    is copied before :meth:`step` returns. An update that is captured in a CUDA graph has the same effect,
    with a warning.

    Raises :class:`~slurm_robust.checkpoint.errors.WrongUse`, and under ``srobust run``
    :class:`~slurm_robust.worker.step_record.RecordError` or ``OSError`` without a step record.
    """

    def __init__(
        self,
        entries: Mapping[str, Stateful],
        *,
        every: int = 1,
        path: str | Path = "checkpoints",
        keep: int = 2,
        deduplicate: bool = True,
        overlap: bool = True,
    ) -> None:
        _check_entries(entries)
        for name, number in (("every", every), ("keep", keep)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise WrongUse(f"{name}={number!r}: {name} is a whole number, at least 1")
        self._training = Training(entries=dict(entries), deduplicate=deduplicate)
        self._run = run_of(os.environ, Path(path), keep=keep, every=every, overlap=overlap)
        self._restoring = False
        self._completed: int | None = None
        self._unwritten = 0
        self._loss = ScalarReader("loss")
        self._grad_norm = ScalarReader("grad_norm")

    def restore(self) -> int:
        """Put the state of the checkpoint to go on from into the entries; returns the next step to run.

        0 on a fresh start. Called once, by all ranks, when all entries are built and before the first
        step. Raises a :class:`~slurm_robust.checkpoint.errors.CheckpointError` whose message names the
        file and the fix; it is also an ``OSError`` if the storage does not answer. After an error the
        entries may hold half of a state, since most is read straight into their tensors: training cannot
        go on, and the process has to start again.
        """
        if self._completed is not None:
            raise WrongUse("restore() was called before: call it once, in front of the training loop")
        if self._restoring:
            raise WrongUse(
                "restore() failed before, so the entries may hold half of a state: start the process again"
            )
        self._restoring = True
        built = learning_rates(self._training)
        try:
            found = self._run.load(self._training)
        except OSError as error:
            raise UnreadableCopy(str(error)) from error
        completed = -1
        if found is not None:
            completed, snapshot = found
            apply(self._training.entries, snapshot)
        self._run.restored()
        if os.environ.get("RANK", "0") == "0":
            for text in other_rates(built, self._training):
                _log.warning("%s", text)
        self._completed = completed
        return completed + 1

    def step(self, step: int, *, loss: Scalar | None = None, grad_norm: Scalar | None = None) -> None:
        """Report ``step``, which is completed, then take a checkpoint if one is due.

        ``loss`` and ``grad_norm`` are numbers or tensors of one element. Nothing waits for a GPU: the
        value of a CUDA tensor is reported when it has arrived, normally with the next step. What cannot be
        read (a DTensor of which this rank has a part only) is left out, with one warning.

        A checkpoint that cannot be written does not end the job, because the earlier ones are still there;
        the first failure in a row is logged as an error, and the end of the row as a warning.

        Raises :class:`~slurm_robust.checkpoint.errors.WrongUse`.
        """
        if self._completed is None:
            raise WrongUse("step() before restore(): call restore(), which returns the first step to run")
        if step <= self._completed:
            raise WrongUse(
                f"step({step}) after step {self._completed}: steps must grow; use "
                "'for step in range(ckpt.restore(), steps)' and call step() once per step"
            )
        self._completed = step
        self._run.report(step, self._loss.read(loss), self._grad_norm.read(grad_norm))
        if self._run.due(step):
            self._checkpoint(step)
        self._run.hold(step)

    @staticmethod
    def phase(name: str) -> AbstractContextManager[None]:
        """Do the same as :func:`slurm_robust.phase`: ``with ckpt.phase("evaluation"):``."""
        return phase(name)

    @property
    def blocked_s(self) -> float:
        """How long the newest snapshot in memory held training up, in seconds.

        That is the time in :meth:`step` and, once it has come, the wait in front of the optimizer's update.
        """
        return self._run.cost().blocked_s

    @property
    def skipped(self) -> int:
        """Snapshots in memory that were not taken, or were spoilt by a change while they were copied.

        Among them are those of the first steps, if their memory takes seconds to reserve.
        """
        return self._run.cost().skipped

    def close(self) -> None:
        """Finish what is being copied and let go of the step record, because no more steps will come.

        Optional; without it, a script that goes on for long after its last step may be taken for hanging.
        """
        self._run.close()

    def _checkpoint(self, step: int) -> None:
        try:
            self._run.save(step, self._training)
        except NotWritten as error:
            self._unwritten += 1
            if self._unwritten == 1:  # not again in every step until it is mended
                _log.error(
                    "the checkpoint of step %d was not written: %s. Training goes on; fix this, or a "
                    "fault loses everything since the newest complete checkpoint",
                    step,
                    error,
                )
        else:
            if self._unwritten:
                _log.warning(
                    "checkpoints are written again since step %d; %d were not", step, self._unwritten
                )
            self._unwritten = 0


def _check_entries(entries: Mapping[str, Stateful]) -> None:
    if not isinstance(entries, Mapping) or not entries:
        raise WrongUse(
            "entries is a dict of what to save, for instance {'model': model, 'optimizer': optimizer}"
        )
    for name, entry in entries.items():
        if not isinstance(name, str):
            raise WrongUse(f"entry {name!r}: names are strings")
        if not isinstance(entry, Stateful):
            raise WrongUse(
                f"entry {name!r} is a {type(entry).__qualname__} without state_dict() and load_state_dict(): "
                "give it both, or leave it out if it has no state"
            )
    refuse_incomplete(entries)


Scalar = float | int | torch.Tensor

_IN_FLIGHT = 4


class ScalarReader:
    """Turns one series of values, one a step, into floats.

    Numbers and CPU tensors are read immediately. The value of a CUDA tensor is copied when the device gets
    there, so :meth:`read` gives the newest one that has arrived: normally that of the step before, None at
    first. Tensors of other devices are read immediately, which waits for the device.

    If a DTensor is replicated (the gradient norm of ``fully_shard``), this rank's copy is read. What cannot
    be read is left out, with one warning: no report ends the job, or makes a collective.
    """

    def __init__(self, name: str = "a value", gpus: Gpus = CUDA) -> None:
        self._name = name
        self._gpus = gpus
        self._in_flight: deque[tuple[torch.Tensor, GpuEvent]] = deque()
        self._newest: float | None = None
        self._reported = False

    def read(self, value: Scalar | None) -> float | None:
        """Return the float to show for ``value``. Raises :class:`WrongUse` for several values."""
        try:
            self._read(value)
        except WrongUse:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a tensor of another kind raises
            self._leave_out(f"it cannot be read ({type(error).__name__}: {error}): pass {self._name}.item()")
        return self._newest

    def _read(self, value: Scalar | None) -> None:
        if value is None:
            self._forget()
            return
        if not isinstance(value, torch.Tensor):
            self._newest = float(value)
            return
        if value.numel() != 1:
            raise WrongUse(
                f"loss and grad_norm are single numbers, this tensor has shape {tuple(value.shape)}: "
                "reduce it, for instance by .mean()"
            )
        local = _local(value)
        if local is None or local.numel() != 1:
            self._leave_out(
                "it is a DTensor of which this rank holds only a part: pass the result of "
                ".full_tensor(), called on all ranks"
            )
        elif self._gpus.has(local):
            self._fetch(local.detach())
        else:
            self._newest = float(local.detach())

    def _fetch(self, value: torch.Tensor) -> None:
        if len(self._in_flight) < _IN_FLIGHT:  # a device that lags far behind is sampled less often
            host = self._gpus.scalar(value.dtype)
            stream = self._gpus.training(value.device)
            stream.copy([(host, value.reshape(()))])
            self._in_flight.append((host, stream.record()))
        while self._in_flight and self._in_flight[0][1].query():
            self._newest = float(self._in_flight.popleft()[0])

    def _leave_out(self, why: str) -> None:
        self._forget()
        if not self._reported:
            self._reported = True
            _log.warning("%s is not reported: %s", self._name, why)

    def _forget(self) -> None:
        self._in_flight.clear()
        self._newest = None


def _local(value: torch.Tensor) -> torch.Tensor | None:
    """Return what this rank has of a value if that is all of it."""
    kind = dtensor()
    if kind is None or not isinstance(value, kind):
        return value
    whole = all(placement.is_replicate() for placement in value.placements)
    local: torch.Tensor | None = value.to_local() if whole else None
    return local
