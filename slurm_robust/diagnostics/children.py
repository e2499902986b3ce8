"""Work of one test in processes side by side, all of which end in time: one for each GPU or rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from slurm_robust.diagnostics.part import Found, failed
from slurm_robust.health import isolate
from slurm_robust.worker.process import die_with_parent


def in_children(bodies: Mapping[str, Callable[[], Found]], limit_s: float) -> dict[str, Found]:
    """What each body found, by its name. One that raises, dies or does not end in time has failed.

    The caller must not have used a GPU: a driver's context does not outlive a fork.
    """
    tasks = {name: partial(_encoded, body, os.getpid()) for name, body in bodies.items()}
    answers = isolate.call(tasks, dict.fromkeys(tasks, limit_s), limit_s + 1.0)
    return {name: _decoded(name, answer) for name, answer in answers.items()}


def _decoded(name: str, answer: isolate.Answer) -> Found:
    if answer.value is None:
        return failed(f"{name}: {answer.error}", by_clock=answer.hung or answer.is_cut)
    return msgspec.json.decode(answer.value, type=Found)


def _encoded(body: Callable[[], Found], parent: int) -> bytes:
    die_with_parent(parent)
    return msgspec.json.encode(body())
