"""Checkpoints: the state of a training as plain data, its parts on storage, and which are complete."""
