"""A simulator of one job: the real controller and the real agents, by a clock that jumps.

Begin with :class:`~slurm_robust.testing.sim.job.Sim`.
"""
