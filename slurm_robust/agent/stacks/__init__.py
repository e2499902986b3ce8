"""Stacks of the workers on this machine, taken from outside."""
