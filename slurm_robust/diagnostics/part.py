"""What a node's part of a test is told, what it finds, and what it says of that in one line."""

from __future__ import annotations

from slurm_robust.model.diagnosis import TestResult
from slurm_robust.model.findings import Outcome
from slurm_robust.model.record import Record


class Part(Record):
    """One node's part of one test.

    ``group``: the nodes that take part, the first of which is met at ``address`` and ``port``. ``gpus``: how
    many the node is said to have for us. ``together_on_gpus``: all nodes have some, so that what they do
    together is done by NCCL. ``storage``: the folder to be tested. ``limit_s``: seconds that are left.
    """

    node: str
    group: tuple[str, ...]
    address: str = "127.0.0.1"
    port: int = 0
    gpus: int = 0
    together_on_gpus: bool = False
    storage: str = ""
    limit_s: float = 60.0


class Found(Record):
    """What a part found. The fields are those of :class:`~slurm_robust.model.diagnosis.TestResult`."""

    outcome: Outcome = Outcome.PASS
    text: str = ""
    value: str = ""
    limit: str = ""
    digest: str = ""
    rate: float = 0.0
    kind: str = ""


class NotHere(Exception):
    """The node has nothing that this test could test, or lacks what the test needs."""


class Answer(Record):
    """One line of a part's output. ``left_out``: the test was not run, ``result.text`` says why."""

    result: TestResult
    left_out: bool = False


def failed(text: str, *, value: str = "", limit: str = "") -> Found:
    """Something is wrong, and ``text`` says in a few words what."""
    return Found(outcome=Outcome.FAIL, text=text, value=value, limit=limit)


def unknown(text: str) -> Found:
    """Nothing can be said, and ``text`` says why."""
    return Found(outcome=Outcome.UNKNOWN, text=text)


def worst(found: list[Found]) -> Found:
    """The one that says most: a failure before what is unknown before a pass; the first of equals."""
    order = (Outcome.FAIL, Outcome.UNKNOWN, Outcome.PASS)
    return min(found, key=lambda one: order.index(one.outcome))
