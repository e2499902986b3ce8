"""Writing the folder of an incident, and word about nodes that were given up."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from slurm_robust.analysis.incidents import Story, stories
from slurm_robust.controller.evidence import alerts as alert_text
from slurm_robust.controller.evidence import folder as files
from slurm_robust.controller.evidence import stacks as stack_text
from slurm_robust.controller.evidence.readme import readme
from slurm_robust.model import events as ev
from slurm_robust.model.alerts import Alert
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.stacks import Localisation, RankStacks
from slurm_robust.model.suspicion import Suspicion


def save(directory: JobDirectory, number: int, events: Sequence[ev.AnyEvent]) -> Path:
    """Write ``incidents/NNN/``: the story for people and for programs, and the last output of ranks.

    Written again when the incident gets further, so that the folder is never behind the journal for
    long. Returns the folder, which does not exist if the journal has no such incident. Raises ``OSError``
    after writing what can be written.
    """
    folder = folder_of(directory, number)
    story = next((s for s in reversed(stories(events)) if s.number == number), None)
    if story is None:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    files.remove_leftovers(folder)
    files.write(folder / "incident.json", _encoded(story))
    files.write_lines(folder / "README.txt", readme(story))
    error = files.copy_tails(directory, story, folder)
    if error is not None:
        raise error
    return folder


def save_stacks(
    directory: JobDirectory, number: int, stacks: Sequence[RankStacks], localisation: Localisation
) -> None:
    """Write ``stacks.json`` and ``stacks.txt``. Raises ``OSError``."""
    folder = folder_of(directory, number)
    folder.mkdir(parents=True, exist_ok=True)
    files.write_lines(folder / "stacks.txt", stack_text.in_words(stacks, localisation))
    files.write(folder / "stacks.json", stack_text.bounded(stacks, localisation, files.MOST_STACKS))


def save_alerts(
    directory: JobDirectory, number: int, alerts: Mapping[str, Sequence[Alert]], t: float | None = None
) -> None:
    """Write ``alerts.json`` and ``alerts.txt``: what was seen on each node.

    ``t``: when the alerts' ages were told, in seconds since 1970 (by default now). Raises ``OSError``.
    """
    folder = folder_of(directory, number)
    folder.mkdir(parents=True, exist_ok=True)
    saved = alert_text.kept(alerts, time.time() if t is None else t, files.MOST_ALERTS)
    files.write_lines(folder / "alerts.txt", alert_text.in_words(saved))
    files.write(folder / "alerts.json", msgspec.json.encode(saved) + b"\n")


def save_suspicion(directory: JobDirectory, suspicion: Suspicion) -> Path:
    """Write ``suspects/<node>.json``, which the epilog of that node reads. Raises ``OSError``."""
    directory.suspects.mkdir(mode=0o700, exist_ok=True)
    path = directory.suspects / f"{suspicion.node}.json"
    beside = directory.suspects / f".{suspicion.node}.new"
    with beside.open("wb") as file:
        file.write(msgspec.json.encode(suspicion))
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    return path


def folder_of(directory: JobDirectory, number: int) -> Path:
    """Where the bundle of incident ``number`` lies."""
    return directory.incidents / f"{number:03d}"


def _encoded(story: Story) -> bytes:
    return next(text for text in _shorter_and_shorter(story) if len(text) <= files.MOST_JSON) + b"\n"


def _shorter_and_shorter(story: Story) -> Iterator[bytes]:
    """The story as JSON: whole, with the exits of some ranks only, and without what the journal has too."""
    yield msgspec.json.format(msgspec.json.encode(story), indent=1)
    some = tuple(_of_few(e, story) if isinstance(e, ev.GenerationEnded) else e for e in story.events)
    yield msgspec.json.encode(msgspec.structs.replace(story, events=some))
    yield msgspec.json.encode(msgspec.structs.replace(story, events=(), placements={}))


def _of_few(ended: ev.GenerationEnded, story: Story) -> ev.GenerationEnded:
    ranks = files.wanted_ranks(story, ended.generation)
    exits = tuple(each for each in ended.exits if each.exit.rank in ranks)
    return msgspec.structs.replace(ended, exits=exits)
