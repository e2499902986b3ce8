"""Tests of the held nodes while training is stopped: what runs on which nodes, and which one is to blame.

``plan`` and ``judge`` are pure; ``runner`` carries a plan out as job steps; ``programs`` are the tests, and
``python -m slurm_robust.diagnostics`` is one node's part of them.
"""
