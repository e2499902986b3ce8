"""Whether a generation that finds no checkpoint may begin at step 0. Pure.

It may if there never was a checkpoint, or if none can come back, since only the memory of nodes held them and
the run no longer has these nodes. It may not if storage had a checkpoint, or has one that this layout cannot
use: people can mend that, and a job that begins anew would overwrite its own outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.record import Record
from slurm_robust.policy.resharding import Way, refusal, way

RELIST_S = 30.0
"""A run that waits for a checkpoint asks storage again after this time."""

ANEW = "to begin anew, submit a new job (of a training: with --fresh)"

_MAX_REASONS = 5


class May(str, Enum):
    """What the run may do."""

    BEGIN = "begin"
    UNUSABLE = "unusable"
    """Storage has lost what it had."""
    REFUSE = "refuse"
    """The layout does not fit, and another one would."""


class Beginning(Record):
    """The answer, with its reasons."""

    may: May
    reasons: tuple[str, ...] = ()
    """Why each checkpoint cannot be restored, the newest first."""
    mend: str = ""
    """What makes one usable for this run, as an order; "" if nothing does."""
    fix: str = ""

    @property
    def code(self) -> ExitCode:
        """The exit code of the run, unless it begins or waits."""
        return ExitCode.CONFIG if self.may is May.REFUSE else ExitCode.CHECKPOINTS

    @property
    def why(self) -> str:
        """In a line: why nothing can be restored."""
        return f"no checkpoint can be restored: {'; '.join(self.reasons) or 'none was ever taken'}"

    @property
    def text(self) -> str:
        """One line: why nothing can be restored, and what to do when the run has ended."""
        return self.why + (f"; fix: {self.fix}" if self.fix else "")

    @property
    def waits(self) -> str:
        """The same for a run that waits."""
        return (
            f"{self.why}; {self.mend}: this run waits, asks storage every {RELIST_S:.0f} s, and then goes on "
            "by itself"
        )


def beginning(
    sealed: Mapping[int, int],
    stored: CheckpointId | None,
    listed: Collection[CheckpointId],
    layouts: Mapping[int, str],
    layout: ParallelLayout,
    *,
    job_id: int,
    place: str,
    in_memory: Collection[CheckpointId] = (),
) -> Beginning:
    """Decide what a generation of ``layout`` does if no checkpoint can be restored for it.

    ``sealed``: the newest step that counts, by generation; ``stored``: the newest checkpoint that is known to
    have been complete on storage, None for none; ``listed``: what is complete there now; ``layouts``:
    identity of each generation's layout; ``place``: the folder on storage, "" if it is not known;
    ``in_memory``: those of other layouts of which the nodes of the run hold every part.
    """
    reasons, fix = [], ""
    newest = {CheckpointId(step=step, generation=generation) for generation, step in sealed.items()}
    usable = {ref for ref in listed if 0 <= ref.step <= sealed.get(ref.generation, -1)}
    held = {ref for ref in in_memory if 0 <= ref.step <= sealed.get(ref.generation, -1)}
    known = {stored} if stored is not None else set()
    where = f" ({place})" if place else ""
    for ref in sorted(newest | known, reverse=True):
        if ref in usable or ref in held:
            there = "on storage" if ref in usable else "in the memory of these nodes"
            old = layouts.get(ref.generation, "")
            if way(old, layout) is Way.REFUSE:
                why, how = refusal(old, layout)
                fix = fix or f"{how}; {ANEW}"
                reasons.append(f"{ref} is {there}, but {why}")
            elif ref in usable:
                reasons.append(f"{ref} is on storage, but cannot be used")
            else:
                reasons.append(f"{ref}, of other ranks, is {there} and could not be put on storage")
        elif ref == stored:
            reasons.append(f"{ref} was on storage{where} and is not there any more")
        else:
            reasons.append(f"{ref} is in no memory of these nodes and not on storage")
    if len(reasons) > _MAX_REASONS:
        reasons = [*reasons[:_MAX_REASONS], f"and {len(reasons) - _MAX_REASONS} older ones"]
    if fix:
        return Beginning(may=May.REFUSE, reasons=tuple(reasons), fix=fix)
    if stored is None and not usable and not held:
        return Beginning(may=May.BEGIN, reasons=tuple(reasons))
    if stored is not None and stored not in usable:
        mend = f"bring the folder back{where}"
        fix = f"{mend}, or name another one in the configuration (checkpoint.directory)"
    elif usable:
        mend = fix = f"'srobust checkpoint verify {job_id}' says what is damaged; bring that back"
    else:
        mend = fix = "make storage writable"
    fix = f"{fix}; then requeue the job, or submit it again; {ANEW}"
    return Beginning(may=May.UNUSABLE, reasons=tuple(reasons), mend=mend, fix=fix)
