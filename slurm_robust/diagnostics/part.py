"""A node's part of a test: what it gets, what it measures, and its answer in one line."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import TestResult
from slurm_robust.model.record import Record
from slurm_robust.util import isolate
from slurm_robust.util.process import die_with_parent


class TestPart(Record):
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
    """False if the program came to no result: its time was over, or something ended it."""


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
    """Return that something is wrong; ``text`` says what."""
    return Measurement(outcome=Outcome.FAIL, text=text)


def died(text: str) -> Measurement:
    """Return that something ended the program; ``text`` is what is known of it."""
    return Measurement(outcome=Outcome.FAIL, text=text, measured=False)


def late(limit_s: float, what: str = "") -> Measurement:
    """Return that ``what`` had no result within ``limit_s`` seconds, with this node's load, a likely
    cause.
    """
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    text = f"{what}: no result within {limit_s:.0f} s ({load})".removeprefix(": ")
    return Measurement(outcome=Outcome.UNKNOWN, text=text, measured=False)


def unknown(text: str, *, measured: bool = True) -> Measurement:
    """Return that nothing can be said; ``text`` says why."""
    return Measurement(outcome=Outcome.UNKNOWN, text=text, measured=measured)


def worst(found: list[Measurement]) -> Measurement:
    """Return the one that says most: failures, measured ones first, unknowns, passes; the first of equals."""
    return min(found, key=lambda one: (one.outcome.order, not one.measured))


# A child that dies after so much of its time is late too: NCCL ends a rank whose time is over.
_LATE = 0.8


def in_children(bodies: Mapping[str, Callable[[], Measurement]], limit_s: float) -> dict[str, Measurement]:
    """Return what each body found, by its name. One that raises has failed.

    One that dies or does not end in time has measured nothing.

    The caller must not have used a GPU: a driver's context does not outlive a fork.
    """
    tasks = {name: partial(_encoded, body, os.getpid()) for name, body in bodies.items()}
    answers = isolate.call(tasks, dict.fromkeys(tasks, limit_s), limit_s + 1.0)
    return {name: _decoded(name, answer, limit_s) for name, answer in answers.items()}


def _decoded(name: str, answer: isolate.CallResult, limit_s: float) -> Measurement:
    if answer.value is None:
        return without_value(answer, limit_s, name)
    return msgspec.json.decode(answer.value, type=Measurement)


def without_value(answer: isolate.CallResult, limit_s: float, what: str = "") -> Measurement:
    """Return what to say of ``what`` a child did that has not answered within ``limit_s`` seconds."""
    if answer.hung or answer.is_cut or (answer.died and answer.took_s >= _LATE * limit_s):
        return late(limit_s, what)
    text = f"{what}: {answer.error}".removeprefix(": ")
    return died(text) if answer.died else failed(text)


def _encoded(body: Callable[[], Measurement], parent: int) -> bytes:
    die_with_parent(parent)
    return msgspec.json.encode(body())
