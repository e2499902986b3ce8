"""What one run of the checks found."""

from __future__ import annotations

from slurm_robust.health.check import Context
from slurm_robust.model.findings import Finding, Suggestion
from slurm_robust.model.record import Record

OUT_OF_TIME = "budget"
"""Why a check was left out for which the time was too short."""


class Report(Record):
    """One run. ``took_s``: seconds per source; ``reused``: sources whose facts were an earlier run's;
    ``left_out``: checks that did not run, with the reason; ``errors``: checks or sources that are broken
    themselves. ``at`` is seconds since 1970.
    """

    node: str
    at: float
    boot_id: str
    context: Context
    findings: tuple[Finding, ...]
    took_s: dict[str, float] = {}
    reused: tuple[str, ...] = ()
    left_out: dict[str, str] = {}
    errors: dict[str, str] = {}
    wall_s: float = 0.0

    @property
    def cut(self) -> tuple[str, ...]:
        """Checks for which the time was too short."""
        return tuple(sorted(name for name, why in self.left_out.items() if why == OUT_OF_TIME))


class Conclusion(Record):
    """Whether a node may run jobs, and why not.

    ``causes`` are the findings that keep jobs away, worst first; ``reason`` names them in one short line
    without control characters. ``warnings`` are failures that do not keep jobs away.
    """

    fit: bool
    reason: str = ""
    suggestion: Suggestion = Suggestion.NONE
    causes: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()
    unknown: tuple[Finding, ...] = ()
