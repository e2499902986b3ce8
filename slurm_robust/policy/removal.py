"""Which checkpoints on storage may be removed, and who needs the others. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.record import Record


class Stock(Record):
    """The checkpoints of a training, or of a job without one, and what decides about them."""

    complete: tuple[CheckpointId, ...]
    incomplete: tuple[CheckpointId, ...] = ()
    sealed: Mapping[int, int] = {}
    """The newest step that counts of each generation that has ended; of one that is not in here all may."""
    banned: Collection[CheckpointId] = ()
    latest: CheckpointId | None = None
    """What the pointer on storage names."""
    keep: int = 2
    """How many of the newest a job keeps (``checkpoint.keep``)."""
    keep_every: int | None = None
    """Those after so many steps stay (``checkpoint.keep_every``)."""
    holder: str = ""
    """The id of the job that runs, "" for none."""
    generation: int = 0
    """The newest that the holder has launched."""
    restored: CheckpointId | None = None
    """The checkpoint with which it began."""
    waiting: str = ""
    """The id of a job that waits for nodes, or has just begun, and will go on from here; "" for none."""
    finished: bool = False
    """The training has ended well: nothing goes on from here by itself."""
    others: Mapping[CheckpointId, str] = {}
    """What is needed for something else, and why."""

    @property
    def usable(self) -> tuple[CheckpointId, ...]:
        """The complete ones from which a job can go on, newest first."""
        return tuple(
            ref
            for ref in sorted(self.complete, reverse=True)
            if ref not in self.banned and ref.step <= self.sealed.get(ref.generation, ref.step)
        )


class Removal(Record):
    """What to do about the checkpoints that a person named."""

    remove: tuple[CheckpointId, ...]
    refused: dict[CheckpointId, str]
    """And why."""


def needed(stock: Stock, keep: int | None = None) -> dict[CheckpointId, str]:
    """Return which of the complete ones a running or later job needs, and why.

    ``keep``: in place of that of the configuration.
    """
    keep = (1 if stock.finished else stock.keep) if keep is None else keep
    found: dict[CheckpointId, str] = dict(stock.others)
    # If none counts, a person may still want the newest there is (--step).
    newest = stock.usable or tuple(sorted(stock.complete, reverse=True))
    who = stock.holder or stock.waiting
    for place, ref in enumerate(newest[:keep]):
        if place:
            found.setdefault(ref, f"it is one of the newest {keep}, and taken if newer ones cannot be used")
        elif stock.finished:
            found.setdefault(ref, "it is the last one of a training that has ended well")
        else:
            found.setdefault(ref, f"{f'job {who}' if who else 'a later job'} would go on from it")
    if stock.holder:
        if stock.restored in stock.complete:
            found.setdefault(stock.restored, f"job {stock.holder} goes on from it")
        # After a rollback an earlier generation has gone further.
        own = [ref for ref in sorted(stock.complete, reverse=True) if ref.generation >= stock.generation]
        for ref in own[:keep]:
            found.setdefault(ref, f"job {stock.holder} has written it last")
    if stock.latest in stock.complete:
        found.setdefault(stock.latest, "'latest' names it")
    return {ref: why for ref, why in found.items() if ref in stock.complete}


def removal(stock: Stock, wanted: Collection[CheckpointId], *, force: bool) -> Removal:
    """Return which of ``wanted`` go. ``force``: also checkpoints that a job needs.

    What the running job is still writing never goes: its ranks would find their folder gone.
    """
    why = needed(stock)
    refused = {}
    for ref in sorted(wanted, reverse=True):
        if ref in stock.incomplete and not _is_over(stock, ref):
            refused[ref] = f"job {stock.holder or stock.waiting} may still be writing it"
        elif ref in why and not force:
            refused[ref] = why[ref]
    return Removal(remove=tuple(sorted(set(wanted) - refused.keys())), refused=refused)


def prunable(stock: Stock, keep: int) -> tuple[CheckpointId, ...]:
    """Return what goes if the newest ``keep`` stay, oldest first, with incomplete ones that stay incomplete.

    Checkpoints that are passed over do not count among the ``keep``, and stay while they are newer than
    these.
    """
    kept = needed(stock, keep)
    usable = stock.usable[:keep]
    oldest = min(usable, default=None)
    gone = [
        ref
        for ref in stock.complete
        if ref not in kept
        and (oldest is None or ref < oldest)
        and not (stock.keep_every and (ref.step + 1) % stock.keep_every == 0)
    ]
    gone += [ref for ref in stock.incomplete if _is_over(stock, ref)]
    return tuple(sorted(gone))


def _is_over(stock: Stock, ref: CheckpointId) -> bool:
    """Return whether no rank writes an incomplete one any more."""
    return not stock.waiting and (not stock.holder or ref.generation < stock.generation)
