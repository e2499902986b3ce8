"""How many slots a run has, and what it can do with a checkpoint that other ranks took. Pure."""

from __future__ import annotations

from enum import Enum

from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.record import Record
from slurm_robust.util.text import count

_MAX_SIZES = 3
"""So many numbers of nodes that fit are named."""


class Sizes(Record):
    """How the nodes of a run are used."""

    slots: int
    spares: int
    text: str = ""
    """A line for the log if that is not what was asked for."""


def sizes_of(have: int, *, nodes: int | None, spares: int, before: int | None, later_run: bool) -> Sizes:
    """Return the slots and spares of a run that has ``have`` nodes.

    More slots than nodes if the nodes do not suffice. ``nodes`` and ``spares`` are those of the
    configuration; ``before``: the slots of the run or job before, None if there is none; ``later_run``: the
    same job was requeued.

    The slots go before the spares, because another number of ranks trains differently. So a run keeps the
    slots of the earlier run while it has the nodes. A user changes them by a new job with ``nodes`` or with
    more nodes than slots and spares, and by a run with fewer nodes than slots.
    """
    if nodes is not None:
        slots = nodes
    elif before is None:
        slots = have - spares
    elif later_run:
        slots = min(have, before)
    else:
        slots = max(have - spares, min(have, before))
    text = ""
    if before is not None and slots != before and slots <= have:
        text = f"trains on {count(slots, 'slot')}; the {'run' if later_run else 'job'} before had {before}"
    if slots < 1 or slots > have or (nodes is None and before is None):
        return Sizes(slots=slots, spares=spares, text=text)
    left = have - slots
    if left < spares:
        fewer = f"{count(have, 'node')}: {count(slots, 'slot')} and {_standbys(left)} instead of {spares}"
        text = f"{fewer}; {text}" if text else fewer
    elif later_run and nodes is None and left > spares:
        text = (
            f"{count(have, 'node')}: {count(slots, 'slot')} as before, and {_standbys(left)}; a requeued job "
            f"keeps its slots: to train on {have - spares} nodes, submit a new job (of this training, or "
            "with --from)"
        )
        spares = left
    return Sizes(slots=slots, spares=min(spares, left), text=text)


def _standbys(number: int) -> str:
    return "no standby" if not number else count(number, "standby")


class Way(str, Enum):
    """How a generation of one layout can use a checkpoint of another one."""

    SAME = "same"
    """It is of the same layout: from every tier, each rank its own part."""
    RESHARD = "reshard"
    """It is read from storage and resharded: exact for what is replicated or sharded in a known way."""
    REFUSE = "refuse"
    """It cannot use it: other parallel sizes than those of data parallelism have changed."""


def way(old: str, new: ParallelLayout) -> Way:
    """Return the way from the layout with identity ``old`` ("": not known, taken as the same) to ``new``."""
    if old in ("", new.identity()):
        return Way.SAME
    try:
        before = ParallelLayout.from_identity(old)
    except ValueError:
        return Way.REFUSE
    return Way.RESHARD if before.fixed == new.fixed else Way.REFUSE


def refusal(old: str, new: ParallelLayout) -> tuple[str, str]:
    """Say why :func:`way` refuses, and the fix."""
    try:
        layout = ParallelLayout.from_identity(old)
    except ValueError:
        return f"its parallel layout, {old!r}, cannot be read", "use the slurm_robust that took it"
    before, now = dict(layout.fixed), dict(new.fixed)
    names = [name for name in {**before, **now} if before.get(name, 1) != now.get(name, 1)]
    if not names:
        order = "-".join(name for name, _ in layout.sizes)
        return "its parallel dimensions have another order", f"set parallel.order: {order}"
    was = ", ".join(f"{name} {before.get(name, 1)}" for name in names)
    is_now = ", ".join(f"{name} {now.get(name, 1)}" for name in names)
    keys = ", ".join(f"parallel.{name}: {before.get(name, 1)}" for name in names)
    return f"it was taken with {was}, and this run has {is_now}", f"set {keys}"


def fitting_nodes(layout_used: int, nproc_per_node: int, near: int) -> tuple[int, ...]:
    """Return numbers of nodes whose ranks are a multiple of ``layout_used``, nearest to ``near`` first."""
    fits = [n for n in range(1, 2 * max(near, layout_used) + 1) if n * nproc_per_node % layout_used == 0]
    return tuple(sorted(sorted(fits, key=lambda n: (abs(n - near), n))[:_MAX_SIZES]))
