"""Who replays a training, as the controller sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slurm_robust.analysis.replay import ReplayVerdict
from slurm_robust.model.job import CommandKind
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.record import Record


class ReplayCommand(Record):
    """What every rank runs in the folder ``cwd``: the user's script, with arguments that make it small."""

    kind: CommandKind
    command: tuple[str, ...]
    cwd: str


class Replayer(Protocol):
    """Replays a training in crossed groups of nodes. The training's own workers are stopped before."""

    def replay(
        self,
        nodes: Sequence[str],
        layout: ParallelLayout,
        command: ReplayCommand,
        *,
        steps: int,
        budget_s: float,
    ) -> ReplayVerdict:
        """Who computed what the others did not, in ``steps`` optimizer steps of ``command``.

        ``nodes`` are in the order of their slots; ``layout`` is that of the training, of whose sizes all but
        ``dp`` are kept. Blocks for ``budget_s`` seconds at most, and a few more for clearing away; nothing
        of it runs on afterwards. What goes wrong on nodes or with Slurm is not raised: the reason says it.
        """
        ...

    def stop(self) -> None:
        """From any thread: have :meth:`replay` end now, and at once if it begins later, without a verdict."""
        ...
