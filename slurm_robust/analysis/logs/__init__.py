"""What the output of a failed job says: symptom, blame, action, and which rank failed first.

The rules are YAML (docs/log-rules.md); :func:`with_site_rules` adds a site's own.
"""

from __future__ import annotations

from slurm_robust.analysis.logs.merged import read_merged
from slurm_robust.analysis.logs.ranks import blames_peer, first_causes, of_all, root_exit
from slurm_robust.analysis.logs.rule import LogRule, RuleSet, shipped, with_site_rules
from slurm_robust.analysis.logs.verdict import Reading, classify, classify_exit, read

__all__ = [
    "LogRule",
    "Reading",
    "RuleSet",
    "blames_peer",
    "classify",
    "classify_exit",
    "first_causes",
    "of_all",
    "read",
    "read_merged",
    "root_exit",
    "shipped",
    "with_site_rules",
]
