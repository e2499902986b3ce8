"""The loop's hands on shared storage: what is listed, what is removed. Real folders, threads, sockets."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.checkpoint.tiers import SharedTiers
from slurm_robust.config.job import CheckpointConfig, JobConfig, ReplayConfig
from slurm_robust.controller.agent_steps import AgentSteps
from slurm_robust.controller.background import Background
from slurm_robust.controller.borrower import Borrower
from slurm_robust.controller.journal import FileSystem, Journal
from slurm_robust.controller.loop import Loop
from slurm_robust.controller.requeue import Requeuer
from slurm_robust.controller.shrink import Shrinker
from slurm_robust.controller.tester import Tester
from slurm_robust.controller.turns import read_clocks
from slurm_robust.diagnostics.replay.steps import ReplayCommand
from slurm_robust.engine import effects as fx
from slurm_robust.engine import questions as qs
from slurm_robust.engine.clock import Now
from slurm_robust.engine.core import Core
from slurm_robust.engine.stages.table import build
from slurm_robust.engine.transitions import ToGathering
from slurm_robust.model import events as ev
from slurm_robust.model.companion import CompanionPool
from slurm_robust.model.copies import CheckpointId, Tier
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.findings import Suspect
from slurm_robust.model.job import CommandKind, JobDirectory
from slurm_robust.model.journal import read
from slurm_robust.model.release import Release, Requester, When
from slurm_robust.run.preflight import open_directory
from slurm_robust.slurm.companion import Lent
from slurm_robust.slurm.records import Allocation, Switch
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_diagnoser import FakeDiagnoser
from slurm_robust.testing.fake_replayer import FakeReplayer
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.testing.faulty_disk import FaultyDisk
from slurm_robust.wire import messages as msg
from slurm_robust.wire.epochs import take_epoch
from slurm_robust.wire.keys import load_server
from slurm_robust.wire.messages import Heartbeat, Phase
from slurm_robust.wire.protocol import PROTOCOL
from slurm_robust.wire.sockets import ControllerSocket
from tests.builders.state import job_state
from tests.waiting import wait_for

COMMAND = ReplayCommand(kind=CommandKind.SCRIPT, command=("train.py",), cwd="/")
ALLOCATION = Allocation(job_id=7, nodes=("n1", "n2"), gpus_per_node={}, batch_host="n1", restart_count=0)


class Hands:
    """A loop that is not turned by itself."""

    def __init__(
        self, path: Path, server: ControllerSocket, config: JobConfig, disk: FileSystem | None = None
    ) -> None:
        directory = JobDirectory(path)
        self.store = CheckpointStore(path / "checkpoints")
        state = job_state(run_id="7-abcd", slots=("n1", "n2"), generation=3, sealed={1: 4})
        directory.spec.write_text('{"run_id": "7-abcd"}')
        self.core = Core(config, state, build, ToGathering(), read_clocks())
        self.journal = Journal(directory.journal, disk)
        self.slurm = slurm = FakeSlurm()
        self.loop = Loop(
            self.core,
            config=config,
            directory=directory,
            journal=self.journal,
            socket=server,
            beacons=None,
            steps=AgentSteps(slurm, ALLOCATION, ("true",), directory.agents),
            requeuer=Requeuer(slurm, 7, 0, path / "requeue.jsonl", start_now=False),
            store=SharedTiers({Tier.STORAGE: self.store}),
            slurm=slurm,
            shrinker=Shrinker(slurm, 7),
            tester=Tester(
                FakeDiagnoser(), FakeReplayer(), lambda release: COMMAND, ReplayConfig(), "", FakeDiagnoser
            ),
            borrower=Borrower(
                slurm,
                config.companions,
                Lent(ALLOCATION),
                job_id=7,
                run=0,
                run_id="7-abcd",
                folder=directory.agents,
                user="alice",
                environ={},
                clock=slurm.cluster.clock,
            ),
        )

    def publish(self, generation: int, step: int, ranks: tuple[int, ...] = (0, 1)) -> None:
        for rank in ranks:
            ref = CheckpointId(generation=generation, step=step)
            with self.store.publishing(ref, rank, 2) as path:
                path.write_bytes(b"part")

    def do(self, *effects: fx.Effect) -> None:
        self.loop._do(list(effects))

    def ask(self, question: qs.Question[Any]) -> None:
        now = read_clocks()
        self.core.ask(question, now)
        self.do(*self.core.on_tick(now))

    def turn(self) -> None:
        """As the loop does, without its sockets."""
        self.loop._background.drain()
        self.loop._follow_journal()
        self.loop._slow_tick()
        self.loop._do(self.core.on_tick(self.loop._now()))

    def turn_until(self, condition: Callable[[], object]) -> None:
        def done() -> bool:
            self.turn()
            return bool(condition())

        wait_for(done)

    def wait(self, condition: object) -> None:
        def drained() -> bool:
            self.loop._background.drain()
            return bool(condition())  # type: ignore[operator]

        wait_for(drained)


@pytest.fixture
def hands(tmp_path: Path) -> Iterator[Hands]:
    yield from hands_in(tmp_path / "7")


def hands_in(folder: Path) -> Iterator[Hands]:
    directory = JobDirectory(folder)
    open_directory(directory)
    config = JobConfig(checkpoint=CheckpointConfig(keep=1, keep_every=10))
    with closing(ControllerSocket(load_server(directory.keys))) as server:
        yield Hands(folder, server, config)


def test_every_question_of_the_engine_has_a_function_that_answers_it(hands: Hands) -> None:
    kinds = {kind for kind in vars(qs).values() if isinstance(kind, type) and issubclass(kind, qs.Question)}
    assert set(hands.loop._answers) == kinds - {qs.Question}


def test_all_complete_checkpoints_are_listed(hands: Hands) -> None:
    for generation, step in ((1, 2), (1, 4), (2, 5)):
        hands.publish(generation, step)
    hands.publish(2, 6, ranks=(0,))
    hands.turn()
    hands.wait(lambda: hands.core.storage.listed is not None)  # asked for on the way into the first stage
    expected = {
        CheckpointId(step=2, generation=1),
        CheckpointId(step=4, generation=1),
        CheckpointId(step=5, generation=2),
    }
    assert set(hands.core.storage.listed or ()) == expected


def test_a_storage_that_refuses_is_not_an_empty_one(hands: Hands) -> None:
    hands.store.path.symlink_to(hands.store.path)
    hands.turn_until(lambda: any(isinstance(e, ev.StageDone) for e in hands.journal.events))
    assert hands.core.storage.listed is None
    text = next(e.detail for e in hands.journal.events if isinstance(e, ev.StageDone))
    assert "checkpoints on storage cannot be listed" in text


def test_an_answer_to_an_older_question_is_dropped(hands: Hands) -> None:
    hands.core.on_answer(1_000, {}, read_clocks())
    assert hands.core.storage.listed is None


def test_pruning_keeps_what_can_still_be_restored(hands: Hands) -> None:
    """Not only the newest one, which was never sealed, so that nobody will restore it."""
    for generation, step in ((1, 2), (1, 3), (1, 4), (1, 9), (2, 7), (2, 12), (3, 5), (3, 6)):
        hands.publish(generation, step)
    hands.ask(qs.Prune(sealed={1: 4, 2: 7}, generation=3))
    gone = CheckpointId(generation=3, step=5)
    hands.wait(lambda: gone not in hands.store.complete())
    left = {(ref.generation, ref.step) for ref in hands.store.complete()}
    assert left == {(1, 4), (1, 9), (2, 7), (2, 12), (3, 6)}


def test_pruning_keeps_what_an_update_goes_on_from_and_what_a_candidate_goes_back_to(hands: Hands) -> None:
    for step in (1, 2, 3, 4, 9):
        hands.publish(1, step)
    hands.ask(qs.Prune(sealed={}, generation=1, needed=(CheckpointId(generation=1, step=1),), until=3))
    gone = CheckpointId(generation=1, step=2)
    hands.wait(lambda: gone not in hands.store.complete())
    assert {ref.step for ref in hands.store.complete()} == {1, 3, 9}


def test_a_release_is_read_from_the_folder_of_the_job(hands: Hands) -> None:
    folder = JobDirectory(hands.store.path.parent).releases / "3f2a91c04b7d"
    folder.mkdir(mode=0o700, parents=True)
    release = Release(name=folder.name, kind=CommandKind.SCRIPT, command=("train.py",))
    refused = read_release(hands, folder.name)
    assert isinstance(refused, qs.NoAnswer)
    assert "there is no release 3f2a91c04b7d" in refused.reason
    (folder / "release.json").write_bytes(msgspec.json.encode(release))
    assert read_release(hands, folder.name) == release


def read_release(hands: Hands, name: str) -> Release | qs.NoAnswer:
    """What the loop answers."""
    heard: list[Release | qs.NoAnswer] = []
    hands.core.ask(qs.ReadRelease(name=name), read_clocks(), lambda found, now: heard.append(found))
    hands.do(*hands.core.on_tick(read_clocks()))
    hands.wait(lambda: heard)
    return heard[0]


def test_leaf_switches_are_learnt_for_the_choice_of_peers(hands: Hands) -> None:
    hands.slurm.cluster.switches = (
        Switch(name="top", level=1, nodes=("n1", "n2")),
        Switch(name="s1", level=0, nodes=("n1",)),
        Switch(name="s2", level=0, nodes=("n2",)),
    )
    hands.turn()
    hands.wait(lambda: hands.core.switches)
    assert hands.core.switches == {"n1": "s1", "n2": "s2"}


def companion(hands: Hands) -> int:
    """A companion of the job, running."""
    request = SubmitRequest(
        command=("x",), name="srobust-companion-7", comment="companion of job 7, run 7-abcd"
    )
    job = hands.slurm.submit(request)
    assert hands.slurm.job(job).is_running
    return job


def test_the_suspect_of_a_companions_node_lies_where_its_epilog_looks(hands: Hands) -> None:
    job = companion(hands)
    suspect = Suspect(node="n3", job_id=job, t=1.7e9, reason="silent")
    hands.ask(qs.SaveSuspect(suspect=suspect))
    folder = hands.store.path.parent.parent / str(job)
    hands.wait(lambda: (folder / "suspects" / "n3.json").exists())
    assert [path.name for path in (folder / "suspects").iterdir()] == ["n3.json"]
    assert folder.stat().st_mode & 0o077 == 0
    assert list((hands.store.path.parent / "suspects").glob("*")) == []


def test_the_suspect_of_a_run_with_a_name_lies_in_the_folder_that_the_epilog_can_guess(
    tmp_path: Path,
) -> None:
    for hands in hands_in(tmp_path / "7.eval"):
        hands.ask(qs.SaveSuspect(suspect=Suspect(node="n2", job_id=7, t=1.7e9, reason="silent")))
        hands.wait((tmp_path / "7" / "suspects" / "n2.json").exists)
        assert (tmp_path / "7").stat().st_mode & 0o077 == 0
        assert not (tmp_path / "7.eval" / "suspects").exists()


def test_companions_are_ended_and_strays_swept(hands: Hands) -> None:
    known, stray = companion(hands), companion(hands)
    hands.core.ask(qs.SweepCompanions(known=(known,)), read_clocks(), hands.core.companions._on_swept)
    hands.turn()
    hands.wait(lambda: hands.slurm.job(stray).is_finished)
    hands.wait(lambda: any("older companions" in e.text for e in noted(hands)))
    assert hands.slurm.job(known).is_running
    hands.core.companions.end((known,), "it is over", read_clocks())
    hands.turn()
    hands.wait(lambda: hands.slurm.job(known).is_finished)


def test_a_companion_that_slurm_does_not_cancel_is_reported(hands: Hands) -> None:
    hands.slurm.cluster.unreachable = True
    hands.core.companions.end((4711,), "it is over", read_clocks())
    hands.turn()
    hands.wait(lambda: any("companion 4711 is not cancelled now" in e.text for e in noted(hands)))


def test_an_error_of_the_lender_is_an_answer(hands: Hands) -> None:
    source = CompanionPool(reservation="spares")
    hands.core.companions.borrow((source,), 1, (), read_clocks(), some=False)
    hands.turn()
    hands.wait(lambda: any(isinstance(e, ev.NotLent) for e in hands.journal.events))
    (refusal,) = [e for e in hands.journal.events if isinstance(e, ev.NotLent)]
    assert "Slurm does not show the job" in refusal.reason


def noted(hands: Hands) -> list[ev.Noted]:
    hands.turn()
    return [event for event in hands.journal.events if isinstance(event, ev.Noted)]


def test_a_thousand_agents_that_join_cost_one_sync(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    """On shared storage each takes 5 to 20 ms, in which no heartbeat is answered."""
    syncs: list[int] = []
    monkeypatch.setattr(os, "fdatasync", syncs.append)
    for i in range(1000):
        hands.core.on_heartbeat(
            Heartbeat(node=f"n{i}", agent="a", seq=1, epoch=1, phase=Phase.IDLE), read_clocks()
        )
    hands.loop._do(hands.core.on_tick(read_clocks()))
    assert len(syncs) == 1
    joined = [event for event in read(hands.journal.path) if isinstance(event, ev.AgentJoined)]
    assert [event.node for event in joined] == [f"n{i}" for i in range(1000)]


def test_nothing_is_done_before_the_journal_has_what_it_follows_from(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(os, "fdatasync", lambda _: done.append("written"))
    monkeypatch.setattr("slurm_robust.controller.loop.say", done.append)
    noted = fx.Write(event=ev.Noted(t=1.0, text="a fact"))
    hands.loop._do([noted, fx.Say(text="first"), noted, fx.Say(text="second")])
    assert done == ["written", "first", "second"]


@pytest.mark.parametrize(("folder", "begin"), [("7", ""), ("7.eval", "[eval] ")])
def test_runs_with_a_name_can_be_distinguished_in_the_jobs_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], folder: str, begin: str
) -> None:
    directory = JobDirectory(tmp_path / folder)
    open_directory(directory)
    with closing(ControllerSocket(load_server(directory.keys))) as server:
        Hands(directory.path, server, JobConfig()).do(fx.Say(text="end, exit code 0: done"))
    assert capfd.readouterr().out.rstrip().endswith(f" {begin}end, exit code 0: done")


def test_a_message_of_another_version_is_refused_and_written_down(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = sent(hands, monkeypatch)
    for _ in range(2):
        hands.loop._on_message(b"n2", msg.Foreign(kind="weather", node="n2", protocol=9))
    assert found == [msg.Refused(refused="weather", protocol=PROTOCOL)] * 2
    (note,) = noted(hands)
    assert note.node == "n2"
    assert note.text.startswith(
        f"agent on n2 speaks protocol 9, this controller {PROTOCOL}: message 'weather'"
    )


# -- storage that refuses or hangs ---------------------------------------------------------------------


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    disk = FaultyDisk()
    yield disk
    disk.heal()


@pytest.fixture
def trying(tmp_path: Path, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hands]:
    """On a disk that fails on command, and is tried again soon."""
    monkeypatch.setattr("slurm_robust.controller.journal.AGAIN_S", 0.01)
    directory = JobDirectory(tmp_path)
    open_directory(directory)
    with closing(ControllerSocket(load_server(directory.keys))) as server:
        hands = Hands(tmp_path, server, JobConfig(), disk)
        hands.turn()
        yield hands


def sent(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> list[msg.FromController]:
    found: list[msg.FromController] = []
    monkeypatch.setattr(hands.loop._socket, "send", lambda identity, message: found.append(message) or True)
    hands.loop._identities.update(n1=b"n1", n2=b"n2")
    return found


NOTED = fx.Write(event=ev.Noted(t=1.0, text="a decision"))
STOP = fx.Send(node="n1", message=msg.Stop(epoch=0, generation=3, grace_s=1.0))
ACK = fx.Send(node="n2", message=msg.Ack(epoch=0, seq=7, protocol=PROTOCOL))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EROFS, None])
def test_what_storage_does_not_take_is_not_done_but_agents_are_answered(
    trying: Hands, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    found = sent(trying, monkeypatch)
    disk.hang() if number is None else disk.fail(number)
    trying.do(NOTED, STOP, ACK)
    trying.turn()
    stage = trying.core.stage
    trying.do(ACK)
    assert found == [msg.Ack(epoch=0, seq=0, protocol=PROTOCOL)] * 2, "a sign of life, which confirms nothing"
    trying.core.on_agents_gone(trying.loop._now())
    trying.turn()
    assert (trying.core.held, trying.core.stage) == (True, stage)
    disk.heal()
    trying.turn_until(lambda: not trying.core.held)
    assert found[2:3] == [STOP.message]
    assert NOTED.event in read(trying.journal.path)


def test_what_was_decided_is_done_in_that_order(
    trying: Hands, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr("slurm_robust.controller.loop.say", done.append)
    disk.hang()
    for text in ("first", "second", "third"):
        trying.do(NOTED, fx.Say(text=text))
        trying.do(fx.Say(text=f"after the {text}"))
    assert done == []
    disk.heal()
    trying.turn_until(lambda: len(done) >= 6)
    assert done == ["first", "after the first", "second", "after the second", "third", "after the third"]


@pytest.mark.parametrize("tell", ["on_leave", "on_end_approaching"])
def test_the_end_of_the_run_waits_for_no_storage(
    trying: Hands, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch, tell: str
) -> None:
    found = sent(trying, monkeypatch)
    disk.hang()
    trying.do(NOTED, STOP)
    trying.turn()
    assert found == []
    trying.loop._do(getattr(trying.core, tell)("the end", trying.loop._now()))
    trying.turn()
    assert STOP.message in found
    assert not trying.core.held


def tells(hands: Hands, phase: Phase) -> None:
    for node in ("n1", "n2"):
        beat = Heartbeat(node=node, agent=f"{node}-1", seq=1, epoch=1, generation=3, phase=phase)
        hands.core.on_heartbeat(beat, hands.loop._now())


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.ENDED])
def test_while_storage_is_full_it_is_said_whether_anything_trains(
    trying: Hands, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch, phase: Phase
) -> None:
    said: list[str] = []
    monkeypatch.setattr("slurm_robust.controller.loop.say", said.append)
    trying.core.record(ev.GenerationLaunched(t=1.0, generation=3, slots=("n1", "n2"), master="n1"))
    tells(trying, phase)
    trying.turn()
    trying.turn_until(lambda: not trying.core.held)
    said.clear()
    disk.fail(errno.ENOSPC)
    trying.do(NOTED)
    trying.turn_until(lambda: said)
    trains = phase is Phase.RUNNING
    assert ("training goes on" in said[0]) == trains
    tells(trying, Phase.ENDED)
    trying.turn()
    (idle,) = [text for text in said if "no rank runs" in text]
    assert f"free space under {trying.journal.path.parent}" in idle


def test_who_asks_while_storage_is_full_is_told_at_once(
    trying: Hands, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = sent(trying, monkeypatch)
    disk.fail(errno.ENOSPC)
    trying.do(NOTED)
    trying.turn_until(lambda: trying.loop._blocked)
    who = Requester(user="alice", uid=1, host="login")
    wish = msg.UpdateJob(release="b" * 12, when=When.NOW, by=who, token="t")
    for question in (msg.ShowStacks(), wish, msg.Ping()):
        trying.loop._on_message(b"client", question)
    stacks, update, pong = found
    assert isinstance(stacks, msg.StacksShown)
    assert isinstance(update, msg.UpdateReply)
    assert isinstance(pong, msg.Pong)
    assert not update.ok
    assert "free space under" in update.fix
    for text in (stacks.error, update.text, pong.blocked):
        assert text.startswith("storage does not take the journal: ")


def test_time_in_which_storage_hung_is_nobodys(
    trying: Hands, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gathering gives a node 60 s to speak; that storage hangs for an hour convicts none."""
    clocks = [Now(mono=1e6, wall=1e9)]
    monkeypatch.setattr(trying.loop._hold, "_clocks", lambda: clocks[0])
    trying.turn()
    disk.hang()
    trying.do(NOTED)
    trying.turn()
    before = trying.loop._now().mono
    clocks[0] = Now(mono=1e6 + 1700.0, wall=1e9 + 1700.0)
    trying.turn()
    assert trying.loop._now().mono == before
    disk.heal()
    trying.turn_until(lambda: not trying.core.held)
    assert trying.loop._now().mono == before
    notes = [event.text for event in trying.journal.events if isinstance(event, ev.Noted)]
    (told,) = [text for text in notes if "decided nothing for" in text]
    assert "for 1700 s" in told


def test_events_that_storage_had_taken_and_lost_are_reported_once(
    trying: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("slurm_robust.controller.loop.say", said.append)
    trying.do(NOTED, NOTED)
    trying.turn_until(lambda: trying.journal.written == len(trying.journal.events))
    os.truncate(trying.journal.path, 3)
    lost = len(trying.journal.events)
    trying.do(NOTED)
    trying.turn_until(lambda: said)
    trying.turn_until(lambda: trying.journal.written == len(trying.journal.events))
    (text,) = said
    assert f"lost {lost} events" in text
    events = read(trying.journal.path)
    assert events == trying.journal.events
    assert [e for e in events if isinstance(e, ev.Noted) and e.text == text]


# -- the fence -----------------------------------------------------------------------------------------


def take_over(hands: Hands) -> None:
    epochs = JobDirectory(hands.journal.path.parent).epochs
    take_epoch(epochs, host="other", addresses=(), port=1, pid=1, run_id="r")


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_robust.controller.loop.SLOW_TICK_S", 0.0)


def test_what_agents_have_sent_is_read_before_threads_tell_of_their_ends(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an agent seems to be heard after its end, and its node, when it is silent then, to be dead."""
    order: list[str] = []

    def drain() -> None:
        order.append("what threads tell")
        hands.do(fx.Exit(code=0))

    monkeypatch.setattr(hands.loop, "_take_messages", lambda until: order.append("messages") or True)
    monkeypatch.setattr(hands.loop._background, "drain", drain)
    assert hands.loop.run() == 0
    assert order == ["messages", "what threads tell"]


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize("number", [errno.ESTALE, errno.EMFILE, errno.EIO, errno.EACCES])
def test_one_refusal_of_storage_does_not_end_the_fence(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refused: list[int] = []

    def refuse(_: object) -> NoReturn:
        refused.append(number)
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr("slurm_robust.controller.loop.newest_epoch", refuse)
        hands.turn_until(lambda: len(refused) >= 2)
    take_over(hands)
    hands.turn_until(lambda: hands.loop._code is not None)
    assert hands.loop._code == ExitCode.OTHER_CONTROLLER


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize("kind", [ValueError, MemoryError, SystemExit, KeyError])
def test_a_controller_that_cannot_check_for_another_one_ends(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    def die(_: object) -> NoReturn:
        raise kind("no")

    monkeypatch.setattr("slurm_robust.controller.loop.newest_epoch", die)
    with pytest.raises(RuntimeError, match="check the agents' steps"):
        hands.turn_until(lambda: False)


def test_a_controller_whose_journal_nobody_writes_ends(tmp_path: Path) -> None:
    class Broken(FileSystem):
        def sync(self, fd: int) -> None:
            raise MemoryError

    open_directory(JobDirectory(tmp_path))
    with closing(ControllerSocket(load_server(JobDirectory(tmp_path).keys))) as server:
        hands = Hands(tmp_path, server, JobConfig(), Broken())
        with pytest.raises(RuntimeError, match="has died"):
            hands.do(NOTED)


def test_the_jobs_folder_that_is_gone_is_reported_and_not_made_again(
    hands: Hands, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job, away = tmp_path / "7", tmp_path / "away"
    hands.turn_until(lambda: not hands.loop._slow_busy)
    hands.loop._slow_at = 0.0
    job.rename(away)
    hands.turn_until(lambda: hands.loop._folder_gone)
    moved = f"the job's folder {job} was moved or removed, or another one is in its place: put it back"
    assert moved in capfd.readouterr().out
    hands.ask(qs.SaveSuspect(suspect=Suspect(node="n1", job_id=7, t=1.0, reason="dead")))
    hands.wait(lambda: any(isinstance(event, ev.StageDone) for event in hands.journal.events))
    assert not job.exists()
    away.rename(job)
    hands.loop._slow_at = 0.0
    hands.turn_until(lambda: not hands.loop._folder_gone)
    assert f"the job's folder is back: {job}" in capfd.readouterr().out


# -- Work away from the loop: results come back to it, nothing waits for what hangs, threads are used again --

LIMIT_S = 20.0


def drained(background: Background, done: Callable[[], bool]) -> None:
    """Drain as the loop does, until ``done``."""
    while not done():
        readable, _, _ = select.select([background.fileno()], [], [], LIMIT_S)
        assert readable, "nothing came back"
        background.drain()


def test_results_are_called_in_the_loops_own_thread() -> None:
    background = Background()
    worked: list[str] = []
    told: list[str] = []

    def work() -> Callable[[], None]:
        worked.append(threading.current_thread().name)
        return lambda: told.append(threading.current_thread().name)

    background.submit(work)
    drained(background, lambda: bool(told))
    assert worked == ["srobust-background"]
    assert told == [threading.current_thread().name]


def test_work_that_hangs_holds_up_nothing_else() -> None:
    background = Background()
    release, begun = threading.Event(), threading.Event()
    told: list[str] = []

    def hang() -> Callable[[], None]:
        begun.set()
        release.wait(LIMIT_S)
        return lambda: told.append("late")

    background.submit(hang)
    assert begun.wait(LIMIT_S)
    for _ in range(3):
        background.submit(lambda: lambda: told.append("soon"))
    drained(background, lambda: len(told) == 3)
    assert told == ["soon"] * 3
    release.set()
    drained(background, lambda: len(told) == 4)
    assert told[-1] == "late"


def test_one_thread_does_what_comes_one_after_the_other() -> None:
    background = Background()
    idents: list[int] = []

    def work() -> Callable[[], None]:
        ident = threading.get_ident()
        return lambda: idents.append(ident)

    for number in range(1, 6):
        background.submit(work)
        drained(background, lambda number=number: len(idents) == number)
    assert len(set(idents)) == 1


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, MemoryError])
def test_any_exception_of_the_work_is_reported_and_its_thread_goes_on(kind: type[BaseException]) -> None:
    background = Background()
    told: list[BaseException] = []
    names: list[str] = []

    def fail() -> Callable[[], None]:
        raise kind("no")

    def work() -> Callable[[], None]:
        return lambda: names.append("done")

    background.submit(fail, lambda error: lambda: told.append(error))
    drained(background, lambda: bool(told))
    background.submit(work)
    drained(background, lambda: bool(names))
    assert [type(error) for error in told] == [kind]
