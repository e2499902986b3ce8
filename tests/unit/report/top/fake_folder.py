"""A job's folder on paper: a journal and, if wanted, a moment."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from slurm_robust.model import events as ev
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.live_status import LiveStatus, encode
from tests.builders.events import allocation_taken, run_started
from tests.builders.live_statuses import live_status

T = 1.7e9


class FakeFolder:
    """Its job is 4711, with the nodes of the sample moment."""

    def __init__(self, path: Path, nodes: int = 4) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.directory = JobDirectory(path)
        slots = tuple(f"gpu{slot:04d}" for slot in range(nodes))
        self.moment = live_status(nodes)
        self.append(
            run_started(t=T - 900, job_id=4711, run_id="4711-abcd", slots=nodes, spares=1, nproc_per_node=8),
            ev.ControllerStarted(t=T - 899, epoch=3, host="gpu0000", pid=1, port=1),
            allocation_taken(slots, ("sp1",), t=T - 890, restart_count=2, nodes=slots),
            ev.GenerationLaunched(t=T - 800, generation=5, slots=slots, master="a:1"),
            ev.FirstStep(t=T - 700, generation=5, step=1101, reported=True),
            ev.ProgressMade(t=T - 5, generation=5, step=1190, reported=True, loss=2.5),
        )

    def append(self, *events: ev.AnyEvent) -> None:
        with self.directory.journal.open("ab") as file:
            file.writelines(ev.encode_event(event) + b"\n" for event in events)

    def show(self, **changes: object) -> LiveStatus:
        """The controller writes its next moment."""
        self.moment = structs.replace(self.moment, number=self.moment.number + 1, **changes)
        self.directory.live_status.write_bytes(encode(self.moment))
        return self.moment
