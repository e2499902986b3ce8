"""Slurm behind one protocol. The only place that builds Slurm's command lines and reads its output."""
