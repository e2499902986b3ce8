"""The release that a job starts with: the first one, or the one that its journal names."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from slurm_robust.config.plan import RunPlan
from slurm_robust.model.errors import ExitCode, PreflightError, SrobustError
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.release import Release
from slurm_robust.model.state import JobState
from slurm_robust.policy.continuing import rolled_back
from slurm_robust.releases.edited import edited
from slurm_robust.releases.roots import code_folders, packages_in_place
from slurm_robust.releases.select import CannotTakeCode, CopyLimits
from slurm_robust.releases.store import ReleaseStore
from slurm_robust.releases.take import Taking, take
from slurm_robust.trainings.earlier import jobs_of_script
from slurm_robust.util.output import say
from slurm_robust.util.text import count, one_line, size_text, some_of
from slurm_robust.util.threads import start_thread


def first_release(plan: RunPlan, directory: JobDirectory) -> Release | None:
    """Take the first release of a job; None if the ranks are to read the code in its place."""
    if not plan.config.code.releases:
        return None
    try:
        release = take(ReleaseStore(directory.releases), _taking(plan, directory, _folders(plan)))
    except CannotTakeCode as error:
        say(
            f"warning: the ranks read the code in its place, since no copy of it can be taken: {error}: "
            f"{error.fix}; to do without, set code.releases: false"
        )
        return None
    say(_taken(release))
    start_thread("earlier code", lambda: _say_if_rolled_back(plan, directory, release))
    return release


def _say_if_rolled_back(plan: RunPlan, directory: JobDirectory, release: Release) -> None:
    """Say that an earlier job of the script, be it of the same training or not, rolled this code back."""
    root, own = directory.path.parent, directory.path
    earlier = jobs_of_script(root, own, plan.kind.value, plan.command, plan.cwd)
    try:
        text = rolled_back(release.code, ((job.name, job.state) for job in earlier))
    except OSError:
        return  # nothing is known of them, and nothing depends on it
    if text:
        say(f"warning: {text}")


def later_release(plan: RunPlan, directory: JobDirectory, state: JobState) -> Release | None:
    """Return a release to go on with if the one of the journal cannot be run any more; None if it can.

    Raises :class:`PreflightError` if no other one can be taken.
    """
    if not state.release:
        return None
    store = ReleaseStore(directory.releases)
    running = state.taken[state.release].release
    try:
        is_whole = store.is_whole(running)
    except OSError:
        return None  # storage does not say; agents that cannot read it say so
    if is_whole:
        start_thread("code", lambda: _say_if_edited(plan, directory, running))
        return None
    say(
        f"warning: the files of release {running.name}, which this job has run, are gone from "
        f"{store.folder}: the code in its place is taken"
    )
    try:
        release = take(store, _taking(plan, directory, _folders(plan)))
    except CannotTakeCode as error:
        raise PreflightError(
            f"the files of release {running.name} are gone from {store.folder}, and the code in its place "
            f"cannot be taken: {error}",
            fix=error.fix,
            code=ExitCode.NO_INPUT,
        ) from error
    say(_taken(release))
    return release


def _say_if_edited(plan: RunPlan, directory: JobDirectory, running: Release) -> None:
    """Say that the code in its place differs from the release that goes on."""
    if not running.code:
        return
    try:
        files = edited(ReleaseStore(directory.releases), running, _taking(plan, directory, ()))
    except (SrobustError, OSError):
        return  # nothing is known of it, and nothing depends on it
    if files:
        usual = directory.path.name == str(plan.job_id) and plan.config.job_dir is None
        job = str(plan.job_id) if usual else shlex.quote(str(directory.path))
        say(
            f"the code in {one_line(running.roots[0].source)} differs from release {running.name}, which "
            f"goes on: {some_of([one_line(path) for path in files])}; 'srobust update {job}' applies it"
        )


def _folders(plan: RunPlan) -> tuple[str, ...]:
    return code_folders(plan.kind, plan.command, plan.cwd, plan.config.code.paths)


def _taking(plan: RunPlan, directory: JobDirectory, folders: Sequence[str]) -> Taking:
    code, agents = plan.config.code, plan.config.agents
    never: list[Path] = [directory.path.parent, directory.path, plan.storage(directory), *_own_outputs()]
    never += [Path(plan.cwd, place) for place in plan.config.checkpoint.places.values()]
    return Taking(
        kind=plan.kind,
        command=plan.command,
        cwd=plan.cwd,
        roots=tuple(folders),
        # What an image has in it cannot be seen from here.
        packages=() if agents.is_contained else packages_in_place(agents.python),
        never=tuple(os.path.realpath(path) for path in never),
        workdir=code.workdir == "release",
        limits=CopyLimits.of(code),
    )


def _own_outputs() -> list[Path]:
    """Return the files that this process writes to, as the job's output is one."""
    found = []
    for number in (1, 2):
        try:
            found.append(Path(os.readlink(f"/proc/self/fd/{number}")))
        except OSError:
            continue
    return found


def _taken(release: Release) -> str:
    if not release.code:
        return f"release {release.name}: there is no folder with code of its own"
    folders = ", ".join(one_line(root.path) for root in release.roots)
    text = (
        f"release {release.name}: {count(release.files, 'file')} ({size_text(release.nbytes)}) of {folders}"
    )
    if not release.left_out:
        return text
    return f"{text}; left in their places: {', '.join(release.left_out)}"
