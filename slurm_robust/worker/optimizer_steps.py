"""Hears of every step of torch's optimizers in this process."""

from __future__ import annotations

from collections.abc import Callable


def call_after_each(act: Callable[[], None]) -> None:
    """Call ``act`` after every ``step()`` of every torch optimizer of this process. Imports torch."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def stepped(optimizer: object, args: object, kwargs: object) -> None:
        act()

    # A compiled step() must not try to trace this: it is called between the graphs instead.
    register_optimizer_step_post_hook(torch.compiler.disable(stepped))  # type: ignore[no-untyped-call]
