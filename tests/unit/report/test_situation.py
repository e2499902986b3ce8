"""What the person on call reads first: what is wrong, what is done about it, what they could do."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from msgspec import structs
from rich.console import Console

from slurm_robust.evidence.incident_text import IncidentRow
from slurm_robust.evidence.incidents import IncidentStatus
from slurm_robust.evidence.live_status import of_state
from slurm_robust.model import events as ev
from slurm_robust.model.copies import Tier
from slurm_robust.model.journal import fold, read
from slurm_robust.model.live_status import LiveIncident, LiveStatus, LiveTier, LiveUpdate, NodeState, encode
from slurm_robust.report.situation import (
    JobSituation,
    JobSize,
    Seen,
    copies_text,
    judge,
    late_text,
    nodes_text,
    stage_text,
    step_text,
)
from slurm_robust.report.status import render, status_of
from slurm_robust.slurm.need import Places
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.trainings.waiting import PendingJob
from tests.builders.events import allocation_taken, run_started
from tests.builders.live_statuses import live_node, live_status
from tests.there import there

NOW = 2000.0
COMMAND = ("train.py", "--lr", "1e-4", "--name", "two words")
AGAIN = "sbatch train.sbatch --from 7 train.py --lr 1e-4 --name 'two words'"


def seen(phase: str = "training", **known: object) -> JobSituation:
    return judge(structs.replace(Seen(job_id=7, phase=phase, reason=""), **known), NOW)


def late(**changes: object) -> LiveStatus:
    known: dict[str, object] = {"step": 265, "step_age_s": 13.0, "usual_step_s": 0.31, "hang_s": 14.0}
    return live_status(**{**known, **changes})


# -- a step that does not come ------------------------------------------------------------------------


def test_a_step_that_is_late_is_wrong_before_it_is_called_a_hang() -> None:
    found = seen(live=late())
    assert found.wrong == ("no step for 13 s (usual 0.31 s); called a hang at 14 s",)
    assert not found.grave
    assert found.advice is not None
    assert found.advice.command == "srobust stacks 7"
    assert step_text(late()) == "265, 13 s ago (usual 0.31 s), loss 2.1234"


@pytest.mark.parametrize(
    "changes",
    [
        {"step_age_s": 4.0},  # heartbeats and the file are seconds old themselves
        {"usual_step_s": 6.0},
        {"usual_step_s": None},
        {"stage": "stopping"},
        {"step": -1},
    ],
)
def test_a_step_that_may_still_come_in_time_is_not_late(changes: dict[str, object]) -> None:
    assert late_text(late(**changes)) == ""


def test_a_phase_that_the_script_announces_makes_no_step_late() -> None:
    assert late_text(late(), "evaluation") == ""
    assert "in evaluation" in step_text(late(), "evaluation")
    assert late_text(late(hang_s=None)).endswith("never called a hang")


def test_steps_that_the_script_does_not_number_are_counted() -> None:
    counted = step_text(late(reports=False, step=46))
    assert counted.startswith("47 optimizer steps of this generation, 13 s ago")
    assert (
        step_text(late(step=-1, best_step=-1))
        == "none of this generation yet, 13 s since the ranks were started"
    )
    assert "the newest before was 152" in step_text(late(step=-1, best_step=152))


# -- an incident --------------------------------------------------------------------------------------


def test_an_open_incident_is_wrong_with_what_is_done_since_when_and_until_when() -> None:
    incident = LiveIncident(
        number=3, symptom="hang", sign="no step for 14 s", age_s=16.0, step=265, actions="evict n5, requeue"
    )
    live = late(
        incident=incident, stage="stopping", stage_s=1.2, stage_most_s=185.0, stage_why="no step for 14 s"
    )
    found = seen("recovering", live=live)
    assert found.grave
    assert found.wrong[0] == "incident 3 for 16 s: hang: no step for 14 s"
    assert found.doing == "evict n5, requeue; stops the ranks for 1.2 s, 3 min at most"
    assert found.advice is not None
    assert found.advice.command == "srobust incident 7 3"
    assert "no step for 14 s" in stage_text(structs.replace(live, incident=None)), (
        "else why it does so stands there"
    )


def test_storage_that_takes_nothing_is_wrong() -> None:
    found = seen(live=live_status(held=True, trouble="No space left on device", behind=3, missed=1))
    assert found.wrong[0] == "nothing is decided, since storage does not take the journal"
    assert "No space left on device (3 events in memory only)" in found.wrong[1]


def test_a_job_without_ranks_stands_still_until_storage_takes_the_journal() -> None:
    nodes = tuple(structs.replace(live_node(slot), state=NodeState.ENDED) for slot in range(2))
    live = live_status(held=True, trouble="No space left on device", nodes=nodes, stage="stopping")
    found = seen(live=live)
    assert found.grave
    assert found.wrong[0] == "no rank runs, and none is started until storage takes the journal again"
    assert found.advice is not None
    assert "free space" in found.advice.text


def test_a_controller_that_is_silent_is_graver_than_what_it_saw_last() -> None:
    found = seen(silent_s=35.0)
    assert found.grave
    assert "no fault is answered" in found.wrong[0]


def test_silence_of_a_few_seconds_says_nothing_of_the_training() -> None:
    found = seen(silent_s=7.0, live=late())
    assert not found.grave
    assert len(found.wrong) == 1
    assert "silent for 7.0 s" in found.wrong[0]
    assert "do not scancel" in there(found.advice).text, "its stacks show no hang"


def test_a_start_that_a_step_has_ended_is_not_still_done() -> None:
    begins = live_status(stage="gathering", stage_s=10.0, step=-1)
    assert "waits for the agents" in seen("starting", live=begins).doing
    assert seen("training", live=begins).doing == ""


# -- a job that waits --------------------------------------------------------------------------------


def test_a_requeue_says_what_happens_next_and_is_wrong_only_after_a_fault() -> None:
    lost = seen("requeued", reason="1 node to replace, 0 standbys left")
    assert lost.wrong == ("1 node to replace, 0 standbys left",)
    assert lost.doing == "Slurm ends this run and puts the job back into its queue"
    assert lost.advice is not None
    asked = seen("requeueing", reason="1 node to replace, 0 standbys left; sbatch: error: busy")
    assert asked.wrong == ("1 node to replace, 0 standbys left …",)
    assert asked.doing == "asks Slurm to put the job back into its queue"
    saves = seen("saving", reason="step 9 goes from memory to storage before the job leaves its nodes")
    assert (saves.wrong, saves.doing[:11]) == ((), "step 9 goes")
    limit = seen("requeued", reason="the end of this run is near (USR1)", is_fault=False)
    assert (limit.wrong, limit.grave) == ((), False)
    assert limit.doing == lost.doing
    queued = seen("requeued", reason="the end of this run is near (USR1)", is_fault=False, waiting=waits())
    assert len(queued.wrong) == 1
    completing = seen("requeued", reason="x", slurm_advice="waits for Slurm to give up node n1")
    assert completing.doing == "waits for Slurm to give up node n1"


def waits(**changes: object) -> PendingJob:
    made = PendingJob(
        since=NOW - 480.0,
        reason="Resources",
        least=4,
        most=5,
        places=Places(free=("n1", "n3", "n4"), dead=("n2",), left_out=("n5",), left_out_free=("n5",)),
        command="scontrol update JobId=7 ExcNodeList=",
        why="to start it now (uses n5 again)",
        uses=("n5",),
    )
    return structs.replace(made, **changes)


def test_a_requeued_job_says_for_what_it_waits_and_what_the_way_out_costs() -> None:
    evicted = {"n5": "n5: two starts failed; and more", "n2": "n2 does not respond"}
    found = seen("requeued", reason="1 node to replace, 0 standbys left", waiting=waits(), evicted=evicted)
    assert found.grave
    assert found.wrong[0] == (
        "waits in Slurm's queue for 8 min for 4 to 5 nodes: 3 nodes free (n[1,3-4]), n2 dead, n5 left out"
    )
    assert found.wrong[1] == "1 node to replace, 0 standbys left"
    assert found.advice is not None
    assert found.advice.command == "scontrol update JobId=7 ExcNodeList="
    assert "n5 was given up: n5: two starts failed" in found.advice.text
    assert "if it fails again, that costs one more recovery" in found.advice.text
    assert "it then runs without a standby" in found.advice.text


@pytest.mark.parametrize(
    ("reason", "doing"),
    [
        ("Resources", "Slurm starts it by itself once 4 nodes are free that are not left out"),
        ("BeginTime", "Slurm starts it by itself once its begin time is over"),
        ("BadConstraints", ""),
    ],
)
def test_what_slurm_does_by_itself_depends_on_its_reason(reason: str, doing: str) -> None:
    assert seen("requeued", waiting=waits(reason=reason)).doing == doing


def test_what_nobody_can_start_now_has_no_command_to_do_so() -> None:
    lacks = waits(command="", why="it lacks 2 nodes until other jobs end", uses=())
    found = seen("requeued", waiting=lacks)
    assert found.advice is not None
    assert (found.advice.text, found.advice.command) == ("it lacks 2 nodes until other jobs end", "")
    held = seen("requeued", waiting=waits(command="", why="held (JobHeldUser): scontrol release 7", uses=()))
    assert held.advice is not None
    assert (held.advice.text, held.advice.command) == ("held (JobHeldUser)", "scontrol release 7")


def row(number: int) -> IncidentRow:
    return IncidentRow(
        number=number, t=1.0, status=IncidentStatus.ENDED, symptom="user exception", signs=("no",), blamed="",
        suspects=(), done="give up", outcome="", detect_s=0.0, localise_s=None, recover_s=None,
        steps_repeated=None,
    )  # fmt: skip


# -- a job that has ended -----------------------------------------------------------------------------


def test_a_job_that_gave_up_names_the_report_and_how_to_go_on() -> None:
    found = seen(
        "stopped",
        reason="rank 1 raised ValueError at train.py:3: no; it came again",
        code=93,
        saves=True,
        incidents=(row(2),),
        command=COMMAND,
    )
    assert found.grave
    assert found.wrong == ("rank 1 raised ValueError at train.py:3: no …",)
    assert found.advice is not None
    assert found.advice.command == "srobust incident 7 2"
    assert found.advice.text.endswith(f": it goes on with --from before the script: {AGAIN}")
    unsaved = seen("stopped", reason="no", code=93, incidents=(row(2),)).advice
    assert unsaved is not None
    assert unsaved.text == "read why; once that is mended, submit it again"


def test_a_cancelled_job_has_nothing_wrong_and_a_finished_one_nothing_to_do() -> None:
    assert seen("finished", code=0) == JobSituation()
    cancelled = seen("cancelled", code=143, saves=True, command=COMMAND)
    assert cancelled.wrong == ()
    order = "ordered to end by SIGTERM; steps 897 to 982 are lost"
    assert seen("cancelled", code=143, reason=order).wrong == ("steps 897 to 982 are lost",)
    assert cancelled.advice is not None
    assert cancelled.advice.text.endswith("submit it again with --from before the script")
    assert cancelled.advice.command == AGAIN
    named = seen("cancelled", code=143, training=True, command=COMMAND).advice
    assert named is not None
    assert named.text.endswith("with the same --training, or with --from before the script")
    assert named.command == AGAIN
    assert seen("cancelled", code=143).advice is None, "nothing to go on from"


@pytest.mark.parametrize("command", [(), ("train.py", "x" * 400), ("train.py", "two\nlines")])
def test_a_command_that_cannot_be_shown_whole_is_not_shown(command: tuple[str, ...]) -> None:
    found = there(seen("cancelled", code=143, saves=True, command=command).advice)
    assert found.text.endswith("submit it again with --from 7 before the script and its arguments")
    assert found.command == ""


# -- texts of the training -----------------------------------------------------------------------------


def test_the_size_at_the_beginning_is_shown_if_it_was_another_one() -> None:
    began, now = JobSize(ranks=4, standbys=1), JobSize(ranks=3, standbys=1)
    slots = ("n1", "n3", "n4")
    assert nodes_text(slots, ("n5",), now, now) == "n[1,3-4] (3 ranks), standby n5"
    assert nodes_text(slots, ("n5",), now, began).endswith("; began with 4 ranks + 1 standby")
    assert nodes_text(slots, (), now, now) == "n[1,3-4] (3 ranks), no standby"


def test_copies_are_named_by_where_they_are() -> None:
    text = copies_text(live_status().tiers)
    assert text == "step 1200 in memory, 1196 on other nodes, 1000 on storage (4 min ago)"
    assert copies_text(()) == ""


# -- the screen ----------------------------------------------------------------------------------------


@pytest.fixture
def folder(slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of job 1, which trains on n1 and has made step 10 by its journal."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "srobust-jobs" / "1"
    path.mkdir(parents=True)
    events = (
        run_started(),
        allocation_taken(("n1",), t=2.0, submitted=slurm.job(1).submit_time),
        ev.GenerationLaunched(t=3.0, generation=1, slots=("n1",), master="x:1"),
        ev.FirstStep(t=4.0, generation=1, step=10, reported=True),
    )
    (path / "journal.jsonl").write_bytes(b"".join(ev.encode_event(e) + b"\n" for e in events))
    return path


def screen(folder: Path, slurm: FakeSlurm, width: int = 80) -> str:
    console = Console(width=width)
    with console.capture() as shown:
        console.print(render(status_of(str(folder), None, slurm)))
    return shown.get()


def test_the_step_is_the_controllers_own_and_not_the_journals_older_one(
    folder: Path, slurm: FakeSlurm
) -> None:
    state = fold(read(folder / "journal.jsonl"))
    update = LiveUpdate(number=1, release="b", when="now", by="alice", doing="gemm")
    live = late(t=time.time(), run_id=state.run_id, epoch=state.epoch, job_id=1, update=update)
    assert "step   10" in screen(folder, slurm)
    (folder / "moment.json").write_bytes(encode(live))
    status = status_of(str(folder), None, slurm)
    assert status.step == 265
    assert status.live is not None
    assert status.live.nodes == ()
    assert status.update is not None
    assert status.update.doing == "gemm"
    text = screen(folder, slurm)
    assert "no step for 13 s (usual 0.31 s); called a hang at 14 s" in text
    (folder / "moment.json").write_bytes(encode(structs.replace(live, run_id="another")))
    assert status_of(str(folder), None, slurm).step == 10


@pytest.mark.parametrize("lost", ["costs a requeue", "ends the job: slurm.requeue is false"])
def test_what_the_next_lost_node_does_is_said_as_the_run_began(
    folder: Path, slurm: FakeSlurm, lost: str
) -> None:
    with (folder / "journal.jsonl").open("ab") as file:
        file.write(ev.encode_event(allocation_taken(lost_node=lost)) + b"\n")
    said = f"no standby left: the next lost node {lost}"
    assert said in " ".join(screen(folder, slurm).split())
    events = read(folder / "journal.jsonl")
    assert of_state(fold(events), 0.0).lost_node == lost


def test_a_job_that_slurm_calls_completed_is_not_called_stopped(folder: Path, slurm: FakeSlurm) -> None:
    slurm.cluster.finish(1, "COMPLETED")
    status = status_of(str(folder), None, slurm)
    assert (status.phase, status.situation) == ("ended", JobSituation())
    said = " ".join(screen(folder, slurm).split())
    assert "ended: Slurm says COMPLETED (exit code 0), but the journal has no end: it was training" in said


def test_a_journal_that_breaks_off_is_said_to(folder: Path, slurm: FakeSlurm) -> None:
    journal = folder / "journal.jsonl"
    journal.write_bytes(journal.read_bytes() + b'{"event":"run_en')
    assert "breaks off" not in screen(folder, slurm), "its controller may be writing it now"
    slurm.cluster.finish(1, "COMPLETED")
    status = status_of(str(folder), None, slurm)
    assert status.phase == "unknown"
    assert "the journal breaks off in line 5 at " in status.reason
    text = " ".join(screen(folder, slurm).split())
    assert "later events are missing" in text
    assert "COMPLETED" in text
    assert "stopped" not in text


# -- checkpoints that are whole nowhere ----------------------------------------------------------------

FULL = {"n2": "the file system of /dev/shm has 3.1 MB free of 2.1 GB"}
ON_STORAGE = LiveTier(tier=Tier.STORAGE, step=250, generation=1, age_s=9.0)


def test_a_node_without_room_for_snapshots_is_wrong_and_the_way_to_find_what_fills_it_is_next() -> None:
    found = seen(live=live_status(step=265, unkept=FULL, tiers=(ON_STORAGE,)))
    (text,) = found.wrong
    assert text == (
        "n2 has no room in memory for snapshots (the file system of /dev/shm has 3.1 MB free of 2.1 GB): a "
        "fault goes back to step 250, the newest that is whole"
    )
    assert not found.grave
    assert there(found.advice).command == "srun --jobid 7 --overlap -N1 -n1 -w n2 ls -lS /dev/shm"


def test_after_a_takeover_it_is_said_what_a_boot_of_the_node_does() -> None:
    found = seen(live=live_status(), left="n1")
    assert found.wrong == ("until Slurm gives up n1 (SlurmdTimeout), booting n1 ends this run",)
    assert not found.grave


def test_where_nothing_is_whole_that_is_said_first() -> None:
    (text,) = seen(live=live_status(step=265, unkept=FULL, tiers=())).wrong
    assert text.startswith("no checkpoint is whole, so a fault repeats all steps: n2 has no room in memory")


def test_a_node_without_room_for_copies_of_others_says_what_the_loss_of_a_node_costs() -> None:
    (text,) = seen(live=live_status(step=265, unkept_peers=FULL, tiers=(ON_STORAGE,))).wrong
    assert text.startswith("n2 has no room in memory for copies of other nodes (the file system of /dev/shm")
    assert text.endswith("the loss of such a node goes back to the newest checkpoint on storage")


def test_a_newest_whole_checkpoint_that_stands_still_while_steps_go_on_is_wrong() -> None:
    still = live_status(step=265, tiers=(ON_STORAGE,), kept_age_s=90.0, kept_every_s=10.0)
    assert seen(live=still).wrong == ("step 250 has been the newest whole checkpoint for 90 s",)
    for changes in ({"kept_every_s": 20.0}, {"kept_every_s": None}, {"kept_age_s": 59.0}, {"step": 250}):
        assert seen(live=structs.replace(still, **changes)).wrong == (), changes
