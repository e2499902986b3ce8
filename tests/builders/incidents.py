"""An incident as its journal has it: a rank that ended, and the verdict on a node."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.model import events as ev
from slurm_robust.model.incident import Blame, FaultKind, Signature, Symptom, Verdict

_OPENED = ev.IncidentOpened(
    t=1.0, incident=1, generation=1, symptom=Symptom.WORKER_EXIT, detail="", detect_s=0.1, best_step=1
)
_VERDICT = Verdict(rung=1, blame=Blame.NODE, signature=Signature(kind=FaultKind.NODE), reason="")


def opened(**changes: object) -> ev.IncidentOpened:
    """Return the beginning of the first incident, a rank that ended, but for ``changes``."""
    return structs.replace(_OPENED, **changes)


def verdict(**changes: object) -> Verdict:
    """Return the verdict that a node is at fault, but for ``changes``."""
    return structs.replace(_VERDICT, **changes)
