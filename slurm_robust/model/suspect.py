"""What a job tells the administrator's side about a node that it gives back. Only a reason to test it."""

from __future__ import annotations

from slurm_robust.model.record import Record

MOST_EVIDENCE = 20
"""Lines of evidence that are kept."""

MOST_TEXT = 500
"""Characters of each text that are kept."""


class Suspect(Record, forbid_unknown_fields=True):
    """``suspects/<node>.json`` in the job directory. ``t``: seconds since 1970, by the controller's clock.

    ``reason`` says in words why the job stopped using the node, ``symptom`` what was seen first; ``evidence``
    are lines for the person who repairs it.
    """

    node: str
    job_id: int
    t: float
    reason: str
    symptom: str = ""
    evidence: tuple[str, ...] = ()
