"""Checks of the clock: whether it is kept right, and how far it is off."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from slurm_robust.config.node import NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion, Writer
from slurm_robust.model.record import Record
from slurm_robust.nodes.check import EVERYWHERE, AnyCheck, Check, Probe, Source, View, judged

SOURCE_NAME = "adjtimex"

# linux/timex.h
_UNSYNC, _NANO = 0x0040, 0x2000
# The beginning of its struct timex, in C's native alignment: modes, offset, freq, maxerror, esterror, status.
_TIMEX = struct.Struct("@illlli")
_TIMEX_BYTES = 208


class ClockFacts(Record):
    """What the kernel knows of its clock. All in seconds."""

    synchronised: bool
    offset_s: float
    """What it still has to slew by."""

    error_s: float
    """The daemon's estimate of its own error."""

    bound_s: float
    """The most that it may be off."""


def gather(host: Host, config: NodeConfig) -> ClockFacts:
    """Ask with adjtimex(2), which needs no right as long as nothing is set. Raises ``OSError``."""
    if not host.is_real:
        raise RuntimeError("the clock of a copy of a machine cannot be asked")
    # Takes milliseconds to import, and this runs in a child process.
    import ctypes

    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.adjtimex(buffer) < 0:
        raise OSError(ctypes.get_errno(), "adjtimex failed")
    _, offset, _, bound, error, status = _TIMEX.unpack_from(buffer)
    return ClockFacts(
        synchronised=not status & _UNSYNC,
        offset_s=offset * (1e-9 if status & _NANO else 1e-6),
        error_s=error * 1e-6,
        bound_s=bound * 1e-6,
    )


SOURCE = Source(name="clock", facts=ClockFacts, gather=gather, fresh_s=300.0)


def judge_sync(view: View[ClockFacts], config: NodeConfig) -> Iterator[Finding]:
    """Judge the clock. Virtual machines may take their host's without telling the kernel: unknown."""
    synchronised, required = view.facts.synchronised, config.clock.require_sync
    outcome = Outcome.PASS if synchronised else Outcome.FAIL if required else Outcome.UNKNOWN
    yield Finding(
        check="clock.sync",
        outcome=outcome,
        text="" if synchronised else "nothing keeps the clock right: start chronyd or its like",
        value="synchronised" if synchronised else "not synchronised",
        limit="synchronised" if required else "",
        source=SOURCE_NAME,
        blame=Party.SITE,
        suggestion=Suggestion.RESET if outcome is Outcome.FAIL else Suggestion.NONE,
    )


def judge_offset(view: View[ClockFacts], config: NodeConfig) -> Iterator[Finding]:
    """Judge the offset, which only a clock has that is compared with another one."""
    facts, most = view.facts, config.clock.max_offset_s
    if not facts.synchronised:
        return
    offset = max(abs(facts.offset_s), facts.error_s)
    yield judged(
        "clock.offset",
        f"clock is {offset:.3g} s off: look at chronyc tracking" if offset > most else "",
        value=f"{offset:.3g} s, at most {facts.bound_s:.3g} s",
        limit=f"at most {most:g} s",
        source=SOURCE_NAME,
        blame=Party.SITE,
    )


CHECKS: tuple[AnyCheck, ...] = (
    Check(
        name="clock.sync",
        source=SOURCE,
        judge=judge_sync,
        written_by=Writer.ROOT,
        contexts=EVERYWHERE,
        probe=Probe.NODE,
        hangs=True,
        explain=(
            "Whether a daemon (chronyd, ntpd, ptp4l) keeps the clock right, by what the kernel says. A "
            "clock that no daemon keeps drifts seconds a day; munge refuses credentials at five minutes. "
            "Virtual machines may be right without it: unknown, unless clock.require_sync is set."
        ),
    ),
    Check(
        name="clock.offset",
        source=SOURCE,
        judge=judge_offset,
        written_by=Writer.ROOT,
        contexts=EVERYWHERE,
        probe=Probe.NODE,
        explain=(
            "How far a clock that is kept right is off at the moment (clock.max_offset_s). Logs, tickets "
            "and the comparison of ranks across nodes need better than half a second."
        ),
    ),
)
