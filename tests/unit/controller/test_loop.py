"""The loop's hands on shared storage: what is listed, what is removed. Real folders, threads, sockets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from slurm_robust.checkpoint.store import CheckpointRef, CheckpointStore
from slurm_robust.config.replay import ReplayConfig
from slurm_robust.config.schema import CheckpointConfig, JobConfig
from slurm_robust.controller import effects as fx
from slurm_robust.controller.agent_steps import AgentSteps
from slurm_robust.controller.core import Core
from slurm_robust.controller.journal import Journal, read
from slurm_robust.controller.loop import Loop, read_clocks
from slurm_robust.controller.preflight import open_directory
from slurm_robust.controller.requeue import Requeuer
from slurm_robust.controller.stages.table import build
from slurm_robust.controller.tester import StepTester
from slurm_robust.controller.transitions import ToGathering
from slurm_robust.diagnostics.replay.replayer import ReplayCommand
from slurm_robust.model import events as ev
from slurm_robust.model.job import CommandKind, JobDirectory
from slurm_robust.model.state import JobState
from slurm_robust.policy.restore import Ref
from slurm_robust.slurm.records import Allocation, Switch
from slurm_robust.testing.fake_diagnoser import FakeDiagnoser
from slurm_robust.testing.fake_replayer import FakeReplayer
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.wire.keys import load_server
from slurm_robust.wire.messages import Beat, Phase
from slurm_robust.wire.server import ControllerSocket
from tests.waiting import wait_for

COMMAND = ReplayCommand(kind=CommandKind.SCRIPT, command=("train.py",), cwd="/")
ALLOCATION = Allocation(
    job_id=7, nodes=("n1", "n2"), cpus_per_node={}, gpus_per_node={}, batch_host="n1", restart_count=0
)


class Hands:
    """A loop that is not turned by itself."""

    def __init__(self, path: Path, server: ControllerSocket, config: JobConfig) -> None:
        directory = JobDirectory(path)
        self.store = CheckpointStore(path / "checkpoints")
        state = JobState(slots=("n1", "n2"), generation=3, sealed={1: "gen-0001/step-00000004"})
        self.core = Core(config, state, build, ToGathering(), read_clocks())
        self.journal = Journal(directory.journal)
        self.slurm = slurm = FakeSlurm()
        self.loop = Loop(
            self.core,
            config=config,
            directory=directory,
            journal=self.journal,
            socket=server,
            steps=AgentSteps(slurm, ALLOCATION, ("true",), directory.agents),
            requeuer=Requeuer(slurm, 7, 0, path / "requeue.jsonl", start_now=False),
            store=self.store,
            slurm=slurm,
            tester=StepTester(FakeDiagnoser(), FakeReplayer(), COMMAND, ReplayConfig(), ""),
        )

    def publish(self, generation: int, step: int, ranks: tuple[int, ...] = (0, 1)) -> None:
        for rank in ranks:
            ref = CheckpointRef(generation=generation, step=step)
            with self.store.publishing(ref, rank, 2) as path:
                path.write_bytes(b"part")

    def do(self, effect: fx.Effect) -> None:
        self.loop._do([effect])

    def wait(self, condition: object) -> None:
        def drained() -> bool:
            self.loop._background.drain()
            return bool(condition())  # type: ignore[operator]

        wait_for(drained, 10)


@pytest.fixture
def hands(tmp_path: Path) -> Iterator[Hands]:
    directory = JobDirectory(tmp_path)
    open_directory(directory)
    config = JobConfig(checkpoint=CheckpointConfig(keep=1, keep_every=10))
    with closing(ControllerSocket(load_server(directory.keys))) as server:
        yield Hands(tmp_path, server, config)


def test_all_complete_checkpoints_are_listed(hands: Hands) -> None:
    for generation, step in ((1, 2), (1, 4), (2, 5)):
        hands.publish(generation, step)
    hands.publish(2, 6, ranks=(0,))
    assert hands.core.listing.generation == 3  # asked for on the way into the first stage
    hands.do(fx.FindCheckpoint(generation=3))
    hands.wait(lambda: hands.core.listing.answered)
    expected = {Ref(step=2, generation=1), Ref(step=4, generation=1), Ref(step=5, generation=2)}
    assert set(hands.core.listing.complete or ()) == expected


def test_a_storage_that_refuses_is_not_an_empty_one(hands: Hands) -> None:
    hands.store.path.symlink_to(hands.store.path)
    hands.do(fx.FindCheckpoint(generation=3))
    hands.wait(lambda: hands.core.listing.answered)
    assert hands.core.listing.complete is None
    hands.core.on_tick(read_clocks())
    text = next(e.detail for e in hands.journal.events if isinstance(e, ev.StageDone))
    assert "checkpoints on storage cannot be listed" in text


def test_an_answer_to_an_older_question_is_dropped(hands: Hands) -> None:
    hands.core.on_checkpoints(2, (), read_clocks())
    assert not hands.core.listing.answered


def test_pruning_keeps_what_can_still_be_restored(hands: Hands) -> None:
    """Not only the newest one, which was never sealed, so that nobody will restore it."""
    for generation, step in ((1, 2), (1, 3), (1, 4), (1, 9), (2, 7), (2, 12), (3, 5), (3, 6)):
        hands.publish(generation, step)
    hands.do(fx.Prune(sealed={1: 4, 2: 7}))
    gone = CheckpointRef(generation=3, step=5)
    hands.wait(lambda: gone not in hands.store.complete())
    left = {(ref.generation, ref.step) for ref in hands.store.complete()}
    assert left == {(1, 4), (1, 9), (2, 7), (2, 12), (3, 6)}


def test_leaf_switches_are_learnt_for_the_choice_of_peers(hands: Hands) -> None:
    hands.slurm.cluster.switches = (
        Switch(name="top", level=1, nodes=("n1", "n2"), switches=("s1", "s2")),
        Switch(name="s1", level=0, nodes=("n1",)),
        Switch(name="s2", level=0, nodes=("n2",)),
    )
    hands.loop._learn_switches()()
    assert hands.core.switches == {"n1": "s1", "n2": "s2"}


def test_a_thousand_agents_that_join_cost_one_sync(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    """On shared storage each takes 5 to 20 ms, in which no heartbeat is answered."""
    syncs: list[int] = []
    monkeypatch.setattr(os, "fdatasync", syncs.append)
    for i in range(1000):
        hands.core.on_beat(Beat(node=f"n{i}", agent="a", seq=1, epoch=1, phase=Phase.IDLE), read_clocks())
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
def test_runs_with_a_name_are_told_apart_in_the_jobs_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], folder: str, begin: str
) -> None:
    directory = JobDirectory(tmp_path / folder)
    open_directory(directory)
    with closing(ControllerSocket(load_server(directory.keys))) as server:
        Hands(directory.path, server, JobConfig()).do(fx.Say(text="end, exit code 0: done"))
    assert capfd.readouterr().out.rstrip().endswith(f" {begin}end, exit code 0: done")
