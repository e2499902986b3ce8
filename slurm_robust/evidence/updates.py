"""Releases and updates in words, as every view of a job has them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_robust.model.live_status import LiveRelease, LiveUpdate
from slurm_robust.model.release import ReleaseState, Requester, When
from slurm_robust.model.updates import UpdateResult, UpdateRow
from slurm_robust.util.text import count, duration, one_line, some_of

MAX_CHANGES = 4
"""Changes that a line names; the journal has all."""


def who(by: Requester) -> str:
    """Return ``alice (uid 1000) on login1``."""
    return one_line(f"{by.user} (uid {by.uid})" + (f" on {by.host}" if by.host else ""))


def title(row: UpdateRow) -> str:
    """Return ``update 2 to release 3f2a91c04b7d by alice (uid 1000) on login1: a larger batch``."""
    told = f": {row.message}" if row.message else ""
    return one_line(f"{subject(row)} by {who(row.by)}{told}")


def subject(row: UpdateRow) -> str:
    """Return ``update 2 to release 3f2a91c04b7d``."""
    return f"{'rollback' if row.rollback else 'update'} {row.number} to release {row.release}"


def how(row: UpdateRow) -> str:
    """Return what was asked for: ``now``, ``lazy, from step 300, without the state of the optimizer``."""
    text = row.when.value
    text += f", from step {row.from_step}" if row.from_step >= 0 else ""
    return text + (", without the state of the optimizer" if row.discard_optimizer else "")


def wish(row: UpdateRow) -> str:
    """Return what was asked for, with the owner's message: ``rollback, now: back to what worked``."""
    text = f"rollback, {how(row)}" if row.rollback else how(row)
    return one_line(f"{text}: {row.message}" if row.message else text)


def changes(row: UpdateRow) -> str:
    """Return what the release changes, in one line; "" if that is not known."""
    return one_line(some_of(row.changes, MAX_CHANGES)) if row.changes else ""


def result(row: UpdateRow) -> str:
    """Return what became of an update, with the reason."""
    text = row.result.value
    if row.result is UpdateResult.ROLLED_BACK:
        text += f" to {row.back_to}"
    elif row.result is UpdateResult.WAITING:
        text += " for its trial" if row.trial_s is None else _moment(row.when)
    return one_line(f"{text}: {row.why}" if row.why else text)


def cost(row: UpdateRow) -> str:
    """Return how long training stood still, ``4.2 s``; or what took the update along, ``incident 3``.

    "" if it was not applied, or its release has not made a step.
    """
    if row.stopped_s is not None:
        return f"{row.stopped_s:.1f} s"
    if row.applied is None or row.stopped is not None:
        return ""
    of_job = f"{row.job}/" if row.job else ""
    return f"incident {of_job}{row.recovery}" if row.recovery else "restart"


def results(rows: Sequence[UpdateRow]) -> str:
    """Return ``3: 1 good, 1 refused, 1 rolled back``."""
    each = (
        (sum(row.result is one for row in rows), one.value)
        for one in UpdateResult
        if any(row.result is one for row in rows)
    )
    return f"{len(rows)}: {', '.join(f'{number} {name}' for number, name in each)}"


def release_text(found: LiveRelease) -> str:
    """Return ``3f2a91c04b7d, candidate of update 2 since step 120; before it f00dfeed0123``."""
    text = f"{found.name}, {found.state}"
    if found.state == ReleaseState.CANDIDATE.value:
        text += f" of update {found.update}" if found.update else ""
        text += f" since step {found.first_step}" if found.first_step >= 0 else ", no step yet"
        text += f"; before it {found.before}" if found.before else ""
    return one_line(text)


def waiting_text(found: LiveUpdate) -> str:
    """Return ``3 to release … waits for the next recovery, 3 h 0 min at most; by alice on login1: why``."""
    text = f"is being tried ({found.doing})" if found.doing else "is being tried"
    if found.tried:
        text = f"waits{_moment(When(found.when))}"
        text += f", {duration(max(0.0, found.left_s))} at most" if found.left_s is not None else ""
    told = f": {found.message}" if found.message else ""
    return one_line(f"{found.number} to release {found.release} {text}; by {found.by}{told}")


def _moment(when: When) -> str:
    return " for the next step boundary" if when is When.NOW else " for the next recovery"


def way_out(job: int, row: UpdateRow) -> str:
    """Return the command that shows what a release changed."""
    return f"'srobust diff {job} {row.before} {row.release}' shows what changed"


def candidate_text(row: UpdateRow, at: float) -> str:
    """Return the release on which a fault at ``at`` fell, with who brought it, when and what it changes."""
    since = f", applied {duration(max(0.0, at - row.applied))} before" if row.applied is not None else ""
    changed = changes(row)
    more = f"; {count(len(row.changes), 'change')}: {changed}" if changed else ""
    return f"{row.release}, not good yet: {title(row)}{since}{more}"
