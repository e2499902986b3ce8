"""Releases of a job: what its ranks run, and in which state each release is.

A release is an immutable copy of the code, with the arguments, the environment, the configuration and the
image that go with it, named by the hash of all of them. An update moves a job from one release to another
(ByteRobust, arXiv 2509.16293, section 7.1). ``releases/`` in the job directory holds one folder for each::

    releases/3f2a91c04b7d/
        release.json    a :class:`Release`; no secret is in it
        code.tar        the code, uncompressed: one file, since storage makes thousands slowly
        env.json        values of the variables that ``--env`` sets (0600)
        config.yaml     the configuration file that ``--config`` gave, if one was given
"""

from __future__ import annotations

from enum import Enum

from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.job import CommandKind
from slurm_robust.model.progress import PaceHistory
from slurm_robust.model.record import Record

NAME_LETTERS = 12
"""Hexadecimal digits of a release's name."""


class CodeRoot(Record):
    """A folder of which a release has a copy."""

    path: str
    """Its place, in which the ranks find it: absolute, without symbolic links."""
    folder: str
    """Its name in the copy."""
    taken_from: str = ""
    """The folder that was copied in its stead, such as another checkout; "" for none."""

    @property
    def source(self) -> str:
        """The folder that was copied."""
        return self.taken_from or self.path


class GitState(Record):
    """What Git says of the first folder of a release."""

    commit: str
    branch: str = ""
    """"" for a detached head."""
    dirty: bool | None = False
    """Whether files that Git follows differ from the commit; None if it did not say in time."""


class Release(Record):
    """What the ranks of a job run. Its values never change."""

    name: str
    kind: CommandKind
    command: tuple[str, ...]
    """As the user gave it: a path in it means the file in its place, not the copy."""
    code: str = ""
    """Hash of the content of all folders, "" for a release without a copy of the code."""
    roots: tuple[CodeRoot, ...] = ()
    """Folders that were copied; that of the script comes first."""
    entry: str = ""
    """The script in the copy, ``<folder>/<path>``; "" for a module, a program, or a script outside of it."""
    files: int = 0
    nbytes: int = 0
    left_out: tuple[str, ...] = ()
    """What below the folders was not copied, and is a symbolic link to its place in the copy: relative paths
    with the reason, at most 20 and then how many more.
    """
    git: GitState | None = None
    env: tuple[str, ...] = ()
    """Names of the variables that its environment sets; the values are secret."""
    image: str = ""
    """Container image that agents and ranks run in, "" for that of the job's configuration."""
    has_config: bool = False
    """It brings a configuration of its own."""
    config: str = ""
    """Hash of that configuration: releases that differ in the code alone mostly have the same one."""
    workdir: bool = False
    """Ranks run in the copy (``code.workdir: release``), else in the job's working directory."""
    taken: float = 0.0
    """Seconds since 1970."""
    took_s: float = 0.0


class ReleaseState(str, Enum):
    """What is known of a release."""

    TAKEN = "taken"  # it never ran
    CANDIDATE = "candidate"  # it runs, and there is a way back before it is good
    UNJUDGED = "unjudged"  # it runs or ran, and is neither; nothing is before it, or another took its place
    GOOD = "good"  # it has made its steps
    BAD = "bad"  # it was rolled back: it is never applied again by itself
    REFUSED = "refused"  # its trial failed; it never ran


class When(str, Enum):
    """When an update is applied."""

    NOW = "now"  # at the next step boundary
    LAZY = "lazy"  # with the next recovery, at its deadline at the latest


class UpdateEnd(str, Enum):
    """Why an update is never applied."""

    REFUSED = "refused"  # the trial failed
    SUPERSEDED = "superseded"  # a later update took its place before it was applied
    WITHDRAWN = "withdrawn"  # by its owner, before it was applied


class Requester(Record):
    """Who asked for an update or planted a drill, and from where."""

    user: str
    uid: int
    host: str = ""


class Candidate(Record):
    """The release that runs and is not good yet, and the way back."""

    release: str
    update: int
    before: str
    """The newest good release before it, or what had made steps while none was good; "" if there is none, or
    if it was rolled back once: then nothing is rolled back.
    """
    checkpoint: CheckpointId | None = None
    """The step at which it took over, from which a rollback goes on; None for the beginning."""
    stored: bool = False
    """That checkpoint went to storage since."""
    generation: int = 0
    """The first generation that ran it."""
    applied: float = 0.0
    """When it took over, in seconds since 1970."""
    pace: PaceHistory = PaceHistory()
    """What was known of the pace of training when it did."""
    nodes: tuple[str, ...] = ()
    """On which it had that pace."""
    since: float = 0.0
    """When its first step was completed, in seconds since 1970; 0 before that."""
    first_step: int = -1
    """That step; -1 before it."""
