"""What the inspection of nodes has seen, for people. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from slurm_robust.controller.evidence.texts import one_line
from slurm_robust.model.alerts import Alert
from slurm_robust.model.record import Record


class SavedAlerts(Record):
    """``alerts.json``. ``t``: seconds since 1970, when the ages were told; ``left_out``: older ones."""

    t: float
    alerts: dict[str, tuple[Alert, ...]]
    left_out: int = 0


def kept(alerts: Mapping[str, Sequence[Alert]], t: float, most: int) -> SavedAlerts:
    """The newest alerts of all nodes that fit into ``most`` bytes of JSON."""
    newest = sorted(
        ((node, alert) for node in alerts for alert in alerts[node]), key=lambda pair: pair[1].age_s
    )
    chosen: dict[str, list[Alert]] = {}
    count = 0
    for node, alert in newest:
        most -= len(msgspec.json.encode(alert)) + len(node)
        if most < 0:
            break
        chosen.setdefault(node, []).append(alert)
        count += 1
    ordered = {node: tuple(chosen[node]) for node in sorted(chosen)}
    return SavedAlerts(t=t, alerts=ordered, left_out=len(newest) - count)


def in_words(saved: SavedAlerts) -> Iterator[str]:
    """One line per alert, of each node the newest first."""
    for node, alerts in saved.alerts.items():
        for alert in alerts:
            yield f"{node}  {in_short(alert, saved.t)}"
    if saved.left_out:
        yield f"and {saved.left_out} older ones"


def in_short(alert: Alert, t: float) -> str:
    """``10:00:01 to 10:00:04: net.link mlx5_0/1: link down (blames fabric, suggests reset)``.

    Ages count back from ``t``, in seconds since 1970.
    """
    until = "and still there" if alert.ended_s is None else f"to {_clock(t - alert.ended_s)}"
    what = f"{alert.check} {alert.subject}".strip()
    advice = f"blames {alert.blame.value}, suggests {alert.suggestion.value}"
    return one_line(f"{_clock(t - alert.age_s)} {until}: {what}: {alert.text} ({advice})")


def _clock(t: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(t))
