"""The job as controller and agents must agree on it, and the job directory."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import msgspec

from slurm_robust.model.copies import Tier
from slurm_robust.model.record import Record

JOBS_FOLDER = "srobust-jobs"
"""Folder for the directories of jobs, below the one from which a job was submitted."""

RANKS_PER_FOLDER = 64
"""Ranks whose logs share a folder, with two files each. Lustre and NFS make the files of one folder one after
the other, so ten thousand ranks that open theirs together would wait 5 to 30 s, in each restart.
"""

LEAVING_S = 5.0
"""A job that ends for good waits no longer for killed workers: Slurm's ``KillWait`` is running, and Slurm
itself ends what is left.
"""


class CommandKind(str, Enum):
    """How the user's command is run."""

    SCRIPT = "script"  # a Python file, run in a fork of the zygote
    MODULE = "module"  # ``-m package.module``, run in a fork of the zygote
    EXEC = "exec"  # any program, executed once per rank


class CopySpec(Record):
    """What agents do about copies of checkpoints beyond shared storage."""

    memory: bool
    """Snapshots in the node's memory."""
    peers: bool
    """Second copies on other nodes."""
    peer_bytes_s: float
    """Most bytes per second and node that go to peers; 0: a share of what the interface can carry."""
    network: str
    """The subnet or interface by which they go, "" for that of the heartbeats."""
    places: dict[Tier, str]
    """Tiers beside ``checkpoint_dir`` that get what :class:`~slurm_robust.wire.messages.Flush` asks for."""
    keep: int
    """So many of the newest stay there."""
    peer_streams: int = 0
    """Connections for each image between two nodes; 0: as many as its interface needs."""


class InspectionSpec(Record):
    """How often agents check their nodes while training runs, in seconds."""

    kernel_s: float
    """Seconds from a line in the kernel's log until it is judged."""
    gpu_s: float
    network_s: float
    node_s: float


class JobSpec(Record):
    """What every agent must know of the job; ``job.json`` in the job directory. Times are in seconds.

    No field has a default, as :class:`~slurm_robust.config.job.JobConfig` has them all. A field that a later
    release adds gets one, since it reads the files of earlier jobs and of older controllers, too: what was
    done before there was that field.
    """

    run_id: str
    """Made once per job directory, and stamped on everything that could be mistaken for another run's."""
    job_id: int
    kind: CommandKind
    command: tuple[str, ...]
    cwd: str
    nproc_per_node: int
    preload: tuple[str, ...]
    heartbeat_s: float
    beacon_s: float
    """Seconds between two beacons; 0 for none."""
    takeover_s: float
    """Silence of the controller after which an agent asks whether its host is dead; 0: never."""
    kill_wait_s: float
    checkpoint_dir: str
    earlier: tuple[str, ...]
    """The ``run_id`` of each earlier job whose checkpoints count in this one."""
    copies: CopySpec
    inspection: InspectionSpec | None
    """None: no inspection."""
    numa_binding: bool
    """Workers run beside their GPUs."""
    learn: bool
    """Rank 0 reports what it has imported, for zygotes to import it before."""
    code: str = ""
    """The release that ranks will run, as far as that was known; "" for the code in its place."""
    version: str = msgspec.field(default="", name="release")
    """Of the controller's slurm_robust, since that of an image may be another one; "" if it does not say."""

    def tier_places(self, directory: JobDirectory) -> dict[Tier, str]:
        """Return the places of the tiers beyond the nodes' memory."""
        return {**self.copies.places, Tier.STORAGE: self.checkpoint_dir or str(directory.checkpoints)}


class JobDirectory:
    """Names inside the job directory (shared storage, mode 0700). Only names: nothing is opened here."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def spec(self) -> Path:
        """The :class:`JobSpec` as JSON."""
        return self.path / "job.json"

    @property
    def journal(self) -> Path:
        """One JSON object a line; the one truth about the job."""
        return self.path / "journal.jsonl"

    @property
    def notified(self) -> Path:
        """A :class:`.notice.Notified` as JSON: what people were told of the journal."""
        return self.path / "notified.json"

    @property
    def live_status(self) -> Path:
        """What the controller knows right now, a :class:`.live_status.LiveStatus`; for readers only."""
        return self.path / "moment.json"

    @property
    def metrics(self) -> Path:
        """The address of the controller's page of metrics for Prometheus, in its format ``file_sd``."""
        return self.path / "metrics.json"

    @property
    def epochs(self) -> Path:
        """One file per controller that ever took the job, named by its epoch."""
        return self.path / "epochs"

    @property
    def votes(self) -> Path:
        """One file for each node that finds the controller's host dead."""
        return self.path / "votes"

    @property
    def keys(self) -> Path:
        """CURVE key pairs made for this job."""
        return self.path / "keys"

    @property
    def agents(self) -> Path:
        """Output of the agents' steps and of each agent."""
        return self.path / "agents"

    @property
    def rehearsals(self) -> Path:
        """What the rehearsals of standbys print, ``<node>.log``."""
        return self.path / "rehearsals"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints on shared storage, unless the configuration names another folder."""
        return self.path / "checkpoints"

    @property
    def incidents(self) -> Path:
        """One folder of evidence per incident."""
        return self.path / "incidents"

    @property
    def releases(self) -> Path:
        """One folder for each release of the job's code (:mod:`slurm_robust.model.release`)."""
        return self.path / "releases"

    @property
    def suspects(self) -> Path:
        """For each node that was given up ``<node>.json``, a :class:`.findings.Suspect`."""
        return self.path / "suspects"

    @property
    def nodes(self) -> Path:
        """What prolog and epilog saw of nodes: ``<node>.<time>.json``, a :class:`.nodeseen.NodeSeen`."""
        return self.path / "nodes"

    @property
    def summary(self) -> Path:
        """A :class:`.jobsummary.JobSummary` for the fleet index of the site."""
        return self.path / "summary.json"

    def logs(self, generation: int) -> Path:
        """Return the folder of the workers' output of one generation."""
        return self.path / "logs" / f"gen-{generation:03d}"

    def logs_ahead(self, generation: int) -> Path:
        """Return the file that is in :meth:`logs` while these were only made ahead, for a later launch."""
        return self.logs(generation) / "ahead"

    def worker_log(self, generation: int, rank: int, stream: str) -> Path:
        """Return the file of one worker's ``out`` or ``err`` stream.

        Those of the first ranks lie in the generation's folder, of the others in folders of 64 ranks in it.
        """
        folder, first = self.logs(generation), rank - rank % RANKS_PER_FOLDER
        if first:
            folder /= f"ranks-{first:05d}"
        return folder / f"rank-{rank:05d}.{stream}"

    def worker_logs(self, generation: int, stream: str) -> dict[int, Path]:
        """Return the files of a stream that there are, by rank."""
        paths = self.logs(generation).rglob(f"rank-*.{stream}")
        return {int(path.stem.removeprefix("rank-")): path for path in paths}
