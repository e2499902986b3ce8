"""What the judges of GPUs share. Pure."""

from __future__ import annotations

from collections.abc import Callable

from slurm_robust.model.findings import Finding, Party, Suggestion
from slurm_robust.nodes.check import View, judged
from slurm_robust.nodes.counters import HOUR_S, grown, readings
from slurm_robust.nodes.gpus.facts import Gpu, GpuFacts

GpuView = View[GpuFacts]

CONFIRM_AFTER_S = 10.0
"""This long after the first run a second one must find the same before it counts. A driver that registers or
unpins memory of a process, or tears down what a dead one had, may be silent meanwhile."""


def finding(
    check: str,
    gpu: Gpu,
    bad: str = "",
    *,
    value: object = "",
    limit: object = "",
    source: str,
    suggestion: Suggestion = Suggestion.MONITOR,
    blame: Party = Party.NODE,
) -> Finding:
    """Return :func:`~slurm_robust.nodes.check.judged` for one GPU."""
    return judged(
        check,
        bad,
        subject=gpu.label,
        value=str(value),
        limit=str(limit),
        source=source,
        suggestion=suggestion,
        blame=blame,
    )


def counted(
    check: str,
    gpu: Gpu,
    what: str,
    number: int,
    most: int,
    *,
    source: str,
    suggestion: Suggestion = Suggestion.MONITOR,
) -> Finding:
    """Return a failure if ``number`` is more than ``most``, else a pass; ``what`` says what was counted."""
    bad = f"{what}: {number}" if number > most else ""
    return finding(check, gpu, bad, value=number, limit=most, source=source, suggestion=suggestion)


def answering(facts: GpuFacts) -> tuple[Gpu, ...]:
    """Return the GPUs that speak for themselves; ``gpu.lost`` speaks of the others."""
    return tuple(gpu for gpu in facts.gpus if gpu.trouble is None)


def twin(facts: GpuFacts | None, gpu: Gpu) -> Gpu | None:
    """Return the same GPU in other facts; None if it was not there, or did not answer."""
    for other in answering(facts) if facts else ():
        if (other.uuid, other.bus) == (gpu.uuid, gpu.bus):
            return other
    return None


def earlier(view: GpuView, gpu: Gpu) -> tuple[Gpu, ...]:
    """Return the GPU in the samples of this boot's last hour, oldest first."""
    samples = [
        sample.facts
        for sample in view.before
        if sample.boot_id == view.boot_id and 0 <= view.at - sample.at <= HOUR_S
    ]
    return tuple(found for facts in samples if (found := twin(facts, gpu)) is not None)


def seen_before(view: GpuView, same: Callable[[GpuFacts], bool]) -> bool:
    """Return whether all runs since one :data:`CONFIRM_AFTER_S` or more ago, in this boot, were like this."""
    begun = view.at
    for sample in reversed(view.before):
        if sample.boot_id != view.boot_id or sample.at > view.at or not same(sample.facts):
            break
        begun = sample.at
    return view.at - begun >= CONFIRM_AFTER_S


def risen(view: GpuView, gpu: Gpu, counter: Callable[[Gpu], int | None]) -> int:
    """Return by how much one of the GPU's counters rose within the last hour."""

    def value(facts: GpuFacts) -> int | None:
        found = twin(facts, gpu)
        return None if found is None else counter(found)

    return grown(readings(view, value), HOUR_S, view.at)
