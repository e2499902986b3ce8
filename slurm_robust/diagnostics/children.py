"""Work of one test in processes side by side, all of which end in time: one for each GPU or rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from slurm_robust.diagnostics.part import Measurement, died, failed, late
from slurm_robust.util import isolate
from slurm_robust.util.process import die_with_parent

# A child that dies after so much of its time is late too: NCCL ends a rank whose time is over.
_LATE = 0.8


def in_children(bodies: Mapping[str, Callable[[], Measurement]], limit_s: float) -> dict[str, Measurement]:
    """What each body found, by its name. One that raises has failed.

    One that dies or does not end in time has measured nothing.

    The caller must not have used a GPU: a driver's context does not outlive a fork.
    """
    tasks = {name: partial(_encoded, body, os.getpid()) for name, body in bodies.items()}
    answers = isolate.call(tasks, dict.fromkeys(tasks, limit_s), limit_s + 1.0)
    return {name: _decoded(name, answer, limit_s) for name, answer in answers.items()}


def _decoded(name: str, answer: isolate.Answer, limit_s: float) -> Measurement:
    if answer.value is None:
        return without_value(answer, limit_s, name)
    return msgspec.json.decode(answer.value, type=Measurement)


def without_value(answer: isolate.Answer, limit_s: float, what: str = "") -> Measurement:
    """What a child that has not answered within ``limit_s`` seconds leaves to say of ``what`` it did."""
    if answer.hung or answer.is_cut or (answer.died and answer.took_s >= _LATE * limit_s):
        return late(limit_s, what)
    text = f"{what}: {answer.error}".removeprefix(": ")
    return died(text) if answer.died else failed(text)


def _encoded(body: Callable[[], Measurement], parent: int) -> bytes:
    die_with_parent(parent)
    return msgspec.json.encode(body())
