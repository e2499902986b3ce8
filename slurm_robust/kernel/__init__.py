"""The kernel's log, and what its messages mean."""
