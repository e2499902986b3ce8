"""What faults have done to the nodes and to the code of a simulated life, until it is repaired or mended.

Both fidelities strike alike; they differ in who notices, decides and waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random

from slurm_robust.model.world import World
from slurm_robust.simulator.faults import SimulatedFault, faults_of
from slurm_robust.simulator.site import SimulatedSite
from slurm_robust.simulator.spec import FaultOf, Spec
from slurm_robust.simulator.spread import parse, seconds
from slurm_robust.testing.sim.timeline import Timeline

BEHIND_NODES = (FaultOf.SWITCH, FaultOf.STORAGE, FaultOf.AGENT)
"""Faults of nodes that leave the nodes themselves whole."""

ENDS_NODES = (FaultOf.NODE, FaultOf.GPU)
"""Faults of nodes that last until the node is repaired."""

NAMES_NODES = (*ENDS_NODES, FaultOf.NETWORK, FaultOf.AGENT)
"""Faults whose evidence names a node, whether it is at fault or not."""

IN_CODE = (FaultOf.EXCEPTION, FaultOf.OUT_OF_MEMORY, FaultOf.HANG, FaultOf.CRASH)
"""Faults that the code may have, so that they come again."""


class Damage:
    """What is broken, and whose fault that is.

    ``strike`` is called with each fault that the spec's sources draw, at its time.
    """

    def __init__(
        self,
        spec: Spec,
        site: SimulatedSite,
        timeline: Timeline,
        chance: Random,
        seed: int,
        strike: Callable[[SimulatedFault], None],
    ) -> None:
        self.bugs: dict[int, SimulatedFault] = {}
        """Faults of the code that come again."""
        self.away: dict[int, float] = {}
        """Racks that a switch cuts off, and until when."""
        self.named: dict[str, None] = {}
        """Nodes against which something spoke: they were at fault, or a fault that was none named them."""
        self.died: list[tuple[float, str]] = []
        """When nodes lost their power, by the wall clock."""
        self._spec, self._site, self._timeline, self._chance = spec, site, timeline, chance
        self._faults = faults_of(spec, len(site.names), f"faults {seed}")
        self._strike = strike
        self._horizon = seconds(spec.time)
        self._victims: dict[str, tuple[str, ...]] = {}  # the nodes that faults have struck which come again
        self._plan_next()

    def _plan_next(self) -> None:
        fault = next(self._faults, None)
        if fault is not None and fault.t <= self._horizon:
            self._timeline.after(fault.t - self._timeline.now, partial(self._come, fault))

    def _come(self, fault: SimulatedFault) -> None:
        self._plan_next()
        self._strike(fault)

    # -- a fault ---------------------------------------------------------------------------------------

    def nodes_of(self, fault: SimulatedFault, world: World, spares: tuple[str, ...]) -> tuple[str, ...]:
        """Return the nodes that live and that ``fault`` strikes; none if nothing can go wrong now."""
        return tuple(n for n in self._struck_by(fault, world, spares) if n not in self._site.down)

    def _struck_by(self, fault: SimulatedFault, world: World, spares: tuple[str, ...]) -> tuple[str, ...]:
        source = fault.source
        if fault.node >= 0:
            return self._neighbours(self._site.names[fault.node], source.nodes, world)
        if not world.running:
            return ()
        places = (*world.slots, *spares)
        if fault.at_node and source.same in self._victims:
            return tuple(node for node in self._victims[source.same] if node in places)
        nodes = tuple(places[slot] for slot in source.slots if slot < len(places))
        if not source.slots:
            nodes = self._neighbours(self._chance.choice(world.slots), source.nodes, world)
        if fault.at_node and source.same:
            self._victims[source.same] = nodes
        return nodes

    def _neighbours(self, node: str, number: int, world: World) -> tuple[str, ...]:
        """Return ``node`` and those that follow it, in the job if it is one of its nodes."""
        names = world.slots if world.placement.holds(node) else self._site.names
        first = min(names.index(node), len(names) - min(number, len(names)))
        return names[first : first + number]

    def do(self, fault: SimulatedFault, nodes: tuple[str, ...], world: World) -> tuple[str, ...]:
        """Break what ``fault`` breaks; return the nodes that it concerns, of a switch those of the job."""
        kind = fault.source.kind
        if kind is FaultOf.SWITCH:
            rack = self._site.rack(nodes[0])
            lasts_s = parse(fault.source.lasts).draw(self._chance)
            self.away[rack] = self._timeline.now + lasts_s
            nodes = tuple(one for one in world.slots if self._site.rack(one) == rack)
        if fault.at_node or kind in NAMES_NODES:
            self.named |= dict.fromkeys(nodes)
        if fault.at_node and kind not in BEHIND_NODES:
            for node in nodes:
                if fault.persists or kind in ENDS_NODES:
                    self._site.broken.setdefault(node, fault)
                if kind is FaultOf.NODE:
                    self._site.down.add(node)
                    self.died.append((self._timeline.clock.now, node))
        elif fault.persists and kind in IN_CODE:
            self.bugs[fault.number] = fault
        return nodes

    # -- what comes again ------------------------------------------------------------------------------

    def repeats(self, world: World) -> Iterator[tuple[float, SimulatedFault, str]]:
        """Yield what comes again in a generation that has just begun: after how many seconds, and at which
        node, "" for the code's.
        """
        broken = [(self._site.broken[node], node) for node in world.slots if node in self._site.broken]
        for fault, node in (*broken, *((bug, "") for bug in self.bugs.values())):
            yield parse(fault.source.again).draw(self._chance), fault, node

    def is_there(self, fault: SimulatedFault, node: str, world: World) -> bool:
        """Return whether ``fault`` is still in the job: at ``node``, or in the code if that is ""."""
        if node:
            return self._site.broken.get(node) is fault and world.placement.holds(node)
        return fault.number in self.bugs

    def finds(self, node: str, recall: float) -> bool:
        """Return whether a test of ``node`` fails that finds this share of the broken nodes."""
        wrong = self._spec.diagnostics.false_positives
        if node in self._site.broken and self._chance.random() < recall:
            return True
        return wrong > 0 and self._chance.random() < wrong

    # -- releases --------------------------------------------------------------------------------------

    def brought_by(self, release: int) -> SimulatedFault | None:
        """Return the fault that a new release of the code brings, None for a good one."""
        source = next((one for one in self._spec.faults if one.kind is FaultOf.EXCEPTION), None)
        if source is None or self._chance.random() >= self._spec.owner.bad_updates:
            return None
        now = self._timeline.now
        return SimulatedFault(t=now, source=source, at_node=False, persists=True, number=-release)

    def change_code(self) -> None:
        """Have other code run: some of its faults are gone with the release that had brought them."""
        for number, bug in list(self.bugs.items()):
            if self._chance.random() < bug.source.fixed_by_rollback:
                del self.bugs[number]
