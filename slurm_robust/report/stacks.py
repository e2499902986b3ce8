"""``srobust stacks JOB``: what all ranks do now, and what the analysis of a hang would make of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from slurm_robust.analysis.stacks import localise
from slurm_robust.analysis.stacks.groups import fold as fold_ranks
from slurm_robust.controller.evidence import stacks as stack_text
from slurm_robust.controller.evidence.flight import flight
from slurm_robust.controller.evidence.folder import write
from slurm_robust.controller.evidence.stacks import StackGroup
from slurm_robust.controller.evidence.texts import count, one_line
from slurm_robust.controller.preflight import load_plan
from slurm_robust.controller.restoring import layout_of
from slurm_robust.model.errors import SrobustError
from slurm_robust.model.exitcodes import ExitCode
from slurm_robust.model.incident import Symptom
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.journal import fold
from slurm_robust.model.layout import ParallelLayout, Placement
from slurm_robust.model.record import Record
from slurm_robust.model.stacks import Localisation, RankStacks
from slurm_robust.model.state import JobState
from slurm_robust.report.asking import ended, unanswered
from slurm_robust.report.find import find, load_events
from slurm_robust.report.screen import Screen
from slurm_robust.report.slurmview import make_slurm
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.util.hostlist import fold as fold_nodes
from slurm_robust.util.text import as_json
from slurm_robust.wire.client import Client
from slurm_robust.wire.epochs import newest_epoch
from slurm_robust.wire.keys import load_client
from slurm_robust.wire.messages import LookAtStacks, StacksShown, StacksTaken

ANSWER_S = 5.0
"""For one answer of the controller, which never waits for nodes."""

POLL_S = 0.2
NOT_ALL = 1


class NothingToSee(SrobustError):
    """No stacks can be taken of this job now, or not of this rank."""

    def __init__(self, text: str, fix: str, code: ExitCode = ExitCode.NO_INPUT) -> None:
        super().__init__(text)
        self.fix = fix
        self.exit_code = code


class Taken(Record):
    """The stacks of one look at ``generation``. ``silent`` nodes did not answer within ``limit_s``."""

    generation: int
    nodes: tuple[str, ...]
    stacks: tuple[RankStacks, ...]
    silent: tuple[str, ...]
    limit_s: float


class Look(Record):
    """All that ``--json`` prints. ``groups``: the one of most ranks first, then outliers.

    ``incident``: the open one, 0 for none; ``ranks``: the whole stacks of those that were asked for.
    """

    job_id: int
    t: float
    incident: int
    generation: int
    nodes: tuple[str, ...]
    silent: tuple[str, ...]
    limit_s: float
    localisation: Localisation
    groups: tuple[StackGroup, ...]
    flight: tuple[str, ...]
    ranks: tuple[RankStacks, ...] = ()


def main(
    name: str, *, json: bool, raw: bool, ranks: Sequence[int], save: Path | None, job_dir: str | None
) -> int:
    """Look at a running job. Raises ``NoSuchJob``, ``JournalDamaged``, :class:`NothingToSee`."""
    slurm = make_slurm()
    directory = find(name, job_dir, slurm)
    state = fold(load_events(directory))
    _check(state, ranks)
    taken = _ask_controller(directory, state, slurm)
    plan = load_plan(directory)
    layout = layout_of(plan.config, len(taken.nodes), plan.nproc_per_node)
    look = explain(taken, layout, state, time.time())
    wanted = tuple(stack for stack in taken.stacks if raw or stack.rank in ranks)
    if json:
        print(as_json(msgspec.structs.replace(look, ranks=wanted)))
    else:
        console = Screen()
        console.print(render(look))
        console.print(Group(*map(whole, wanted)))
    if save is not None:
        _save(save, msgspec.structs.replace(look, ranks=taken.stacks))
    return NOT_ALL if taken.silent else ExitCode.SUCCESS


def _check(state: JobState, ranks: Sequence[int]) -> None:
    if over := ended(state):
        raise NothingToSee(
            over,
            "'srobust incident JOB N --stacks' shows the stacks that were taken at an incident",
        )
    world = state.placement.world_size
    if wrong := [rank for rank in ranks if not 0 <= rank < world]:
        raise NothingToSee(f"no rank {wrong[0]}", f"ranks are 0 to {world - 1}", code=ExitCode.USAGE)


# -- asking ----------------------------------------------------------------------------------------


def _ask_controller(directory: JobDirectory, state: JobState, slurm: SlurmClient) -> Taken:
    epoch = newest_epoch(directory.epochs)
    if epoch is None:
        raise NothingToSee(f"job {state.job_id} has no controller yet", "try again in a few seconds")
    progress = Screen(stderr=True)
    with (
        closing(Client(epoch.endpoints, load_client(directory.keys))) as client,
        progress.status("asking the controller") as status,
    ):

        def ask(wish: LookAtStacks) -> StacksShown:
            answer = client.ask(wish, ANSWER_S)
            if isinstance(answer, StacksShown):
                return answer
            raise NothingToSee(*unanswered(state, epoch, slurm))

        def tell(answered: int, nodes: int) -> None:
            status.update(f"stacks of {answered} of {count(nodes, 'node')}")

        return take(ask, tell, partial(time.sleep, POLL_S))


def take(
    ask: Callable[[LookAtStacks], StacksShown], tell: Callable[[int, int], None], pause: Callable[[], None]
) -> Taken:
    """Ask until all nodes have answered or had their time. Raises :class:`NothingToSee`.

    ``tell`` hears how many nodes of how many have answered; ``pause`` waits until it is worth asking again.
    """
    wish, found = LookAtStacks(), dict[str, StacksTaken]()
    while True:
        shown = ask(wish)
        if shown.error:
            raise NothingToSee(shown.error, "try again when 'srobust status' shows that it trains")
        if shown.look != wish.look:
            found = {}
        found |= {answer.node: answer for answer in shown.stacks}
        tell(len(found), len(shown.nodes))
        if shown.over:
            stacks = (stack for answer in found.values() for stack in answer.stacks)
            return Taken(
                generation=shown.generation,
                nodes=shown.nodes,
                stacks=tuple(sorted(stacks, key=lambda stack: stack.rank)),
                silent=tuple(node for node in shown.nodes if node not in found),
                limit_s=shown.limit_s,
            )
        wish = LookAtStacks(look=shown.look, after=len(found))
        if not shown.stacks:
            pause()


# -- understanding ---------------------------------------------------------------------------------


def explain(taken: Taken, layout: ParallelLayout, state: JobState, t: float) -> Look:
    """What the stacks say: of a hang if one is open, else of training that goes on."""
    placement = Placement(slots=taken.nodes, nproc_per_node=layout.nproc_per_node)
    silent = [rank for node in taken.silent for rank in placement.ranks_of(node)]
    stands = state.incident is not None and state.incident.symptom is Symptom.HANG
    found = localise(taken.stacks, layout, silent, moving=not stands)
    return Look(
        job_id=state.job_id,
        t=t,
        incident=state.incident.number if state.incident else 0,
        generation=taken.generation,
        nodes=taken.nodes,
        silent=taken.silent,
        limit_s=taken.limit_s,
        localisation=found,
        groups=_most_first(stack_text.group(taken.stacks, found)),
        flight=tuple(flight(taken.stacks)),
    )


def _most_first(groups: Sequence[StackGroup]) -> tuple[StackGroup, ...]:
    """What most ranks do makes clear what is odd about the others."""
    usual = max((g for g in groups if not g.is_outlier), key=lambda g: len(g.ranks), default=None)
    return tuple(sorted(groups, key=lambda g: g is not usual))


# -- the screen ------------------------------------------------------------------------------------


def render(look: Look) -> RenderableType:
    """The whole screen, without the whole stacks."""
    examples = [each.example for each in look.groups]
    sources = " and ".join(sorted({stack.source for stack in examples} - {""}))
    ranks = sum(len(each.ranks) for each in look.groups)
    title = Text(f"Stacks of {count(ranks, 'rank')} of job {look.job_id}", style="bold")
    title.append(
        time.strftime(", %Y-%m-%d %H:%M:%S", time.localtime(look.t))
        + f", generation {look.generation} on {count(len(look.nodes), 'node')}"
        + one_line(f", by {sources}" if sources else ""),
        style="",
    )
    return Group(
        title,
        *_silent(look),
        _indented(stack_text.placed(look.localisation)),
        *_caution(look),
        "",
        _groups(look.groups),
        *map(_indented, look.flight),
    )


def _silent(look: Look) -> Iterator[RenderableType]:
    if look.silent:
        text = f"asked {fold_nodes(look.silent)} for stacks, no answer within {look.limit_s:g} s"
        yield _indented(text, "bold yellow")


def _caution(look: Look) -> Iterator[RenderableType]:
    if look.localisation.ranks and not look.incident:
        text = "No incident is open: where training goes on somebody is always last, so look again first."
        yield _indented(text, "yellow")


def _groups(groups: Sequence[StackGroup]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    for _ in ("ranks", "nodes", "what they do"):
        table.add_column(overflow="fold")
    for each in groups:
        style = "bold red" if each.is_outlier else ""
        ranks = f"{count(len(each.ranks), 'rank')}: {fold_ranks(each.ranks)}"
        words = each.doing + (" (unlike most)" if each.is_outlier else "")
        table.add_row(" ", Text(ranks, style=style), Text(one_line(each.nodes)), Text(one_line(words)))
    return table


def whole(stack: RankStacks) -> RenderableType:
    """All processes of one rank with all their threads, and what its process groups did last."""
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
    )
    return Text("\n".join(("", *lines)))


def _indented(text: str, style: str = "") -> RenderableType:
    return Padding(Text(text, style=style, overflow="fold"), (0, 0, 0, 2), expand=False)


def _save(path: Path, look: Look) -> None:
    try:
        write(path, msgspec.json.encode(look) + b"\n")
    except OSError as error:
        raise NothingToSee(
            f"{path} cannot be written: {error.strerror}", "give --save a file in a folder of yours"
        ) from error
