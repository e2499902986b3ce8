"""What commands ask the controller of a running job, and ``srobust stacks``."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from enum import Enum
from functools import cached_property, partial
from pathlib import Path

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from slurm_robust.analysis.stacks import localise
from slurm_robust.evidence import stacks as stack_text
from slurm_robust.evidence.bundle import write
from slurm_robust.evidence.stacks import StackGroup, flight
from slurm_robust.model import live_status
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.incident import Symptom
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.journal import fold
from slurm_robust.model.layout import ParallelLayout, Placement
from slurm_robust.model.record import Record
from slurm_robust.model.release import Requester
from slurm_robust.model.stacks import Localisation, RankStacks
from slurm_robust.model.state import JobState
from slurm_robust.model.world import OpenIncident
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.requeue_plan import waiting_advice
from slurm_robust.terminal.console import Screen, ScreenTable, indented, show
from slurm_robust.trainings.find import find, load_events
from slurm_robust.trainings.slurmview import ask_slurm, make_slurm
from slurm_robust.util.hostlist import fold as fold_nodes
from slurm_robust.util.text import count, date_and_time, duration, fold_ranks, named_ranks, one_line
from slurm_robust.util.trust import user_name
from slurm_robust.wire.epochs import EpochRecord, newest_epoch
from slurm_robust.wire.keys import ClientKeys, load_client
from slurm_robust.wire.messages import (
    Foreign,
    FromController,
    Refused,
    ShowStacks,
    StacksShown,
    StacksTaken,
)
from slurm_robust.wire.protocol import PROTOCOL
from slurm_robust.wire.sockets import Client

ANSWER_S = 5.0
"""For one answer of the controller, which never waits for nodes."""

POLL_S = 0.2
NOT_ALL = 1


class NotLive(SrobustError):
    """The job cannot be asked now, or what was asked for is not there."""

    exit_code = ExitCode.NO_INPUT


class LiveJob:
    """A running job and the address of its controller."""

    def __init__(self, name: str, job_dir: str | None, advice: str) -> None:
        """Take the job that a person named; ``advice`` is the fix if it has ended.

        Raises ``NoSuchJob``, ``JournalDamaged``, :class:`NotLive` for one that has ended.
        """
        self.slurm = make_slurm()
        self.directory = find(name, job_dir, self.slurm)
        self.events = load_events(self.directory)
        self.state = fold(self.events)
        if self.state.ended is not None:
            reason = one_line(self.state.ended.reason)
            raise NotLive(f"job {self.state.job_id} has ended: {reason}", fix=advice)

    @cached_property
    def epoch(self) -> EpochRecord:
        """The newest controller. Raises :class:`NotLive` if there is none yet."""
        epoch = newest_epoch(self.directory.epochs)
        if epoch is None:
            raise NotLive(f"job {self.state.job_id} has no controller yet", fix="try again in a few seconds")
        return epoch

    @property
    def keys(self) -> ClientKeys:
        """What proves to the controller that the job's owner asks."""
        return load_client(self.directory.keys)

    def read(self) -> JobState:
        """Return the state by the journal as it is now. Raises ``NoSuchJob``, ``JournalDamaged``."""
        return fold(load_events(self.directory))

    def failed(self, answer: FromController | Foreign | None) -> NotLive:
        """Make the error for a controller that does not answer what was asked."""
        if answer is None:
            return unanswered(self.state.job_id, self.epoch, self.slurm)
        return not_understood(self.state.job_id, answer)


def requester() -> Requester:
    """Return who runs the command, and where."""
    uid = os.geteuid()
    return Requester(user=user_name(uid).partition(" (")[0], uid=uid, host=socket.gethostname())


def not_understood(job_id: int, answer: FromController | Foreign) -> NotLive:
    """Make the error for a controller of another release."""
    why = "its answer cannot be read"
    if isinstance(answer, Refused):
        name = one_line(answer.refused, 40)
        why = f"it speaks protocol {answer.protocol}, this command {PROTOCOL}: it does not know '{name}'"
    return NotLive(
        f"the controller of job {job_id} is of another release of slurm_robust: {why}",
        fix="use the srobust of the release that runs the job, which the first line of its journal names",
    )


def unanswered(job_id: int, epoch: EpochRecord, slurm: SlurmClient) -> NotLive:
    """Return why a controller does not answer, and what to do. A cancelled job did not record its own end."""
    view = ask_slurm(slurm, job_id)
    if view.is_over:
        return NotLive(
            f"job {job_id} has ended: Slurm says {view.describe()}", fix="choose a job that is running"
        )
    if view.job is not None and not view.job.is_running:
        was = "was requeued and " if view.job.restart_count else ""
        return NotLive(
            f"job {job_id} {was}is {view.describe()}: nothing of it runs now",
            fix=waiting_advice(view.job) or f"'srobust status {job_id}' shows what it waits for",
        )
    says = f"; Slurm: {view.describe()}" if view.describe() else ""
    return NotLive(
        f"the controller of job {job_id} ({epoch.host}, port {epoch.port}) does not answer{says}",
        fix="check that the job is running (srobust status) and that this host can reach that node",
    )


# -- stacks ----------------------------------------------------------------------------------------


class LiveStacks(Record):
    """The stacks of ``generation`` at one moment."""

    generation: int
    nodes: tuple[str, ...]
    stacks: tuple[RankStacks, ...]
    silent: tuple[str, ...]
    """Nodes that did not answer within ``limit_s``."""
    limit_s: float


STILL_STEPS = 3.0
"""Training goes on if its newest step is no older than this many usual steps."""

STILL_S = 5.0
"""Or than this: the live status and the heartbeats before it are some seconds old."""


class StackVerdict(str, Enum):
    """Whether there is a fault at all that the stacks could place."""

    GOES_ON = "training goes on"
    STILL = "no step for a while"
    """No incident is open yet."""
    HANG = "hang"
    """An incident is open."""
    UNKNOWN = "unknown"
    """The age of the newest step is not known."""


class NewestStep(Record):
    """The newest step that all ranks of a generation have completed."""

    step: int
    age_s: float
    usual_s: float | None = None
    """The median of the job's steps."""
    has_moved: bool = False
    """It was another one before the sample."""

    @property
    def is_fresh(self) -> bool:
        """Whether training goes on by all that is known."""
        return self.has_moved or self.age_s <= max(STILL_S, STILL_STEPS * (self.usual_s or 0.0))


class StackSample(Record):
    """All that ``srobust stacks --json`` prints."""

    job_id: int
    t: float
    verdict: StackVerdict
    newest: NewestStep | None
    """None if that is not known."""
    incident: int
    """The open one, 0 for none."""
    generation: int
    nodes: tuple[str, ...]
    silent: tuple[str, ...]
    limit_s: float
    localisation: Localisation
    groups: tuple[StackGroup, ...]
    """The group of most ranks first, then outliers."""
    flight: tuple[str, ...]
    ranks: tuple[RankStacks, ...] = ()
    """The whole stacks of those that were asked for."""


def stacks(
    name: str, *, json: bool, raw: bool, ranks: Sequence[int], save: Path | None, job_dir: str | None
) -> int:
    """Print the stacks of a running job. Raises ``NoSuchJob``, ``JournalDamaged``, :class:`NotLive`."""
    job = LiveJob(
        name,
        job_dir,
        f"'srobust incidents {one_line(name)}' lists its incidents; 'srobust incident {one_line(name)} N "
        "--stacks' shows the stacks that were taken at one of them",
    )
    world = job.state.world.placement.world_size
    if wrong := [rank for rank in ranks if not 0 <= rank < world]:
        raise NotLive(f"no rank {wrong[0]}", fix=f"ranks are 0 to {world - 1}", code=ExitCode.USAGE)
    before = newest_step(job.directory)
    with (
        closing(Client(job.epoch.endpoints, job.keys)) as client,
        Screen(stderr=True).status("asking the controller") as status,
    ):

        def ask_once(wish: ShowStacks) -> StacksShown:
            answer = client.ask(wish, ANSWER_S)
            if isinstance(answer, StacksShown):
                return answer
            raise job.failed(answer)

        def progress(answered: int, nodes: int) -> None:
            status.update(f"stacks of {answered} of {count(nodes, 'node')}")

        taken = take(ask_once, progress, partial(time.sleep, POLL_S))
    # Read again: the generation may be younger than the first reading.
    newest = newest_step(job.directory, before)
    sample = explain(taken, job.read(), time.time(), newest)
    wanted = tuple(stack for stack in taken.stacks if raw or stack.rank in ranks)
    show(msgspec.structs.replace(sample, ranks=wanted), render, json=json)
    if save is not None:
        _save(save, msgspec.structs.replace(sample, ranks=taken.stacks))
    return NOT_ALL if taken.silent else ExitCode.SUCCESS


def take(
    ask: Callable[[ShowStacks], StacksShown],
    progress: Callable[[int, int], None],
    pause: Callable[[], None],
) -> LiveStacks:
    """Ask until all nodes have answered or had their time. Raises :class:`NotLive`.

    ``progress`` gets how many nodes of how many have answered; ``pause`` waits before the next question.
    """
    wish, found = ShowStacks(), dict[str, StacksTaken]()
    while True:
        shown = ask(wish)
        if shown.error:
            raise NotLive(shown.error, fix="try again when 'srobust status' shows that it trains")
        if shown.number != wish.number:
            found = {}
        found |= {answer.node: answer for answer in shown.stacks}
        progress(len(found), len(shown.nodes))
        if shown.over:
            stacks = (stack for answer in found.values() for stack in answer.stacks)
            return LiveStacks(
                generation=shown.generation,
                nodes=shown.nodes,
                stacks=tuple(sorted(stacks, key=lambda stack: stack.rank)),
                silent=tuple(node for node in shown.nodes if node not in found),
                limit_s=shown.limit_s,
            )
        wish = ShowStacks(number=shown.number, after=len(found))
        if not shown.stacks:
            pause()


# -- understanding ---------------------------------------------------------------------------------


def newest_step(directory: JobDirectory, before: NewestStep | None = None) -> NewestStep | None:
    """Return the newest step by the live status; ``before``: what this said before the sample."""
    try:
        status, now = live_status.read(directory.live_status), time.time()
    except (OSError, live_status.NotALiveStatus):
        return None
    old_s = max(0.0, now - status.t)
    if status.step < 0 or status.step_age_s is None or old_s > live_status.OLD_S:
        return None
    return NewestStep(
        step=status.step,
        age_s=round(status.step_age_s + old_s, 2),
        usual_s=status.usual_step_s,
        has_moved=before is not None and status.step > before.step,
    )


def _verdict(incident: OpenIncident | None, newest: NewestStep | None, *, halted: bool) -> StackVerdict:
    if incident is not None and incident.symptom is Symptom.HANG:
        return StackVerdict.HANG
    if newest is None or incident is not None:
        return StackVerdict.UNKNOWN
    return StackVerdict.GOES_ON if newest.is_fresh and not halted else StackVerdict.STILL


def explain(taken: LiveStacks, state: JobState, t: float, newest: NewestStep | None = None) -> StackSample:
    """Return what the stacks say: of a hang, or of training that goes on.

    Raises :class:`NotLive` if ``state`` does not know the generation.
    """
    identity = state.world.layouts.get(taken.generation)
    if identity is None:
        raise NotLive(
            f"generation {taken.generation} is not in the journal yet", fix="try again in a few seconds"
        )
    layout = ParallelLayout.from_identity(identity)
    placement = Placement(slots=taken.nodes, nproc_per_node=layout.nproc_per_node)
    silent = [rank for node in taken.silent for rank in placement.ranks_of(node)]
    incident = state.world.incident
    moves = _verdict(incident, newest, halted=False) in (StackVerdict.GOES_ON, StackVerdict.UNKNOWN)
    found = localise(taken.stacks, layout, silent, moving=moves)
    return StackSample(
        job_id=state.job_id,
        t=t,
        verdict=_verdict(incident, newest, halted=found.halted),
        newest=newest,
        incident=state.world.incident.number if state.world.incident else 0,
        generation=taken.generation,
        nodes=taken.nodes,
        silent=taken.silent,
        limit_s=taken.limit_s,
        localisation=found,
        groups=_most_first(stack_text.group(taken.stacks, found)),
        flight=tuple(flight(taken.stacks)),
    )


def _most_first(groups: Sequence[StackGroup]) -> tuple[StackGroup, ...]:
    """Return what most ranks do makes clear what is odd about the others."""
    usual = max((g for g in groups if not g.is_outlier), key=lambda g: len(g.ranks), default=None)
    return tuple(sorted(groups, key=lambda g: g is not usual))


# -- the screen ------------------------------------------------------------------------------------


def render(sample: StackSample) -> RenderableType:
    """Return the whole screen."""
    examples = [each.example for each in sample.groups]
    sources = " and ".join(sorted({stack.source for stack in examples} - {""}))
    ranks = sum(len(each.ranks) for each in sample.groups)
    title = Text(f"Stacks of {count(ranks, 'rank')} of job {sample.job_id}", style="bold")
    title.append(
        f", {date_and_time(sample.t)}, generation {sample.generation} on {count(len(sample.nodes), 'node')}"
        + one_line(f", by {sources}" if sources else ""),
        style="",
    )
    return Group(
        title,
        *_silent(sample),
        *_says(sample),
        "",
        _groups(sample.groups),
        *map(indented, sample.flight),
        *map(whole, sample.ranks),
    )


def _silent(sample: StackSample) -> Iterator[RenderableType]:
    if sample.silent:
        text = f"asked {fold_nodes(sample.silent)} for stacks, no answer within {sample.limit_s:g} s"
        yield indented(text, "bold yellow")


def _says(sample: StackSample) -> Iterator[RenderableType]:
    """Yield whether training goes on, and where the fault is if it does not."""
    found, newest = sample.localisation, sample.newest
    if sample.verdict is StackVerdict.GOES_ON and newest is not None:
        last = f" Last to arrive: {named_ranks(found.ranks)}." if found.ranks else ""
        age = f"step {newest.step}, {duration(newest.age_s)} ago"
        yield indented(f"Training goes on ({age}): no fault.{last}", "green")
        return
    if sample.verdict is StackVerdict.STILL and newest is not None:
        usual = f" (usual {newest.usual_s:.2g} s)" if newest.usual_s else ""
        text = (
            f"No step for {duration(newest.age_s)} since step {newest.step}{usual}; no incident is open yet."
        )
        yield indented(text, "yellow")
    if sample.verdict is StackVerdict.UNKNOWN and found.ranks and not sample.incident:
        text = "No incident is open. While training goes on, some rank is always last: sample again first."
        yield indented(text, "yellow")
    yield indented(stack_text.placed(found))


def _groups(groups: Sequence[StackGroup]) -> ScreenTable:
    table = ScreenTable(head=False)
    table.add_column(justify="right", no_wrap=True)
    for _ in ("ranks", "nodes", "what they do"):
        table.add_column(overflow="fold")
    for each in groups:
        style = "bold red" if each.is_outlier else ""
        ranks = f"{count(len(each.ranks), 'rank')}: {fold_ranks(each.ranks)}"
        doing = each.doing + (" (unlike most)" if each.is_outlier else "")
        table.add_row(" ", Text(ranks, style=style), Text(one_line(each.nodes)), Text(one_line(doing)))
    return table


def whole(stack: RankStacks) -> RenderableType:
    """Return all processes of one rank with all their threads, and what its process groups did last."""
    how = f", by {stack.source} in {stack.took_s:.2f} s" if stack.source else ""
    groups = (
        f"  group {c.group}: {c.operation} {c.sequence}, {c.state}"
        + (f", enqueued up to {c.newest}" if c.newest > c.sequence else "")
        for c in stack.collectives
    )
    lines = (
        one_line(f"Rank {stack.rank} on {stack.node}{how}"),
        *(line for process in stack.processes for line in stack_text.process_lines(process)),
        *map(one_line, groups),
        *(one_line(f"  group {name.partition(':')[2]}: nothing open") for name in stack.idle),
    )
    return Text("\n".join(("", *lines)))


def _save(path: Path, sample: StackSample) -> None:
    try:
        write(path, msgspec.json.encode(sample) + b"\n")
    except OSError as error:
        raise NotLive(
            f"{path} cannot be written: {error.strerror}", fix="give --save a file in a folder of yours"
        ) from error
