"""Observe mode: what is wrong is decided as ever and printed, and training is left to its fate. Pure."""

from __future__ import annotations

from slurm_robust.model.incident import NodeExit
from slurm_robust.model.record import Record


class Fate(Record):
    """How far a generation has come to its end. ``lost``: silent nodes; ``ended``: all others ended."""

    exits: tuple[NodeExit, ...]
    lost: tuple[str, ...]
    ended: bool
    has_new_step: bool

    @property
    def has_failures(self) -> bool:
        """Whether a worker has failed."""
        return any(exit.exit.failed for exit in self.exits)

    @property
    def goes_on(self) -> bool:
        """Whether training goes on by itself, so that it is to be watched again."""
        return not (self.ended or self.lost or self.has_failures) and self.has_new_step

    def is_unclear(self, waited_s: float, dead_s: float) -> bool:
        """Whether to wait before anything is said: a worker may have lost a peer whose node is silent soon.

        ``waited_s``: since the fault was detected; ``dead_s``: silence that counts.
        """
        return self.has_failures and not (self.lost or self.ended) and waited_s <= dead_s


def own_end(root: NodeExit | None) -> tuple[int, str]:
    """The exit code and reason of a job whose training ended by itself, first with ``root``."""
    if root is None:
        return 1, "the workers ended without an exit that explains it"
    code = root.exit.code if root.exit.code is not None else 128 + (root.exit.signal or 0)
    return code, f"{root.exit.describe()} on {root.node}"
