from __future__ import annotations

import pytest
from rich.console import Console

from slurm_robust.model import events as ev
from slurm_robust.model.startup import phase_times
from slurm_robust.report.job_view import JobView
from slurm_robust.report.startup import NoSuchGeneration, render, start_of
from tests.unit.report import incident_journal as sample

NODES = {"n1": {"model": 1.0, "zygote": 4.0}, "n5": {"model": 9.5, "zygote": 3.0}}


def measured(generation: int) -> ev.StartMeasured:
    return ev.StartMeasured(t=0.0, generation=generation, phases=phase_times(NODES), took_s=12.5)


def screen(events: list[ev.AnyEvent], generation: int | None = None) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(render(start_of(JobView(events=events), generation)))
    return capture.get()


def test_the_newest_generation_with_its_slowest_nodes_first() -> None:
    text = screen([*sample.start(), *sample.rank_killed(), *sample.node_lost(), measured(3)])
    assert "3 of job 4711 on n[1,3-5]" in text
    assert "12.50 s after the launch" in text
    model = next(line for line in text.splitlines() if line.strip().startswith("model"))
    assert model.split()[1:6] == ["5.25", "n5", "9.50,", "n1", "1.00"]
    assert "incident 2" in text
    assert "by wall clocks" in text  # the sample's event has no stages


def test_stages_that_the_controller_measured_are_shown_as_they_are() -> None:
    closed = ev.IncidentClosed(
        t=sample.BEGIN + 1002, incident=1, generation=2, step=101, recover_s=2.0,
        stages={"detecting": 0.25, "stopping": 1.0},
    )  # fmt: skip
    events = [closed if isinstance(e, ev.IncidentClosed) else e for e in sample.rank_killed()]
    start = start_of(JobView(events=[*sample.start(), *events]))
    assert (start.incident, start.by_wall_clocks) == (1, False)
    assert start.stages == {"detecting": 0.25, "stopping": 1.0}
    text = screen([*sample.start(), *events])
    assert "1.25" in text
    assert "wall clocks" not in text


def test_a_requeue_shows_the_time_without_a_controller_and_in_the_queue() -> None:
    events = [
        ev.AllocationTaken(**{**as_dict(e), "queued_s": 14.0}) if isinstance(e, ev.AllocationTaken) else e
        for e in sample.whole()
    ]
    start = start_of(JobView(events=events), 6)
    assert (start.incident, start.queued_s, start.by_wall_clocks) == (5, 14.0, True)
    assert start.stages["without controller"] == pytest.approx(19.4)
    assert start_of(JobView(events=events), 5).queued_s is None
    assert "14 s from submission or requeue" in screen(events, 6)


def as_dict(event: ev.AllocationTaken) -> dict[str, object]:
    return {name: getattr(event, name) for name in event.__struct_fields__}


def test_a_generation_that_is_not_there_is_named() -> None:
    with pytest.raises(NoSuchGeneration, match="has launched no generation yet"):
        start_of(JobView(events=sample.start()[:3]))
    with pytest.raises(NoSuchGeneration, match="no generation 9") as error:
        start_of(JobView(events=sample.start()), 9)
    assert error.value.fix == "name one of 1"
    assert "not known yet" in screen(sample.start())
    start = start_of(JobView(events=sample.start()))
    assert (start.incident, start.stages, start.phases) == (0, {}, ())
