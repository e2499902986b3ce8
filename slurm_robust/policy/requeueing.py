"""How long a requeue is asked for, and how long its effects are waited for. Pure; times in seconds."""

from __future__ import annotations

TERM_COMES_S = 10.0
"""Slurm sends TERM to the batch script at once when it takes a requeue."""

ANSWER_COMES_S = 10.0
"""A TERM may be that of the requeue whose answer is on its way; Slurm's command may have died of it, too.
Slurm kills what is left 30 s after it (``KillWait``)."""

OWNER_S = 1.5
"""The owner's TERM is obeyed after this time, while no order to Slurm is on its way."""

PAUSE_S, LONGEST_PAUSE_S = 1.0, 16.0
"""Between two attempts, of which each waits up to 20 s itself: doubled from the first to the second."""

LOST_S = 180.0
"""An attempt without an answer for this long is lost; its commands are bounded, and take less."""

GIVE_UP_S = 86400.0
"""After this time the nodes are given back without an answer of slurmctld."""


def next_pause_s(pause_s: float) -> float:
    """The pause after the next attempt without an answer."""
    return min(2 * pause_s, LONGEST_PAUSE_S)


def patience_s(*, taken: bool, done: bool, ordered_to_end: bool, asked: bool) -> float:
    """How long a requeue may stay as it is.

    ``taken``: Slurm has requeued the job; ``done``: and all else is in good hands; ``ordered_to_end``: the
    controller was, by Slurm or by the owner; ``asked``: Slurm's answer is awaited.
    """
    if not taken and not ordered_to_end:
        return GIVE_UP_S
    if not taken:
        return ANSWER_COMES_S if asked else OWNER_S
    if done and ordered_to_end:
        return 0.0
    return TERM_COMES_S if done or ordered_to_end else LOST_S
