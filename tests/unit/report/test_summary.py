"""What the status of a job says of its checkpoints and standbys."""

from __future__ import annotations

from rich.console import Console

from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.incident import Symptom
from slurm_robust.report.status import render
from slurm_robust.report.summary import summarize


def launched(**changes: object) -> ev.GenerationLaunched:
    fields: dict[str, object] = {"restore": CheckpointId(generation=1, step=1234), **changes}
    return ev.GenerationLaunched(t=1.0, generation=2, slots=("n1",), master="x:1", **fields)  # type: ignore[arg-type]


def shown(*events: ev.AnyEvent) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(render(summarize(events, 3600.0)))
    return capture.get()


def test_from_where_the_newest_generation_continued() -> None:
    text = "step 1234 from memory (14 parts), peer (2)"
    assert text in shown(launched(tiers={"peer": 2, "memory": 14}))
    assert "step 1234" in shown(launched())  # a journal of an older version
    assert "restored" not in shown(launched(restore=None))


def test_an_incident_with_many_signs_shows_the_first_and_where_the_others_are() -> None:
    bound = (
        "the limit is 14 s (the least there is; 3 x 0.3 s, the 99th percentile of step times, would be less)"
    )
    opened = ev.IncidentOpened(
        t=2.0, incident=1, generation=1, symptom=Symptom.HANG, detail=f"no step for 14 s: {bound}",
        detect_s=0.0, best_step=1,
    )  # fmt: skip
    more = [
        ev.SymptomAdded(t=3.0, incident=1, symptom=Symptom.HANG, detail=f"no step for {s} s: {bound}")
        for s in (28, 56)
    ]
    text = " ".join(shown(launched(), opened, *more).split())
    assert "2 more: srobust incident 0 1" in text
    assert text.count("percentile") == 1


def test_what_is_on_storage_and_how_often_it_should() -> None:
    written = ev.StorageWritten(t=1.0, generation=1, step=90, seconds=2.0)
    assert "step 90, written in 2.0 s" in shown(launched(), written)
    incident = ev.IncidentOpened(
        t=2.0, incident=1, generation=1, symptom=Symptom.NODE_LOST, detail="x", detect_s=0.0, best_step=1
    )
    start = ev.Noted(t=0.0, text="")
    assert "one every 119 s or less often, with an incident every 3600 s" in shown(start, written, incident)


def test_a_standby_that_does_not_answer_is_shown_with_the_reason() -> None:
    taken = ev.AllocationTaken(t=0.0, restart_count=0, nodes=("n1", "n2"), slots=("n1",), spares=("n2",))
    aside = ev.SpareSetAside(t=1.0, node="n2", reason="silent for 5.5 s", usable=True)
    assert "standby n2 (silent for 5.5 s)" in shown(taken, aside)
    assert "silent" not in shown(taken, aside, ev.SpareAnswers(t=2.0, node="n2"))
