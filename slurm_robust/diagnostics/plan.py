"""Which tests are run, in which rounds, by which nodes together. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_robust.model.record import Record


class Program(Record):
    """One test; its module is ``slurm_robust.diagnostics.programs.<name>``."""

    name: str
    needs_s: float
    """Seconds within which a healthy node ends, unless another user keeps it busy."""
    pairs: bool = False
    """Two neighbours run it together."""
    takes_more: bool = False
    """It tests more if more time is given."""


PROGRAMS = (
    Program(name="dcgm", needs_s=60.0, takes_more=True),
    Program(name="gemm", needs_s=30.0),
    Program(name="memory", needs_s=20.0),
    Program(name="all_to_all", needs_s=30.0),
    Program(name="storage", needs_s=20.0),
    Program(name="reference", needs_s=30.0),
    Program(name="health", needs_s=10.0),
    Program(name="all_gather", needs_s=30.0, pairs=True),
)
BY_NAME = {program.name: program for program in PROGRAMS}
_ON_REQUEST = frozenset({"health", "reference"})


class DiagnosticRound(Record):
    """Groups of nodes that run ``programs`` at the same time, one program after the other."""

    programs: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]
    """A node is in one group at most."""
    ready_s: float = 45.0
    """Seconds that starting a node's part takes at most."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes that take part."""
        return tuple(node for group in self.groups for node in group)

    @property
    def needs_s(self) -> float:
        """Seconds within which healthy nodes end."""
        return self.ready_s + sum(BY_NAME[name].needs_s for name in self.programs)

    @property
    def most_s(self) -> float:
        """Seconds after which waiting for more is of no use."""
        return math.inf if any(BY_NAME[name].takes_more for name in self.programs) else self.needs_s


class DiagnosticPlan(Record):
    """The rounds of a diagnosis, in their order."""

    rounds: tuple[DiagnosticRound, ...] = ()
    left_out: dict[str, str] = {}
    """Tests that cannot be run, with the reason."""


def plan(
    nodes: Sequence[str], *, bitwise: bool, gpus: bool, storage: str, tests: Sequence[str] = ()
) -> DiagnosticPlan:
    """Return what to run on ``nodes``, which are in the order of Slurm, hence neighbours in the network.

    ``bitwise``: also the reference model. ``gpus``: every node has some. ``storage``: a folder to be tested,
    "" for none. ``tests``: only these, () for all. Raises ``KeyError`` for a test that does not exist.
    """
    chosen = {BY_NAME[name].name for name in tests} or BY_NAME.keys() - _ON_REQUEST
    chosen |= {"reference"} if bitwise else set()
    reasons = {
        "dcgm": "" if gpus else "not every node has GPUs",
        "storage": "" if storage else "no folder was named",
        "all_gather": "" if len(nodes) > 1 else "it takes two nodes",
    }
    wanted = [program for program in PROGRAMS if program.name in chosen]
    left_out = {p.name: reasons[p.name] for p in wanted if reasons.get(p.name)}
    alone = tuple(p.name for p in wanted if not p.pairs and p.name not in left_out)
    pairs = tuple(p.name for p in wanted if p.pairs and p.name not in left_out)
    rounds = (
        [DiagnosticRound(programs=alone, groups=tuple((node,) for node in nodes))] if alone and nodes else []
    )
    rounds += [DiagnosticRound(programs=pairs, groups=groups) for groups in neighbours(nodes) if pairs]
    return DiagnosticPlan(rounds=tuple(rounds), left_out=left_out)


def neighbours(nodes: Sequence[str]) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Return rounds of pairs in which each node meets the one before and the one after it in the ring.

    Two rounds, the second shifted by one node. A ring of an odd number of nodes needs a third, for one pair;
    two nodes are one pair in one round.
    """
    count = len(nodes)
    if count < 2:
        return ()
    ring = [(node, nodes[(index + 1) % count]) for index, node in enumerate(nodes)]
    if count == 2:
        return ((ring[0],),)
    even = count - count % 2
    rounds = (ring[0:even:2], ring[1:even:2], ring[even:])
    return tuple(tuple(pairs) for pairs in rounds if pairs)
