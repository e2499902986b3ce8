"""Agents that hear no controller: who votes, who starts one, and who keeps still."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from slurm_robust.agent.takeover import TakeoverWatch
from slurm_robust.model import events as ev
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.probes import Answers, ProbeTarget
from slurm_robust.policy.takeover import AGAIN_S, FRESH_S, MAX_CONTROLLERS, TURN_S, UNANSWERED_S
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.wire.epochs import EpochRecord, take_epoch
from tests.builders import specs
from tests.builders.events import allocation_taken, run_started
from tests.waiting import wait_for

NODES = ("n1", "n2", "n3", "n4")


class World:
    """A job on four nodes whose controller is on n1; ``reaches`` says whose kernel answers whom."""

    def __init__(self, folder: Path) -> None:
        self.job = JobDirectory(folder)
        self.job.spec.write_text('{"run_id": "7-abcd"}')
        self.spec = specs.job_spec(run_id="7-abcd", takeover_s=10.0)
        events = (
            run_started(t=0.0, job_id=7, slots=3, spares=1),
            allocation_taken(NODES[:3], ("n4",), t=0.0, nodes=NODES),
        )
        self.job.journal.write_bytes(b"".join(ev.encode_event(event) + b"\n" for event in events))
        self.controller = self.take("n1")
        self.silent = {"n1"}
        self.cut: set[str] = set()
        self.slurm = FakeSlurm()
        self.now = 100.0
        self.nodelist = "n[1-4]"

    def take(self, node: str) -> EpochRecord:
        return take_epoch(
            self.job.epochs, host=node, addresses=(node,), port=9, pid=1, run_id="7-abcd", node=node
        )

    def probe(self, own: str, places: Mapping[str, ProbeTarget], for_s: float) -> Answers:
        answering = {n: 0.001 for n in places if n not in self.silent | self.cut and own not in self.cut}
        return Answers(tcp=answering, asked=frozenset(places))

    def down(self, name: str) -> None:
        self.slurm.cluster.node_down(name)


class Watch:
    """The watch of one node; what it starts leaves a line."""

    def __init__(self, world: World, node: str, lacking: tuple[str, ...] = ()) -> None:
        self.world, self.node = world, node
        self.mark = world.job.path / f"started-{node}"
        code = f"import sys; open({str(self.mark)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')"
        self.watch = TakeoverWatch(
            world.spec,
            world.job,
            node,
            probing=lambda places, for_s: world.probe(node, places, for_s),
            make=lambda: world.slurm,
            clock=lambda: world.now,
            environ={**os.environ, "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": world.nodelist},
            program=(sys.executable, "-c", code),
            lacking=lacking,
        )

    def turn(self, silence_s: float = 11.0, controller: EpochRecord | None = None) -> None:
        """One round, to its end."""
        self.world.now += AGAIN_S
        place = ProbeTarget(addresses=(self.node,), port=1)
        self.watch.tick(silence_s, controller or self.world.controller, place)
        if (thread := self.watch._thread) is not None:
            thread.join(60)
        if (child := self.watch._child) is not None:
            child.wait(60)

    @property
    def voted(self) -> bool:
        return (self.world.job.votes / f"000001-{self.node}.json").exists()

    @property
    def started(self) -> list[str]:
        return self.mark.read_text().splitlines() if self.mark.exists() else []


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def watches(world: World) -> list[Watch]:
    return [Watch(world, node) for node in NODES]


def turn_all(watches: list[Watch], times: int = 2, silence_s: float = 11.0) -> None:
    for _ in range(times):
        for watch in watches:
            watch.turn(silence_s)


def test_the_first_of_a_majority_starts_the_controller_and_says_why(
    world: World, watches: list[Watch]
) -> None:
    turn_all(watches[1:])
    (line,) = watches[1].started
    assert "--epoch=1" in line
    assert "--taken-from=n1" in line
    assert "n1 has not answered for 11 s" in line
    assert not watches[2].started
    assert not watches[3].started


def test_an_agent_without_slurms_commands_takes_over_and_has_said_what_is_missing(
    world: World, watches: list[Watch]
) -> None:
    without = Watch(world, "n2", lacking=("scontrol", "srun"))
    turn_all([without, *watches[2:]])
    assert without.started
    assert "finds no scontrol and no srun" in without.watch.note
    assert not watches[2].watch.note


def test_the_next_agent_takes_over_if_the_first_does_not(world: World, watches: list[Watch]) -> None:
    n3, n4 = watches[2:]
    world.job.votes.mkdir()
    watches[1].turn()  # votes, and is seen by the others, but is not turned any more
    turn_all([n3, n4])
    world.now += TURN_S
    turn_all([n3, n4], 1)
    assert (len(n3.started), len(n4.started)) == (1, 0)


def test_an_agent_that_votes_late_leaves_the_takeover_to_the_one_that_has_begun(
    world: World, watches: list[Watch]
) -> None:
    n2, n3, n4 = watches[1:]
    turn_all([n3, n4])
    assert len(n3.started) == 1, "n2, which is before it, had not voted"
    turn_all([n2, n3, n4])
    assert not n2.started
    world.now += TURN_S
    turn_all([n2, n3, n4])
    assert (len(n2.started), len(n3.started), len(n4.started)) == (1, 1, 0)


def test_a_host_whose_kernel_answers_is_left_to_its_supervisor(world: World, watches: list[Watch]) -> None:
    world.silent.clear()
    turn_all(watches[1:])
    assert not any(watch.voted for watch in watches)
    turn_all(watches[1:], silence_s=UNANSWERED_S + 1)
    assert len(watches[1].started) == 1


def test_a_host_that_has_rebooted_answers_and_has_no_controller(world: World, watches: list[Watch]) -> None:
    world.silent.clear()
    world.down("n1")
    turn_all(watches[1:])
    assert len(watches[1].started) == 1
    assert "though its kernel answers" in watches[1].started[0]


def test_a_node_that_is_cut_off_itself_starts_nothing(world: World, watches: list[Watch]) -> None:
    world.cut = {"n3"}
    turn_all(watches[2:3], 5)
    assert watches[2].voted  # which nobody can confirm
    assert not watches[2].started


def test_nodes_that_are_all_cut_off_from_each_other_start_nothing(world: World, watches: list[Watch]) -> None:
    world.cut = set(NODES)
    turn_all(watches[1:], 5)
    assert not any(watch.started for watch in watches)


def test_slurms_word_stands_in_for_votes_that_are_missing(world: World, watches: list[Watch]) -> None:
    turn_all(watches[1:2], 3)
    assert not watches[1].started
    world.down("n1")
    watches[1].turn()
    assert not watches[1].started, "two others live by Slurm's word, and have not voted"
    world.down("n3")
    watches[1].turn()
    (line,) = watches[1].started
    assert "Slurm says: n1 is DOWN" in line


def test_a_slurm_that_does_not_answer_convicts_nobody(world: World, watches: list[Watch]) -> None:
    world.down("n1")
    world.slurm.cluster.unreachable = True
    turn_all(watches[1:2], 3)
    assert not watches[1].started


def test_votes_are_withdrawn_when_the_controller_is_heard(world: World, watches: list[Watch]) -> None:
    watches[1].turn()
    assert watches[1].voted
    watches[1].turn(silence_s=0.5)
    assert not watches[1].voted


def test_votes_are_withdrawn_when_another_controller_has_the_job(world: World, watches: list[Watch]) -> None:
    watches[1].turn()
    world.take("n3")
    turn_all(watches[1:])
    assert not any(watch.voted or watch.started for watch in watches)


def test_old_votes_do_not_count(world: World, watches: list[Watch]) -> None:
    watches[2].turn()
    vote = world.job.votes / "000001-n3.json"
    long_ago = vote.stat().st_mtime - FRESH_S - 1
    os.utime(vote, (long_ago, long_ago))
    turn_all(watches[1:2], 3)
    assert not watches[1].started


def test_a_torn_vote_is_no_vote(world: World, watches: list[Watch]) -> None:
    world.job.votes.mkdir()
    (world.job.votes / "000001-n3.json").write_bytes(b'{"node":')
    turn_all(watches[1:2], 3)
    assert not watches[1].started


def test_the_host_itself_does_not_vote(world: World, watches: list[Watch]) -> None:
    world.silent.clear()
    watches[0].turn(silence_s=UNANSWERED_S + 1)
    assert not watches[0].voted


def test_an_agent_starts_only_so_many(world: World, watches: list[Watch]) -> None:
    for _ in range(MAX_CONTROLLERS + 2):
        world.now += TURN_S
        turn_all(watches[1:2])
        watches[2].turn()
    assert len(watches[1].started) == MAX_CONTROLLERS


def test_in_a_large_job_only_the_first_nodes_read_the_journal(world: World) -> None:
    world.nodelist = "m[1-28],n[1-4]"
    world.job.journal.unlink()
    watch = Watch(world, "n2")
    watch.turn()
    assert not watch.voted
    assert watch.watch._thread is None


def test_nobody_takes_over_where_it_is_switched_off(world: World) -> None:
    import msgspec

    world.spec = msgspec.structs.replace(world.spec, takeover_s=0.0)
    watch = Watch(world, "n2")
    watch.turn(silence_s=1e6)
    assert not world.job.votes.exists()


def test_the_agent_stays_for_what_it_has_started(world: World, tmp_path: Path) -> None:
    watch = Watch(world, "n2")
    world.down("n1")
    world.job.votes.mkdir()
    watch.watch._program = (sys.executable, "-c", "import sys; sys.stdin.read()")
    watch.watch.guard(lambda: False)  # nothing was started
    watch.watch._start(1, "n1", "why", 50.0)
    child = watch.watch._child
    assert child is not None
    watch.watch.guard(lambda: False)
    assert wait_for(lambda: child.poll() is not None)
