"""A slurmctld in front of a cluster in memory: its answers take time, come late, or do not come.

It does one request after the other. A client that gives up has sent its request all the same: a daemon that
stands still does it when it goes on, as the real one does, which reads what is left in its sockets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TypeVar

from slurm_robust.slurm import errors
from slurm_robust.slurm.records import Reservation, SlurmNode
from slurm_robust.slurm.requests import ReservationRequest
from slurm_robust.testing.clock import VirtualTime
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurm import FakeSlurm

T = TypeVar("T")


class Rpc(str, Enum):
    """A client's request as Slurm names it."""

    PARTITIONS = "REQUEST_PARTITION_INFO"
    """Goes with each question about nodes, of sinfo as of scontrol."""

    STATS = "REQUEST_STATS_INFO"
    """The clock of slurmctld."""

    NODE = "REQUEST_NODE_INFO_SINGLE"
    ALL_NODES = "REQUEST_NODE_INFO"
    UPDATE_NODE = "REQUEST_UPDATE_NODE"
    RESERVATIONS = "REQUEST_RESERVATION_INFO"
    RESERVE = "REQUEST_CREATE_RESERVATION"
    RELEASE = "REQUEST_DELETE_RESERVATION"


_OF_NODES = (Rpc.NODE, Rpc.ALL_NODES)
_READS = (Rpc.PARTITIONS, Rpc.STATS, Rpc.RESERVATIONS, *_OF_NODES)
_COST_S = {
    Rpc.PARTITIONS: 3e-4,
    Rpc.STATS: 2e-4,
    Rpc.NODE: 3e-4,
    Rpc.UPDATE_NODE: 2e-4,
    Rpc.RESERVATIONS: 2e-4,
    Rpc.RESERVE: 4e-4,
    Rpc.RELEASE: 2e-4,
}


class FakeSlurmctld:
    """The daemon. ``slow``: how many times longer than usual everything takes. ``took``: when it took which
    request, in seconds of the clock.

    ``stands_s(now)`` says for how long it goes on to stand still, and ``is_down(now)`` whether there is none:
    then requests are lost.
    """

    def __init__(self, cluster: FakeCluster, time: VirtualTime) -> None:
        self.cluster, self.time = cluster, time
        self.slow = 1.0
        self.stands_s: Callable[[float], float] = lambda now: 0.0
        self.is_down: Callable[[float], bool] = lambda now: False
        self.asked: Counter[tuple[int, Rpc]] = Counter()
        self.askers: Counter[str] = Counter()
        self._free_at = 0.0

    def answer(self, kind: Rpc, request: Callable[[], T], limit_s: float) -> T:
        """Take a request of a program; its answer, when it is done. Raises SlurmTimeout after ``limit_s``."""
        clock = self.time.clock
        asked = clock.now
        self.asked[int(asked), kind] += 1
        if self.is_down(asked):
            self._give_up(limit_s)
        begins = max(asked, self._free_at)
        begins += self.stands_s(begins)
        done = self._free_at = begins + self.slow * self.cost_s(kind)
        if done - asked > limit_s:
            if kind not in _READS:
                # It is done all the same, when its time has come, and no client hears of it.
                self.time.at(done, lambda: self._do_late(request))
            self._give_up(limit_s)
        self.time.sleep(done - asked)
        return request()

    def cost_s(self, kind: Rpc) -> float:
        """Return the time of the daemon for a request: as sdiag of 22.05.8 shows it, with a table of 10,000
        nodes.
        """
        if kind is Rpc.ALL_NODES:
            return 2e-4 + 2.65e-6 * len(self.cluster.nodes)
        return _COST_S[kind]

    def _give_up(self, limit_s: float) -> None:
        self.time.sleep(limit_s)
        raise errors.SlurmTimeout(f"no answer within {limit_s:g} s")

    def _do_late(self, request: Callable[[], object]) -> None:
        try:
            request()
        except errors.SlurmCommandError:
            pass  # refused, and no client hears of that either


class HookSlurm(FakeSlurm):
    """What the hook of one node uses: each command has ``limit_s``, all of them end by ``deadline``."""

    def __init__(self, daemon: FakeSlurmctld, node: str, limit_s: float, deadline: float) -> None:
        super().__init__(daemon.cluster, user="root")
        self._daemon, self._node = daemon, node
        self._limit_s, self._deadline = limit_s, deadline

    def now(self) -> float:
        """See the protocol."""
        return self._ask(Rpc.STATS, super().now)

    def node(self, name: str) -> SlurmNode:
        """See the protocol."""
        return self._ask(Rpc.NODE, lambda: super(HookSlurm, self).node(name))

    def nodes(self, names: Sequence[str] | None = None) -> tuple[SlurmNode, ...]:
        """See the protocol. As of scontrol, which always loads the whole table."""
        return self._ask(Rpc.ALL_NODES, lambda: super(HookSlurm, self).nodes(names))

    def drain(self, nodes: Sequence[str], reason: str) -> None:
        """See the protocol."""
        self._ask(Rpc.UPDATE_NODE, lambda: super(HookSlurm, self).drain(nodes, reason))

    def resume(self, nodes: Sequence[str]) -> None:
        """See the protocol."""
        self._ask(Rpc.UPDATE_NODE, lambda: super(HookSlurm, self).resume(nodes))

    def reservations(self) -> tuple[Reservation, ...]:
        """See the protocol."""
        return self._ask(Rpc.RESERVATIONS, super().reservations)

    def create_reservation(self, request: ReservationRequest) -> None:
        """See the protocol."""
        self._ask(Rpc.RESERVE, lambda: super(HookSlurm, self).create_reservation(request))

    def delete_reservation(self, name: str) -> None:
        """See the protocol."""
        self._ask(Rpc.RELEASE, lambda: super(HookSlurm, self).delete_reservation(name))

    def _ask(self, kind: Rpc, request: Callable[[], T]) -> T:
        """Ask by one command. One about nodes asks for the partitions as well, within the same time."""
        clock, daemon = self._daemon.time.clock, self._daemon
        ends = min(clock.now + self._limit_s, self._deadline)
        if ends <= clock.now:
            raise errors.SlurmTimeout("no time is left")
        daemon.askers[self._node] += 1
        answer = daemon.answer(kind, request, ends - clock.now)
        if kind in _OF_NODES:
            daemon.answer(Rpc.PARTITIONS, lambda: None, ends - clock.now)
        return answer
