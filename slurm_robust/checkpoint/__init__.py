"""Checkpoints: the state of a training run as plain data, its parts on storage, and which are complete."""
