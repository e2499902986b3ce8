"""The small values in Slurm's output: times, durations, states, generic resources. Pure."""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal

from slurm_robust.slurm.errors import UnparsableOutput
from slurm_robust.slurm.records import Gres, SlurmVersion
from slurm_robust.util.hostlist import InvalidHostlist, expand

# A job in one of these is also PENDING, or RUNNING, but text output shows only one state.
_WAITING = frozenset({"EXPEDITING", "REQUEUE_HOLD", "SPECIAL_EXIT"})
_WORKING = frozenset({"RESIZING", "SIGNALING", "STOPPED"})
# What sinfo prints for states of nodes (node_state_string, node_state_string_compact), by suffix and by name.
_SUFFIXES = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "%": "POWERING_DOWN",
    "!": "POWER_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
_SINFO = {
    name: frozenset(states.split())
    for names, states in (
        ("ALLOC", "ALLOCATED"),
        ("MIX", "MIXED"),
        ("FUTR", "FUTURE"),
        ("UNK", "UNKNOWN"),
        ("COMP", "COMPLETING"),
        ("DRNG DRAINING", "MIXED DRAIN"),
        ("DRAINED", "DRAIN"),
        ("FAILG FAILING", "MIXED FAIL"),
        ("MAINT", "MAINTENANCE"),
        ("BOOT REBOOT", "REBOOT_REQUESTED"),
        ("RESV", "IDLE RESERVED"),
        ("PLND", "IDLE PLANNED"),
        ("BLOCK", "IDLE BLOCKED"),
        ("INVAL", "INVALID_REG"),
        ("POW_DN", "POWER_DOWN"),
        ("POW_UP", "POWER_UP"),
        ("POWRING_DN", "POWERING_DOWN"),
        ("POWERED_DN", "POWERED_DOWN"),
        ("CANC_R CANCEL_REBOOT REBOOT_CANCELED", "REBOOT_CANCEL"),
        ("EXT", "EXTERNAL"),
        ("RESM", "RESUME"),
        ("NPC", "PERFCTRS"),
    )
    for name in names.split()
}
_UNSET = frozenset({"", "(null)", "N/A", "n/a", "None", "Unknown", "none"})

NEVER_S = 65534
"""What Slurm shows for a time limit that was never set."""

PROLOG_AT_ALLOCATION = frozenset(
    {"alloc", "contain", "deferbatch", "forcerequeueonfail", "nohold", "runinjob", "x11"}
)
"""Alloc and the other words of PrologFlags that let the prolog run as the job gets the node."""


def parse_version(text: str) -> SlurmVersion:
    """Parse ``slurm-wlm 22.05.8`` or ``slurm 24.11.0-0rc1``. Raises UnparsableOutput."""
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    if match is None:
        raise UnparsableOutput(f"no release number in {text.strip()!r}", stdout=text)
    return SlurmVersion(major=int(match[1]), minor=int(match[2]), micro=int(match[3] or 0))


def parse_time(text: str) -> float | None:
    """Parse seconds since 1970, or Slurm's local time ``2026-11-21T08:17:39``; None for Unknown, N/A."""
    value = text.strip()
    if value in _UNSET or value == "0":
        return None
    if value.isdecimal():
        return float(value)
    try:
        return datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError):
        return None


def parse_duration(text: str) -> float | None:
    """Parse ``[days-]hours:minutes:seconds`` or ``minutes:seconds`` into seconds; None for UNLIMITED etc."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def parse_time_limit(text: str) -> float | None:
    """Parse ``--time`` as sbatch(1) takes it into seconds; None for UNLIMITED. Raises ``ValueError``."""
    plain = text.strip()
    if plain.upper() in ("UNLIMITED", "INFINITE"):
        return None
    if match := re.fullmatch(r"(?:(\d+)-(\d+)(?::(\d+))?(?::(\d+))?|(\d+):(\d+):(\d+))", plain, re.ASCII):
        days, *day_time = (int(part or 0) for part in match.groups()[:4])
        hours, minutes, seconds = day_time if match[1] else (int(part) for part in match.groups()[4:])
    elif match := re.fullmatch(r"(\d+)(?::(\d+))?", plain, re.ASCII):
        days, hours, minutes, seconds = 0, 0, int(match[1]), int(match[2] or 0)
    else:
        raise ValueError(f"{text!r} is no time limit such as 90, 12:00:00 or 7-00:00:00")
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def time_limit_text(seconds: float) -> str:
    """Return seconds as sbatch(1) takes a time limit: ``7-00:00:00``, ``04:00:00``."""
    days, rest = divmod(int(seconds), 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def parse_states(text: str) -> frozenset[str]:
    """Parse ``DOWN*+DRAIN`` into DOWN, DRAIN, NOT_RESPONDING.

    Also what sinfo(1) makes of states: its short names, and the suffixes, each of which stands for a flag.
    """
    states: set[str] = set()
    for state in text.upper().strip().split("+"):
        bare = state.rstrip("".join(_SUFFIXES))
        flags = {_SUFFIXES[suffix] for suffix in state[len(bare) :]}
        # "MAINT*" and "BOOT^" have no other base.
        names = _SINFO.get(bare, frozenset({bare}) if bare else frozenset())
        states |= names - {"REBOOT_REQUESTED"} if "REBOOT_ISSUED" in flags else names
        states |= flags
    return frozenset(states)


def parse_job_states(text: str) -> frozenset[str]:
    """Parse as ``parse_states``, with PENDING or RUNNING if Slurm's text has something else in its place."""
    states = parse_states(text)
    if states & _WAITING:
        return states | {"PENDING"}
    return states | {"RUNNING"} if states & _WORKING else states


def parse_gres(text: str) -> tuple[Gres, ...]:
    """Parse ``gpu:h200:8(S:0-1),gpu:8(IDX:0-7),nic:2`` into records; ``gres/gpu:8``, ``gres:gpu:8`` too."""
    found: list[Gres] = []
    for part in re.sub(r"\([^)]*\)", "", text).split(","):
        fields = [field for field in re.split(r"[:/=]", part.strip()) if field and field != "gres"]
        if not fields or fields[0] in _UNSET:
            continue
        count = 1
        if len(fields) > 1 and re.fullmatch(r"\d+[KkMmGgTt]?", fields[-1]):
            last = fields.pop()
            scale = 1024 ** ("kmgt".find(last[-1].lower()) + 1)
            count = int(last.rstrip("KkMmGgTt")) * scale
        found.append(Gres(name=fields[0], type=":".join(fields[1:]), count=count))
    return tuple(found)


def parse_memory(text: str) -> int:
    """Return the bytes of ``40G``, as ``--mem`` has it: in powers of 1024, without a unit MiB.

    ``40GB`` and ``40GiB`` are the same. ``1.5T`` is more than Slurm takes. Raises ``ValueError``.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(?:([KMGT])(?:I?B)?)?", text.strip().upper(), re.ASCII)
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 40G")
    return int(Decimal(match[1]) * (1 << 10 * ("KMGT".index(match[2] or "M") + 1)))


def parse_names(text: str, *, functions: bool = False) -> tuple[str, ...]:
    """Return a hostlist to names, in order. Raises UnparsableOutput.

    With ``functions``, ``switch{leaf3}`` stays as it is written: what a job asks for goes back to Slurm.
    """
    try:
        return expand(text, functions=functions)
    except InvalidHostlist as error:
        raise UnparsableOutput(str(error), stdout=text) from error


def parse_number(text: str) -> int | None:
    """Parse ``60 sec``, as a setting of slurm.conf, into 60; None if it does not begin with a number."""
    match = re.match(r"\d+", text)
    return int(match[0]) if match else None


def parse_words(text: str) -> frozenset[str]:
    """Return a list as a setting of slurm.conf, in lower case, without the values of its items."""
    return frozenset(item.partition("=")[0].strip().lower() for item in text.split(",")) - {""}


def parse_list(text: str) -> tuple[str, ...]:
    """Parse ``a,b`` into a, b; nothing for ``(null)`` and the like."""
    return tuple(item for item in text.split(",") if item not in _UNSET)
