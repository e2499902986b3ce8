"""What the output of a failed training says about the cause."""

from __future__ import annotations

from enum import Enum

from slurm_robust.model.record import Record


class Cause(str, Enum):
    """To whom or what a log points."""

    INFRASTRUCTURE = "infrastructure"
    USER_CODE = "user_code"
    USER_CONFIG = "user_config"
    TRANSIENT = "transient"
    SECONDARY = "secondary"
    """Another rank or node failed before; this one only lost it."""

    NONE = "none"
    """Nothing is wrong."""

    UNKNOWN = "unknown"
    """No rule knows the log."""


class Remedy(str, Enum):
    """What a log asks for."""

    RESTART = "restart"
    EVICT = "evict"
    ROLLBACK_OR_FIX = "rollback_or_fix"
    RECONFIGURE = "reconfigure"
    NONE = "none"


class Classification(Record):
    """The verdict on one log.

    ``symptom`` is the main one of ``symptoms``; ``line`` the line that decided, as it stands in the log;
    ``rule`` the name of the rule that matched it, "" when none did; ``place`` the module and line of a
    Python traceback (``train.py:12``), "" without one.
    """

    symptom: str
    blame: Cause
    action: Remedy
    symptoms: tuple[str, ...] = ()
    line: str = ""
    rule: str = ""
    place: str = ""


class JobClassification(Record):
    """The verdict on the logs of several ranks: that of the root, and which ranks are roots."""

    verdict: Classification
    root_ranks: tuple[int, ...] = ()
    ranks: dict[int, Classification] = {}
