"""A job of two minutes for pictures and their tests: three incidents, of which one may still be open."""

from __future__ import annotations

import math

from slurm_robust.model import events as ev
from slurm_robust.model.incident import Blame, Evict, Restart, Symptom
from tests.builders.events import allocation_taken, run_started
from tests.unit.ledger.journals import Journal, at


class Pictured(Journal):
    """A journal with the loss of each line of progress."""

    def trains(self, begin: int, end: int, generation: int, step: int) -> int:
        """Three steps a second; return the newest."""
        self.first(begin, generation, step)
        for t in range(begin + 1, end + 1):
            step += 3
            self.say(
                ev.ProgressMade, t, generation=generation, step=step, reported=True,
                loss=2 + 9 * math.exp(-step / 200), grad_norm=1 + 0.1 * math.sin(t),
            )  # fmt: skip
        return step

    def launches(self, t: float, generation: int, slots: tuple[str, ...], restore: int = -1) -> None:
        self.launch(t, generation, restore)
        launched = self.events.pop()
        assert isinstance(launched, ev.GenerationLaunched)
        self.say(
            ev.GenerationLaunched, t, generation=generation, slots=slots, master="", restore=launched.restore
        )


def short(*, requeued: bool = False) -> Pictured:
    """Four slots and a standby: a rank is killed, a node dies, then no standby is left.

    ``requeued``: it runs again, from step 0 and with three ranks.
    """
    journal = Pictured()
    journal.epoch = 1
    journal.add(run_started(t=at(5), epoch=1, job_id=7, slots=4, spares=1))
    journal.say(ev.ControllerStarted, 5, host="n1", pid=1, port=1)
    slots = ("n1", "n2", "n3", "n4")
    journal.add(allocation_taken(slots, ("n5",), t=at(6), epoch=1, submitted=at(0), queued_s=5.0))
    journal.launches(6.5, 1, slots)
    step = journal.trains(10, 36, 1, 0)
    journal.opened(37, 1, 1, 0.5, Symptom.WORKER_EXIT).ended(37.2, 1, step).decided(37.4, 1)
    journal.launches(37.6, 2, slots, step)
    step = journal.trains(41, 61, 2, step + 1)
    journal.closed(41, 1, 2, step)
    journal.opened(67, 2, 2, 5.0, Symptom.NODE_LOST).ended(67.2, 2, step)
    journal.decided(67.4, 2, Evict(node="n2"), Restart(), blame=Blame.NODE, suspects=("n2",))
    journal.say(ev.NodeEvicted, 67.4, node="n2", reason="n2 does not respond", incident=2)
    slots = ("n1", "n5", "n3", "n4")
    journal.launches(68, 3, slots, step)
    step = journal.trains(72, 98, 3, step + 1)
    journal.closed(72, 2, 3, step)
    journal.opened(112, 3, 3, 14.0, Symptom.HANG).ended(112.2, 3, step)
    journal.decided(112.4, 3, Evict(node="n5"), blame=Blame.NODE, suspects=("n5",))
    journal.say(ev.NodeEvicted, 112.4, node="n5", reason="rank 1 on n5 is behind", incident=3)
    journal.say(
        ev.RequeueStarted,
        113,
        exclude=("n2", "n5"),
        reason="1 node to replace, 0 standbys left",
        failure=True,
    )
    journal.say(ev.StageDone, 113.5, what="requeue", ok=True, detail="")
    if not requeued:
        return journal
    journal.epoch = 2
    journal.say(ev.ControllerStarted, 180, host="n1", pid=1, port=1)
    taken = allocation_taken(("n1", "n3", "n4"), ("n6",), t=at(180), epoch=2, restart_count=1)
    journal.add(taken)
    journal.launches(181, 4, ("n1", "n3", "n4"))
    step = journal.trains(185, 260, 4, 0)
    return journal.closed(185, 3, 4, step)  # type: ignore[return-value]
