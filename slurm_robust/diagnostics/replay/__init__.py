"""Dual-phase replay on the held nodes: the user's own script in small groups, twice, as job steps.

``steps`` runs the groups, ``node`` is one node's part of a group and ``rank`` one rank's; what the ranks
wrote is gathered by ``traces`` and judged by :mod:`slurm_robust.analysis.replay`.
"""
