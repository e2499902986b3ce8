"""Makes heartbeats and Pulses of what the agent knows, and keeps notes until they are in the journal."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import structs

from slurm_robust.agent.copies.service import NO_COPIES, CopyNews
from slurm_robust.agent.state import AgentState
from slurm_robust.model.findings import Alert
from slurm_robust.model.progress import SnapshotTimes, Traffic
from slurm_robust.wire.messages import Heartbeat, Progress, Pulse
from slurm_robust.wire.protocol import PROTOCOL

# Far more than ever happen; bounds the memory of an agent without a controller.
_NOTES = 100
# After this many unanswered Pulses the next message is a full heartbeat.
_UNANSWERED = 3


class HeartbeatState:
    """Numbers the heartbeats of one agent. Addresses and ``port`` may change between heartbeats."""

    def __init__(self, node: str, agent: str, *, always_ready: bool) -> None:
        self._node = node
        self._agent = agent
        self._always_ready = always_ready
        self._seq = 0
        self._notes: list[tuple[int, str]] = []  # with the heartbeat that first carries it
        self._told: list[tuple[int, str]] = []  # likewise
        self._base: tuple[Heartbeat, float] | None = None  # the newest heartbeat, and when it was made
        self._answered = 0
        self._learned: tuple[int, tuple[str, ...]] = (0, ())  # with the heartbeat that first carries it
        self._outside: tuple[int, tuple[str, ...]] = (0, ())  # likewise
        self._undrilled: dict[int, tuple[int, str]] = {}  # by drill, likewise
        self.release = ""
        self.address = self.data_address = ""
        self.clique = self.block = self.imex = self.image = ""
        self.port = self.probe_port = 0

    def note(self, text: str) -> None:
        """Keep a fact for the journal; it goes with every heartbeat until one is answered."""
        if len(self._notes) < _NOTES and all(text != known for _, known in self._notes):
            self._notes.append((self._seq + 1, text))

    def tell(self, text: str) -> None:
        """Keep a fact for the journal and the job's log; it goes along likewise."""
        self._told = [*self._told[-_NOTES:], (self._seq + 1, text)]

    def learn(self, modules: tuple[str, ...]) -> None:
        """Keep what rank 0 has imported; it goes with every heartbeat until one is answered."""
        self._learned = (self._seq + 1, modules)

    def cannot_drill(self, drill: int, why: str) -> None:
        """Keep why a drill could not be carried out; it goes along until a heartbeat is answered."""
        self._undrilled[drill] = (self._seq + 1, why)

    def tell_outside(self, files: tuple[str, ...]) -> None:
        """Keep what rank 0 reads outside of its release; it goes along until a heartbeat is answered."""
        self._outside = (self._seq + 1, files)

    def on_ack(self, seq: int) -> None:
        """Drop what has arrived with the heartbeat or Pulse ``seq``: all notes until then."""
        self._answered = max(self._answered, seq)
        self._notes = [(first, text) for first, text in self._notes if first > seq]
        self._told = [(first, text) for first, text in self._told if first > seq]
        self._undrilled = {drill: kept for drill, kept in self._undrilled.items() if kept[0] > seq}
        if self._learned[0] <= seq:
            self._learned = (0, ())
        if self._outside[0] <= seq:
            self._outside = (0, ())

    def make(
        self,
        state: AgentState,
        progress: tuple[Progress, ...],
        now: float,
        news: CopyNews = NO_COPIES,
        alerts: tuple[Alert, ...] = (),
        traffic: Traffic | None = None,
        still_s: float | None = None,
        started: Mapping[str, float] = MappingProxyType({}),
        spent: Mapping[str, float] = MappingProxyType({}),
        strides: tuple[int, int] = (0, 0),
        snapshots: SnapshotTimes | None = None,
    ) -> Heartbeat | Pulse:
        """Make the next heartbeat, or a Pulse if the last heartbeat says it all.

        ``started``: seconds of the phases of the workers' start. ``spent``: of their phases since then.
        ``strides``: of peers and of the node itself, as the workers know them. When workers have ended, the
        heartbeat holds what they have left: they change no copy now.
        """
        self._seq += 1
        heartbeat = Heartbeat(
            node=self._node,
            agent=self._agent,
            seq=self._seq,
            epoch=state.epoch,
            phase=state.phase,
            generation=state.generation,
            address=self.address,
            rendezvous_port=self.port,
            ready=not state.fatal and (state.ready or self._always_ready),
            progress=progress,
            exits=state.workers.exits(now),
            spent=dict(spent),
            timings={**state.timings, **started},
            notes=tuple(text for _, text in self._notes),
            data_port=news.port,
            data_address=self.data_address,
            copies=news.copies,
            lag_s=news.lag_s,
            flushed=news.flushed,
            saved=news.saved,
            alerts=alerts,
            traffic=traffic,
            probe_port=self.probe_port,
            still_s=still_s,
            fatal=state.fatal,
            rehearsal=state.rehearsal,
            tried=state.tried,
            learned=self._learned[1],
            loaded=state.loaded,
            termed=state.termed,
            warned=state.warned,
            unsaved=news.unsaved,
            unflushed=news.unflushed,
            saved_ranks=news.saved_ranks,
            save_begun=news.save_begun,
            protocol=PROTOCOL,
            clique=self.clique,
            block=self.block,
            imex=self.imex,
            image=self.image,
            stride=strides[0],
            local_stride=strides[1],
            snapshots=snapshots,
            release=self.release,
            outside=self._outside[1],
            told=tuple(text for _, text in self._told),
            undrilled={drill: why for drill, (_, why) in self._undrilled.items()},
            unkept=news.unkept,
            unkept_peers=news.unkept_peers,
        )
        if self._base is not None and self._still_holds(*self._base, heartbeat, now):
            return Pulse(node=self._node, agent=self._agent, seq=self._seq, base=self._base[0].seq)
        self._base = heartbeat, now
        return heartbeat

    def forget(self) -> None:
        """Forget what was sent: another controller, or another way to it, needs a full heartbeat."""
        self._base = None

    def _still_holds(self, base: Heartbeat, made: float, heartbeat: Heartbeat, now: float) -> bool:
        """Return whether the controller has ``base``, and ``heartbeat`` differs by the time alone."""
        if self._answered < base.seq or self._seq - self._answered > _UNANSWERED:
            return False
        if len(heartbeat.progress) != len(base.progress):
            return False
        if structs.replace(heartbeat, seq=base.seq, progress=base.progress) != base:
            return False
        return all(
            after.is_aged(before, now - made)
            for after, before in zip(heartbeat.progress, base.progress, strict=True)
        )
