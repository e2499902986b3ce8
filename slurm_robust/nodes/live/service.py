"""The health of an agent's node while training runs, behind calls that return at once."""

from __future__ import annotations

from slurm_robust.analysis.progress.traffic import TrafficMeter
from slurm_robust.model.findings import Alert
from slurm_robust.model.progress import Traffic
from slurm_robust.nodes.live.book import AlertBook
from slurm_robust.nodes.live.doubts import Doubts
from slurm_robust.nodes.live.inspector import Inspector

# A launcher that imports torch needs the cores first. A spare is checked soon, too.
WAIT_S = 15.0

# A bound: far more than ever happen.
_NOTES = 20


class Inspection:
    """The inspector and the alerts that follow from it; without an inspector there are none.

    It begins with the training, and ``wait_s`` after the first call where there is none.
    """

    def __init__(self, inspector: Inspector | None, wait_s: float = WAIT_S) -> None:
        self._inspector = inspector
        self._wait_s = wait_s
        self._since: float | None = None
        self._begun = False
        self._book = AlertBook()
        self._doubts = Doubts()
        self._generation = 0
        self._meter = TrafficMeter()
        self._noted: set[str] = set()
        self._notes: list[str] = []

    def fileno(self) -> int:
        """Readable when :meth:`follow` has something to do; -1 while there is nothing to wait for."""
        return self._inspector.fileno() if self._inspector else -1

    @property
    def traffic(self) -> Traffic | None:
        """For the heartbeat: what the links between nodes have carried in this generation."""
        return self._meter.traffic

    def follow(self, now: float, generation: int, *, busy: bool = False) -> bool:
        """Take in what was seen; whether that changes any alert. To be called every second at least.

        ``generation``: that of the workers, 0 before the first. ``busy``: one of them starts, restores or is
        being killed.
        """
        self._doubts.note(now, busy=busy)
        has_news, training = False, generation > 0
        if generation != self._generation:
            self._generation, self._meter = generation, TrafficMeter()
        self._since = now if self._since is None else self._since
        self._begun |= training or now - self._since >= self._wait_s
        for observation in self._inspector.read(now) if self._inspector and self._begun else ():
            has_news |= self._book.take(self._doubts.sift(observation, now), now, training=training)
            if observation.nbytes is not None:
                self._meter.see(observation.nbytes, now)
            for text in observation.notes:
                if text not in self._noted and len(self._noted) < _NOTES:
                    self._noted.add(text)
                    self._notes.append(text)
        return has_news

    def alerts(self, now: float) -> tuple[Alert, ...]:
        """For the heartbeat."""
        return self._book.alerts(now)

    def notes(self) -> list[str]:
        """Notes for the journal since the last call."""
        found, self._notes = self._notes, []
        return found

    def close(self) -> None:
        """End the inspector."""
        if self._inspector:
            self._inspector.close()
