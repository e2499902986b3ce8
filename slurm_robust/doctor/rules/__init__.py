"""All hazard rules, by topic. A new rule is a function and an entry in the ``RULES`` of its module."""

from __future__ import annotations

from slurm_robust.doctor.rule import Rule
from slurm_robust.doctor.rules import counts, ends, job, nccl, node, releases, scripts, settings, site

RULES: tuple[Rule, ...] = (
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
