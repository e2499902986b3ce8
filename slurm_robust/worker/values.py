"""Numbers for the step record out of what training scripts have at hand, without waiting for a GPU."""

from __future__ import annotations

import logging
from collections import deque

import torch

from slurm_robust.checkpoint.errors import WrongUse
from slurm_robust.checkpoint.gpus import CUDA, GpuEvent, Gpus
from slurm_robust.checkpoint.shards import dtensor

_log = logging.getLogger(__name__)

Scalar = float | int | torch.Tensor

_IN_FLIGHT = 4


class ScalarReader:
    """Turns one series of values, one a step, into floats.

    Numbers and CPU tensors are read at once. The value of a CUDA tensor is copied when the device gets
    there, so :meth:`read` gives the newest one that has arrived: normally that of the step before, None
    at first. Tensors of other devices are read at once, which waits for the device.

    Of a DTensor that is replicated (the gradient norm of ``fully_shard``) this rank's copy is read. What
    cannot be read is left out, with one warning: no report ends a training, or makes a collective.
    """

    def __init__(self, name: str = "a value", gpus: Gpus = CUDA) -> None:
        self._name = name
        self._gpus = gpus
        self._in_flight: deque[tuple[torch.Tensor, GpuEvent]] = deque()
        self._newest: float | None = None
        self._reported = False

    def read(self, value: Scalar | None) -> float | None:
        """The float to show for ``value``. Raises :class:`WrongUse` for several values."""
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
                "it is a DTensor of which this rank does not have all: pass what .full_tensor() gives, "
                "called by all ranks"
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
    """What this rank has of a value if that is all of it."""
    kind = dtensor()
    if kind is None or not isinstance(value, kind):
        return value
    whole = all(placement.is_replicate() for placement in value.placements)
    local: torch.Tensor | None = value.to_local() if whole else None
    return local
