"""Do ended workers still hold memory of the GPUs? Decides only; times are monotonic seconds."""

from __future__ import annotations

# Figures of others: 0.4 to 0.8 s for device memory, more than 30 s in bad cases (sgl-project/sglang#31871).
GPUS_S = 60.0


class Freeing:
    """The time from the end of workers until nothing of theirs is left on the GPUs, 60 s at most."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._held = ""

    @property
    def deadline(self) -> float | None:
        """When waiting is over in any case; None while nothing is waited for."""
        return None if self._since is None else self._since + GPUS_S

    def begin(self, now: float) -> None:
        """The workers have ended."""
        self._since, self._held = now, "the driver does not answer"

    def hold(self, held: str) -> None:
        """They hold ``held``, in words."""
        self._held = held

    def end(self, now: float) -> float:
        """Nothing is waited for any more; how long it took."""
        since, self._since = self._since, None
        return 0.0 if since is None else now - since

    def complaint(self) -> str:
        """What to say when waiting ends at its bound."""
        return f"GPUs are not free {GPUS_S:.0f} s after their workers ended: {self._held}"
