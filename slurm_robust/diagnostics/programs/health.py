"""The node's checks, as far as the job's user can run them."""

from __future__ import annotations

from slurm_robust.diagnostics.part import Measurement, Part
from slurm_robust.nodes.quick import check_health


def run(part: Part) -> Measurement:
    """See the module."""
    outcome, text = check_health(part.limit_s * 0.8)
    return Measurement(outcome=outcome, text=text)
