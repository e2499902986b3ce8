"""What InfiniBand ports and Ethernet interfaces have in common. Pure."""

from __future__ import annotations

from fnmatch import fnmatchcase

from slurm_robust.config.node import NetworkLimits
from slurm_robust.health.counters import HOUR_S, Reading, grown, most_within
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion


def ignored(limits: NetworkLimits, *names: str) -> bool:
    """Whether the site wants no check to look at it."""
    return any(fnmatchcase(name, pattern) for pattern in limits.ignore for name in names)


def flaps(
    check: str, subject: str, track: list[Reading], now: float, limits: NetworkLimits, source: str
) -> Finding:
    """What the losses of one link within the last hour mean; ``track`` are readings of their counter."""
    recent = [(at, count) for at, count in track if at >= now - HOUR_S]
    lost = grown(recent, HOUR_S, now)
    close = most_within(recent, limits.flap_window_s)
    is_fault = close >= 2 or lost > limits.max_link_downed_per_hour
    times = f"{lost} times" if lost > 1 else "once"
    return Finding(
        check=check,
        subject=subject,
        outcome=Outcome.FAIL if lost else Outcome.PASS,
        text=f"link was lost {times} within an hour" if lost else "",
        value=f"{lost} per hour, {close} within {limits.flap_window_s:g} s",
        limit=f"{limits.max_link_downed_per_hour} per hour, 1 within {limits.flap_window_s:g} s",
        source=source,
        blame=Party.FABRIC if lost else Party.NODE,
        suggestion=Suggestion.RESET if is_fault else Suggestion.MONITOR if lost else Suggestion.NONE,
        count=lost,
    )
