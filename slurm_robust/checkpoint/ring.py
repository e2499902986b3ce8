"""Which of a part's buffers takes the next snapshot. Pure.

While step N+1 is written, a rank that is killed must leave a step that all others have too. A collective of
step N+1 lies between, so the others have committed N or N-1: these two are kept. Peers get the steps that
are multiples of the stride, so the newest two of these are kept as well: a node's loss then finds a step
that all have, own or peer.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_robust.model.copies import CheckpointId


def refill_order(
    held: Mapping[int, CheckpointId | None],
    *,
    cap: int,
    generation: int,
    restored: CheckpointId | None,
    stride: int = 1,
    flush: int = -1,
) -> list[int]:
    """Buffers that may take the next snapshot, best first; one that is locked is passed over.

    ``held``: what each buffer holds whole, None for nothing usable. A number that is not among them is a
    buffer still to be made: at most one is offered, and only while there are fewer than ``cap``.
    ``generation`` is the running one, ``restored`` what it went on from (None: a fresh start); what earlier
    generations did after that is dead. The newest step is offered only if ``cap`` is 1.
    """
    dead = sorted(
        (checkpoint, n)
        for n, checkpoint in held.items()
        if checkpoint and _is_dead(checkpoint, generation, restored)
    )
    empty = sorted(n for n, checkpoint in held.items() if checkpoint is None)
    gone = {n for _, n in dead}
    alive = sorted(
        ((checkpoint, n) for n, checkpoint in held.items() if checkpoint and n not in gone), reverse=True
    )
    kept = _kept(alive, stride, flush)
    order = [*empty, *(n for _, n in dead), *(n for _, n in reversed(alive) if n not in kept)]
    if len(held) < cap:
        order.append(next(n for n in range(len(held) + 1) if n not in held))
    # The last resort costs protection, most important last. Without it a part whose buffers are locked would
    # fall behind the others until no step is left that all have.
    return [*order, *reversed(kept[0 if cap == 1 else 1 :])]


def _is_dead(checkpoint: CheckpointId, generation: int, restored: CheckpointId | None) -> bool:
    return checkpoint.generation != generation and (restored is None or checkpoint.step > restored.step)


def _kept(alive: list[tuple[CheckpointId, int]], stride: int, flush: int) -> list[int]:
    """Numbers of the buffers to keep, most important first; ``alive`` is sorted, newest first."""
    multiples = [n for checkpoint, n in alive if checkpoint.step % stride == 0]
    wanted = [n for checkpoint, n in alive if checkpoint.step == flush]
    return list(dict.fromkeys([*(n for _, n in alive[:2]), *multiples[:2], *wanted]))
