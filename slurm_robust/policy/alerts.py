"""From what agents have seen of their nodes to the nodes to evict, before training shows anything. Pure.

Damping: a link may heal by itself, so alerts of the network are counted; and what many nodes see together is
no fault of one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from slurm_robust.model.findings import Alert, Effect, Party
from slurm_robust.model.incident import Fault, Symptom
from slurm_robust.model.record import Record
from slurm_robust.policy.rules import Rules
from slurm_robust.util.text import some_of

T = TypeVar("T")

# Beyond the time between two checks of the network: how far apart nodes see one event at most.
_APART_S = 5.0
# This many nodes, and more than this share of the job, do not break in the same way together.
_CROWD = 3
_CROWD_SHARE = 1 / 3
# Checks in a row that find a link down or slow, after which it counts as a second alert.
_MISSES = 2


class _Event(Record):
    """What happened to the links of one node at one time, whatever it was noticed by; oldest alert first."""

    node: str
    leaf: str
    alerts: tuple[Alert, ...]

    @property
    def age_s(self) -> float:
        """Since it began."""
        return self.alerts[0].age_s


def judge(
    alerts: Mapping[str, Sequence[Alert]], rules: Rules, *, nodes: int
) -> tuple[tuple[Fault, ...], tuple[str, ...]]:
    """Return the faults that name nodes for their hardware or their links.

    And lines that say why no other is named. ``nodes``: how many the job has. No node is evicted for the
    network if ``detect.network_alerts`` is 0.
    """
    together_s = rules.detect.network_s + _APART_S
    evict, crowds = _certain(alerts, nodes, together_s)
    events = [event for node in sorted(alerts) for event in _events(node, alerts, rules)]
    shared = _shared(events, nodes, together_s)
    network, counted = _count([event for event in events if event not in shared], rules)
    named = {
        Symptom.NODE_FAULT: evict,
        Symptom.NETWORK: {node: reason for node, reason in network.items() if node not in evict},
    }
    waits = (
        *crowds,
        *_switch_lines(shared),
        *(line for node, line in counted.items() if node not in evict),
        *(line for node in sorted(alerts) if node not in evict for line in _others(node, alerts[node])),
    )
    return tuple(Fault(symptom=symptom, named=own) for symptom, own in named.items() if own), waits


# -- faults of a node itself ------------------------------------------------------------------------


def _certain(
    alerts: Mapping[str, Sequence[Alert]], nodes: int, together_s: float
) -> tuple[dict[str, str], list[str]]:
    """Return the nodes to evict now, and lines about faults that too many have together."""
    by_check: dict[str, list[tuple[str, Alert]]] = {}
    for node in sorted(alerts):
        for alert in filter(_is_certain, alerts[node]):
            by_check.setdefault(alert.check, []).append((node, alert))
    own: dict[str, list[Alert]] = {}
    lines = []
    for check, found in sorted(by_check.items()):
        for group in _at_once(found, lambda pair: pair[1].age_s, together_s):
            names = {node for node, _ in group}
            if len(names) >= _CROWD and len(names) > nodes * _CROWD_SHARE:
                lines.append(f"{check} fails on {some_of(sorted(names))} together: no fault of the nodes")
            else:
                for node, alert in group:
                    own.setdefault(node, []).append(alert)
    return {node: _reason(found) for node, found in sorted(own.items())}, lines


def _is_certain(alert: Alert) -> bool:
    return (
        alert.ended_s is None
        and alert.blame is Party.NODE
        and not alert.is_link
        and alert.suggestion.keeps_jobs_away
        and alert.effect is not Effect.SLOW
    )


def _others(node: str, alerts: Iterable[Alert]) -> Iterator[str]:
    """Say why the other alerts that stand do not evict the node."""
    for alert in alerts:
        if alert.ended_s is not None or alert.is_link or not alert.suggestion.keeps_jobs_away:
            continue
        if alert.blame is not Party.NODE:
            yield f"{node}: {_format_alert(alert)}: blames the {alert.blame.value}, not the node"
        elif alert.effect is Effect.SLOW:
            yield f"{node}: {_format_alert(alert)}: the pace of the training shows whether it matters"


# -- the network -----------------------------------------------------------------------------------


def _events(node: str, alerts: Mapping[str, Sequence[Alert]], rules: Rules) -> Iterator[_Event]:
    """Return alerts of links within the window, grouped by event: several checks notice one loss."""
    recent = [a for a in alerts[node] if a.is_link and a.age_s <= rules.detect.network_window_s]
    recent.sort(key=lambda alert: (-alert.age_s, alert.number))
    while recent:
        begun = recent[0].age_s
        one = tuple(alert for alert in recent if begun - alert.age_s <= rules.detect.network_s + _APART_S)
        yield _Event(node=node, leaf=rules.leaves.get(node, ""), alerts=one)
        recent = recent[len(one) :]


def _shared(events: Sequence[_Event], nodes: int, together_s: float) -> dict[_Event, str]:
    """Return the events that several nodes have seen, with the leaf switch behind them, "" for a wider one.

    If two nodes behind one leaf lose their links together, the leaf is the cause. If the leaf is not known,
    or more than one is concerned, it takes a good part of the job.
    """
    shared: dict[_Event, str] = {}
    for leaf in {event.leaf for event in events} - {""}:
        for group in _at_once([e for e in events if e.leaf == leaf], lambda event: event.age_s, together_s):
            if len({event.node for event in group}) > 1:
                shared |= dict.fromkeys(group, leaf)
    for group in _at_once(events, lambda event: event.age_s, together_s):
        names = {event.node for event in group}
        if len(names) > 1 and len(names) > nodes * _CROWD_SHARE:
            leaves = {event.leaf for event in group}
            shared |= dict.fromkeys(group, leaves.pop() if len(leaves) == 1 else "")
    return shared


def _count(events: Iterable[_Event], rules: Rules) -> tuple[dict[str, str], dict[str, str]]:
    """Return the nodes whose links have failed often enough, and lines about the other ones, by node."""
    by_node: dict[str, list[_Event]] = {}
    for event in events:
        by_node.setdefault(event.node, []).append(event)
    evict, wait = {}, {}
    for node, own in by_node.items():
        count = sum(1 + any(_lasts(alert, rules) for alert in event.alerts) for event in own)
        # That a link is down says more than that it was lost.
        shown = max(own[-1].alerts, key=lambda alert: (_stands(alert), alert.number))
        times = f"{count} network alert{'s' if count > 1 else ''} within {rules.detect.network_window_s:g} s"
        limit = rules.detect.network_alerts
        if 0 < limit <= count:
            evict[node] = f"{times}: {_format_alert(shown)}"
        else:
            until = f"evicted at {limit}" if limit else "no node is evicted for it"
            wait[node] = f"{node}: {_format_alert(shown)}: {times}, {until}"
    return evict, wait


def _stands(alert: Alert) -> bool:
    return alert.effect is Effect.LINK_DOWN and alert.ended_s is None


def _lasts(alert: Alert, rules: Rules) -> bool:
    return (
        alert.effect is Effect.LINK_DOWN
        and alert.age_s - (alert.ended_s or 0.0) >= _MISSES * rules.detect.network_s
    )


def _switch_lines(shared: Mapping[_Event, str]) -> list[str]:
    by_leaf: dict[str, set[str]] = {}
    for event, leaf in shared.items():
        by_leaf.setdefault(leaf, set()).add(event.node)
    reasons = {leaf: f"an event of {leaf or 'the fabric'}, no node is evicted for it" for leaf in by_leaf}
    return [
        f"links of {some_of(sorted(names))} fail together: {reasons[leaf]}"
        for leaf, names in sorted(by_leaf.items())
    ]


def _at_once(items: Iterable[T], age_s: Callable[[T], float], within_s: float) -> Iterator[list[T]]:
    """Return the items in groups between which there is a longer pause than ``within_s``."""
    group: list[T] = []
    for item in sorted(items, key=age_s):
        if group and age_s(item) - age_s(group[-1]) > within_s:
            yield group
            group = []
        group.append(item)
    if group:
        yield group


# -- text ------------------------------------------------------------------------------------------


def _format_alert(alert: Alert) -> str:
    return f"{alert.subject} {alert.text or 'fails'} ({alert.check})".lstrip()


def _reason(alerts: Sequence[Alert]) -> str:
    worst = max(alerts, key=lambda alert: (alert.suggestion.weight, -alert.number))
    more = f" (+{len(alerts) - 1})" if len(alerts) > 1 else ""
    return _format_alert(worst) + more
