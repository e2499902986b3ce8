"""Journals of small jobs, written by hand: one call an event, in seconds since the job was submitted."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.incident import Action, Blame, FaultKind, Restart, Signature, Symptom
from slurm_robust.model.startup import PhaseTimes
from tests.builders import incidents
from tests.builders.events import run_started

SUBMITTED = 1_000_000.0
NODES = ("n1", "n2")


class Journal:
    """Events in the order in which a controller writes them."""

    def __init__(self) -> None:
        self.events: list[ev.AnyEvent] = []
        self.epoch = 0

    def add(self, event: ev.AnyEvent) -> Journal:
        self.events.append(event)
        return self

    def say(self, kind: type[ev.AnyEvent], t: float, **fields: object) -> Journal:
        """Add an event of this epoch."""
        return self.add(kind(t=at(t), epoch=self.epoch, **fields))  # type: ignore[arg-type]

    def controller(self, t: float, **more: object) -> Journal:
        self.epoch += 1
        if self.epoch == 1:
            self.add(run_started(t=at(t), epoch=1, job_id=7))
        return self.say(ev.ControllerStarted, t, host="n1", pid=1, port=1, **more)

    def allocation(
        self,
        t: float,
        run: int = 0,
        *,
        submitted: float | None = 0.0,
        queued_s: float | None = None,
        eligible: float | None = None,
        nodes: tuple[str, ...] = NODES,
        gpus: int = 0,
    ) -> Journal:
        return self.say(
            ev.AllocationTaken,
            t,
            restart_count=run,
            nodes=nodes,
            slots=nodes,
            spares=(),
            submitted=None if submitted is None else at(submitted),
            queued_s=queued_s,
            eligible=None if eligible is None else at(eligible),
            gpus=gpus,
        )

    def launch(self, t: float, generation: int, restore: int = -1) -> Journal:
        made = CheckpointId(step=restore, generation=generation - 1) if restore >= 0 else None
        return self.say(ev.GenerationLaunched, t, generation=generation, slots=NODES, master="", restore=made)

    def first(self, t: float, generation: int, step: int, reported: bool = True) -> Journal:
        return self.say(ev.FirstStep, t, generation=generation, step=step, reported=reported)

    def measured(self, t: float, generation: int, **phases: float) -> Journal:
        times = tuple(
            PhaseTimes(phase=name.replace("_", " "), median_s=s, nodes={"n1": s}, measured=2)
            for name, s in phases.items()
        )
        return self.say(ev.StartMeasured, t, generation=generation, phases=times)

    def progress(
        self, t: float, generation: int, step: int, reported: bool = True, **spent: float
    ) -> Journal:
        return self.say(ev.ProgressMade, t, generation=generation, step=step, reported=reported, spent=spent)

    def opened(
        self, t: float, incident: int, generation: int, detect_s: float = 0.0, symptom: Symptom = Symptom.HANG
    ) -> Journal:
        return self.add(
            incidents.opened(
                t=at(t),
                epoch=self.epoch,
                incident=incident,
                generation=generation,
                symptom=symptom,
                detect_s=detect_s,
                best_step=0,
            )
        )

    def ended(
        self, t: float, generation: int, sealed: int = -1, *, pending: bool = False, reached: int = -1
    ) -> Journal:
        made = ev.GenerationEnded(t=at(t), epoch=self.epoch, generation=generation, reason="")
        return self.add(structs.replace(made, sealed_step=sealed, pending=pending, reached_step=reached))

    def decided(
        self,
        t: float,
        incident: int,
        *actions: Action,
        blame: Blame = Blame.NOBODY,
        suspects: tuple[str, ...] = (),
        carried_out: bool = True,
    ) -> Journal:
        verdict = incidents.verdict(
            blame=blame, signature=Signature(kind=FaultKind.SILENT_END), suspects=suspects
        )
        return self.say(
            ev.Decided,
            t,
            incident=incident,
            actions=actions or (Restart(),),
            reason="",
            verdict=verdict,
            carried_out=carried_out,
        )

    def closed(self, t: float, incident: int, generation: int, step: int) -> Journal:
        return self.say(
            ev.IncidentClosed, t, incident=incident, generation=generation, step=step, recover_s=None
        )

    def requeue(self, t: float, *, failure: bool = True) -> Journal:
        return self.say(ev.RequeueStarted, t, exclude=(), reason="", failure=failure)

    def over(self, t: float, code: int = 0, *, final: bool = True) -> Journal:
        return self.say(ev.RunEnded, t, code=code, reason="", final=final)


def at(t: float) -> float:
    return SUBMITTED + t
