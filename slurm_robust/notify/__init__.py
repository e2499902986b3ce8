"""Notifications: tells people what the journal of a job says, by programs, webhooks and mail.

A process of its own beside the supervisor (``python -m slurm_robust.notify``) follows the journal, so that no
channel delays the controller. ``narrate``, ``courier`` and ``message`` are pure; ``channels``, ``sender`` and
``process`` act.
"""
