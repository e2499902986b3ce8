"""The schema of a job's configuration. Times are in seconds."""

from __future__ import annotations

import ipaddress
import os.path
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from msgspec import Meta, structs

from slurm_robust.config import container
from slurm_robust.config.notify import NotifyConfig
from slurm_robust.config.section import (
    FINITE,
    AbsolutePath,
    Contradiction,
    Count,
    Factor,
    Folder,
    Positive,
    Seconds,
    Section,
    Share,
)
from slurm_robust.home import page
from slurm_robust.model.container import Container
from slurm_robust.model.copies import Tier
from slurm_robust.model.job import LEAVING_S
from slurm_robust.model.training import ASIDE, MAX_LETTERS, is_name

_HIGHEST_PORT = 65535
_DIMENSIONS = ("tp", "cp", "ep", "dp", "pp")

_NonEmpty = Annotated[str, Meta(min_length=1, title="a string that is not empty")]
_Word = Annotated[str, Meta(pattern="^[^~]", title="a word that is not empty and does not begin with ~")]
_Program = Annotated[str, Meta(pattern="^[^~$][^$]*$", title="a program, without ~ and $")]
_CUTS_OFF = {"--containall", "--ipc", "--pid", "--net", "--fakeroot"}
_Streams = Annotated[int, Meta(ge=1, le=16, title="an integer from 1 to 16")]
_Rate = Annotated[float, Meta(gt=0, le=FINITE, title="a number above 0")]
_SecondsOrNone = Annotated[float, Meta(ge=0, le=FINITE, title="a number of seconds, or 0 for none")]
# Readers take a moment that is twice as old for that of a dead controller.
_Often = Annotated[float, Meta(ge=0, le=5, title="a number of seconds up to 5, or 0 for none")]
# Eight beacons; a network that is only busy delays them by tens of milliseconds.
_MIN_VERDICT_S = 0.4
MIN_TEST_S = 15.0
"""With less time for a test of nodes, one may be silent only because its part has still to start."""

_Port = Annotated[int, Meta(ge=0, le=_HIGHEST_PORT, title=f"an integer from 0 to {_HIGHEST_PORT}")]
_ExitCode = Annotated[int, Meta(ge=1, le=255, title="an exit code from 1 to 255")]


class Limits(Section):
    """Limits on automatic restarts. The job ends with exit code 93 when one is reached; 0 allows no
    restart."""

    per_signature: Count = 2
    """Restarts per fault signature without training progress in between. An exception of the script or an
    out-of-memory error is restarted at most once."""

    per_hour: Count = 10
    """Restarts within any 3600 s, for any reason."""

    per_day: Count = 100
    """Restarts within any 24 hours, for any reason. A job of many thousand GPUs may need more."""

    total: Annotated[Count | None, Meta(examples=[500])] = None
    """Restarts over the life of the job, including all its requeues. ``null``: no limit of this kind, as a
    long job has many faults."""


class Timings(Section):
    """Time limits of the parts of a run."""

    heartbeat_s: Seconds = 1.0
    """Interval between two heartbeats of an agent. Changes are reported immediately in any case."""

    node_dead_s: Seconds = 5.0
    """A node counts as dead after its agent has been silent for this time, unless
    [another witness](detection.md#silence-of-nodes) contradicts. At least two heartbeats."""

    verdict_s: Annotated[_SecondsOrNone | None, Meta(examples=[2])] = None
    """A node counts as dead earlier, after this time without a beacon of its agent, if its kernel answers no
    probe either and [another node finds the same](detection.md#a-verdict-within-a-second). ``null``: 0.8; 3
    in a job of 128 GPU nodes or more while no standby has rehearsed. With more than 1,000 nodes it takes
    longer. 0: only ``node_dead_s`` counts, and no beacons are sent."""

    takeover_s: _SecondsOrNone = 10.0
    """When the controller has been silent for this time, the agents find out whether its node is dead. If it
    is, one of them starts [another controller](takeover.md). 0: never; the job is requeued when Slurm gives
    the batch host up."""

    unreachable_s: Seconds = 300.0
    """How long to wait for nodes that fell silent together, because the network between them may recover."""

    # Python and its libraries come from one storage for all nodes: minutes for a thousand of them.
    agent_start_s: Seconds = 300.0
    """Time from the start of the agents' step until the first agent must report. After that, the others are
    late when no agent has reported for [a minute](detection.md#nodes-that-start-slowly)."""

    launch_s: Seconds = 600.0
    """Time from the first agent's report until the first node has imported torch, and from the launch order
    until a node runs its ranks. The other nodes are late after two minutes, unless a node became ready within
    the last minute."""

    stop_grace_s: Seconds = 5.0
    """Time between TERM and KILL when workers are stopped."""

    # The driver took 25.9 s for 243 GB that were registered for a GPU (reported). No process waits for a
    # worker that is gone.
    kill_wait_s: Seconds = 180.0
    """A worker counts as stuck if it still exists after KILL and this time, even while it is
    [releasing memory](detection.md#workers-that-are-slow-to-die). One that makes no progress for 30 s counts
    as stuck earlier."""

    checkpoint_s: Seconds = 60.0
    """How long a job that leaves its nodes waits until its newest checkpoint is on storage."""

    moment_s: _Often = 2.0
    """Interval at which the controller writes ``moment.json`` into the job's folder, for
    [srobust top](watching.md#srobust-top). 0: never."""

    shutdown_s: Seconds = 10.0
    """How long the controller waits for its agents at the end of the job. At least ``stop_grace_s`` + 5."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield times that leave no room for each other."""
        if self.node_dead_s < 2 * self.heartbeat_s:
            yield Contradiction(
                keys=("node_dead_s", "heartbeat_s"),
                text=f"node_dead_s ({self.node_dead_s:g}) is less than two heartbeats (of "
                f"{self.heartbeat_s:g}): one late heartbeat would cost a healthy node",
                fix=f"set node_dead_s to {2 * self.heartbeat_s:g} or more, or heartbeat_s to "
                f"{self.node_dead_s / 2:g} or less",
            )
        if self.verdict_s and not _MIN_VERDICT_S <= self.verdict_s <= self.node_dead_s:
            yield Contradiction(
                keys=("verdict_s", "node_dead_s"),
                text=f"verdict_s ({self.verdict_s:g}) is neither 0 nor between {_MIN_VERDICT_S:g} and "
                f"node_dead_s ({self.node_dead_s:g})",
                fix=f"set verdict_s to 0 for none, or to {_MIN_VERDICT_S:g} or more, and below node_dead_s",
            )
        stop_s = self.stop_grace_s + min(self.kill_wait_s, LEAVING_S)
        if self.shutdown_s < stop_s:
            yield Contradiction(
                keys=("shutdown_s", "stop_grace_s"),
                text=f"shutdown_s ({self.shutdown_s:g}) is less than the {stop_s:g} s in which agents stop "
                "their workers at the end: the controller would leave before them",
                fix=f"set shutdown_s to {stop_s:g} or more",
            )


class CheckpointConfig(Section):
    """Where checkpoints are kept, and how many."""

    directory: Annotated[Folder | None, Meta(examples=["/shared/me/checkpoints"])] = None
    """Folder on storage that all nodes share. ``null``: ``checkpoints`` in the job's folder. In any other
    folder, files get the modes of your umask, see
    [shared folders](security.md#checkpoints-on-storage)."""

    keep: Positive = 2
    """Number of newest complete checkpoints to keep. With 1, there is no older one to return to."""

    keep_every: Annotated[Positive | None, Meta(examples=[10000])] = None
    """Keep the checkpoint of every N-th step on storage permanently. ``null``: none."""

    memory: bool = True
    """Take snapshots in the memory of the nodes, as many as fit. ``false``: training waits while each
    checkpoint is written to storage."""

    max_blocked_share: Share | None = 0.01
    """Share of the time for which snapshots in memory may hold training up. Where they take longer, as with
    [steps that are shorter than a copy](checkpoints.md#short-steps), only every 2nd, 4th, … step is kept.
    ``null``: every step is kept, however long that takes."""

    peers: bool = True
    """Keep second copies of snapshots in the memory of other nodes, if there are any."""

    peer_network: Annotated[_NonEmpty | None, Meta(examples=["10.20.0.0/16"])] = None
    """Network of these copies: a subnet (``10.20.0.0/16``) or the name of an interface (``ib0``; IPoIB and
    RoCE interfaces work). A node without an address there starts no agent. ``null``: the network of the
    heartbeats."""

    peer_mb_s: Annotated[_Rate | None, Meta(examples=[2000])] = None
    """Maximum rate at which a node sends copies to its peers, in MB (10^6 bytes) per second. ``null``: a
    quarter of the interface's speed, if the kernel knows it (``/sys/class/net/*/speed``)."""

    peer_streams: Annotated[_Streams | None, Meta(examples=[4])] = None
    """Number of TCP connections over which the copy of each rank goes to its peer, and comes for a restore.
    ``null``: as many as it takes if one carries 5 Gb/s, by the rate above and the number of ranks; see
    [checkpoints](checkpoints.md#snapshots-in-memory)."""

    every_s: Seconds = 600.0
    """Write a checkpoint from memory to storage when the newest one there is this old."""

    every_steps: Annotated[Positive | None, Meta(examples=[500])] = None
    """Write a checkpoint from memory to storage every N steps. ``null``: by time only."""

    if_unusable: Literal["end", "wait"] = "end"
    """What a run does that must not begin at step 0, since storage has lost the checkpoints that it had.
    ``end``: it ends with exit code 74. ``wait``: it asks storage every 30 s, as long as it has its nodes."""

    if_parts_are_missing: Literal["older", "reseed"] = "older"
    """What a run does if nodes were lost together and the newest step in memory lacks the own parts of their
    ranks, while another node has the part that is equal on all ranks. ``older``: it goes on from an older
    checkpoint, bit by bit. ``reseed``: it goes on from that step with new random generators for these ranks,
    where their parts held [nothing else that matters](checkpoints.md#parts-that-are-missing)."""

    local_directory: Annotated[Folder | None, Meta(examples=["/scratch/me"])] = None
    """Folder on each node's own disk that receives a copy of what is written to storage. May be writable by
    all users, as ``/tmp`` is. ``null``: none."""

    @property
    def places(self) -> dict[Tier, str]:
        """Where the tiers are that a job has besides memory and ``directory``."""
        return {Tier.LOCAL: self.local_directory} if self.local_directory is not None else {}

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a network that does not exist."""
        if self.peer_network is not None and "/" in self.peer_network:
            try:
                ipaddress.ip_network(self.peer_network, strict=False)
            except ValueError as error:
                yield Contradiction(
                    keys=("peer_network",),
                    text=f"peer_network is {self.peer_network!r}: {error}",
                    fix='write a subnet, e.g. "10.20.0.0/16", or the name of an interface, e.g. "ib0"',
                )


def _too_short(key: str, seconds: float) -> Iterator[Contradiction]:
    """Yield a quick test that ends before it begins."""
    if 0 < seconds < MIN_TEST_S:
        yield Contradiction(
            keys=(key,),
            text=f"{key} ({seconds:g}) is less than the {MIN_TEST_S:g} s that the start of a test takes",
            fix=f"set {key} to {MIN_TEST_S:g} or more, or to 0 for none",
        )


class DetectConfig(Section):
    """Detection of hangs, slowdowns and numerical errors, and inspection of the nodes during training."""

    hang: bool = True
    """Detect hangs."""

    hang_factor: Factor = 3.0
    """Declare a hang after this multiple of the 99th percentile of the job's own step times without a
    step."""

    hang_floor_s: Seconds = 14.0
    """Minimum time without a step before a hang is declared. With the controller's interval, it is reported
    within 15 s."""

    first_step_s: Seconds = 1800.0
    """Time from the launch to the first step, until the job's history gives a better value."""

    silence_s: Seconds = 600.0
    """Suspect a hang if no step was made and the links of all nodes carried no traffic for this time."""

    phase_s: Seconds = 1800.0
    """Time limit of a phase that the script announces (evaluation, checkpoint), until the job's history gives
    a better value."""

    slow_factor: Factor = 1.5
    """Declare a slowdown if steps take this multiple of the job's own median for a minute or longer."""

    slow_samples: Count = 3
    """After this many stack samples of a slowdown without a straggler, run diagnostics on all nodes, once per
    job; 0 disables this."""

    spike_factor: Factor = 5.0
    """Declare a spike if the loss or gradient norm reaches this multiple of its rolling median."""

    spike_warmup_steps: Count = 100
    """Ignore spikes in this many steps at the beginning of training."""

    non_finite: bool = True
    """End the generation if the loss or gradient norm is NaN or infinite."""

    inspect: bool = True
    """Inspect the nodes during training: kernel log, GPUs, network, memory, disks, clock."""

    kernel_s: Seconds = 1.0
    """Maximum delay between a kernel message and its evaluation."""

    gpu_s: Seconds = 4.0
    """Interval between two inspections of the GPUs. Their events are received immediately."""

    network_s: Seconds = 10.0
    """Interval between two inspections of the network ports."""

    node_s: Seconds = 30.0
    """Interval between two inspections of everything else."""

    network_alerts: Count = 2
    """Evict a node after this many network alerts within ``network_window_s``."""

    network_window_s: Seconds = 300.0
    """Window in which network alerts are counted together."""

    stacks_s: Seconds = 5.0
    """Time limit for taking the stacks of all ranks."""

    diagnose: bool = True
    """Test the nodes before training continues after a failure that nothing explains."""

    diagnose_s: Seconds = 300.0
    """Time limit for all tests of one diagnosis together."""

    quick_test_s: _SecondsOrNone = 60.0
    """If there are too few standbys, test the nodes against which only suspicion speaks for up to this time,
    and use those that pass. At least 15. 0: no such test. See [fallbacks](standbys.md#the-quick-test)."""

    log_rules: Annotated[tuple[_NonEmpty, ...], Meta(examples=[["/etc/slurm-robust/log-rules"]])] = ()
    """[Log rules](log-rules.md) of the site: YAML files, or folders of them, relative to the submit
    directory. They override built-in rules."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a quick test that ends before it begins."""
        yield from _too_short("quick_test_s", self.quick_test_s)


class CodeConfig(Section):
    """The immutable copy of the code that the ranks run, a [release](updates.md)."""

    releases: bool = True
    """Take a copy of the code when the job starts, and run the ranks from it: files may then be edited while
    the job runs, and ``srobust update`` can change the code. ``false``: the ranks read the code in its
    place."""

    paths: Annotated[tuple[Folder, ...], Meta(examples=[["src", "/home/me/mylib"]])] = ()
    """Folders that belong to the code, relative to the working directory. Empty: the folder of the script; of
    a module the folder that holds its package; and packages of the environment that are installed in place
    (``pip install -e``)."""

    max_files: Positive = 20_000
    """Most files in the copy. If the folder has more files of code, the job takes no copy and says why. Data
    and outputs do not count, but the search stops after ten times as many files of any kind."""

    max_mb: Positive = 256
    """Size of the copy at most, in MB (1e6 bytes). Nodes keep it in memory."""

    max_file_mb: Positive = 16
    """A larger file is data: the copy has a link to its place."""

    take_s: Seconds = 60.0
    """Time for the copy at most."""

    workdir: Literal["user", "release"] = "user"
    """``user``: ranks run in the working directory of the job. ``release``: they run in the copy, in which
    outputs and data are links to their places, for scripts that read code by a relative path."""


class UpdateConfig(Section):
    """[Updates](updates.md): how a job gets from one release of its code to another."""

    good_steps: Positive = 100
    """Completed steps after which a new release is good. Until then it may be rolled back."""

    good_s: Seconds = 1800.0
    """A new release is also good after this time, if it has completed two steps."""

    slow_factor: Factor = 1.5
    """A new release is rolled back if its median step takes this many times as long as the previous one's."""

    rollback: bool = True
    """Go back to the last good release by itself when a new one fails. ``false``: a failure is answered as
    ever."""

    trial: bool = True
    """Try a new release before it is applied: its imports on all nodes, and a few steps on a standby."""

    trial_s: Seconds = 900.0
    """Time for the trial at most."""

    deadline_s: Seconds = 86_400.0
    """An update that waits for the next recovery is applied after this time at the latest."""

    keep: Positive = 10
    """Number of releases to keep. The running one and the newest good one are always among them."""


class ReplayConfig(Section):
    """Replay of the training in small groups of nodes, to find a node that computes wrong results. See
    [replay](diagnostics.md#replay)."""

    args: Annotated[tuple[str, ...] | None, Meta(examples=[["--layers", "2"]])] = None
    """Arguments appended to those of the script to make the model small. ``null``: no replay."""

    steps: Positive = 10
    """Number of optimizer steps to replay and compare."""

    budget_s: Seconds = 900.0
    """Time limit of both phases together."""


class StandbyConfig(Section):
    """What standbys do until they are needed. See [standbys](standbys.md)."""

    rehearse: bool = True
    """Run the script for a few steps on each standby, as one rank of a world that does not exist: its caches
    are warm when it is needed, and a standby that cannot run the script is taken last."""

    rehearse_steps: Positive = 2
    """Number of optimizer steps of a rehearsal."""

    rehearse_s: Seconds = 900.0
    """Time limit of a rehearsal."""

    rehearse_writes: Annotated[tuple[AbsolutePath, ...], Meta(examples=[["/scratch/me/index"]])] = ()
    """Folders of the node, besides the usual caches, in which a rehearsal may change files: where the script
    keeps indexes of data sets, for instance."""

    test_s: _SecondsOrNone = 60.0
    """Time limit of the [quick test](standbys.md#quick-test) that each standby runs once, before it
    rehearses. A standby that fails is evicted before it is needed. At least 15. 0: no such test."""

    learn: bool = True
    """Have the agents import before a start what rank 0 was seen to import until its first step: standbys at
    once, other nodes for their next restart. See [standbys](standbys.md#imports)."""

    replenish: Literal["reservation", "partition", "none"] = "reservation"
    """Where standbys that were used or evicted are replaced from, while training goes on. ``reservation``:
    ``companions.reservation``, if that is set. ``partition``: then free nodes of the partition, too, which
    ``companions.partition`` must allow. ``none``: they are not replaced before a node is needed."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a quick test that ends before it begins."""
        yield from _too_short("test_s", self.test_s)


class ParallelConfig(Section):
    """Sizes of the parallel groups. Data parallelism takes what they leave of the world size."""

    tp: Positive = 1
    """Tensor parallel size."""

    cp: Positive = 1
    """Context parallel size."""

    ep: Positive = 1
    """Expert parallel size, as a dimension of its own. 1 if experts lie across data parallel ranks."""

    pp: Positive = 1
    """Pipeline parallel size."""

    order: str = "tp-cp-ep-dp-pp"
    """Order of the dimensions, the one that changes fastest with the rank first (Megatron-LM's default)."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield an order that misses or repeats a dimension."""
        if sorted(self.order.split("-")) != sorted(_DIMENSIONS):
            fix = f'name each of {", ".join(_DIMENSIONS)} once, e.g. "tp-cp-ep-dp-pp"'
            yield Contradiction(keys=("order",), text=f"order is {self.order!r}", fix=fix)


class AgentsConfig(Section):
    """How agents and all other processes of the job on its nodes are started. See
    [containers](containers.md)."""

    srun_options: Annotated[
        tuple[_NonEmpty, ...],
        Meta(examples=[["--container-image=/shared/train.sqsh", "--container-mounts=/datasets"]]),
    ] = ()
    """Options of the sruns that start them: ``--container-*`` and ``--no-container-*`` of
    [pyxis](containers.md#pyxis), ``--network``, ``--propagate``. ``--container-mounts`` gets ``/dev/shm`` and
    the job's folders, unless it has them."""

    wrapper: Annotated[tuple[_Word, ...], Meta(examples=[["apptainer", "exec", "--nv", "train.sif"]])] = ()
    """Command that starts another one in a container: [Apptainer](containers.md#apptainer), for instance."""

    python: Annotated[_Program | None, Meta(examples=["/opt/venv/bin/python"])] = None
    """Python with slurm_robust and PyTorch on the nodes or in their container. ``null``: that of ``srobust
    run``, and in a container the first ``python3`` of its ``PATH``."""

    @property
    def is_contained(self) -> bool:
        """Whether the processes of the job run in a container."""
        return bool(self.wrapper) or container.is_contained(self.srun_options)

    def in_image(self, image: str) -> AgentsConfig:
        """Return the same with another image. Raises :class:`~slurm_robust.config.container.BadOption`."""
        if self.wrapper:
            return structs.replace(self, wrapper=container.wrapped_in_image(self.wrapper, image))
        options = container.in_image(container.parsed(self.srun_options), image)
        return structs.replace(self, srun_options=options)

    def container(self, writable: Sequence[str] = (), readable: Sequence[str] = ()) -> Container:
        """Return how steps of the job get into its container, where they write to ``writable`` and read
        ``readable``, which are absolute paths. Raises :class:`~slurm_robust.config.container.BadOption`.
        """
        options = container.completed(container.parsed(self.srun_options), writable, readable)
        python: tuple[str, ...] = () if self.python is None else (self.python,)
        if self.python is None and self.is_contained:
            # Slurm searches the PATH of the node before the task is in the container.
            python = ("/usr/bin/env", "python3")
        key = "agents.wrapper" if self.wrapper else "agents.srun_options" if self.is_contained else ""
        return Container(srun_options=options, python=(*self.wrapper, *python), key=key)

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a command line in one word, a container apart from its node, and two containers in one."""
        # A program whose path has blanks can stand behind /usr/bin/env.
        if len(words := self.wrapper[0].split() if self.wrapper else []) > 1:
            yield Contradiction(
                keys=("wrapper",),
                text=f"wrapper begins with the program {self.wrapper[0]!r}, with blanks in its name",
                fix=f"write each word by itself: [{', '.join((*words, *self.wrapper[1:]))}]",
            )
        if self.wrapper and os.path.basename(self.wrapper[0]) in ("apptainer", "singularity"):
            for option in _CUTS_OFF.intersection(self.wrapper):
                yield Contradiction(
                    keys=("wrapper",),
                    text=f"wrapper has {option}: agents need your uid, and processes, network and "
                    "/dev/shm of their node",
                    fix=f"leave it out ({page('containers.md')})",
                )
        if self.python is not None and " -" in self.python:
            yield Contradiction(
                keys=("python",),
                text=f"python is {self.python!r}: it must be a program without options",
                fix="write the program alone; export PYTHONOPTIMIZE=1 in the batch script does what -O does",
            )
        if self.wrapper and container.is_contained(self.srun_options):
            yield Contradiction(
                keys=("wrapper", "srun_options"),
                text="srun_options and wrapper both start a container",
                fix="leave one of them out",
            )


class WorkersConfig(Section):
    """How workers run on their node."""

    numa_binding: Literal["node", "none"] = "node"
    """``node``: bind a worker to the CPUs of the job near its GPU, and prefer memory there, if sysfs tells
    which these are and each GPU of the node has a rank. ``none``: let the kernel decide."""


class SlurmConfig(Section):
    """Use of Slurm."""

    backend: Literal["auto", "cli", "pyslurm"] = "auto"
    """``cli``: Slurm's commands. ``pyslurm``: the Python binding. ``auto``: pyslurm if it works, else the
    commands."""

    timeout_s: Seconds = 30.0
    """Time limit of a single request to Slurm."""

    requeue: bool = True
    """Requeue the job if it cannot continue in its allocation."""

    start_now: bool = True
    """Ask Slurm to start a requeued job immediately instead of after its usual delay of minutes."""

    give_back: bool = True
    """Give an evicted node back to Slurm while the job runs on, if slurm.conf has an ``Epilog`` that may test
    it. ``false``, or a site without an epilog: the job keeps the node until it ends."""

    job_comment: bool = True
    """When a run ends, write the ETTR into Slurm's comment of the job, unless it has a comment of yours."""


class CompanionConfig(Section):
    """Nodes from outside the allocation: a job that must replace a node and has no standby left gets one by a
    [companion job](fleet.md#companion-jobs) before it asks for a requeue."""

    reservation: Annotated[_NonEmpty | None, Meta(examples=["srobust_spares"])] = None
    """Reservation whose nodes companions use (``srobust spares create``). ``null``: none."""

    partition: bool = False
    """Use free nodes of the job's partition, after those of ``reservation``."""

    wait_s: Seconds = 30.0
    """Cancel a companion that has not started after this time, and go on without it. Training waits."""

    without_nvlink: bool = False
    """Where the job's nodes share an NVLink clique (a rack of GB200 or GB300), take also a lent node that
    NVLink does not reach: one of another clique, or any where Slurm gives each job an IMEX channel of its own
    (``SwitchType=switch/nvidia_imex``). Off, because a script that shares memory of GPUs between nodes fails
    there at its start, and groups that NVLink joined are slow. Set it if NVLink is used within nodes only."""

    sbatch: Annotated[tuple[_NonEmpty, ...], Meta(examples=[["--constraint=h200"]])] = ()
    """Options of ``sbatch`` for companions, besides the account, partition and QOS of the job."""


class WireConfig(Section):
    """Connections between controller and agents."""

    port: _Port = 0
    """TCP port of the controller; 0: any free port."""


class RendezvousConfig(Section):
    """Ports of the ranks' rendezvous."""

    port_range: Annotated[str | None, Meta(examples=["29500-29600"])] = None
    """Ports from which ``MASTER_PORT`` is chosen (``29500-29600``), and at least one more for copies to other
    nodes: three or more. ``null``: any free port."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a range that is malformed or outside the valid ports."""
        ports = self.ports
        if ports is not None and (not ports or ports[0] < 1 or ports[-1] > _HIGHEST_PORT):
            fix = f'write the lower port first, both from 1 to {_HIGHEST_PORT}, e.g. "29500-29600"'
            yield Contradiction(keys=("port_range",), text=f"port_range is {self.port_range!r}", fix=fix)

    @property
    def ports(self) -> range | None:
        """The ports with both ends, None for any free port. A malformed range is empty."""
        if self.port_range is None:
            return None
        low, _, high = (part.strip() for part in self.port_range.partition("-"))
        return range(int(low), int(high) + 1) if low.isdecimal() and high.isdecimal() else range(0)


_Listen = Annotated[
    str, Meta(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/]+):[0-9]{1,5}$", title="an address HOST:PORT")
]


class MetricsConfig(Section):
    """The page of metrics that the controller serves for Prometheus. See [monitoring](monitoring.md)."""

    listen: Annotated[_Listen | None, Meta(examples=["127.0.0.1:9480"])] = None
    """Address on which the controller serves ``http://HOST:PORT/metrics``. ``0.0.0.0:PORT``: on every
    interface of its node, also after a takeover; port 0: any free one. ``null``: no such page."""

    token_file: Annotated[AbsolutePath | None, Meta(examples=["/home/me/.config/srobust/metrics-token"])] = (
        None
    )
    """File with the bearer token that a scrape must show. It must be yours, and no other user may read it
    (mode 0600). ``null``: whoever reaches the address may read the page."""

    public: bool = False
    """Serve the page without a token on an address that other hosts reach."""

    discovery_dir: Annotated[AbsolutePath | None, Meta(examples=["/shared/srobust-targets"])] = None
    """Folder that gets a copy of the job's ``metrics.json``, where a Prometheus that may not read the job's
    folder [finds it](monitoring.md#how-prometheus-finds-the-page). ``null``: none."""

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of ``listen``."""
        if self.listen is None:
            return None
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield ports that do not exist, and a page that everybody could read unasked."""
        if self.address is None:
            return
        host, port = self.address
        if port > _HIGHEST_PORT:
            yield Contradiction(
                keys=("listen",), text=f"there is no port {port}", fix=f"use a port from 0 to {_HIGHEST_PORT}"
            )
        if self.token_file is None and not self.public and not _is_loopback(host):
            yield Contradiction(
                keys=("listen", "token_file"),
                text=f"other hosts reach {self.listen}, and without a token everybody on them reads the page",
                fix="set token_file, or public to true if that is meant, or listen on 127.0.0.1",
            )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class JobConfig(Section):
    """The configuration of a protected job."""

    nodes: Annotated[Positive | None, Meta(examples=[4])] = None
    """Number of nodes that train. ``null``: all nodes of the allocation except the spares."""

    spares: Count = 0
    """Number of nodes of the allocation that stand by as spares."""

    nproc_per_node: Annotated[Positive | None, Meta(examples=[8])] = None
    """Worker processes per node. ``null``: one per GPU of the node; on a node without GPUs what
    ``--ntasks-per-node`` of the submission says, else 1."""

    job_dir: Annotated[Folder | None, Meta(examples=["/shared/me/jobs"])] = None
    """Folder on shared storage that holds the folders of jobs, each named by its job id. ``null``:
    ``srobust-jobs`` in the submit directory. Other users must not be able to rename it, see
    [shared folders](security.md#folders-and-ports)."""

    training: Annotated[str | None, Meta(examples=["gpt-7b"])] = None
    """Name of the training of which the job is a chapter: it goes on from the newest checkpoint of the jobs
    before it, and only one of them runs at a time. See [trainings](trainings.md). ``SROBUST_TRAINING`` sets
    it, too. ``null``: the job is on its own."""

    preload: Annotated[tuple[str, ...], Meta(examples=[["transformers"]])] = ()
    """Python modules, besides torch, that every agent imports before it forks the first worker. The journal
    names a module that starts the GPU driver, see [below](#what-workers-see)."""

    mode: Literal["act", "observe"] = "act"
    """``observe``: run the whole policy and print what it would do, without doing it."""

    limits: Limits = Limits()
    timings: Timings = Timings()
    checkpoint: CheckpointConfig = CheckpointConfig()
    detect: DetectConfig = DetectConfig()
    code: CodeConfig = CodeConfig()
    updates: UpdateConfig = UpdateConfig()
    replay: ReplayConfig = ReplayConfig()
    standby: StandbyConfig = StandbyConfig()
    parallel: ParallelConfig = ParallelConfig()
    agents: AgentsConfig = AgentsConfig()
    workers: WorkersConfig = WorkersConfig()
    slurm: SlurmConfig = SlurmConfig()
    companions: CompanionConfig = CompanionConfig()
    notify: NotifyConfig = NotifyConfig()
    wire: WireConfig = WireConfig()
    rendezvous: RendezvousConfig = RendezvousConfig()
    metrics: MetricsConfig = MetricsConfig()

    final_exit_codes: tuple[_ExitCode, ...] = (2,)
    """Exit codes of the training after which a restart cannot help. 2 is the exit code of ``argparse`` for
    wrong usage; 0 is success and always final."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield names that cannot be used, ports that collide, and metrics of nothing.

        And mounts in the place of folders that are known without the job.
        """
        folders = (self.job_dir, self.checkpoint.directory, *self.checkpoint.places.values())
        try:
            self.agents.container([folder for folder in folders if folder and folder.startswith("/")])
        except container.BadOption as error:
            yield Contradiction(keys=("agents.srun_options",), text=f"srun_options {error}", fix=error.fix)
        if self.training is not None and not is_name(self.training):
            yield Contradiction(
                keys=("training",),
                text=f"training is {self.training!r}, which cannot be a part of a folder's name",
                fix=f"use up to {MAX_LETTERS} letters, digits, '-', '_' and '.', begin with none of '-' and "
                f"'.', and leave out '{ASIDE}'",
            )
        for module in self.preload:
            if not all(part.isidentifier() for part in module.split(".")):
                yield Contradiction(
                    keys=("preload",),
                    text=f"preload has {module!r}, which is not a module name",
                    fix='write names as in an import statement, e.g. ["transformers", "my_package.data"]',
                )
        if self.standby.replenish == "partition" and not self.companions.partition:
            yield Contradiction(
                keys=("standby.replenish", "companions.partition"),
                text="standby.replenish is partition, but companions may not use the partition",
                fix="set companions.partition to true, or standby.replenish to reservation",
            )
        if self.wire.port in (self.rendezvous.ports or ()):
            yield Contradiction(
                keys=("wire.port", "rendezvous.port_range"),
                text=f"wire.port ({self.wire.port}) lies in rendezvous.port_range "
                f"({self.rendezvous.port_range}): the controller could not open it while ranks meet there",
                fix="take the port out of the range, or set wire.port to 0 (any free port)",
            )
        if self.metrics.listen is not None and not self.timings.moment_s:
            yield Contradiction(
                keys=("metrics.listen", "timings.moment_s"),
                text="metrics.listen is set, but with timings.moment_s 0 there is nothing to show",
                fix="set timings.moment_s to 2, or metrics.listen to null",
            )
        if self.metrics.address is not None and 0 < self.metrics.address[1] == self.wire.port:
            yield Contradiction(
                keys=("metrics.listen", "wire.port"),
                text=f"metrics.listen and wire.port are the same port ({self.wire.port})",
                fix="use another port for one of them, or 0 (any free port)",
            )
