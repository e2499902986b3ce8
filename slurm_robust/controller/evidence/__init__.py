"""What is left behind for people: a folder per incident, and word about nodes that were given up.

All of it is written in threads, may fail with the storage under it, and costs the job nothing then but the
evidence.
"""

from slurm_robust.controller.evidence.bundle import save, save_alerts, save_stacks, save_suspicion

__all__ = ["save", "save_alerts", "save_stacks", "save_suspicion"]
