"""Spans as a file for Perfetto and chrome://tracing: Chrome's trace event format. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from slurm_robust.telemetry.spans import Trace, TraceSpan, Value

_ROWS = (("update", "updates"), ("incident", "incidents"), ("stored", "checkpoints on storage"))
# What comes before the first blank of a span's key; all other spans lie within each other.
_JOB = "job"


class TraceEvent(msgspec.Struct, omit_defaults=True):
    """One entry of the list: a span (``X``), or the name of a process or row (``M``)."""

    name: str
    ph: str
    pid: int
    tid: int
    ts: float | None = None
    """Microseconds since 1970."""
    dur: float | None = None
    args: dict[str, Value] = {}


def document(trace: Trace, nodes: Mapping[str, Sequence[TraceSpan]]) -> bytes:
    """Return the file: rows for the job, its incidents, checkpoints and updates, and one for each node.

    ``nodes``: spans of single nodes, which must not overlap.
    """
    rows: dict[str, list[TraceSpan]] = {_JOB: [], **{row: [] for _, row in _ROWS}}
    kinds = dict(_ROWS)
    for span in trace.spans:
        rows[kinds.get(span.key.partition(" ")[0], _JOB)].append(span)
    rows |= {node: list(spans) for node, spans in nodes.items()}
    title = f"job {trace.attributes.get('slurm.job.id', '')}".strip()
    events = [TraceEvent(name="process_name", ph="M", pid=1, tid=0, args={"name": title})]
    for number, (row, spans) in enumerate(rows.items(), 1):
        events.append(TraceEvent(name="thread_name", ph="M", pid=1, tid=number, args={"name": row}))
        events.append(
            TraceEvent(name="thread_sort_index", ph="M", pid=1, tid=number, args={"sort_index": number})
        )
        for span in spans:
            about = {**span.attributes, **({"error": span.error} if span.error else {})}
            begin, dur = span.begin * 1e6, span.seconds * 1e6
            events.append(
                TraceEvent(name=span.name, ph="X", pid=1, tid=number, ts=begin, dur=dur, args=about)
            )
    return msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events})
