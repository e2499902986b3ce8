"""Faults of the code, once and in every attempt: a restart mends the first, no node is to blame for any."""
