"""What a shell offers when a command line of ``srobust`` is completed.

The shell's function, which ``srobust completion`` prints, asks ``srobust completion --words WORD ...``: the
words up to the cursor, of which the last one may be empty. The answer has one word a line, or :data:`FILES`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import subcommands

FILES = ":files"
"""The answer that leaves it to the shell to offer files."""

MAX_JOBS = 50
"""The newest jobs that are offered."""

RUNNING_S = 60.0
"""The controller of a job that runs has written its live status in this time."""

_PATHS = {"FILE", "DIR", "PATH", "SCRIPT", "IN", "OUT"}

MakeParser = Callable[[str], argparse.ArgumentParser]
JobNames = Callable[[str | None], list[str]]


def candidates(words: Sequence[str], make_parser: MakeParser, job_names: JobNames) -> list[str]:
    """Return what may stand in place of the last of ``words``.

    ``make_parser`` returns the parser for a command, ``job_names`` the jobs in a ``--job-dir``.
    """
    *before, current = words or [""]
    if before[:1] == ["help"]:
        before = before[1:]
    if not before:
        return _begun_by(current, [*HELP, "--help", "--version"] if current else HELP)
    if before[0] not in HELP:
        return []
    return _begun_by(current, _offered(make_parser(before[0]), before, current, job_names))


def _begun_by(current: str, words: Any) -> list[str]:
    return [word for word in words if word.startswith(current) or word == FILES]


def _offered(
    parser: argparse.ArgumentParser, before: Sequence[str], current: str, job_names: JobNames
) -> list[str]:
    taken: list[str] = []
    value_of: argparse.Action | None = None
    job_dir: str | None = None
    for word in before:
        if word == "=":  # bash parts --rank=3 into three words
            continue
        if value_of is not None:
            job_dir = word if "--job-dir" in value_of.option_strings else job_dir
            value_of = None
        elif word == "--":
            return [FILES]  # what follows belongs to the user's command
        elif word.startswith("-"):
            action = parser._option_string_actions.get(word)
            value_of = action if action is not None and action.nargs is None else None
        elif inner := subcommands(parser):
            if word not in inner:
                return []
            parser = inner[word]
        else:
            taken.append(word)
        if taken and before[0] in ("run", "replay"):
            return [FILES]  # options end at the script
    if value_of is not None:
        return _values(value_of, job_dir, job_names)
    if current.startswith("-"):
        return [option for option in parser._option_string_actions if option.startswith("--")]
    if inner := subcommands(parser):
        return [*inner]
    if before[0] in ("run", "replay"):
        return [FILES]
    arguments = [action for action in parser._actions if not action.option_strings]
    if len(taken) >= len(arguments):
        arguments = [action for action in arguments[-1:] if action.nargs in ("*", "+", argparse.REMAINDER)]
        return _values(arguments[0], job_dir, job_names) if arguments else []
    return _values(arguments[len(taken)], job_dir, job_names)


def _values(action: argparse.Action, job_dir: str | None, job_names: JobNames) -> list[str]:
    """Return what may stand for an argument, or for the value of an option."""
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    name = str(action.metavar or action.dest)
    if name == "JOB":
        return job_names(job_dir)
    return [FILES] if name in _PATHS or action.nargs == argparse.REMAINDER else []


def job_names(job_dir: str | None) -> list[str]:
    """Return the caller's jobs: those that run, without any all of them, and trainings; the newest first."""
    from slurm_robust.model.job import JobDirectory
    from slurm_robust.model.training import PREFIX
    from slurm_robust.trainings.find import root_of
    from slurm_robust.trainings.folders import own_folders

    root = root_of(os.path.expanduser(job_dir) if job_dir else None)
    jobs = own_folders(root)[:MAX_JOBS]
    running = [job for job in jobs if _is_live(JobDirectory(job.path).live_status)]
    return [*(job.name for job in running or jobs), *_trainings(root, PREFIX)]


def _is_live(status: Path) -> bool:
    try:
        return time.time() - status.stat().st_mtime < RUNNING_S
    except OSError:
        return False


def _trainings(root: Path, prefix: str) -> Iterator[str]:
    try:
        yield from sorted(path.name.removeprefix(prefix) for path in root.glob(f"{prefix}*"))
    except OSError:
        return
