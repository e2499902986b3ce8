"""``srobust releases`` and ``srobust diff``, which read the job's folder and ask nobody."""

from __future__ import annotations

from contextlib import suppress

from msgspec import structs

from slurm_robust.config.changes import changes, with_file
from slurm_robust.config.job import JobConfig
from slurm_robust.config.plan import load_plan
from slurm_robust.model.errors import PreflightError, SrobustError
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.journal import fold
from slurm_robust.model.record import Record
from slurm_robust.model.state import JobState
from slurm_robust.releases.compare import ReleaseDiff, compare
from slurm_robust.releases.contents import ReleaseContents, stored
from slurm_robust.releases.store import ReleaseStore
from slurm_robust.terminal.console import show
from slurm_robust.trainings.find import find, load_events
from slurm_robust.updates import screen
from slurm_robust.updates.listing import history, listing, release_named

MAX_STAT = 1000
"""Files of a kind that ``--stat`` names."""


class Difference(Record):
    """All that ``srobust diff --json`` prints."""

    old: str
    new: str
    diff: ReleaseDiff


def releases(name: str, *, json: bool, job_dir: str | None) -> int:
    """Print the releases of a job. Raises ``NoSuchJob``, ``JournalDamaged``."""
    show(listing(load_events(find(name, job_dir))), screen.releases, json=json)
    return 0


def diff(name: str, old: str, new: str, *, stat: bool, json: bool, job_dir: str | None) -> int:
    """Print what differs between two releases. Raises ``SrobustError``."""
    directory = find(name, job_dir)
    events = load_events(directory)
    state, ran = fold(events), history(events)
    before, after = (release_named(word, state, ran) for word in (old, new))
    found = difference(directory, state, before, after)
    if stat:
        found = structs.replace(found, patch=(), is_cut=False)
    answer = Difference(old=before, new=after, diff=found)
    most = MAX_STAT if stat else screen.MAX_PATHS
    show(answer, lambda one: screen.difference(one.old, one.new, one.diff, most), json=json)
    return 0


def difference(directory: JobDirectory, state: JobState, old: str, new: str) -> ReleaseDiff:
    """Return what differs between two releases of a job, of the configuration by its keys.

    The text of a configuration file may have secrets. Raises ``NoRelease``, ``DamagedRelease``, ``OSError``.
    """
    store = ReleaseStore(directory.releases)
    before, after = (_stored(store, state, name) for name in (old, new))
    found = compare(before, after)
    if before.config_text == after.config_text:
        return found
    lines = ["it differs, and the plan of the job cannot be read, which would show how"]
    with suppress(PreflightError):
        config = load_plan(directory).config
        both = (_configuration(config, one) for one in (before, after))
        lines = [
            f"{sign}{change.key}: {value}"
            for change in changes(*both)
            for sign, value in (("-", change.before), ("+", change.after))
        ]
    return structs.replace(found, config=tuple(lines))


def _stored(store: ReleaseStore, state: JobState, name: str) -> ReleaseContents:
    """Return a release; the configuration of the job's first one is the job's own, and none of its own."""
    contents = stored(store, name)
    is_ours = name in state.taken and not state.configures(name)
    return contents._replace(config_text="") if is_ours else contents


def _configuration(config: JobConfig, contents: ReleaseContents) -> JobConfig:
    try:
        return with_file(config, contents.config_text.encode(), f"release {contents.release.name}")
    except SrobustError:
        return config  # of another version of slurm_robust
