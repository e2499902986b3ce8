"""What people read of updates and releases. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from slurm_robust.evidence.updates import result, title
from slurm_robust.model.job import CommandKind
from slurm_robust.model.record import Record
from slurm_robust.model.release import GitState, ReleaseState, When
from slurm_robust.model.updates import UpdateResult, UpdateRow
from slurm_robust.releases.compare import COMMANDS, ReleaseDiff
from slurm_robust.terminal.console import MIN_WIDE, ByWidth, facts_table, indented, section, told_table
from slurm_robust.updates.follow import UpdatePhase, UpdateProgress
from slurm_robust.updates.listing import ReleaseListing, ReleaseRow, StepSpan
from slurm_robust.util.text import (
    count,
    date_and_time,
    duration,
    first_sentence,
    message,
    one_line,
    size_text,
    visible,
)

STYLES = {
    ReleaseState.GOOD: "green",
    ReleaseState.CANDIDATE: "yellow",
    ReleaseState.BAD: "bold red",
    ReleaseState.REFUSED: "red",
}
BEGINNING = "the beginning, or where the script resumes by itself"
"""Where a release begins that is given no checkpoint."""

MAX_PATHS = 20
"""Files of a kind that the head of a difference names."""

MAX_UPDATES = 3
"""Updates to one release that a row of the table tells."""

MAX_RESULT = 100
"""Characters of what became of one; ``srobust incidents`` and ``--json`` have it all."""

MAX_COMMAND = 200
"""Characters of a command that a screen shows; ``--json`` has it all."""


class Judging(Record):
    """When a new release is good, and whether it is rolled back before."""

    good_steps: int
    good_s: float
    before: str
    """The release that comes back by itself if the new one fails before, "" for none."""


# -- an update ---------------------------------------------------------------------------------------


def line(known: UpdateProgress, doing: str = "") -> str:
    """Return what is done for an update now; ``doing``: what its trial is at, if that is known."""
    update, row = f"update {known.update}", known.row
    if row is None:
        return f"{update}: waiting for the journal to show it"
    first = f" (incident {known.incident} goes first)" if known.incident else ""
    release = row.release
    match known.phase:
        case UpdatePhase.TRYING:
            trial = f": {one_line(doing)}" if doing else ""
            return f"{update}: trying release {release}{first}{trial}"
        case UpdatePhase.WAITING if row.when is When.NOW:
            return f"{update}: release {release} passed its trial, waiting for a step boundary{first}"
        case UpdatePhase.WAITING:
            return f"{update}: waiting for the next recovery{_deadline(row)}"
        case UpdatePhase.STOPPING:
            return f"{update}: stopping the ranks behind a snapshot"
        case UpdatePhase.STARTING:
            trouble = f" (incident {known.incident} came between)" if known.incident else ""
            origin = f"step {row.restored}" if row.restored >= 0 else BEGINNING
            return f"{update}: starting release {release} from {origin}{trouble}"
    return f"{update}: {known.phase.value}"


def _deadline(row: UpdateRow) -> str:
    return f", until {date_and_time(row.deadline)} at the latest" if row.deadline is not None else ""


def outcome(known: UpdateProgress, job: str, judging: Judging) -> Iterator[str]:
    """Yield what became of an update, in lines; ``job``: as the commands take it."""
    update, row, phase = f"update {known.update}", known.row, known.phase
    if phase is UpdatePhase.JOB_ENDED or row is None:
        yield f"the job has ended before {update} was done: {one_line(known.reason)}"
        return
    release = row.release
    match phase:
        case UpdatePhase.RUNNING:
            step = f"step {row.first_step}" if row.reported else "its first step"
            yield f"{update}: release {release} has made {step}; {_cost(known, row)}"
            yield from _untried(row)
            yield _candidacy(row, job, judging)
        case UpdatePhase.STARTING:
            yield f"{update}: release {release} was started; the job has never made a step that counts"
            yield from _untried(row)
            yield f"'srobust status {job}' shows whether it runs, 'srobust rollback {job}' goes back"
        case UpdatePhase.WAITING:
            yield f"{update}: release {release} passed its trial and waits for the next recovery" + (
                _deadline(row)
            )
            yield from _untried(row)
            yield f"'srobust releases {job}' shows it, 'srobust rollback {job} --withdraw' withdraws it"
        case UpdatePhase.REFUSED:
            where = f" on {row.node}" if row.node else ""
            yield f"{update} was refused: release {release} failed its trial{where}: {one_line(row.why)}"
            if row.traceback:
                yield message(row.traceback.rstrip())
            yield "the job goes on as before"
        case UpdatePhase.ROLLED_BACK:
            yield f"{update} was rolled back: {one_line(row.why)}"
            yield f"'srobust incident {job} {row.incident}' has the evidence"
        case _:
            why = f": {one_line(row.why)}" if row.why else ""
            yield f"{update} was {phase.value}{why}"


def _cost(known: UpdateProgress, row: UpdateRow) -> str:
    again = f", {count(known.repeated or 0, 'step')} repeated"
    if not row.reported:
        again = "; it goes on where the script resumes by itself"
    elif known.undone:
        are = "is" if known.undone == 1 else "are"
        again = f"; it goes on from step {row.restored}: {count(known.undone, 'step')} after it {are} undone"
    if row.stopped_s is None:
        return f"a recovery took it along{again}"
    return f"{duration(row.stopped_s)} without training{again}"


def _candidacy(row: UpdateRow, job: str, judging: Judging) -> str:
    if row.result is UpdateResult.GOOD:
        return "it is good"
    due = f"{count(judging.good_steps, 'step')} or {duration(judging.good_s)}"
    if row.rollback:
        return f"'srobust releases {job}' shows what runs"
    if not judging.before:
        return f"it is good after {due}; if it fails before, no release comes back by itself"
    back = f"if it fails before, release {judging.before} comes back by itself"
    return f"it is a candidate, good after {due}; {back}; 'srobust rollback {job}' goes back at once"


def _untried(row: UpdateRow) -> Iterator[str]:
    for what in row.untried:
        yield f"not tried: {one_line(what)}"


# -- releases ----------------------------------------------------------------------------------------


def releases(found: ReleaseListing) -> RenderableType:
    """Return the whole screen of ``srobust releases``."""
    title = Text(f"{count(len(found.releases), 'release')} of job {found.job_id}", style="bold")
    wide, narrow = [], []
    for row in found.releases:
        name = Text(f"{'> ' if row.running else '  '}{row.name}", style="bold" if row.running else "")
        state = Text(row.state.value, style=STYLES.get(row.state, ""))
        steps = ", ".join(map(_span, row.ran)) or "-"
        taken, user, git = date_and_time(row.taken), one_line(row.user) or "job", _git(row.git)
        told = _all_told(row.updates) or "the first release of the job"
        commit = f" of {git}" if row.git is not None else ""
        wide.append((name, state, taken, user, steps, git, told))
        narrow.append((name, state, steps, f"taken {taken} by {user}{commit}: {told}"))
    table = ByWidth(
        MIN_WIDE,
        told_table(("release", "state", "taken", "by", "steps", "git", "updates"), wide),
        told_table(("release", "state", "steps", "updates"), narrow),
    )
    waits = section("Waits", indented(_waits(found.waiting))) if found.waiting is not None else ()
    newest = next((row for row in found.releases if row.name == found.newest), None)
    return Group(title, table, *waits, *(_details(newest) if newest else ()))


def _details(row: ReleaseRow) -> tuple[RenderableType, ...]:
    facts = [("command", one_line(_command(row), MAX_COMMAND))]
    if row.files:
        facts.append(("code", f"{count(row.files, 'file')}, {size_text(row.nbytes)}"))
    if row.env:
        facts.append(("environment", one_line(", ".join(row.env)) + " (values are not shown)"))
    if row.image:
        facts.append(("image", one_line(row.image)))
    if row.has_config:
        facts.append(("configuration", "brings its own, see 'srobust diff'"))
    runs = "runs" if row.running else "ran last"
    return section(f"Release {row.name}, which {runs}", facts_table(facts, "  "))


def _command(row: ReleaseRow) -> str:
    command = shlex.join(row.command)
    return f"-m {command}" if row.kind is CommandKind.MODULE else command


def _span(span: StepSpan) -> str:
    return "none" if span.last == span.after else f"{span.after + 1}-{span.last}"


_CHANGED = {True: " (changed)", False: "", None: " (changed?)"}


def _git(git: GitState | None) -> str:
    if git is None:
        return "-"
    branch = f" {one_line(git.branch, 40)}" if git.branch else ""
    return f"{one_line(git.commit, 10).rstrip('…')[:9]}{branch}{_CHANGED[git.dirty]}"


def _told(row: UpdateRow) -> str:
    what = "rollback" if row.rollback else "update"
    said = f' "{one_line(row.message)}"' if row.message else ""
    at = f" at step {row.step}" if row.step >= 0 else ""
    applied = f", applied{at}" if row.applied is not None else ""
    became = first_sentence(result(row), most=MAX_RESULT)
    return f"{what} {row.number} by {one_line(row.by.user)}{said}{applied}: {became}"


def _all_told(rows: Sequence[UpdateRow]) -> str:
    """Return the newest updates to a release, the last one first."""
    left = len(rows) - MAX_UPDATES
    told = [_told(row) for row in reversed(rows)][:MAX_UPDATES]
    return "; ".join([*told, f"and {count(left, 'earlier one')}"] if left > 0 else told)


def _waits(row: UpdateRow) -> str:
    how = "being tried" if row.trial_s is None else "tried"
    due = "it is applied at the next step boundary"
    if row.when is When.LAZY:
        latest = f", {date_and_time(row.deadline)} at the latest" if row.deadline is not None else ""
        due = f"it is applied with the next recovery{latest}"
    return f"{title(row)}: it is {how}; {due}"


# -- a difference ------------------------------------------------------------------------------------


def difference(old: str, new: str, diff: ReleaseDiff, most_paths: int = MAX_PATHS) -> RenderableType:
    """Return the whole screen of ``srobust diff``; ``most_paths``: files of a kind that its head names."""
    if diff.is_empty:
        commits = _commits(diff)
        return Text(f"release {new} runs the same as {old}{f'; {commits}' if commits else ''}")
    facts = [
        *((what, one_line(path)) for what, paths in _files(diff) for path in paths[:most_paths]),
        *_named("and more", _more(diff, most_paths)),
        *((when, one_line(line, None)) for when, line in zip(COMMANDS, diff.commands or (), strict=False)),
        *_named("environment, set", ", ".join(diff.env_set)),
        *_named("environment, no longer set", ", ".join(diff.env_unset)),
        *_named("environment, another value", ", ".join(diff.env_changed)),
        *(("configuration", one_line(text)) for text in diff.config),
        *_named("image", " to ".join(part or "that of the job" for part in diff.image or ())),
        *_named("commit", _commits(diff)),
    ]
    cut = [Text(f"… only the first {len(diff.patch)} lines are shown")] if diff.is_cut else []
    return Group(
        Text(f"From release {old} to {new}", style="bold"),
        facts_table(facts, "  "),
        *([""] if diff.patch else []),
        *map(_patch_line, diff.patch),
        *cut,
    )


def _files(diff: ReleaseDiff) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return (("changed", diff.changed), ("added", diff.added), ("removed", diff.removed))


def _more(diff: ReleaseDiff, most_paths: int) -> str:
    left = ((what, len(paths) - most_paths) for what, paths in _files(diff))
    return ", ".join(f"{count(number, 'file')} {what}" for what, number in left if number > 0)


def _named(name: str, value: str) -> Iterator[tuple[str, str]]:
    if value:
        yield name, one_line(value)


def _commits(diff: ReleaseDiff) -> str:
    if diff.git is None:
        return ""
    return " to ".join(f"{one[:9]}{_BEHIND.get(one[-1], '')}" if one else "none" for one in diff.git)


_BEHIND = {"+": " (changed)", "?": " (changed?)"}


class _Whole:
    """A line that is folded on a terminal only: a program gets it as it is."""

    def __init__(self, line: Text) -> None:
        self._line = line

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if console.is_terminal:
            yield self._line
        else:
            yield Segment(self._line.plain)
            yield Segment.line()


def _patch_line(text: str) -> RenderableType:
    head = text.startswith(("--- ", "+++ "))
    style = "bold" if head else {"+": "green", "-": "red", "@": "cyan"}.get(text[:1], "")
    return _Whole(Text(visible(text), style=style, overflow="fold"))
