"""How the training is replayed in small groups of nodes, to find one that computes wrongly."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_robust.config.ranges import at_least, positive


@dataclass(frozen=True)
class ReplayConfig:
    """What the script is told, and how long it may take. ``docs/replay.md`` says what the script must do."""

    args: tuple[str, ...] | None = None
    """Arguments for the script behind its own, that make the model small; null: it is not replayed."""

    steps: int = 10
    """Optimizer steps that are replayed and compared."""

    budget_s: float = 900.0
    """How long both phases may take together, in seconds."""

    def __post_init__(self) -> None:
        """Refuse no steps and times that are not positive."""
        at_least(self, "steps", 1)
        positive(self, "budget_s")
