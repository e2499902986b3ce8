"""What a pending job waits for, and what starts it now. Pure: from job and nodes as Slurm has them."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_robust.model.record import Record
from slurm_robust.slurm.need import Need, Places, Segments, places, size_of, to_give_up
from slurm_robust.slurm.records import SlurmJob, SlurmNode, Switch
from slurm_robust.slurm.requeue_plan import waiting_advice
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import count, duration

# Slurm's reasons for which nodes count, or that are no reason; of all others (a dependency, a limit) the
# reason itself is all there is to say.
_OF_NODES = (
    "BadConstraints",
    "BeginTime",
    "Nodes_required",
    "None",
    "Priority",
    "ReqNodeNotAvail",
    "Resources",
)


class PendingJob(Record):
    """A pending job."""

    since: float | None
    """When it was queued, by its submission or its requeue."""

    reason: str
    """Slurm's."""

    least: int
    most: int
    """With how many nodes it can go on."""

    places: Places
    """What the nodes of its partitions are to it; empty if the reason has nothing to do with them."""

    command: str
    """What starts it now; "" if nothing can, or if Slurm will do it by itself."""

    why: str
    """What the command does, or what has to happen first."""

    uses: tuple[str, ...] = ()
    """The nodes that were left out and that the command uses again."""

    def describe(self, now: float) -> str:
        """Return ``for 8 min for 4 to 5 nodes: 4 nodes free (n[1,3-4,6]), n2 dead, n5 left out``."""
        found = self.places
        parts = []
        if found != Places():
            free = f"{count(len(found.free), 'node')} free"
            parts.append(f"{free} ({fold(found.free)})" if found.free else free)
        for what, nodes in (
            ("dead", found.dead),
            ("left out", found.left_out),
            ("drained", found.drained),
            ("busy", found.busy),
        ):
            parts += [f"{fold(nodes)} {what}"] if nodes else []
        waits = f"for {duration(max(0.0, now - self.since))} " if self.since is not None else ""
        to = f"{self.least} to " if self.most > self.least else ""
        return ": ".join(filter(None, (f"{waits}for {to}{count(self.most, 'node')}", ", ".join(parts))))

    @property
    def advice(self) -> str:
        """The command with what it does, or what has to happen first."""
        return f"{self.why}: {self.command}" if self.command and self.why else self.command or self.why


def waiting(
    job: SlurmJob,
    nodes: Sequence[SlurmNode],
    need: Need | None,
    weakest: Sequence[str] = (),
    topology: Sequence[Switch] = (),
) -> PendingJob | None:
    """Return what ``job`` waits for; None if it is not pending.

    ``nodes``: all of Slurm's, none if it has not shown them; ``need``: with how many nodes the job can go on,
    if that is known; ``weakest``: the nodes that we left out, the weakest first; ``topology``: for a job with
    segments.
    """
    if not job.is_pending:
        return None
    asked = max(1, job.least_nodes or job.num_nodes)
    known = need or Need(least=asked, most=max(asked, job.num_nodes))
    found, command, why = Places(), "", ""
    uses: tuple[str, ...] = ()
    if job.held and job.reason != "BadConstraints":
        why = waiting_advice(job)
    elif "maintenance" in job.reason.lower():
        why = (
            "a reservation for maintenance begins before its time limit is over ('scontrol show reservation' "
            "says when): it starts after the maintenance, or before it with a shorter time limit (scontrol "
            f"update JobId={job.job_id} TimeLimit=MINUTES)"
        )
    elif nodes and (not job.reason or job.reason.startswith(_OF_NODES)):
        found = places(job, nodes)
        segments = Segments.of(job, need, topology)
        command, why, uses = _way(job, found, known, weakest, segments, is_known=need is not None)
    else:
        why = _other(job)
    return PendingJob(
        since=job.submit_time,
        reason=job.reason,
        least=known.least,
        most=known.most,
        places=found,
        command=command,
        why=why,
        uses=uses,
    )


_OTHERS = (
    ("Dependency", "another job has to end first: scontrol show job {job} | grep Dependency"),
    ("DependencyNeverSatisfied", "the job that it depends on has failed, so it never starts: scancel {job}"),
    ("Reservation", "its reservation has not begun: scontrol show reservation"),
    ("Licenses", "its licenses are in use: scontrol show licenses"),
    (
        "PartitionTimeLimit",
        "its time limit is longer than its partition allows: scontrol update JobId={job} TimeLimit=",
    ),
    ("Partition", "its partition takes no jobs now: scontrol show partition"),
    ("Assoc", "a limit of its account is reached: sacctmgr show assoc where user=$USER"),
    ("QOS", "a limit of its QOS is reached: sacctmgr show qos"),
    ("JobArrayTaskLimit", "its array runs as many tasks at once as it may"),
)
"""Beginnings of Slurm's reasons that have nothing to do with nodes, what each means, and the command that
shows more or helps; the longest that fits counts.
"""


def _other(job: SlurmJob) -> str:
    """Return what a reason that has nothing to do with nodes means; "" if only Slurm knows."""
    fits = [(len(name), text) for name, text in _OTHERS if job.reason.startswith(name)]
    return max(fits)[1].format(job=job.job_id) if fits else ""


def _way(
    job: SlurmJob,
    found: Places,
    need: Need,
    weakest: Sequence[str],
    segments: Segments | None,
    *,
    is_known: bool,
) -> tuple[str, str, tuple[str, ...]]:
    """Return the command that starts the job on free nodes, what it does, and the nodes that it uses again.

    Without a command: what has to happen.
    """
    changes: dict[str, str] = {}
    short = need.least - len(found.free)
    if 0 < short <= len(found.soon):
        nodes = fold(found.soon)
        return (
            "",
            f"wait: no job runs on {nodes}; Slurm still ends the jobs before there, or plans the next",
            (),
        )
    if short > len(found.left_out_free):
        missing = count(short - len(found.left_out_free), "node")
        return "", f"it lacks {missing}{_until(found)}", ()
    free = list(found.free)
    if segments and (lack := segments.describe_lack((*free, *found.left_out_free), need.least)):
        return "", f"only {lack} on the nodes that are free{_until(found)}", ()
    order = [*(node for node in weakest if node in found.left_out_free), *found.left_out_free]
    room = segments.room if segments else len
    used = to_give_up(list(dict.fromkeys(order)), free, need.least, room)
    if used:
        free += used
        left = [node for node in job.excluded_nodes if node not in used]
        changes[f"ExcNodeList={fold(left)}"] = f"uses {fold(used)} again"
    if set(job.required_nodes) - set(free):
        changes["ReqNodeList="] = "requires no node by name any more"
    asks = job.least_nodes or job.num_nodes
    if is_known and (asks > len(free) or (job.reason == "BadConstraints" and not changes)):
        size = size_of(need, job, room(free))
        changes |= dict.fromkeys(size.arguments(), f"asks for {size.describe()}")
    if not changes:
        if job.reason == "Priority":
            return "", "Slurm starts other jobs first", ()
        if job.reason == "BadConstraints":
            return (
                "",
                "no nodes fit what it asks for, and a release does not help; compare its #SBATCH lines",
                (),
            )
        changes["StartTime=now"] = "to start it now"
        return _update(job, changes), "to start it now", ()
    does = ", ".join(dict.fromkeys(changes.values()))
    refused = "no nodes fit what it asks for (BadConstraints), and a release does not help; "
    prefix = refused if job.reason == "BadConstraints" else ""
    return _update(job, changes), f"{prefix}to start it now ({does})", tuple(used)


def _update(job: SlurmJob, changes: dict[str, str]) -> str:
    # A begin time that a requeue has set would have to pass first.
    words = dict.fromkeys((*changes, *(("StartTime=now",) if job.reason == "BeginTime" else ())))
    return f"scontrol update JobId={job.job_id} {' '.join(words)}"


def _until(found: Places) -> str:
    """Return what has to happen before the job can start."""
    ways = []
    if found.busy:
        ways.append("other jobs end")
    if lost := (*found.dead, *found.drained):
        ways.append(f"an administrator brings {fold(lost)} back (scontrol update nodename=… state=resume)")
    return f" until {' or '.join(ways)}" if ways else ""
