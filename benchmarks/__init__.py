"""Measurements beside what a user would take instead. ``python benchmarks/run_all.py`` runs them all."""
