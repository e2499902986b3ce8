"""One screen about a job: what Slurm says of it is the same by its number and by its folder."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from msgspec import structs
from rich.console import Console

from slurm_robust.cli.main import main
from slurm_robust.evidence.live_status import of_state
from slurm_robust.ledger.summary import summary_of
from slurm_robust.model import events as ev
from slurm_robust.model.companion import CompanionPool
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import Symptom
from slurm_robust.model.journal import fold, read
from slurm_robust.model.live_status import encode
from slurm_robust.model.progress import SnapshotTimes
from slurm_robust.model.standby import StandbyStage
from slurm_robust.report.brief import briefs
from slurm_robust.report.job_view import JobView
from slurm_robust.report.status import render, status_at, status_of, watch
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.trainings.phase import phase_of
from tests.builders import incidents, updates
from tests.builders.events import allocation_taken, run_started
from tests.builders.updates import BATCH, FIRST, release
from tests.there import there


@pytest.fixture
def folder(slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of job 1, below the folder in which the test runs."""
    monkeypatch.chdir(tmp_path)
    started = run_started()
    taken = allocation_taken(("n1",), t=2.0, submitted=slurm.job(1).submit_time)
    path = tmp_path / "srobust-jobs" / "1"
    path.mkdir(parents=True)
    (path / "journal.jsonl").write_bytes(b"".join(ev.encode_event(e) + b"\n" for e in (started, taken)))
    return path


def said(folder: Path, slurm: FakeSlurm) -> str:
    """What is said of Slurm, which must not depend on how the job was named."""
    by_number, by_folder = status_of("1", None, slurm).slurm, status_of(str(folder), None, slurm).slurm
    assert by_number == by_folder
    return by_number


def test_a_job_that_slurm_ended_is_reported_so_by_number_and_by_folder(
    folder: Path, slurm: FakeSlurm
) -> None:
    assert said(folder, slurm) == "RUNNING"
    slurm.cluster.finish(1, "CANCELLED")
    assert said(folder, slurm) == "CANCELLED"
    del slurm.cluster.jobs[1]
    assert said(folder, slurm) == "CANCELLED"  # slurmdbd's word
    slurm.cluster.runs.clear()
    assert said(folder, slurm) == ""


def test_silence_of_slurm_says_nothing_about_the_job(folder: Path, slurm: FakeSlurm) -> None:
    slurm.cluster.unreachable = True
    assert said(folder, slurm).startswith("does not answer (")


def test_a_number_that_now_belongs_to_another_job_says_nothing_about_the_folder(
    folder: Path, slurm: FakeSlurm
) -> None:
    job = slurm.job(1)
    assert job.submit_time is not None
    slurm.cluster.put(job, submit_time=job.submit_time + 1000)
    assert said(folder, slurm) == ""


def test_the_time_of_a_job_that_slurm_does_not_have_ends_with_its_journal(
    folder: Path, slurm: FakeSlurm
) -> None:
    as_of_its_end = summary_of(read(folder / "journal.jsonl"), 2.0)
    assert status_of(str(folder), None, slurm).ledger.wall_ms > as_of_its_end.wall_ms
    del slurm.cluster.jobs[1]
    slurm.cluster.runs.clear()  # as on a laptop with a copy of the folder
    assert status_of(str(folder), None, slurm).ledger == as_of_its_end


# -- the screen -------------------------------------------------------------------------------------


def launched(**changes: object) -> ev.GenerationLaunched:
    made = ev.GenerationLaunched(
        t=1.0, generation=2, slots=("n1",), master="x:1", restore=CheckpointId(generation=1, step=1234)
    )
    return structs.replace(made, **changes)


def shown(*events: ev.AnyEvent) -> str:
    console = Console(width=600)
    with console.capture() as capture:
        console.print(render(status_at(JobView(events=events), 3600.0)))
    return capture.get()


def test_that_only_some_steps_are_kept_and_why() -> None:
    times = SnapshotTimes(stride=1, apart_s=0.1, whole_s=0.31, blocked_s=0.013)
    raised = ev.StrideChanged(
        t=2.0, generation=2, stride=16, seconds_per_step=0.3, lag_s=0.1, local_stride=16, snapshots=times
    )
    lagging = structs.replace(raised, t=3.0, stride=64, snapshots=None)
    text = "of steps that are multiples of 16 only; a fault repeats up to 16 steps (1.6 s)"
    assert text in shown(launched(), raised, lagging)
    assert f"{text} so far" not in shown(launched(), raised)
    assert f"{text} so far, and more if this still rises" in shown(
        launched(), structs.replace(raised, rising=True)
    )
    over = ev.RunEnded(t=4.0, code=0, reason="done", final=True)
    assert "snapshots" not in shown(launched(), raised, over)
    assert "snapshots" not in shown(launched())
    assert "snapshots" not in shown(launched(), raised, structs.replace(lagging, local_stride=1))


def test_with_every_more_steps_are_left_out_and_repeated() -> None:
    times = SnapshotTimes(stride=1, apart_s=1.0, whole_s=2.0, blocked_s=0.013, every=10)
    raised = ev.StrideChanged(
        t=2.0, generation=2, stride=4, seconds_per_step=0.1, lag_s=0.1, local_stride=4, snapshots=times
    )
    text = shown(launched(), raised)
    assert "of steps that are multiples of 20 only" in text
    assert "a fault repeats up to 20 steps (2 s)" in text


def test_from_where_the_newest_generation_continued() -> None:
    text = "step 1234 from memory (14 parts), peer (2)"
    assert text in shown(launched(tiers={"peer": 2, "memory": 14}))
    assert "restored" not in shown(launched(restore=None))
    assert "nothing was launched yet" in shown()
    assert "generation 2, run 0" in shown(launched())
    start = status_at(JobView(events=[launched()]), 3600.0).start
    assert start is not None
    assert start.generation == 2


def test_an_incident_with_many_signs_shows_the_first_and_where_the_others_are() -> None:
    bound = "the limit is 14 s (the minimum; 3 x 0.3 s, the 99th percentile of step times, would be less)"
    opened = incidents.opened(t=2.0, symptom=Symptom.HANG, detail="no step for 14 s", why=bound, detect_s=0.0)
    more = [
        ev.SymptomAdded(t=3.0, incident=1, symptom=Symptom.HANG, detail=f"no step for {s} s", why=bound)
        for s in (28, 56)
    ]
    text = " ".join(shown(launched(), opened, *more).split())
    assert "hang: no step for 14 s" in text
    assert "srobust incident 0 1" in text
    assert "percentile" not in text


def test_the_screen_has_the_newest_incidents_and_says_where_all_are() -> None:
    def incident(number: int) -> tuple[ev.AnyEvent, ...]:
        opened = incidents.opened(
            t=10.0 * number, incident=number, symptom=Symptom.HANG, detail=f"sign {number}", detect_s=0.0
        )
        over = ev.IncidentClosed(t=10.0 * number + 5, incident=number, generation=2, step=2, recover_s=1.0)
        return opened, over

    def screen(numbers: int) -> str:
        return shown(launched(), *(event for n in range(1, numbers + 1) for event in incident(n)))

    few, many = screen(3), screen(7)
    assert "the newest" not in few
    assert "srobust incidents 0" not in few
    assert "Incidents, the newest 3 of 7" in many
    assert "all 7: srobust incidents 0" in many
    assert ("sign 4" in many, "sign 5" in many) == (False, True)


def test_an_incident_costs_the_time_from_the_fault_to_the_first_new_step() -> None:
    opened = incidents.opened(t=20.0, symptom=Symptom.NODE_LOST, detail="n1 does not respond", detect_s=15.5)
    over = ev.IncidentClosed(t=21.1, incident=1, generation=2, step=2, recover_s=1.1)
    text = shown(launched(), opened, over)
    assert "over, 17 s lost" in " ".join(text.split())
    assert "1.1 s" not in text


@pytest.mark.parametrize(("incidents_so_far", "evicted"), [(0, 0), (2, 1), (3, 2), (40, 3), (3, 12)])
def test_the_screen_fits_a_terminal_of_24_lines(incidents_so_far: int, evicted: int) -> None:
    events: list[ev.AnyEvent] = [
        run_started(command=("train.py", "--lr", "3e-4"), training="mlp"),
        allocation_taken(("n1", "n2"), ("n9",), t=0.0, lost_node="costs a requeue"),
        launched(slots=("n1", "n2"), tiers={"peer": 2, "memory": 14}),
        ev.StorageWritten(t=1.0, generation=2, step=90, seconds=2.0),
    ]
    why = "does not respond to 3 of its peers, and Slurm calls it down since the power was cut by an outage"
    events += [ev.NodeEvicted(t=1.0, node=f"m{n}", reason=f"m{n} {why}", incident=1) for n in range(evicted)]
    for number in range(1, incidents_so_far + 1):
        detail = f"n{number} {why}"
        events += [
            incidents.opened(t=10.0 * number, incident=number, symptom=Symptom.NODE_LOST, detail=detail),
            ev.IncidentClosed(t=10.0 * number + 5, incident=number, generation=2, step=2, recover_s=1.0),
        ]
    console = Console(width=80, height=24, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(render(status_at(JobView(events=events), 3600.0)))
    text = capture.get()
    assert len(text.splitlines()) <= 22
    assert "job " in text.splitlines()[1]
    if incidents_so_far:
        assert "srobust incident" in text
    if incidents_so_far > 3:
        assert "all 40: srobust incidents" in " ".join(text.split())


def test_a_generation_that_ended_without_a_step_is_not_said_to_have_restored() -> None:
    began = launched(tiers={"storage": 4})
    text = "step 1234 from storage (4 parts)"
    assert f"{text}, and no step was made from it" in shown(began)
    step = ev.FirstStep(t=2.0, generation=2, step=1235, reported=True)
    assert "no step was made" not in shown(began, step)
    refused = ev.GenerationEnded(t=2.0, generation=2, reason="rank 0 raised ValueError")
    assert f"{text}, but no step was made from it" in shown(began, refused)


def test_a_standby_that_was_woken_is_a_node_that_trains() -> None:
    taken = allocation_taken(("n1",), ("n2",), t=0.0)
    rehearsed = ev.StandbyChanged(t=0.5, node="n2", stage=StandbyStage.REHEARSED, took_s=12.0)
    gone = ev.NodeEvicted(t=0.6, node="n1", reason="n1: lost", incident=1)
    text = " ".join(shown(taken, rehearsed, gone, launched(slots=("n2",), restore=None)).split())
    assert "woken" not in text
    assert "no standby left (n2 trains now)" in text


def test_a_requeued_job_has_the_nodes_and_standbys_of_its_next_run() -> None:
    taken = allocation_taken(("n1",), ("n2",), t=0.0)
    rehearsed = ev.StandbyChanged(t=1.0, node="n2", stage=StandbyStage.REHEARSED, took_s=12.0)
    begun = ev.RequeueStarted(t=2.0, exclude=("n1",), reason="n1 is lost", failure=True)
    done = ev.StageDone(t=3.0, what="requeue", ok=True, detail="")
    assert "until the requeue" not in shown(taken, rehearsed, begun)
    text = shown(taken, rehearsed, begun, done)
    assert "n1 (1 rank), standby n2, until the requeue" in text
    assert "standbys" not in text


@pytest.mark.parametrize("code", [0, 93, 143])
def test_an_ended_job_has_no_standbys_any_more(code: int) -> None:
    taken = allocation_taken(("n1",), ("n2", "n3"), t=0.0)
    rehearsed = ev.StandbyChanged(t=1.0, node="n2", stage=StandbyStage.REHEARSED, took_s=12.0)
    aside = ev.SpareSetAside(t=1.0, node="n3", reason="silent for 5.5 s", usable=True)
    assert "n2 rehearsed" in shown(taken, rehearsed, aside)
    text = shown(taken, rehearsed, aside, ev.RunEnded(t=2.0, code=code, reason="x", final=code != 143))
    assert ("standbys" in text, "no answer" in text) == (False, False)


@pytest.mark.parametrize("code", [130, 143])
def test_a_job_that_was_ordered_to_end_was_cancelled(code: int) -> None:
    order = ev.StopOrdered(t=1.0, reason="ordered to end by SIGTERM", code=code)
    end = ev.RunEnded(t=2.0, code=code, reason="ordered to end by SIGTERM", final=False)
    assert phase_of([order, end]) == ("cancelled", "ordered to end by SIGTERM")
    assert phase_of([end])[0] == "stopped"
    assert phase_of([order, ev.RunEnded(t=2.0, code=0, reason="done")])[0] == "finished"
    assert phase_of([order, ev.RunEnded(t=2.0, code=93, reason="x")])[0] == "stopped"


def test_the_reason_of_an_eviction_is_one_sentence_of_its_own() -> None:
    srun = "srun: error: Unable to create step for job 7: Requested nodes are busy\nsrun: error: again"
    reason = f"n2: two starts failed ({srun}); n3: {srun}; n4: its power is off"
    gone = [ev.NodeEvicted(t=1.0, node=node, reason=reason, incident=1) for node in ("n2", "n4")]
    status = status_at(JobView(events=gone), 2.0)
    assert status.evicted == {"n2": reason, "n4": reason}
    text = " ".join(shown(*gone).split())
    assert "n2 (n2: two starts failed (srun: error: Unable to create step for job 7" in text
    assert "n4 (n4: its power is off …)" in text
    assert "again" not in text


def test_what_is_on_storage_and_how_often_it_should() -> None:
    written = ev.StorageWritten(t=1.0, generation=1, step=90, seconds=2.0)
    assert "step 90 on storage, written in 2.0 s" in shown(launched(), written)
    incident = incidents.opened(t=2.0, symptom=Symptom.NODE_LOST, detail="x", detect_s=0.0)
    start = ev.Noted(t=0.0, text="")
    assert "advised" not in shown(start, written, incident)
    many = [structs.replace(incident, incident=number) for number in range(1, 11)]
    text = shown(start, written, *many)
    assert re.search(r"advised +one every \d+ s or less often, with an incident every 360 s", text)


def test_how_far_each_standby_is() -> None:
    taken = allocation_taken(("n1",), ("n2", "n3", "n4", "n5"), t=0.0)
    changes = [
        ev.StandbyChanged(t=1.0, node="n2", stage=StandbyStage.REHEARSED, took_s=12.0),
        ev.StandbyChanged(t=1.0, node="n3", stage=StandbyStage.REHEARSAL_FAILED, reason="SIGSEGV"),
        ev.StandbyChanged(t=1.0, node="n4", stage=StandbyStage.LOADED, reason="only scripts are"),
    ]
    text = " ".join(shown(taken, *changes).split())
    for words in (
        "n2 rehearsed in 12 s, asleep",
        "n3 rehearsal failed, taken last: SIGSEGV",
        "n4 loaded, not rehearsed: only scripts are",
        "n5 starting",
    ):
        assert words in text


def test_standbys_are_shown_in_the_order_of_their_stages_until_they_are_in_the_world() -> None:
    taken = allocation_taken(("n1",), ("n2", "n3", "n4", "n5"), t=0.0)
    changes: list[ev.AnyEvent] = [
        ev.ModulesLearned(t=1.0, number=2, modules=("yaml",), node="n1"),
        ev.StandbyChanged(t=1.0, node="n2", stage=StandbyStage.TESTED, loaded=2),
        ev.StandbyChanged(t=1.0, node="n3", stage=StandbyStage.TEST_UNANSWERED, reason="gemm: no answer"),
        ev.StandbyTested(t=1.0, node="n4", outcome=Outcome.UNKNOWN, text="gemm: no answer", took_s=1.0),
        ev.StandbyChanged(t=1.0, node="n4", stage=StandbyStage.REHEARSED, took_s=12.0, loaded=1),
        ev.CompanionSubmitted(t=1.0, job_id=9, source=CompanionPool(reservation="spares")),
    ]
    rows = status_at(JobView(events=[taken, *changes]), 60.0).standbys
    assert list(rows) == ["companion 9", "n5", "n3", "n2", "n4"]
    assert [row.describe() for row in rows.values()] == [
        "provisioning",
        "starting",
        "test unanswered, taken last: gemm: no answer",
        "tested, with the job's imports",
        "rehearsed in 12 s, asleep; taken last: its quick test did not pass",
    ]
    woken = structs.replace(launched(), slots=("n2",))
    assert status_at(JobView(events=[taken, *changes, woken]), 60.0).standbys["n2"].stage == "woken"
    step = ev.FirstStep(t=2.0, generation=woken.generation, step=1, reported=True)
    assert (
        status_at(JobView(events=[taken, *changes, woken, step]), 60.0).standbys["n2"].stage == "in the world"
    )


def test_a_standby_that_does_not_answer_is_shown_with_the_reason() -> None:
    taken = allocation_taken(("n1",), ("n2",), t=0.0)
    aside = ev.SpareSetAside(t=1.0, node="n2", reason="silent for 5.5 s", usable=True)
    assert "standby n2 (silent for 5.5 s)" in shown(taken, aside)
    assert "silent" not in shown(taken, aside, ev.SpareAnswers(t=2.0, node="n2"))
    rehearsed = ev.StandbyChanged(t=1.0, node="n2", stage=StandbyStage.REHEARSED, took_s=12.0)
    assert "n2 rehearsed" in shown(taken, rehearsed)
    assert "n2 rehearsed" not in shown(taken, rehearsed, aside)


def test_companions_and_their_nodes_are_shown() -> None:
    events = (
        run_started(),
        allocation_taken(("n1",), t=2.0),
        ev.CompanionSubmitted(t=3.0, job_id=12, source=CompanionPool(reservation="spares")),
        ev.CompanionStarted(t=4.0, job_id=12, node="n5"),
        ev.CompanionSubmitted(t=5.0, job_id=13, source=CompanionPool()),
    )
    status = status_at(JobView(events=events), 6.0)
    assert status.spares == ("n5",)
    console = Console(width=120, record=True)
    console.print(render(status))
    text = console.export_text()
    assert "n5 by companion 12 (reservation spares); companion 13 waits for a node from the partition" in text
    ended = status_at(JobView(events=(*events, ev.CompanionEnded(t=6.0, job_id=12, reason="over"))), 7.0)
    assert (ended.spares, list(ended.companions)) == ((), [13])


def test_phases_by_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(folder), "--phases"]) == ExitCode.NO_INPUT
    assert "has launched no generation yet" in capsys.readouterr().err
    assert main(["status", str(folder), "--generation", "1"]) == ExitCode.USAGE
    assert "add --phases" in capsys.readouterr().err
    with (folder / "journal.jsonl").open("ab") as journal:
        journal.write(ev.encode_event(launched()) + b"\n")
    assert main(["status", str(folder), "--phases", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["generation"], shown["phases"]) == (2, [])


# -- watching ----------------------------------------------------------------------------------------


def test_a_watched_job_is_shown_until_it_has_ended(
    folder: Path, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        with (folder / "journal.jsonl").open("ab") as file:
            file.write(ev.encode_event(ev.RunEnded(t=3.0, code=0, reason="done", final=True)) + b"\n")

    assert watch(str(folder), 5.0, job_dir=None, slurm=slurm, pause=pause) == 0
    shown = capsys.readouterr().out
    assert len(pauses) == 1
    assert pauses[0] >= 5.0
    assert shown.count("every 5 s") == 2
    assert shown.index("starting") < shown.index("finished")


def test_a_job_that_slurm_ended_without_a_word_in_its_journal_is_over(
    folder: Path, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.cluster.finish(1, "CANCELLED")
    status = status_of(str(folder), None, slurm)
    assert (status.phase, status.reason) == (
        "stopped",
        "Slurm has ended the job (CANCELLED); it was starting",
    )
    assert watch(str(folder), 5.0, job_dir=None, slurm=slurm, pause=pytest.fail) == 0
    assert "Slurm has ended the job" in capsys.readouterr().out


def test_a_job_that_is_cancelled_on_its_way_to_a_requeue_is_over(folder: Path, slurm: FakeSlurm) -> None:
    with (folder / "journal.jsonl").open("ab") as file:
        file.write(
            ev.encode_event(ev.RequeueStarted(t=3.0, exclude=(), reason="node lost", failure=True)) + b"\n"
        )
    job, completing = slurm.job(1), frozenset({"COMPLETING"})  # as 22.05 says of both
    slurm.cluster.put(job, states=completing)
    status = status_of(str(folder), None, slurm)
    assert (status.phase, status.slurm) == ("stopped", "COMPLETING")
    assert status.reason == "Slurm has ended the job (COMPLETING); it was requeueing (node lost)"
    slurm.cluster.put(job, states=completing, restart_count=1)
    assert status_of(str(folder), None, slurm).phase == "requeueing"


def test_a_job_that_is_cancelled_in_the_queue_after_a_requeue_is_cancelled(
    folder: Path, slurm: FakeSlurm
) -> None:
    stored = ev.StorageWritten(t=3.0, generation=1, step=9, seconds=1.0)
    why = "the job is requeued (ordered to end by SIGTERM)"
    events = (stored, ev.RunEnded(t=4.0, code=75, reason=why, final=False, requeued=True))
    with (folder / "journal.jsonl").open("ab") as file:
        file.write(b"".join(ev.encode_event(event) + b"\n" for event in events))
    assert status_of(str(folder), None, slurm).phase == "requeued"
    slurm.cluster.finish(1, "CANCELLED")
    status = status_of(str(folder), None, slurm)
    assert (status.phase, status.exit_code) == ("cancelled", None)
    assert there(status.situation.advice).command.startswith("sbatch train.sbatch --from 1 ")
    (line,) = briefs([folder], slurm)
    assert line.state == "cancelled"


def test_a_requeue_since_a_node_failed_says_so_by_slurmdbd(folder: Path, slurm: FakeSlurm) -> None:
    why = "the job is requeued (ordered to end by SIGTERM)"
    with (folder / "journal.jsonl").open("ab") as file:
        ended = ev.RunEnded(t=4.0, code=75, reason=why, final=False, requeued=True)
        file.write(ev.encode_event(ended) + b"\n")
    slurm.requeue(1)
    (row, *others) = slurm.cluster.runs[1]
    slurm.cluster.runs[1] = [structs.replace(row, state="NODE_FAIL"), *others]
    assert any("NODE_FAIL" in wrong for wrong in status_of(str(folder), None, slurm).situation.wrong)


def test_after_a_takeover_the_boot_of_the_node_is_warned_of_until_slurm_gives_it_up(
    folder: Path, slurm: FakeSlurm
) -> None:
    node = slurm.job(1).nodes[0]
    taken = ev.ControllerStarted(t=5.0, epoch=2, host="n2", pid=1, port=1, taken_from=node)
    with (folder / "journal.jsonl").open("ab") as file:
        file.write(ev.encode_event(taken) + b"\n")
    assert status_of(str(folder), None, slurm).left == node
    slurm.cluster.set_node(node, states=frozenset({"DOWN"}))
    assert status_of(str(folder), None, slurm).left == ""


def test_a_script_that_saves_nothing_known_is_said_to() -> None:
    first = ev.FirstStep(t=2.0, generation=1, step=10, reported=False)
    text = " ".join(shown(run_started(), launched(restore=None), first).split())
    assert "copies none: the script saves nothing that srobust knows" in text
    reported = structs.replace(first, reported=True)
    assert "saves nothing" not in shown(run_started(), launched(restore=None), reported)


def test_the_command_is_what_the_ranks_run_after_an_update() -> None:
    started = run_started(kind="module", command=("pkg.train", "--lr", "3e-4"))
    assert JobView(events=[started]).command == ("-m", "pkg.train", "--lr", "3e-4")
    new = release(name=BATCH, command=("train.py", "--lr", "1e-4"))
    applied = updates.applied(3.0, 1, BATCH, FIRST, 9)
    events = [started, ev.ReleaseTaken(t=2.0, release=release()), ev.ReleaseTaken(t=2.5, release=new)]
    assert status_at(JobView(events=events), 4.0).command == ("train.py",)
    now = status_at(JobView(events=[*events, applied]), 4.0)
    assert now.command == ("train.py", "--lr", "1e-4")


@pytest.mark.parametrize(("age_s", "is_said"), [(2.0, False), (7.0, True), (35.0, True)])
def test_a_controller_that_writes_nothing_is_said_to_be_silent(
    folder: Path, slurm: FakeSlurm, age_s: float, is_said: bool
) -> None:
    state = fold(read(folder / "journal.jsonl"))
    (folder / "moment.json").write_bytes(encode(of_state(state, time.time() - age_s)))
    status = status_of(str(folder), None, slurm)
    assert (status.controller_silent_s is not None) is is_said
    assert status.situation.grave is (age_s > 10.0)
    console = Console(width=120)
    with console.capture() as shown:
        console.print(render(status))
    assert ("no fault is answered" in shown.get()) is is_said
    slurm.cluster.finish(1, "CANCELLED")
    assert status_of(str(folder), None, slurm).controller_silent_s is None


def test_ctrl_c_ends_watching_as_it_ends_any_command(folder: Path, slurm: FakeSlurm) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # which main() turns into exit code 130
        watch(str(folder), 1.0, job_dir=None, slurm=slurm, pause=interrupt)


@pytest.mark.parametrize("other", ["--json", "--phases"])
def test_watching_goes_with_no_other_form(folder: Path, other: str) -> None:
    assert main(["status", "--watch", str(folder), other]) == ExitCode.USAGE


def test_every_needs_watch(folder: Path) -> None:
    assert main(["status", str(folder), "--every", "5"]) == ExitCode.USAGE
