"""What the core asks the loop to do. Records only."""

from __future__ import annotations

from typing import Any, TypeAlias

from slurm_robust.engine.questions import Question
from slurm_robust.model.events import AnyEvent
from slurm_robust.model.record import Record
from slurm_robust.wire.messages import FromController


class Write(Record):
    """Append ``event`` to the journal (durably, before any other effect of the same list is carried out)."""

    event: AnyEvent


class Send(Record):
    """Send ``message`` to the agent of ``node``; lost without trace if it cannot be reached."""

    node: str
    """Or the id of one agent, if several speak for a node."""
    message: FromController


class Ask(Record):
    """Put a question; each answer comes by ``Core.on_answer`` with ``number``."""

    number: int
    question: Question[Any]


class Say(Record):
    """A line for the job's own output."""

    text: str
    ettr: bool = False
    """Whether to include the job's ETTR, which takes the whole journal."""


class Exit(Record):
    """End the controller with ``code``."""

    code: int


class HandOver(Record):
    """End the controller, not the run: the next one goes on at once, with what one reads when it begins."""


HANDED_OVER = -1
"""What such a controller reports to its supervisor; no exit code is negative."""

Effect: TypeAlias = Write | Send | Ask | Say | Exit | HandOver
