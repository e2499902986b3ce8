"""Trainings and their jobs, as their folders and Slurm tell of them."""
