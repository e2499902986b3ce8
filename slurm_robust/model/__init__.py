"""Frozen records for the nouns of the design. No I/O, no clock, no process."""
