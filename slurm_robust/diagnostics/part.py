"""What a node's part of a test is told, what it finds, and what it says of that in one line."""

from __future__ import annotations

import os

from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import TestResult
from slurm_robust.model.record import Record


class Part(Record):
    """One node's part of one test.

    ``group``: the nodes that take part, the first of which is met at ``address`` and ``port``. ``gpus``: how
    many the node should have for us; ``gpus_together``: how many all nodes have, which do over NCCL what they
    do together (0: over gloo). ``storage``: the folder to be tested. ``limit_s``: seconds that are left.
    """

    node: str
    group: tuple[str, ...]
    address: str = "127.0.0.1"
    port: int = 0
    gpus: int = 0
    gpus_together: int = 0
    storage: str = ""
    limit_s: float = 60.0


class Found(Record):
    """What a part found; most fields are those of :class:`~slurm_robust.model.incident.TestResult`.

    ``measured`` is False where the program came to no result: its time was over, or something ended it.
    """

    outcome: Outcome = Outcome.PASS
    text: str = ""
    value: str = ""
    limit: str = ""
    digest: str = ""
    rate: float = 0.0
    kind: str = ""
    measured: bool = True


class NotHere(Exception):
    """The node has nothing that this test could test, or lacks what the test needs."""


class Wrong(Exception):
    """The node lacks what it should have, in words."""


class Died(Exception):
    """What the program had begun was ended by something, in words: nothing was measured."""


class Answer(Record):
    """One line of a part's output. ``left_out``: the test was not run, ``result.text`` says why.

    ``measured``: see :class:`Found`.
    """

    result: TestResult
    left_out: bool = False
    measured: bool = True


def failed(text: str) -> Found:
    """Something is wrong, and ``text`` says in a few words what."""
    return Found(outcome=Outcome.FAIL, text=text)


def died(text: str) -> Found:
    """Something ended the program; ``text`` is what is known of it."""
    return Found(outcome=Outcome.FAIL, text=text, measured=False)


def late(limit_s: float, what: str = "") -> Found:
    """No result within ``limit_s`` seconds of ``what``, with the load of this node, which may be why."""
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    text = f"{what}: no result within {limit_s:.0f} s ({load})".removeprefix(": ")
    return Found(outcome=Outcome.UNKNOWN, text=text, measured=False)


def unknown(text: str, *, measured: bool = True) -> Found:
    """Nothing can be said, and ``text`` says why."""
    return Found(outcome=Outcome.UNKNOWN, text=text, measured=measured)


def worst(found: list[Found]) -> Found:
    """The one that says most: failures, the measured ones first, what is unknown, passes; first of equals."""
    return min(found, key=lambda one: (one.outcome.order, not one.measured))
