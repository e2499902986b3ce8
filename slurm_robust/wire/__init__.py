"""Authenticated messages between controller and agents, and the step record between agent and worker."""
