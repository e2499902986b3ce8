"""Dual-phase replay on the held nodes: the user's own script in small groups, twice, as job steps.

``steps`` runs the groups and ``node`` is one node's part of a group, which starts its ranks
(:mod:`slurm_robust.worker.replay`); :mod:`slurm_robust.analysis.replay` judges what they wrote.
"""
