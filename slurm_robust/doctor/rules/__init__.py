"""All hazard rules, by topic. A new rule is an entry in the ``RULES`` of its module."""

from __future__ import annotations

from slurm_robust.doctor.rule import HazardRule
from slurm_robust.doctor.rules import counts, ends, job, nccl, node, releases, scripts, settings, site

RULES: tuple[HazardRule, ...] = (
    *scripts.FIRST,
    *site.RULES,
    *releases.RULES,
    *ends.RULES,
    *job.RULES,
    *counts.RULES,
    *scripts.RULES,
    *settings.RULES,
    *nccl.RULES,
    *node.RULES,
)
