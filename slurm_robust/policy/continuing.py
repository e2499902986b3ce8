"""What a new job takes over from an earlier one, and from which checkpoint it goes on. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import structs

from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.release import ReleaseState
from slurm_robust.model.state import JobState

MAX_STEPS = 12
"""So many are named if a person asks for a checkpoint that does not exist."""


def tells(state: JobState) -> bool:
    """Return whether another job can go on from this one: it has run, or has itself gone on from one."""
    return state.world.generation > 0 or state.continued is not None


def rolled_back(code: str, earlier: Iterable[tuple[str, JobState]]) -> str:
    """Return the warning for a job that begins with the ``code`` that an earlier one rolled back; else "".

    ``earlier``: jobs by the id that squeue shows, the newest first. The newest that judged the code counts.
    """
    for job, state in earlier:
        names = (name for name, event in state.taken.items() if code and event.release.code == code)
        judged = {state.releases.get(name): name for name in names}
        if ReleaseState.GOOD in judged:
            return ""
        if (name := judged.get(ReleaseState.BAD)) is not None:
            return (
                f"this code is that of release {name}, which job {job} rolled back as bad ('srobust releases "
                f"{job}'); it runs all the same, since you submitted it. If the fault is not mended, cancel "
                "this job, and submit it again with mended code"
            )
    return ""


def lineage(state: JobState, folder: str, t: float) -> ev.Continued:
    """Return what counts after the job of ``state``, whose folder is ``folder``. ``t``: now."""
    before = state.continued
    first = before.generation + 1 if before is not None else 1
    writers = dict(before.writers) if before is not None else {}
    writers |= dict.fromkeys(range(first, state.world.generation + 1), state.job_id)
    # The last one may have ended without a record: the job was killed.
    unsealed = {*state.world.unsealed, *((state.world.generation,) if state.world.running else ())}
    return ev.Continued(
        t=t,
        from_job=state.job_id,
        from_folder=folder,
        generation=state.world.generation,
        sealed=state.world.sealed,
        unsealed=tuple(sorted(unsealed)),
        good_steps=state.world.good_steps,
        shared=state.world.shared,
        layouts=state.world.layouts,
        banned=tuple(sorted(state.world.banned)),
        writers={g: job for g, job in writers.items() if g in state.world.sealed or g in unsealed},
        best_step=state.world.best_step,
        undone_step=before.undone_step if before is not None else -1,
        reports=state.world.reports,
        slots=len(state.world.slots) or (before.slots if before is not None else 0),
        nproc_per_node=state.world.nproc_per_node,
        runs=(*(before.runs if before is not None else ()), state.run_id),
        stored=state.world.newest_on_storage,
    )


def of_folder(
    folder: str,
    stored: Mapping[CheckpointId, int],
    runs: tuple[str, ...],
    t: float,
    layouts: Mapping[int, str] | None = None,
) -> ev.Continued:
    """Return the same for a folder of checkpoints without a job: all that are complete count.

    ``stored``: how many ranks wrote each; ``runs``: which runs; ``layouts``: identity of each generation's
    layout, if that is known.
    """
    sealed: dict[int, int] = {}
    for ref in stored:
        sealed[ref.generation] = max(ref.step, sealed.get(ref.generation, -1))
    return ev.Continued(
        t=t,
        from_job=0,
        from_folder=folder,
        generation=max(sealed, default=0),
        sealed=sealed,
        best_step=max((ref.step for ref in stored), default=-1),
        reports=True,
        runs=runs,
        layouts=dict(layouts or {}),
        stored=max(stored, default=None),
    )


def counted(event: ev.Continued, stored: Iterable[CheckpointId]) -> list[CheckpointId]:
    """Return which of ``stored`` (complete on storage) count, newest first: the job goes on from the first.

    Checkpoints that the earlier job had given up count, too: its code may have been mended since.
    """
    return sorted((ref for ref in stored if _counts(event, ref)), reverse=True)


def newest_unknown(event: ev.Continued, stored: Iterable[CheckpointId]) -> CheckpointId | None:
    """Return the newest of ``stored`` of which no journal tells, if it is newer than all that count."""
    newest = max(
        (ref for ref in stored if ref.generation not in {*event.sealed, *event.unsealed}), default=None
    )
    known = max(counted(event, stored), default=None)
    return newest if newest is not None and (known is None or newest > known) else None


def _counts(event: ev.Continued, ref: CheckpointId) -> bool:
    if ref.generation in event.unsealed:
        good = event.good_steps.get(ref.generation)
        return good is None or ref.step <= good
    return ref.step <= event.sealed.get(ref.generation, -1)


def until(event: ev.Continued, step: int) -> ev.Continued:
    """Return ``event`` without all that came after ``step``."""
    stored = event.stored if event.stored is not None and event.stored.step <= step else None
    good = {generation: min(step, event.good_steps.get(generation, step)) for generation in event.unsealed}
    return structs.replace(
        event,
        sealed={generation: min(step, sealed) for generation, sealed in event.sealed.items()},
        good_steps={**event.good_steps, **good},
        best_step=min(event.best_step, step),
        undone_step=max(event.undone_step, event.best_step if event.best_step > step else -1),
        stored=stored,
    )


def undone(event: ev.Continued, best_step: int) -> str:
    """Say which steps do not count any more of a job that had done ``best_step``, "" for none."""
    first = event.best_step + 1
    if best_step < first:
        return ""
    what = f"step {first} does" if first == best_step else f"steps {first} to {best_step} do"
    return f"{what} not count any more: an earlier step was chosen"


def unheard(asked: Sequence[str], job: str) -> str:
    """Say which of the options ``asked``, which choose a beginning, do nothing in a later start."""
    if not asked:
        return ""
    return f"{' and '.join(asked)} had a say in the first start of job {job} only: it goes on where it was"


def other_training(asked: str, own: str, job: str) -> str:
    """Say that a later start of ``job`` names another training than its ``own``; "" if it does not."""
    if asked == own:
        return ""
    return f"job {job} {f'belongs to training {own}' if own else 'has no training'}, as it began"


def steps_text(refs: Sequence[CheckpointId]) -> str:
    """Return a text such as ``steps 120, 110 and 100``, the newest first; "none" without any."""
    steps = list(dict.fromkeys(ref.step for ref in refs))
    if not steps:
        return "none"
    if len(steps) > MAX_STEPS:
        return f"steps {', '.join(map(str, steps[:MAX_STEPS]))} and {len(steps) - MAX_STEPS} older ones"
    *most, last = map(str, steps)
    return f"steps {', '.join(most)} and {last}" if most else f"step {last}"


def first_lines(
    event: ev.Continued,
    stored: Iterable[CheckpointId] | None,
    reasons: Mapping[CheckpointId, str],
    jobs: Mapping[int, str],
) -> Iterator[str]:
    """Yield the first lines of a job that goes on.

    ``stored``: what is complete on storage, None if that is not known; ``reasons``: why the earlier job had
    given checkpoints up; ``jobs``: the ids of jobs as squeue shows them, if they are tasks of an array.
    """

    def writer(ref: CheckpointId) -> str:
        return job(event.writers.get(ref.generation, event.from_job))

    def job(number: int) -> str:
        return f"job {jobs.get(number) or number}" if number else event.from_folder

    chapter = f" (chapter {event.chapter})" if event.training else ""
    whose = f"goes on with training {event.training}" if event.training else "goes on"
    after = f"{whose} after {job(event.from_job)}{chapter}"
    if stored is None:
        yield f"{after}; storage does not list its checkpoints now, and is asked again before training starts"
        return
    found = counted(event, stored)
    if not found:
        had = event.stored
        if had is not None and had.step > event.good_steps.get(had.generation, had.step):
            had = None  # it holds numbers that are not finite
        then = f"no training starts unless step {had.step} comes back" if had else "training starts at step 0"
        yield f"{after}, but storage has no checkpoint that counts: {then}"
        return
    ref, why = found[0], f"; {event.reason}" if event.reason else ""
    yield f"{whose} from step {ref.step} of {writer(ref)}{chapter}{why}"
    if ref in event.banned:
        reason = reasons.get(ref, "training did not get on from it")
        older = next((each.step for each in found if each not in event.banned), None)
        option = f"; to take an older one, submit a new job with --step {older}" if older is not None else ""
        yield f"{job(event.from_job)} had passed over step {ref.step} ({reason}); it is tried again{option}"
    if event.best_step > ref.step:
        more = f" to {event.best_step}" if event.best_step > ref.step + 1 else ""
        yield (
            f"step{'s' if more else ''} {ref.step + 1}{more} had been done, but did not get onto storage: "
            f"{'they are' if more else 'it is'} done again"
        )
