"""A node's part of a test: what it gets, what it measures, and its answer in one line."""

from __future__ import annotations

import os

from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import TestResult
from slurm_robust.model.record import Record


class Part(Record):
    """One node's part of one test."""

    node: str
    group: tuple[str, ...]
    """The nodes that take part; they meet at ``address`` and ``port`` of the first one."""
    address: str = "127.0.0.1"
    port: int = 0
    gpus: int = 0
    """How many the node should have for us."""
    gpus_together: int = 0
    """How many all nodes have, to use over NCCL what they do together; 0: over gloo."""
    storage: str = ""
    """The folder to be tested."""
    limit_s: float = 60.0
    """Seconds that are left."""


class Measurement(Record):
    """The result of a part; most fields are those of :class:`~slurm_robust.model.incident.TestResult`."""

    outcome: Outcome = Outcome.PASS
    text: str = ""
    value: str = ""
    limit: str = ""
    digest: str = ""
    rate: float = 0.0
    kind: str = ""
    measured: bool = True
    """False where the program came to no result: its time was over, or something ended it."""


class NotHere(Exception):
    """The node has nothing that this test could test, or lacks what the test needs."""


class Wrong(Exception):
    """The node lacks what it should have: the message says what."""


class Died(Exception):
    """Something ended what the program had begun: the message says what, and nothing was measured."""


class PartAnswer(Record):
    """One line of a part's output."""

    result: TestResult
    left_out: bool = False
    """The test was not run; ``result.text`` says why."""
    measured: bool = True
    """See :class:`Measurement`."""


def failed(text: str) -> Measurement:
    """Something is wrong, and ``text`` says what."""
    return Measurement(outcome=Outcome.FAIL, text=text)


def died(text: str) -> Measurement:
    """Something ended the program; ``text`` is what is known of it."""
    return Measurement(outcome=Outcome.FAIL, text=text, measured=False)


def late(limit_s: float, what: str = "") -> Measurement:
    """No result within ``limit_s`` seconds of ``what``, with the load of this node, which may be why."""
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    text = f"{what}: no result within {limit_s:.0f} s ({load})".removeprefix(": ")
    return Measurement(outcome=Outcome.UNKNOWN, text=text, measured=False)


def unknown(text: str, *, measured: bool = True) -> Measurement:
    """Nothing can be said, and ``text`` says why."""
    return Measurement(outcome=Outcome.UNKNOWN, text=text, measured=measured)


def worst(found: list[Measurement]) -> Measurement:
    """The one that says most: failures, the measured ones first, what is unknown, passes; first of equals."""
    return min(found, key=lambda one: (one.outcome.order, not one.measured))
