"""The nodes of a simulated cluster: who has them, which are broken, and when those are back."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

from slurm_robust.simulator.faults import SimulatedFault
from slurm_robust.simulator.spec import Spec
from slurm_robust.simulator.spread import parse
from slurm_robust.testing.sim.timeline import Timeline


class SimulatedSite:
    """The nodes ``n1``, ``n2``, …: those of the job first, then the reservation's, then free ones."""

    def __init__(self, spec: Spec, timeline: Timeline, chance: Random) -> None:
        self._cluster, self._timeline, self._chance = spec.cluster, timeline, chance
        own = spec.job.nodes + spec.job.spares
        reserved = spec.cluster.shared_spares
        total = own + reserved + spec.cluster.free
        self.names = tuple(f"n{number + 1}" for number in range(total))
        self.free: dict[str, None] = dict.fromkeys((*self.names[:own], *self.names[own + reserved :]))
        """Nodes of the partition that nobody has."""
        self._of_reservation = frozenset(self.names[own : own + reserved])
        self.reserved: dict[str, None] = dict.fromkeys(self.names[own : own + reserved])
        """Free nodes of the reservation."""
        self.broken: dict[str, SimulatedFault] = {}
        """What is wrong with nodes, whether anybody knows it or not."""
        self.down: set[str] = set()
        """Nodes without a sign of life, or in repair."""
        self._in_repair: set[str] = set()
        self._repair = parse(spec.cluster.repair)
        self._number = {name: number for number, name in enumerate(self.names)}

    def rack(self, node: str) -> int:
        """Return behind which leaf switch ``node`` is."""
        return self._number[node] // self._cluster.rack

    def take(self, most: int, *, reserved: bool = False, without: Collection[str] = ()) -> list[str]:
        """Take up to ``most`` free nodes, of the reservation or of the partition, in their order."""
        pool = self.reserved if reserved else self.free
        free = sorted(pool, key=self._number.__getitem__)
        taken = [node for node in free if node not in without and node not in self.down][:most]
        for node in taken:
            del pool[node]
        return taken

    def has(self, node: str) -> bool:
        """Return whether no job has ``node``: it is free, or in repair."""
        return node in self.free or node in self.reserved or node in self._in_repair

    def give_back(self, node: str) -> None:
        """Give ``node`` back to Slurm: a broken one is repaired, unless the site's test finds nothing."""
        pool = self.reserved if node in self._of_reservation else self.free
        is_found = self._chance.random() >= self._cluster.return_unrepaired
        if node in self.down or (node in self.broken and is_found):
            self.down.add(node)
            self._in_repair.add(node)
            self._timeline.after(self._repair.draw(self._chance), lambda: self._back(node, pool))
        else:
            pool[node] = None

    def repair_idle(self, node: str) -> None:
        """Have a free node that died, or failed the site's checks, repaired."""
        for pool in (self.reserved, self.free):
            if node in pool:
                del pool[node]
                self.give_back(node)

    def _back(self, node: str, pool: dict[str, None]) -> None:
        self.down.discard(node)
        self._in_repair.discard(node)
        self.broken.pop(node, None)
        pool[node] = None
