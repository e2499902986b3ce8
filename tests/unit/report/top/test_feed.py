"""What top shows of a job: the live status while it is live, else the journal, and it says which."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs

from slurm_robust.cli.main import main
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.incident import Evict, Restart, Symptom
from slurm_robust.model.journal import fold, read
from slurm_robust.model.live_status import FORMAT, OLD_S, LiveIncident, NodeState
from slurm_robust.report.status import status_of
from slurm_robust.report.top import feed as feed_module
from slurm_robust.report.top.feed import SLURM_S, JobFeed, JournalTail
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_slurm import FakeSlurm
from tests.builders import events, incidents
from tests.there import there
from tests.unit.report.top.fake_folder import FakeFolder, T


class Clock:
    """Both clocks, which only the test moves."""

    def __init__(self) -> None:
        self.past_s = 0.0

    def wall(self) -> float:
        return T + self.past_s

    def mono(self) -> float:
        return 1000.0 + self.past_s


@pytest.fixture
def folder(tmp_path: Path) -> FakeFolder:
    return FakeFolder(tmp_path / "4711")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def feed(folder: FakeFolder, clock: Clock) -> JobFeed:
    return JobFeed(folder.directory, wall=clock.wall, mono=clock.mono)


def test_a_live_status_that_is_new_is_shown(folder: FakeFolder, feed: JobFeed) -> None:
    written = folder.show(t=T - 1.5)
    view = feed.look()
    assert view.live
    assert view.moment == written
    assert view.age_s == pytest.approx(1.5)
    assert view.state == "training"


def test_a_live_status_that_gets_old_gives_way_to_the_journal(
    folder: FakeFolder, feed: JobFeed, clock: Clock
) -> None:
    folder.show(t=T)
    assert feed.look().live
    clock.past_s = OLD_S + 1
    view = feed.look()
    assert not view.live
    assert view.source == "the controller has written no live status for 11 s"
    assert (view.moment.step, view.moment.loss) == (1190, 2.5)
    assert view.age_s == pytest.approx(16)
    folder.show()
    assert feed.look().live  # by its number: whatever the other machine's clock says


def test_clocks_that_differ_do_not_matter_from_the_second_look_on(folder: FakeFolder, feed: JobFeed) -> None:
    folder.show(t=T - 3600)
    assert not feed.look().live
    folder.show(t=T - 3598)
    assert feed.look().live


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "there is no moment.json"),
        (b"", "not understood"),
        (b'{"format": 1, "t"', "not understood"),
        (b'{"format": %d}' % (FORMAT + 1), "newer release"),
        (b"[" * 100_000, "not understood"),
        (b"\xff\xfe", "not understood"),
    ],
)
def test_without_a_live_status_it_goes_by_the_journal(
    folder: FakeFolder, feed: JobFeed, content: bytes | None, says: str
) -> None:
    if content is not None:
        folder.directory.live_status.write_bytes(content)
    view = feed.look()
    assert not view.live
    assert says in view.source
    assert [node.state for node in view.moment.nodes] == [NodeState.TRAINING] * 4 + [NodeState.STANDBY]
    assert view.moment.ettr is not None


def test_a_live_status_of_another_job_or_controller_does_not_count(folder: FakeFolder, feed: JobFeed) -> None:
    folder.show(t=T, run_id="4711-other")
    assert "another job" in feed.look().source
    folder.show(t=T, run_id="4711-abcd", epoch=2)
    assert "newest controller" in feed.look().source


def test_the_last_live_status_is_not_live(folder: FakeFolder, feed: JobFeed) -> None:
    folder.show(t=T, final=True)
    folder.append(ev.RunEnded(t=T, code=0, reason="every rank ended with code 0", final=True))
    view = feed.look()
    assert (view.live, view.state, view.moment.code) == (False, "finished", 0)
    assert view.source == "the controller has ended"


def opened(number: int) -> ev.IncidentOpened:
    return incidents.opened(
        t=T,
        incident=number,
        generation=5,
        symptom=Symptom.NODE_LOST,
        detail="gpu0001 is silent",
        detect_s=1.0,
        best_step=1190,
    )


def decided(number: int) -> ev.Decided:
    verdict = incidents.verdict(reason="dead", suspects=("gpu0001",))
    actions = (Evict(node="gpu0001"), Restart())
    return ev.Decided(t=T + 1, incident=number, actions=actions, reason="it is dead", verdict=verdict)


def test_incidents_come_as_they_are_written(folder: FakeFolder, feed: JobFeed, clock: Clock) -> None:
    assert feed.look().incidents == ()
    folder.append(opened(1), decided(1))
    clock.past_s = 5.0
    view = feed.look()
    assert [row.number for row in view.incidents] == [1]
    assert view.state == "recovering"
    incident = view.moment.incident
    assert incident is not None
    assert (incident.sign, incident.actions) == ("gpu0001 is silent", "evict gpu0001, restart")
    assert (incident.reason, incident.blame, incident.age_s) == ("dead", "node", 5.0)


def running_in_slurm(folder: FakeFolder, clock: Clock) -> tuple[JobFeed, FakeSlurm, int]:
    """A job that trains, as its folder and Slurm have it."""
    slurm = FakeSlurm()
    job_id = slurm.submit(SubmitRequest(command=("x",)))
    folder.directory.journal.write_bytes(b"")
    folder.append(events.run_started(t=T, run_id="4711-abcd", job_id=job_id, command=("x",)))
    folder.show(t=T)
    return JobFeed(folder.directory, slurm, wall=clock.wall, mono=clock.mono), slurm, job_id


def test_slurm_is_asked_only_of_a_job_whose_controller_is_silent(folder: FakeFolder, clock: Clock) -> None:
    feed, *_ = running_in_slurm(folder, clock)
    assert feed.look().slurm == ""
    clock.past_s = 60.0
    assert feed.look().slurm == "RUNNING"


@pytest.mark.parametrize(("past_s", "live"), [(8.0, True), (60.0, False)])
def test_a_silent_controller_is_wrong_while_slurm_has_the_job(
    folder: FakeFolder, clock: Clock, past_s: float, live: bool
) -> None:
    feed, slurm, job_id = running_in_slurm(folder, clock)
    assert feed.look().situation.wrong == ()
    clock.past_s = past_s
    view = feed.look()
    assert view.live == live
    assert "the controller has been silent for" in view.situation.wrong[0]
    assert "do not scancel" in there(view.situation.advice).text
    slurm.cancel(job_id)
    clock.past_s = 600.0
    assert "silent" not in "".join(feed.look().situation.wrong)


def test_the_ettr_of_an_ended_job_stands_still(folder: FakeFolder, clock: Clock) -> None:
    slurm = FakeSlurm()
    folder.append(ev.RunEnded(t=T, code=143, reason="ordered to end by SIGTERM", final=False))
    feeds = [JobFeed(folder.directory, slurm, wall=clock.wall, mono=clock.mono) for _ in range(2)]
    soon = feeds[0].look().moment.ettr
    clock.past_s = 3600.0
    assert soon is not None
    assert soon > 0.5
    assert feeds[0].look().moment.ettr == feeds[1].look().moment.ettr == soon


def test_a_pending_job_that_is_looked_at_alone_is_asked_for_every_few_seconds(
    folder: FakeFolder, clock: Clock
) -> None:
    slurm = FakeSlurm()
    job_id = slurm.submit(SubmitRequest(command=("x",)))
    folder.directory.journal.write_bytes(b"")
    folder.append(
        events.run_started(t=T, run_id="4711-abcd", job_id=job_id, command=("x",)),
        ev.RequeueStarted(t=T, exclude=(), reason="n1 is lost", failure=True),
        ev.StageDone(t=T, what="requeue", ok=True, detail=""),
    )
    feed = JobFeed(folder.directory, slurm, alone=True, wall=clock.wall, mono=clock.mono)
    for node in slurm.nodes():
        slurm.cluster.set_node(node.name, states=frozenset({"DOWN"}))
    job, states = slurm.job(job_id), frozenset({"PENDING"})
    slurm.cluster.put(job, states=states, restart_count=1, reason="Resources", nodes=())
    assert "Resources" in feed.look().slurm
    view = feed.look()
    assert view.waiting is not None
    assert view.situation.wrong[0].startswith("waits in Slurm's queue")
    slurm.cluster.unreachable = True
    assert "Resources" in feed.look().slurm, "Slurm has others to answer"
    clock.past_s = feed_module.PENDING_S
    assert "does not answer" in feed.look().slurm


def test_the_curves_and_the_output_of_rank_0_are_those_of_the_journal_and_the_log(
    folder: FakeFolder, clock: Clock
) -> None:
    folder.append(ev.ProgressMade(t=T, generation=5, step=1195, reported=True, loss=2.25))
    log = folder.directory.worker_log(5, 0, "out")
    log.parent.mkdir(parents=True)
    log.write_text("step 1195\n")
    view = JobFeed(folder.directory, alone=True, wall=clock.wall, mono=clock.mono).look()
    assert view.losses == (2.5, 2.25)
    assert view.step_times[-1] == pytest.approx(1.0)
    assert view.tail == ("step 1195",)
    assert JobFeed(folder.directory, wall=clock.wall, mono=clock.mono).look().tail == ()


def test_a_live_status_that_is_live_is_shown_as_it_was(folder: FakeFolder, feed: JobFeed) -> None:
    folder.append(opened(1))
    folder.show(t=T)
    assert feed.look().state == "training"  # though the journal knows more by now
    incident = LiveIncident(number=1, symptom="hang", sign="", age_s=1.0, step=1)
    folder.show(t=T, incident=incident)
    assert (feed.look().state, feed.look().reason) == ("recovering", "incident 1: hang")


# -- the journal as it grows -----------------------------------------------------------------------


def test_a_follower_reads_only_what_is_new_and_only_whole_lines(folder: FakeFolder) -> None:
    follower = JournalTail(folder.directory.journal)
    assert len(follower.look()) == 6
    assert follower.look() == []
    line = ev.encode_event(opened(1)) + b"\n"
    with folder.directory.journal.open("ab") as file:
        file.write(line[:30])
    assert follower.look() == []
    with folder.directory.journal.open("ab") as file:
        file.write(line[30:])
    assert [type(event) for event in follower.look()] == [ev.IncidentOpened]
    assert follower.state == fold(read(folder.directory.journal))


def test_a_look_is_bounded(folder: FakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "CHUNK", 200)  # the longest line is longer
    follower, looks = JournalTail(folder.directory.journal), 0
    while follower.look() or follower.is_behind:
        looks += 1
    assert looks > 2
    assert follower.state == fold(read(folder.directory.journal))


def test_a_torn_end_that_a_controller_cuts_off_is_forgotten(folder: FakeFolder) -> None:
    follower, journal = JournalTail(folder.directory.journal), folder.directory.journal
    follower.look()
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"kind": "torn')
    follower.look()
    journal.write_bytes(whole)
    folder.append(opened(1))
    assert len(follower.look()) == 1


def test_what_a_controller_wrote_after_a_takeover_does_not_count(folder: FakeFolder) -> None:
    follower = JournalTail(folder.directory.journal)
    follower.look()
    known = len(follower.events)
    folder.append(structs.replace(opened(1), epoch=3))
    follower.look()
    assert follower.state.world.incident is not None
    folder.append(ev.ControllerStarted(t=T, epoch=4, host="h", pid=1, port=1, known=known))
    folder.append(structs.replace(opened(1), epoch=3))
    follower.look()
    assert follower.state.world.incident is None
    assert follower.state == fold(read(folder.directory.journal))


def test_a_damaged_journal_is_told_and_shown_as_far_as_it_goes(folder: FakeFolder, feed: JobFeed) -> None:
    with folder.directory.journal.open("ab") as file:
        file.write(b"\x1b[2Jnonsense\n")
    view = feed.look()
    assert "byte" in view.trouble
    assert view.moment.step == 1190


def test_a_journal_that_breaks_off_is_said_to_in_the_words_of_status(
    folder: FakeFolder, clock: Clock
) -> None:
    slurm = FakeSlurm()
    job_id = slurm.submit(SubmitRequest(command=("x",)))
    folder.directory.journal.write_bytes(b"")
    folder.append(events.run_started(t=T, run_id="4711-abcd", job_id=job_id, command=("x",)))
    with folder.directory.journal.open("ab") as file:
        file.write(b'{"event":"run_en')
    feed = JobFeed(folder.directory, slurm, wall=clock.wall, mono=clock.mono)
    assert feed.look().state == "starting", "its controller may be writing it now"
    slurm.cluster.finish(job_id, "COMPLETED")
    clock.past_s = SLURM_S
    view = feed.look()
    status = status_of(str(folder.directory.path), None, slurm)
    assert (view.state, view.situation) == (status.phase, status.situation)
    assert view.situation.wrong[0].startswith("the journal breaks off in line 2 at ")


def test_a_folder_that_disappears_is_told(folder: FakeFolder, feed: JobFeed) -> None:
    feed.look()
    folder.directory.path.rename(folder.directory.path.with_name("gone"))
    view = feed.look()
    assert "cannot be read" in view.trouble
    assert view.moment.job_id == 4711


# -- the command -----------------------------------------------------------------------------------


def test_json_prints_one_live_status(folder: FakeFolder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.show(t=T)
    assert main(["top", str(folder.directory.path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["live"], shown["moment"]["job_id"]) == (False, 4711)


def test_json_of_a_folder_is_a_list(folder: FakeFolder, capsys: pytest.CaptureFixture[str]) -> None:
    (folder.directory.path.parent / "empty").mkdir()
    assert main(["top", "--job-dir", str(folder.directory.path.parent), "--json"]) == 0
    assert [view["moment"]["job_id"] for view in json.loads(capsys.readouterr().out)] == [4711]


def test_json_of_a_damaged_journal_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "journal.jsonl").write_text("garbage\n{}\n")
    assert main(["top", str(tmp_path), "--json"]) == ExitCode.JOURNAL
    assert json.loads(capsys.readouterr().out)["trouble"]


def test_without_a_terminal_it_says_so(folder: FakeFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", str(folder.directory.path)]) == ExitCode.USAGE
    assert "--json" in capsys.readouterr().err


def test_no_job_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--job-dir", str(tmp_path)], ["--job-dir", str(tmp_path / "none")], ["99"]):
        assert main(["top", *words, "--json"]) == ExitCode.NO_INPUT
    assert "fix" in capsys.readouterr().err
