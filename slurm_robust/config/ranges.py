"""Refusing single values of a configuration, in the same words everywhere."""

from __future__ import annotations

import math

from slurm_robust.config.errors import InvalidValue


def at_least(record: object, name: str, lowest: int) -> None:
    """Refuse a number below ``lowest``; None is fine. Raises :class:`InvalidValue`, like the others."""
    value = getattr(record, name)
    if value is not None and value < lowest:
        raise InvalidValue((name,), f"{name} is {value}", f"use {lowest} or more")


def positive(record: object, name: str) -> None:
    """Refuse what is no finite time above 0."""
    value = getattr(record, name)
    if not (math.isfinite(value) and value > 0):
        raise InvalidValue((name,), f"{name} is {value:g}", "use a number of seconds above 0")


def not_empty(record: object, name: str, fix: str) -> None:
    """Refuse an empty text; ``fix`` says what to write instead."""
    if getattr(record, name) == "":
        raise InvalidValue((name,), f"{name} is empty", fix)
