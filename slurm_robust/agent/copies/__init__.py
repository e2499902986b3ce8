"""Copies of checkpoints: this agent's half of what keeps them on several nodes."""
