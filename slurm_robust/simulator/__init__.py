"""Plays jobs that never ran, by the policy that runs: ``srobust simulate``.

A *spec* (:mod:`~slurm_robust.simulator.spec`) describes a job, its cluster and what goes wrong. A *life*
(:mod:`~slurm_robust.simulator.life`) plays that job from a seed and leaves journals, which the ledger reads
as it reads those of real jobs. Begin with docs/simulator.md.
"""
