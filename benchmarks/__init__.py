"""Measurements beside what a user would take instead. ``python -m benchmarks.run_all`` runs them all."""
