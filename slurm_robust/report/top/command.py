"""``srobust top``: finds the jobs, and shows them if there is a terminal that can."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.job import JOBS_FOLDER, JobDirectory
from slurm_robust.model.libraries import need
from slurm_robust.report.top.feed import JobFeed, LiveView
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.terminal.console import show as print_json
from slurm_robust.trainings.find import NoSuchJob, find
from slurm_robust.trainings.folders import folders_in
from slurm_robust.trainings.slurmview import make_slurm

MAX_JOBS = 200
"""In a folder, those whose journal has changed last."""

DUMB = ("", "dumb", "unknown")
"""Terminals that cannot move their cursor."""


class NoScreen(SrobustError):
    """There is nothing on which ``top`` could be shown."""

    exit_code = ExitCode.USAGE


def main(names: Sequence[str], *, json: bool, job_dir: str | None) -> int:
    """Show jobs until the user quits; with ``json`` only once, and 65 if a journal cannot be read.

    Raises ``NoSuchJob``, :class:`NoScreen`.
    """
    if not json:
        need("textual", "srobust top", instead=_instead(names))
        check_terminal(names)
    slurm = make_slurm()
    found = directories(names, job_dir, slurm)
    feeds = [JobFeed(directory, slurm, alone=len(found) == 1) for directory in found]
    if json:
        views = [look_through(feed) for feed in feeds]
        print_json(views[0] if len(names) == 1 else views, lambda _: "", json=True)
        return ExitCode.JOURNAL if any(view.trouble for view in views) else ExitCode.SUCCESS
    show(feeds, _instead(names))
    return 0


def _instead(names: Sequence[str]) -> str:
    """Return the command that needs no cursor; without a job it names that of the caller."""
    return " ".join(("srobust status", *names[:1], "--watch"))


def look_through(feed: JobFeed) -> LiveView:
    """Return one view, of the whole journal."""
    view = feed.look()
    while feed.is_behind:
        view = feed.look()
    return view


def show(feeds: Sequence[JobFeed], instead: str) -> None:
    """Run the screen. Raises :class:`NoScreen`, which names ``instead``, if it fails."""
    from slurm_robust.report.top.app import Top

    app = Top(feeds)
    app.run(mouse=False)
    if app.return_code:
        raise NoScreen("the screen has failed, see above", fix=f"'{instead}' needs less")


def check_terminal(names: Sequence[str]) -> None:
    """Raise :class:`NoScreen` if the cursor cannot be moved."""
    as_json = " ".join(("srobust top", *names, "--json"))
    # Textual writes to standard error.
    streams = {"input": sys.stdin, "output": sys.stdout, "error": sys.stderr}
    for name, stream in streams.items():
        if stream is None or not stream.isatty():
            raise NoScreen(
                f"standard {name} is no terminal",
                fix=f"run srobust top in a terminal (ssh -t); for a script: {as_json}",
            )
    term = os.environ.get("TERM", "")
    if term in DUMB:
        raise NoScreen(f"this terminal cannot move its cursor (TERM={term or 'unset'})", fix=_instead(names))


def directories(names: Sequence[str], job_dir: str | None, slurm: SlurmClient) -> list[JobDirectory]:
    """Return the folders of the jobs that a person named, else of all here. Raises :class:`NoSuchJob`."""
    if names:
        return [find(name, job_dir, slurm) for name in names]
    root = Path(job_dir) if job_dir else Path.cwd() / JOBS_FOLDER
    try:
        found = [JobDirectory(folder.path) for folder in folders_in(root)[:MAX_JOBS]]
    except OSError as error:
        raise NoSuchJob(
            f"{root} cannot be read: {error.strerror}",
            fix="name a job, run this where jobs were submitted, or give --job-dir as 'srobust run' had it",
        ) from error
    if not found:
        raise NoSuchJob(f"no job has a journal in {root}", fix="name a job, or give its --job-dir")
    return found
