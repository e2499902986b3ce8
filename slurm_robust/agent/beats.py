"""Makes Beats of what the agent knows, and keeps notes until they are in the journal."""

from __future__ import annotations

from slurm_robust.agent.copies.service import NO_COPIES, CopyNews
from slurm_robust.agent.state import AgentState
from slurm_robust.model.alerts import Alert
from slurm_robust.model.traffic import Traffic
from slurm_robust.wire.messages import Beat, Progress

# Far more than ever happen; bounds the memory of an agent without a controller.
_NOTES = 100


class BeatBook:
    """Numbers the Beats of one agent. ``address`` and ``port`` may change between Beats."""

    def __init__(self, node: str, agent: str, *, always_ready: bool) -> None:
        self._node = node
        self._agent = agent
        self._always_ready = always_ready
        self._seq = 0
        self._notes: list[tuple[int, str]] = []  # with the Beat that first carries it
        self.address = ""
        self.port = 0

    def note(self, text: str) -> None:
        """A fact for the journal; it goes with every Beat until one is answered."""
        if len(self._notes) < _NOTES and all(text != known for _, known in self._notes):
            self._notes.append((self._seq + 1, text))

    def on_ack(self, seq: int) -> None:
        """The Beat ``seq`` has arrived, and with it its notes."""
        self._notes = [(first, text) for first, text in self._notes if first > seq]

    def make(
        self,
        state: AgentState,
        progress: tuple[Progress, ...],
        now: float,
        news: CopyNews = NO_COPIES,
        alerts: tuple[Alert, ...] = (),
        traffic: Traffic | None = None,
        still_s: float | None = None,
    ) -> Beat:
        """The next Beat. When workers have ended, it holds what they have left: they change no copy now."""
        self._seq += 1
        return Beat(
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
            exits=state.exits(now),
            timings=dict(state.timings),
            notes=tuple(text for _, text in self._notes),
            data_port=news.port,
            copies=news.copies,
            lag_s=news.lag_s,
            flushed=news.flushed,
            saved=news.saved,
            alerts=alerts,
            traffic=traffic,
            still_s=still_s,
            fatal=state.fatal,
        )
