"""A data loader whose position is part of a checkpoint, also if a framework owns the loop.

Tested with torchdata 0.11.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader


class ResumableLoader(StatefulDataLoader[Any]):
    """torchdata's ``StatefulDataLoader``, with the same arguments and two differences.

    It begins when the first batch is asked for. The original draws the order of the epoch in ``iter()``, and
    a framework that calls it before the sampler knows which epoch it is (Lightning does so when it goes
    on in the middle) gets the order of the first one.

    It leaves torch's global random number generator alone. The original draws a seed for its workers from it
    in ``iter()``, also when there are none, hence once more after a restart.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if kwargs.get("generator") is None:
            self.generator = torch.Generator().manual_seed(torch.initial_seed())
        self._position: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        # The position is that of the iteration which is asked for now, even if it never begins.
        position, self._position = self._position, None
        return self._begin(position)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the newest iteration."""
        if self._position is not None:
            return self._position
        state: dict[str, Any] = super().state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Have the next iteration go on from there."""
        self._position = state_dict

    def _begin(self, position: dict[str, Any] | None) -> Iterator[Any]:
        if position is not None:
            super().load_state_dict(position)
        yield from super().__iter__()
