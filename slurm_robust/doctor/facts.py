"""What hazard rules judge: facts of the site, the job, its software and its node; what was not seen is None.

A rule asks by the methods here, which raise :class:`Unseen` for what is not known.
"""

from __future__ import annotations

import re
from typing import TypeVar

from slurm_robust.checkpoint.budget import Room
from slurm_robust.config.job import JobConfig
from slurm_robust.doctor.launchers import RunLine
from slurm_robust.doctor.shape import ScriptShape
from slurm_robust.hooks.times import HookTimes
from slurm_robust.model.record import Record
from slurm_robust.slurm.options import Options
from slurm_robust.slurm.records import SlurmJob, SlurmVersion, Terms
from slurm_robust.slurm.values import parse_number, parse_version, parse_words

Version = tuple[int, ...]
T = TypeVar("T")


class Unseen(Exception):
    """A fact that a rule needs is not known; the message names it."""


class Software(Record):
    """Releases as numbers, which compare; empty if none is installed or it does not show."""

    torch: Version = ()
    nccl: Version = ()
    cuda: Version = ()
    """Release of the CUDA runtime that torch was built for."""

    driver: Version = ()


class NodeFacts(Record):
    """This node as a process of the job sees it."""

    rooms: tuple[Room, ...] = ()
    """Limits on memory, first the file system of ``/dev/shm``; see :func:`.budget.limits`."""

    gpu_memory: int | None = None
    """Bytes of GPUs' memory that the kernel counts as the node's."""

    memory_mode: str = ""
    """How the driver was told to keep that memory: ``numa``, ``driver``, or "" for its own default."""

    addresses: tuple[str, ...] | None = None
    """Addresses that this node's name in Slurm resolves to here, none for a name that does not resolve."""

    speeds: dict[str, tuple[str, float]] = {}
    """The interface of each of its addresses, and its bytes per second, if the kernel knows them."""

    interfaces: tuple[str, ...] = ()
    hcas: tuple[str, ...] = ()
    """Host channel adapters, of InfiniBand or RoCE."""

    memlock: int | None = None
    """The limit on locked memory in bytes, None for none."""

    synchronised: bool | None = None
    """Whether the kernel knows its clock to be kept right."""


class Facts(Record):
    """One record of all that was found."""

    config: JobConfig = JobConfig()
    """The job's settings, the defaults if it has none."""

    configured: JobConfig | None = None
    """The same, if they were named."""

    refused: str | None = None
    """What ``srobust run`` would say against its options in the batch script, "" for nothing."""

    hears: bool | None = None
    """Whether signals of Slurm reach ``srobust run`` in the batch script."""

    shape: ScriptShape | None = None
    """What the batch script does around ``srobust run``, if that is what the doctor looks at."""

    run: RunLine | None = None
    """``srobust run`` in the batch script, if its words are known."""

    missing: str | None = None
    """The script that it runs, if no such file is here, "" if it is."""

    uncopied: str | None = None
    """Why no copy of the code that the batch script runs can be taken, "" if one can."""

    slurm: dict[str, str] | None = None
    """slurm.conf as slurmctld runs it: names as in slurm.conf(5), without those that are not set."""

    hook_times: dict[str, HookTimes] | None = None
    """How long prolog and epilog took here, if this user may read the event log."""

    clock_s: float | None = None
    """How far this host's clock is ahead of slurmctld's."""

    preemption: Terms | None = None
    """How the job is preempted: by the terms of its partition or QOS, whichever decides."""

    reservations: tuple[str, ...] | None = None
    """The names of those that this user may see, if the job's settings name one."""

    job: SlurmJob | None = None
    options: Options | None = None
    """What the job was, or will be, submitted with."""

    environ: dict[str, str] | None = None
    """The environment that workers get."""

    software: Software | None = None
    node: NodeFacts | None = None
    gpus: bool | None = None
    """Whether the job has any."""

    nodes: int | None = None
    ranks: int | None = None
    saved_s: float | None = None
    """How long the job took to put its newest step from memory on storage."""

    state_bytes: int | None = None
    """The state that the ranks of one node save in each step."""

    def line_of(self, text: str) -> int | None:
        """Return the line of the batch script that a finding names by an option, a variable or a command."""
        if self.shape is None:
            return None
        if self.shape.local is not None and self.shape.local.text in text:
            return self.shape.local.number
        options = self.options.lines if self.options is not None else {}
        for word in re.findall(r"--?[a-z][\w-]*|\b[A-Z][A-Z0-9_]{3,}", text):
            if word in self.shape.exports:
                return self.shape.exports[word].line
            if (line := options.get(word, options.get(word[2:]))) is not None and word.startswith("-"):
                return line
        return self.shape.line if "srobust run" in text else None

    # -- slurm.conf ------------------------------------------------------------------------------------

    def setting(self, key: str) -> str:
        """Return a value of slurm.conf, "" for one that is not set."""
        return known(self.slurm, "slurm.conf").get(key, "")

    def number(self, key: str) -> int:
        """Return the number of ``60 sec``."""
        return known(parse_number(self.setting(key)), key)

    def words(self, key: str) -> frozenset[str]:
        """Return a list in lower case, without the values of its items."""
        return parse_words(self.setting(key))

    def parameter(self, key: str, name: str) -> int | None:
        """Return the number of ``name=5`` in a list; None if the list has none."""
        found = re.search(rf"(?:^|,)\s*{name}\s*=\s*(\d+)", self.setting(key), re.IGNORECASE)
        return int(found[1]) if found else None

    @property
    def release(self) -> SlurmVersion:
        """Slurm's."""
        return parse_version(known(self.setting("SLURM_VERSION") or None, "SLURM_VERSION"))

    @property
    def requeue_delay_s(self) -> int:
        """How long Slurm lets a requeued job wait: from 25.11 on a setting of its own."""
        own = self.parameter("SchedulerParameters", "requeue_delay")
        if own is not None and self.release >= REQUEUE_DELAY_SINCE:
            return own
        lifetime = self.parameter("AuthInfo", "cred_expire")
        return 120 if lifetime is None else lifetime

    @property
    def preempts(self) -> bool:
        """Whether jobs are preempted here at all."""
        return self.setting("PreemptType") not in ("", "preempt/none", "(null)")

    @property
    def decides(self) -> str:
        """What decides on preemption: ``QOS`` or ``partition``."""
        return "QOS" if self.setting("PreemptType") == "preempt/qos" else "partition"

    @property
    def mode(self) -> str:
        """What a preemption does with the job: REQUEUE, CANCEL, SUSPEND or OFF."""
        own = known(self.preemption, f"the job's {self.decides}").mode
        return (own or self.setting("PreemptMode")).upper().partition(",")[0]

    def hook_limit(self, hook: str) -> int | None:
        """Return the seconds that Slurm lets the Prolog or the Epilog run; None if nothing says it."""
        return parse_number(self.setting(f"{hook}Timeout") or self.setting("PrologEpilogTimeout"))

    # -- the job ---------------------------------------------------------------------------------------

    def option(self, name: str) -> str | None:
        """Return the value of a long option of sbatch; None if it was not given."""
        options = known(self.options, "sbatch's options")
        if name not in options.given and not options.complete:
            raise Unseen("all of sbatch's options")
        return options.given.get(name)

    def variable(self, name: str) -> str | None:
        """Return a variable of the workers' environment; None if it is not set."""
        return known(self.environ, "the environment").get(name)

    def version(self, name: str) -> Version:
        """Return the release of ``torch``, ``nccl``, ``cuda`` or ``driver``."""
        return known(getattr(known(self.software, "software"), name) or None, name)

    @property
    def shared_memory(self) -> Room:
        """The file system of ``/dev/shm``."""
        return known(known(self.node, "the node").rooms or None, "memory")[0]


REQUEUE_DELAY_SINCE = SlurmVersion(major=25, minor=11)


def known(value: T | None, name: str) -> T:
    """Return ``value``; raise :class:`Unseen` for None."""
    if value is None:
        raise Unseen(name)
    return value
