"""Judges whether the GPUs are there, are the same as ever, and answer. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from slurm_robust.config.node import NodeConfig
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion
from slurm_robust.nodes.check import judged
from slurm_robust.nodes.gpus.facts import Gpu, GpuError, GpuFacts
from slurm_robust.nodes.gpus.judging import GpuView, finding, seen_before
from slurm_robust.util.text import some_of

COUNT = "gpu.count"
IDENTITY = "gpu.identity"
LOST = "gpu.lost"

_QUICK_S = 1.0


def judge_count(view: GpuView, config: NodeConfig) -> Iterator[Finding]:
    """Judge the number by the site or the baseline; without either, by those that are on the bus."""
    facts = view.facts
    if facts.stuck_in:
        return
    expected = config.gpu.count
    if expected is None and view.baseline is not None:
        expected = len(view.baseline.gpus)
    if facts.fault:
        yield _count(facts.fault, facts, expected, blame=Party.SITE)
    elif facts.unreadable:
        yield Finding(check=COUNT, outcome=Outcome.UNKNOWN, text=facts.unreadable, source="driver")
    elif expected is None:
        yield from _compare_with_bus(facts)
    elif len(facts.gpus) < expected:
        known = {gpu.bus for gpu in facts.gpus}
        wanted = {gpu.bus for gpu in view.baseline.gpus} if view.baseline else set(facts.on_bus)
        missing = sorted(wanted - known - {""})
        names = f", missing {' '.join(missing)}" if missing else ""
        yield _count(f"{len(facts.gpus)} of {expected} GPUs{names}", facts, expected)
    elif len(facts.gpus) > expected:
        text = f"{len(facts.gpus)} GPUs, {expected} expected: correct gpu.count or record a new baseline"
        yield _count(text, facts, expected, Suggestion.MONITOR, Party.SITE)
    elif facts.gpus:
        yield _count("", facts, expected)


def _count(
    bad: str,
    facts: GpuFacts,
    expected: int | None,
    suggestion: Suggestion = Suggestion.REBOOT,
    blame: Party = Party.NODE,
) -> Finding:
    return judged(
        COUNT,
        bad,
        value=str(len(facts.gpus)),
        limit="" if expected is None else str(expected),
        source="driver",
        suggestion=suggestion,
        blame=blame,
    )


def _compare_with_bus(facts: GpuFacts) -> Iterator[Finding]:
    listed = {gpu.bus for gpu in facts.gpus}
    unlisted = [bus for bus in facts.on_bus if bus not in listed]
    # A GPU that is lost may tell its address no more.
    unnamed = sum(not gpu.bus for gpu in facts.gpus)
    if facts.gpus and len(unlisted) > unnamed:
        text = f"{' '.join(unlisted)} on the PCI bus, but the driver does not list it"
        yield _count(text, facts, len(facts.on_bus), Suggestion.MONITOR)
    elif facts.gpus:
        yield _count("", facts, None)
    elif unlisted:
        # A node may have GPUs that are not meant to be used.
        text = f"{' '.join(unlisted)} on the PCI bus without a driver"
        yield Finding(check=COUNT, outcome=Outcome.UNKNOWN, text=text, source="PCI bus")


def judge_identity(view: GpuView, config: NodeConfig) -> Iterator[Finding]:
    """Judge that they are the GPUs of the baseline, and no others."""
    if view.baseline is None or not view.baseline.gpus or view.facts.stuck_in:
        return
    before = {gpu.uuid for gpu in view.baseline.gpus} - {""}
    now = {gpu.uuid for gpu in view.facts.gpus} - {""}
    if not now or not before:
        return
    # Missing ones are gpu.count's or gpu.lost's: this check is about others in their place.
    new, gone = sorted(now - before), sorted(before - now)
    text = ""
    if new:
        text = f"GPUs are not those of the baseline: new {some_of(new, 2)}"
        text += f", gone {some_of(gone, 2)}" if gone else ""
    yield judged(
        IDENTITY,
        text,
        value=f"{len(now & before)} known",
        limit=f"{len(before)} of the baseline",
        source="UUIDs",
        blame=Party.SITE,
    )


def judge_lost(view: GpuView, config: NodeConfig) -> Iterator[Finding]:
    """Judge that every GPU that the driver lists answers, and the driver, too."""
    if view.facts.stuck_in:
        yield _silence(view)
    for gpu in view.facts.gpus:
        if gpu.trouble is GpuError.OTHER:
            yield Finding(
                check=LOST, outcome=Outcome.UNKNOWN, subject=gpu.label, text=gpu.error, source="driver"
            )
            continue
        if gpu.trouble is GpuError.ERRORS and not seen_before(view, partial(_has_errors, gpu.index)):
            yield Finding(
                check=LOST,
                outcome=Outcome.UNKNOWN,
                subject=gpu.label,
                text=f"answers with errors, the next run decides: {gpu.error}",
                source="driver",
            )
            continue
        where = f" at {gpu.bus}" if gpu.bus else ""
        bad = {
            None: "",
            GpuError.LOST: f"lost{where}, fell off the bus",
            GpuError.RESET_REQUIRED: f"needs a reset{where}",
            GpuError.ERRORS: f"answers with errors{where}: {gpu.error}",
        }[gpu.trouble]
        reset = gpu.trouble is GpuError.RESET_REQUIRED
        yield finding(
            LOST,
            gpu,
            bad,
            value=gpu.error or _unanswered(gpu) or "answers",
            source="driver",
            suggestion=Suggestion.RESET if reset else Suggestion.REBOOT,
        )


def _has_errors(index: int, facts: GpuFacts) -> bool:
    return any(gpu.index == index and gpu.trouble is GpuError.ERRORS for gpu in facts.gpus)


def _unanswered(gpu: Gpu) -> str:
    """Return what a GPU that speaks for itself leaves open: worth a word, no reason to doubt the rest."""
    more = f" (+{len(gpu.errors) - 1})" if len(gpu.errors) > 1 else ""
    return f"answers, but {gpu.errors[0]}{more}" if gpu.errors else ""


def _silence(view: GpuView) -> Finding:
    """Judge a silent driver: one that was quick in this boot hangs if it is silent in a second run, too.

    A driver that was never seen may be waking its GPUs; one that is silent once may be busy with a process
    that starts or dies.
    """
    same_boot = [sample.facts for sample in view.before if sample.boot_id == view.boot_id]
    was_quick = any(not facts.stuck_in and facts.gpus and facts.took_s <= _QUICK_S for facts in same_boot)
    stays_awake = view.baseline is not None and any(gpu.persistence for gpu in view.baseline.gpus)
    is_known = was_quick or stays_awake
    hangs = is_known and seen_before(view, lambda facts: bool(facts.stuck_in))
    text = "driver is slow: hangs, or persistence mode is off"
    if is_known:
        text = "driver hangs" if hangs else "driver does not answer, the next run decides"
    return Finding(
        check=LOST,
        outcome=Outcome.FAIL if hangs else Outcome.UNKNOWN,
        text=text,
        value=f"no answer to {view.facts.stuck_in} in {view.facts.took_s:.1f} s",
        limit=f"{_QUICK_S:g} s",
        source="driver",
        suggestion=Suggestion.REBOOT if hangs else Suggestion.NONE,
    )
