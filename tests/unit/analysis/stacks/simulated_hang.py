"""Trainings with NCCL at a standstill: one fault, and what all flight recorders then say.

Hosts enqueue ahead of their GPUs; a GPU runs its main stream in order and the gradients of data parallelism
on a second one. Everything that can go on goes on, until nothing can. Where states are sharded in groups
within data parallelism (HSDP), the layout does not know of these groups.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from msgspec import structs

from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.stacks import Collective, Frame, RankStacks
from tests.unit.analysis.stacks.sample_stacks import COMPUTE, DATA, TORCH, Frames, rank

PER_NODE = 8
MAX_AHEAD = 1000
"""Kernels that the driver's queue takes before a launch blocks."""

SYNCHRONIZE = (Frame(function="synchronize", file=f"{TORCH}/cuda/__init__.py", line=1040),)
ITEM = (Frame(function="train", file="/home/alice/train.py", line=97),)


class Fault(Enum):
    HOST = "the host enqueues no more"
    GPU = "the GPU hangs in a kernel of its own"
    NETWORK = "all have begun an operation and none ends it"


class Backend(Enum):
    """What carries out the operations, and what its recorder shows of them."""

    TIMED = "nccl with timing"
    UNTIMED = "nccl without timing"
    HOOKED = "nccl2: open operations only, never started"

    @property
    def library(self) -> str:
        return "nccl2" if self is Backend.HOOKED else "nccl"


@dataclass(frozen=True)
class Call:
    """One operation of a rank's program; ``peers``: stages that are sent to or received from (-1, 1)."""

    what: str
    peers: tuple[int, ...] = ()
    is_beside: bool = False


Instance = tuple[str, int, int]
"""What its members share: kind, first rank, number."""


@dataclass
class Case:
    """A layout, a program, a fault at the ``stop``-th call of rank ``victim``."""

    layout: ParallelLayout
    fault: Fault
    victim: int
    stop: int
    ahead: list[int]
    backend: Backend
    shards: int
    is_batched: bool
    layers: int
    micros: int
    buckets: int
    waits_at_end: bool
    missing: frozenset[int]
    mute: frozenset[int]
    places: list[Frames]
    groups: dict[str, dict[int, tuple[int, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        world = tuple(range(self.layout.world_size))
        self.groups = {"": dict.fromkeys(world, world)} | {
            name: {r: group for group in self.layout.groups(name) for r in group}
            for name in ("tp", "ep", "pp", "dp")
        }
        data = self.groups["dp"]
        blocks = {r: data[r].index(r) // self.shards for r in world}
        self.groups["shard"] = {
            r: data[r][b * self.shards : (b + 1) * self.shards] for r, b in blocks.items()
        }
        self.groups["replica"] = {r: data[r][data[r].index(r) % self.shards :: self.shards] for r in world}
        sizes = dict(self.layout.sizes)
        self.programs = [self._program(stage, sizes["pp"]) for stage in range(sizes["pp"])]
        self.program_of = [self.programs[self.layout.coordinates(r)["pp"]] for r in world]
        # How often each kind was called before each place of a step.
        self.before = {id(p): [Counter(map(_kind, p[:i])) for i in range(len(p) + 1)] for p in self.programs}
        # Of each place: how often its own kind was called before it, and in the whole step.
        self.own = {
            id(p): [
                (self.before[id(p)][i][_kind(c)], self.before[id(p)][-1][_kind(c)]) for i, c in enumerate(p)
            ]
            for p in self.programs
        }

    @cached_property
    def standstill(self) -> Machine:
        return Machine(self)

    def _program(self, stage: int, stages: int) -> list[Call]:
        """One step: all micro batches forward, all backward, gradients beside, one call of the world."""
        sizes = dict(self.layout.sizes)
        layer = [Call("shard")] if self.shards > 1 else []
        layer += [Call(name) for name in ("tp", "ep") if sizes[name] > 1]
        layers = layer * self.layers
        across = "replica" if self.shards > 1 else "dp"
        before, after = (-1,) if stage > 0 else (), (1,) if stage < stages - 1 else ()
        ends = [Call("batch", before + after)] if self.is_batched and stages > 1 else []

        def alone(what: str, peers: tuple[int, ...]) -> list[Call]:
            return [Call(what, peers)] if peers and not self.is_batched else []

        found: list[Call] = []
        for _ in range(self.micros):
            found += alone("recv", before) + layers + alone("send", after) + ends
        for micro in range(self.micros):
            found += alone("recv", after)
            is_last = sizes["dp"] > self.shards and micro == self.micros - 1
            gradients = [Call(across, is_beside=True)] if is_last else []
            for bucket in range(self.buckets):
                found += layers[bucket :: self.buckets] + gradients
            found += alone("send", before) + ends
        return [*found, Call("")]

    def call(self, r: int, index: int) -> Call:
        program = self.program_of[r]
        return program[index % len(program)]

    def number(self, r: int, index: int, kind: str | None = None) -> int:
        """Calls of the kind before ``index``."""
        program = self.program_of[r]
        steps, place = divmod(index, len(program))
        if kind is None:
            count, per_step = self.own[id(program)][place]
            return steps * per_step + count
        before = self.before[id(program)]
        return steps * before[-1][kind] + before[place][kind]

    def instances(self, r: int, index: int) -> dict[Instance, tuple[int, ...]]:
        """Return what the call is part of, each with its members: one for each peer of sends and receives."""
        call, number = self.call(r, index), self.number(r, index)
        if not call.peers:
            members = self.groups[call.what][r]
            return {(f"{call.what}{len(members)}", members[0], number): members}
        pipeline = self.groups["pp"][r]
        own, found = pipeline.index(r), {}
        for peer in call.peers:
            members = (r, pipeline[own + peer])
            kind = (
                "batch" if call.what == "batch" else "up" if (call.what == "send") == (peer > 0) else "down"
            )
            found[kind, min(members), number] = members
        return found


def _kind(call: Call) -> str:
    # Those with both neighbours and those with one are counted together.
    return call.what if call.what == "batch" or not call.peers else f"{call.what}{call.peers[0]}"


class Machine:
    """Runs a case to its standstill."""

    def __init__(self, case: Case) -> None:
        self.case = case
        world = range(case.layout.world_size)
        self.started: list[dict[int, dict[Instance, tuple[int, ...]]]] = [{} for _ in world]
        # Steps end with the world's call, so those before the fault's are over on all ranks.
        steps = case.stop // len(case.program_of[case.victim])
        self.main = [steps * len(program) for program in case.program_of]
        self.beside = list(self.main)
        self.came: defaultdict[Instance, int] = defaultdict(int)
        self.done: set[Instance] = set()
        broken = min(case.instances(case.victim, case.stop))
        self.broken = broken if case.fault is Fault.NETWORK else None
        waiting = list(world)
        while waiting:
            waiting += self._advance(waiting.pop())

    def is_done(self, r: int, index: int) -> bool:
        return index in self.started[r] and self.started[r][index].keys() <= self.done

    def _advance(self, r: int) -> Iterator[int]:
        moved = True
        while moved:
            moved = False
            for is_beside in (False, True):
                queue = self.beside if is_beside else self.main
                index = queue[r]
                if self.case.call(r, index).is_beside is not is_beside or self.is_done(r, index):
                    # Neither stream gets far ahead: the next step begins behind the world's call.
                    if is_beside and index >= self.main[r]:
                        continue
                    queue[r] += 1
                    moved = True
                elif index not in self.started[r] and self._may_start(r, index):
                    moved = True
                    yield from self._start(r, index)

    def _may_start(self, r: int, index: int) -> bool:
        if r == self.case.victim and self.case.fault is not Fault.NETWORK and index >= self.case.stop:
            return False
        call = self.case.call(r, index)
        if call.is_beside:
            return self.main[r] >= index
        return call.what != "" or self.beside[r] >= index

    def _start(self, r: int, index: int) -> Iterator[int]:
        self.started[r][index] = self.case.instances(r, index)
        for instance, members in self.started[r][index].items():
            self.came[instance] += 1
            if self.came[instance] == len(members) and instance != self.broken:
                self.done.add(instance)
                yield from (member for member in members if member != r)

    def enqueued(self, r: int) -> int:
        """How many calls the host of ``r`` has made."""
        case = self.case
        first = min(self.main[r], self.beside[r])
        count = max(first + 1 + case.ahead[r], max(self.started[r], default=-1) + 1)
        if case.waits_at_end:
            length = len(case.program_of[r])
            count = min(count, (first // length + 1) * length)
        return min(count, case.stop) if (r, case.fault) == (case.victim, Fault.HOST) else count


def stacks(case: Case) -> list[RankStacks]:
    """What all ranks show at the standstill, but for those on nodes that do not answer."""
    machine = case.standstill
    answering = [r for r in range(case.layout.world_size) if r not in case.missing]
    return [_silent(case, r) if r in case.mute else _heard(machine, r) for r in answering]


def _silent(case: Case, r: int) -> RankStacks:
    return rank(r, case.places[r])


def _heard(machine: Machine, r: int) -> RankStacks:
    case, records = machine.case, _records(machine, r)
    shown = {record.recorded_as for record in records}
    called = {"pp" if call.peers else call.what for call in case.program_of[r]}
    names = [f"{case.backend.library}:{kind}{case.groups[kind][r][0]}" for kind in sorted(called)]
    idle = tuple(name for name in names if name not in shown)
    return structs.replace(rank(r, case.places[r], collectives=records), idle=idle)


def _records(machine: Machine, r: int) -> list[Collective]:
    case, enqueued = machine.case, machine.enqueued(r)
    first = min(machine.main[r], machine.beside[r])
    heads: dict[str, int] = {}
    peers: set[int] = set()
    for index in range(first, min(enqueued, first + 2 * len(case.program_of[r]))):
        call = case.call(r, index)
        is_told = (
            call.what != "batch" or case.backend is not Backend.HOOKED
        )  # nccl2 tells it as ended at once
        if is_told and not machine.is_done(r, index):
            heads.setdefault("p2p" if call.peers else call.what, index)
            peers.update(call.peers)
    found = [_record(machine, r, index, enqueued, peers) for index in heads.values()]
    for kind in ("tp", "ep", "dp", "shard", "replica", ""):
        count = case.number(r, enqueued, kind)
        if kind not in heads and count and case.backend is not Backend.HOOKED:
            found.append(_collective(case, kind, r, count - 1, "completed", count - 1))
    return found


def _record(machine: Machine, r: int, index: int, enqueued: int, open_: set[int]) -> Collective:
    """The record of a call; ``open_``: the peers of all sends and receives that are open."""
    case, call = machine.case, machine.case.call(r, index)
    state = "started" if case.backend is Backend.TIMED and index in machine.started[r] else "scheduled"
    if not call.peers:
        newest = case.number(r, enqueued, call.what) - 1
        return _collective(case, call.what, r, case.number(r, index), state, newest)
    pipeline = case.groups["pp"][r]
    own = pipeline.index(r)
    operation, peers = f"{call.what} {own}{'->' if call.what == 'send' else '<-'}{own + call.peers[0]}", ()
    if call.what == "batch":
        operation, peers = "coalesced", call.peers
    elif case.backend is Backend.HOOKED and len(open_) > 1:
        peers = tuple(sorted(open_))
    return Collective(
        group=f"pp{pipeline[0]}:p2p",
        sequence=index,
        operation=f"{case.backend.library}:{operation}",
        state=state,
        ranks=pipeline,
        peers=tuple(own + peer for peer in peers),
    )


_OPERATIONS = {
    "dp": "_reduce_scatter_base", "replica": "all_reduce", "shard": "_all_gather_base", "ep": "all_to_all"
}  # fmt: skip


def _collective(case: Case, kind: str, r: int, number: int, state: str, newest: int) -> Collective:
    group = case.groups[kind][r]
    return Collective(
        group=f"{kind}{group[0]}",
        sequence=number + 1,  # torch counts from 1
        operation=f"{case.backend.library}:{_OPERATIONS.get(kind, 'all_reduce')}",
        state=state,
        ranks=group,
        enqueued=newest + 1,
    )


def draw(seed: int, most: int = 1024, *, backend: Backend = Backend.TIMED) -> Case:
    """A case; the same for the same seed. In half of them all recorders are heard, in some most are not."""
    rnd = random.Random(seed)
    while True:
        tp, pp = rnd.choice((1, 2, 4, 8)), rnd.choice((1, 1, 2, 4, 8))
        ep, dp = rnd.choice((1, 1, 1, 2, 4)), rnd.choice((1, 2, 4, 8, 16, 32, 64))
        world = tp * ep * pp * dp
        if PER_NODE <= world <= most and world % PER_NODE == 0:
            break
    order = rnd.choice(("tp-ep-pp-dp", "tp-ep-dp-pp"))
    layout = ParallelLayout.fit(world, PER_NODE, {"tp": tp, "ep": ep, "pp": pp}, order)
    victim = rnd.randrange(world)
    micros = rnd.choice((1, 2, 4))
    mute, silent_nodes = _silence(rnd, world)
    case = Case(
        layout=layout,
        fault=rnd.choice(tuple(Fault)),
        victim=victim,
        stop=0,
        ahead=_ahead(rnd, world),
        backend=backend,
        shards=rnd.choice([size for size in (1, 1, 2, 4, 16) if dp % size == 0]),
        is_batched=rnd.random() < 0.3,
        layers=rnd.choice((1, 2, 4)),
        micros=micros,
        buckets=rnd.choice((1, 2)),
        waits_at_end=rnd.random() < 0.5,
        missing=frozenset(r for r in range(world) if r // PER_NODE in silent_nodes),
        mute=mute,
        places=[_place(rnd) for _ in range(world)],
    )
    # In the second step or the third: a rank without any record is one of which nothing is known.
    length = len(case.program_of[victim])
    case.stop = rnd.randrange(length, 3 * length)
    if case.fault is Fault.HOST and rnd.random() < 0.5:
        case.places[victim] = DATA
    return case


def _silence(rnd: random.Random, world: int) -> tuple[frozenset[int], frozenset[int]]:
    """Ranks whose recorder does not answer, by chance or all of some nodes; and nodes that do not answer."""
    nodes = range(world // PER_NODE)
    share = rnd.choice((0, 0, 0, 0, 0, 0.02, 0.1, 0.3, 0.6, 1))
    if rnd.random() < 0.5:
        mute = frozenset(r for r in range(world) if rnd.random() < share)
    else:
        wedged = {node for node in nodes if rnd.random() < share}
        mute = frozenset(r for r in range(world) if r // PER_NODE in wedged)
    missing = rnd.sample(nodes, rnd.choice((0, 0, 0, 1, len(nodes) // 10)) % max(1, len(nodes)))
    return mute, frozenset(missing)


def _ahead(rnd: random.Random, world: int) -> list[int]:
    """How far each host runs ahead: all alike, by chance, or each node by its own."""
    most = rnd.choice((0, 1, 3, 12, 100, MAX_AHEAD))
    shape = rnd.choice(("alike", "chance", "nodes"))
    if shape == "alike":
        return [most] * world
    if shape == "chance":
        return [rnd.randint(0, most) for _ in range(world)]
    nodes = [rnd.randint(0, most) for _ in range(world // PER_NODE)]
    return [nodes[r // PER_NODE] for r in range(world)]


def _place(rnd: random.Random) -> Frames:
    """A host waits for its GPU in the same line as most, in a launch anywhere, or where it can be seen."""
    chance = rnd.random()
    if chance < 0.6:
        return ITEM
    if chance < 0.8:
        return SYNCHRONIZE + ITEM
    line = rnd.randrange(1, 40)
    return (Frame(function="forward", file="/home/alice/model.py", line=line), *COMPUTE[1:])
