"""What the journal says of all releases of a job, and of the updates that asked for them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.job import CommandKind
from slurm_robust.model.journal import fold
from slurm_robust.model.record import Record
from slurm_robust.model.release import NAME_LETTERS, GitState, ReleaseState
from slurm_robust.model.state import JobState
from slurm_robust.model.updates import UpdateRow, update_rows

SHORTEST = 4
"""Digits with which a release can be named."""


class NoSuchRelease(SrobustError):
    """A word of the command line names no release of the job, or several."""

    exit_code = ExitCode.NO_INPUT


class StepSpan(Record):
    """Steps that a release made in one go: from the first after ``after`` to ``last``."""

    after: int
    """The step of the checkpoint with which it began, -1 for none."""
    last: int
    """Its newest step, ``after`` if it made none."""


class ReleaseRow(Record):
    """One release."""

    name: str
    state: ReleaseState
    running: bool
    taken: float
    user: str
    """Who took it, "" for the job itself."""
    kind: CommandKind
    command: tuple[str, ...]
    files: int
    nbytes: int
    git: GitState | None
    env: tuple[str, ...]
    image: str
    has_config: bool
    ran: tuple[StepSpan, ...]
    updates: tuple[UpdateRow, ...]


class ReleaseListing(Record):
    """All that ``srobust releases --json`` prints."""

    job_id: int
    running: str
    """"" for a job that has ended."""
    newest: str
    """The one that runs, or ran last."""
    last_good: str
    releases: tuple[ReleaseRow, ...]
    """In the order in which they were taken."""
    waiting: UpdateRow | None
    """The update that waits to be applied."""


def listing(events: Sequence[ev.AnyEvent]) -> ReleaseListing:
    """Return what a journal says of releases."""
    state, updates, spans = fold(events), update_rows(events), _spans(events)
    running = "" if state.ended is not None and state.ended.final else state.release
    rows = tuple(
        ReleaseRow(
            name=name,
            state=state.releases[name],
            running=name == running,
            taken=taken.t,
            user=taken.by.user if taken.by is not None else "",
            kind=taken.release.kind,
            command=taken.release.command,
            files=taken.release.files,
            nbytes=taken.release.nbytes,
            git=taken.release.git,
            env=taken.release.env,
            image=taken.release.image,
            has_config=taken.release.has_config,
            ran=tuple(spans.get(name, ())),
            updates=tuple(row for row in updates if row.release == name),
        )
        for name, taken in state.taken.items()
    )
    waits = state.update.update if state.update is not None and running else 0
    waiting = next((row for row in updates if row.number == waits), None)
    return ReleaseListing(
        job_id=state.job_id,
        running=running,
        newest=state.release,
        last_good=state.last_good,
        releases=rows,
        waiting=waiting,
    )


def _spans(events: Iterable[ev.AnyEvent]) -> dict[str, list[StepSpan]]:
    """Return the steps that each release made; launches of one release in a row are one span."""
    found: dict[str, list[StepSpan]] = {}
    running, before = "", ""
    for event in events:
        if isinstance(event, ev.WorldEvent) and event.world != ev.TRAIN:
            continue
        if isinstance(event, ev.GenerationLaunched) and event.release:
            running = event.release
            spans = found.setdefault(running, [])
            if running != before:
                spans.append(StepSpan(after=event.restore_step, last=event.restore_step))
            before = running
        elif isinstance(event, ev.FirstStep | ev.ProgressMade) and running:
            spans = found[running]
            spans[-1] = structs.replace(spans[-1], last=max(spans[-1].last, event.step))
    return found


def release_named(word: str, state: JobState, ran: Sequence[str]) -> str:
    """Return the release that a person names: by a unique prefix, or as ``running``, ``good``, ``previous``.

    ``previous`` is the one that ran before the running one; ``ran``: :func:`history`. Raises
    :class:`NoSuchRelease`.
    """
    names = {"running": state.release, "good": state.last_good, "previous": previous_of(state, ran)}
    if word in names:
        if not names[word]:
            none = {
                "running": "no release runs",
                "good": "no release has been good yet",
                "previous": "no other release ran before",
            }
            raise NoSuchRelease(none[word], fix=_fix(state))
        return names[word]
    plain = word.lower()
    if len(plain) < SHORTEST or not set(plain) <= set("0123456789abcdef") or len(plain) > NAME_LETTERS:
        raise NoSuchRelease(
            f"{word!r} names no release",
            fix=f"give the {NAME_LETTERS} hexadecimal digits of its name, or the first {SHORTEST} or more, "
            "or running, good or previous",
        )
    fitting = [name for name in state.releases if name.startswith(plain)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise NoSuchRelease(f"{word} is the beginning of {len(fitting)} releases", fix="give more digits")
    raise NoSuchRelease(f"job {state.job_id} has no release {word}", fix=_fix(state))


def history(events: Iterable[ev.AnyEvent]) -> list[str]:
    """Return the releases that were launched, in that order, each once for launches in a row."""
    found: list[str] = []
    for event in events:
        if isinstance(event, ev.GenerationLaunched) and event.release and event.release not in found[-1:]:
            found.append(event.release)
    return found


def previous_of(state: JobState, ran: Sequence[str]) -> str:
    """Return the release that ran before the running one, "" if there is none; ``ran``: :func:`history`."""
    return next((name for name in reversed(ran) if name != state.release), "")


def good_before(state: JobState, ran: Sequence[str]) -> str:
    """Return the newest good release that ran before the running one, "" if there is none."""
    good = (name for name in reversed(ran) if state.releases.get(name) is ReleaseState.GOOD)
    return next((name for name in good if name != state.release), "")


def _fix(state: JobState) -> str:
    return f"'srobust releases {state.job_id}' lists those that there are"
