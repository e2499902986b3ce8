"""Numbers for the step record out of what training scripts have at hand, without waiting for a GPU."""

from __future__ import annotations

from collections import deque

import torch

from slurm_robust.checkpoint.errors import WrongUse

Scalar = float | int | torch.Tensor

_IN_FLIGHT = 4


class ScalarReader:
    """Turns one series of values, one a step, into floats.

    Numbers and CPU tensors are read at once. The value of a CUDA tensor is copied when the device gets
    there, so :meth:`read` gives the newest one that has arrived: normally that of the step before, None
    at first. Tensors of other devices are read at once, which waits for the device.
    """

    def __init__(self) -> None:
        self._in_flight: deque[tuple[torch.Tensor, torch.cuda.Event]] = deque()
        self._newest: float | None = None

    def read(self, value: Scalar | None) -> float | None:
        """The float to show for ``value``. Raises :class:`WrongUse` for several values."""
        if value is None:
            self._in_flight.clear()
            self._newest = None
        elif not isinstance(value, torch.Tensor):
            self._newest = float(value)
        elif value.numel() != 1:
            raise WrongUse(
                f"loss and grad_norm are single numbers, this tensor has shape {tuple(value.shape)}: "
                "reduce it, for instance by .mean()"
            )
        elif value.device.type == "cuda":
            self._fetch(value)
        else:
            self._newest = float(value.detach())
        return self._newest

    def _fetch(self, value: torch.Tensor) -> None:
        if len(self._in_flight) < _IN_FLIGHT:  # a device that lags far behind is sampled less often
            host = torch.empty((), dtype=value.dtype, pin_memory=True)
            host.copy_(value.detach().reshape(()), non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record(torch.cuda.current_stream(value.device))
            self._in_flight.append((host, arrived))
        while self._in_flight and _has_happened(self._in_flight[0][1]):
            self._newest = float(self._in_flight.popleft()[0])


def _has_happened(event: torch.cuda.Event) -> bool:
    happened: bool = event.query()  # type: ignore[no-untyped-call]
    return happened
