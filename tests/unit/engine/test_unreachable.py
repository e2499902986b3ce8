"""A network that is cut convicts nobody, and afterwards all is as before, on paper."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slurm_robust.config.job import CompanionConfig, JobConfig
from slurm_robust.model import events as ev
from slurm_robust.model.copies import SHARED, CheckpointId, Tier
from slurm_robust.util.text import clock
from tests.unit.engine.fake_job import Job

NODES = ("n1", "n2", "n3", "n4")


def trained(slots: tuple[str, ...] = NODES, spares: tuple[str, ...] = (), **more: object) -> Job:
    job = Job(slots, spares, memory=True, **more)  # type: ignore[arg-type]
    for step in range(20):
        job.train_to(step)
        job.pass_time(1.0)
    return job


def cut(job: Job, nodes: set[str], seconds: float) -> None:
    job.cut |= nodes
    job.pass_time(seconds)


def heal(job: Job) -> None:
    """The nodes come back one after the other."""
    for node in sorted(job.cut):
        job.cut.discard(node)
        job.pass_time(1.5)


def evicted(job: Job) -> set[str]:
    return {event.node for event in job.events(ev.NodeEvicted)}


WITH_RESERVATION = JobConfig(companions=CompanionConfig(reservation="spares"))


@pytest.mark.parametrize(("spares", "lent"), [(("n5",), ("n6",)), ((), ("n6", "n7"))])
def test_standbys_that_are_missing_come_from_the_reservation(
    spares: tuple[str, ...], lent: tuple[str, ...]
) -> None:
    job = trained(spares=spares, config=WITH_RESERVATION)
    job.lendable = lent
    cut(job, {"n3", "n4"}, 15.0)
    (order,) = job.borrowed
    assert (order.missing, order.some, set(order.exclude)) == (len(lent), False, {"n3", "n4"})
    assert job.core.world.slots == ("n1", "n2", *spares, *lent)
    assert (job.core.world.generation, evicted(job), job.requeued) == (2, set(), [])


def test_where_the_reservation_has_too_few_the_nodes_are_waited_for_as_ever() -> None:
    job = trained(spares=("n5",), config=WITH_RESERVATION)
    cut(job, {"n3", "n4"}, 60.0)
    assert len(job.borrowed) == 1
    heal(job)
    assert (job.stage, job.core.world.generation, job.core.world.slots) == ("Running", 1, NODES)


@pytest.mark.parametrize("is_late", [False, True])
def test_what_was_borrowed_is_given_back_when_the_nodes_are_heard_again(is_late: bool) -> None:
    job = trained(config=WITH_RESERVATION)
    job.lendable, job.lends = ("n6", "n7"), False
    cut(job, {"n3", "n4"}, 10.0)
    assert job.stage == "Unreachable"
    (lend,) = job.unlent
    if not is_late:
        job.dead |= {"n6", "n7"}  # lent, but their agents are slow
        lend()
    heal(job)
    if is_late:
        lend()
    assert (job.stage, job.core.world.generation, job.core.world.slots) == ("Running", 1, NODES)
    assert set(job.ended) == {106, 107}
    assert job.core.state.companions == {}
    assert job.core.state.spares == ()


@pytest.mark.parametrize("heals", [True, False])
def test_nodes_that_alone_have_the_newest_copies_are_waited_for_as_long_as_the_loss_is_worth(
    heals: bool,
) -> None:
    """Twenty steps of a second each, of which no other node has copies of all ranks."""
    job = trained(spares=("n5", "n6", "n7"))
    begun = job.mono
    cut(job, {"n2", "n3", "n4"}, 12.0)
    assert job.stage == "Unreachable"
    assert any("only n[2-4] have the newest copies: waiting for 2" in text for text in job.said)
    if heals:
        heal(job)
        assert (job.stage, job.core.world.generation, job.core.world.slots) == (
            "Running",
            1,
            NODES,
        )
        return
    job.until(lambda: job.core.world.generation == 2)
    assert 24 < job.mono - begun < 32
    assert job.core.world.slots == ("n1", "n5", "n6", "n7")


def test_an_incident_that_passes_by_itself_does_not_end_before_it_began() -> None:
    """Training went on behind the cut, and what it did is heard of afterwards."""
    job = trained()
    job.ages = True
    cut(job, {"n2", "n3", "n4"}, 0.5)
    job.train_to(20)
    job.pass_time(12.0)
    assert job.stage == "Unreachable"
    heal(job)
    job.pass_time(2.0)
    (opened,), (closed,) = job.events(ev.IncidentOpened), job.events(ev.IncidentClosed)
    assert closed.step == 20
    assert closed.t >= opened.t


def test_a_node_that_falls_silent_later_is_replaced_too() -> None:
    job = trained(("n1", "n2", "n3", "n4", "n5"), config=WITH_RESERVATION)
    job.lendable = ("n6", "n7", "n8")
    cut(job, {"n3", "n4"}, 1.0)
    cut(job, {"n5"}, 40.0)
    assert sum(order.missing for order in job.borrowed) == 3
    assert job.core.world.slots == ("n1", "n2", "n6", "n7", "n8")


def test_where_a_standby_is_heard_the_controller_is_not_cut_off() -> None:
    job = trained(spares=("n5",), config=WITH_RESERVATION)
    job.lendable = ("n6", "n7")
    cut(job, {"n2", "n3", "n4"}, 40.0)
    assert job.core.world.slots == ("n1", "n5", "n6", "n7")


def test_a_controller_that_hears_nobody_borrows_nothing() -> None:
    job = trained(config=WITH_RESERVATION)
    job.lendable = ("n6", "n7", "n8")
    cut(job, {"n2", "n3", "n4"}, 60.0)
    assert (job.stage, job.borrowed) == ("Unreachable", [])


def test_collectives_have_time_to_go_on_when_the_network_does() -> None:
    job = trained()
    job.ages = True
    cut(job, {"n2", "n3", "n4"}, 45.0)
    heal(job)
    job.pass_time(60.0)
    assert (job.stage, job.core.world.generation) == ("Running", 1)
    job.train_to(20)
    job.pass_time(5.0)
    assert job.core.world.incident is None
    assert job.core.world.pace.pause_s == 0.0, "the pause was not the training's own"


# -- what only they have ----------------------------------------------------------------------------


def two_lost(*, stored: bool = False, config: JobConfig | None = None) -> Job:
    """Three nodes, each with what all ranks have in common, n1 also with a copy of rank 2's part."""
    job = Job(("n1", "n2", "n3"), ("n4",), memory=True, shared=True, config=config)
    for step in range(25):
        job.train_to(step)
        job.pass_time(1.0)
        if stored and step == 10:
            job.storage.add(CheckpointId(step=10, generation=1))
    return job


def test_the_parts_that_only_silent_nodes_have_are_named_with_the_time_until_which_they_are_waited_for() -> (
    None
):
    job = two_lost()
    cut(job, {"n2", "n3"}, 12.0)
    assert job.stage == "Unreachable"
    (line,) = [text for text in job.said if "is not whole" in text]
    until = clock(job.wall - 12.0 + JobConfig().timings.unreachable_s)
    assert line.startswith("step 24 is not whole: the part of rank 1 is on n2: waiting for it until ")
    hint = " (checkpoint.if_parts_are_missing: reseed may take step 24)"
    assert line.endswith(f"else training goes on from the beginning{hint}")
    told = line.partition("until ")[2].partition(",")[0]
    assert abs(_seconds(told) - _seconds(until)) < 15


def _seconds(text: str) -> int:
    hours, minutes, seconds = map(int, text.split(":"))
    return 3600 * hours + 60 * minutes + seconds


def test_missing_parts_are_named_again_before_they_are_given_away() -> None:
    job = two_lost(stored=True)
    job.dead |= {"n2", "n3"}
    cut(job, {"n2", "n3"}, 5.0)
    job.until(lambda: bool(job.requeued), 400)
    lines = [text for text in job.said if "is not whole" in text]
    assert lines[-1].startswith("step 24 is not whole: the part of rank 1 is on n2, which does not answer")
    assert "without them training goes on from step 10 from storage" in lines[-1]


def keep(job: Job, *, peers: bool = True, shared: bool = True) -> None:
    """Of what n1 has, only this is left."""
    copies = (c for c in job.heartbeats["n1"].copies if (peers or c.tier is not Tier.PEER))
    job.change("n1", copies=tuple(c for c in copies if shared or c.rank != SHARED))


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (
            lambda job: keep(job, peers=False),
            "24 is not whole: the parts of ranks 1-2 are on n[2-3], which do",
        ),
        (lambda job: keep(job), "24 is not whole: the part of rank 1 is on n2, which does"),
        (
            lambda job: job.snapshot(25, peers=False),
            "25 is not whole: the parts of ranks 1-2 are on n[2-3], which do",
        ),
        (
            lambda job: keep(job, shared=False),
            "24 is not whole: the part of rank 1 and the shared part are on n2, which does",
        ),
        (
            lambda job: (job.hold("n1", (1,), 1, 24, Tier.PEER), keep(job, shared=False)),
            "24 is not whole: the shared part is on n[2-3], which do",
        ),
    ],
    ids=["own", "own and a peer's", "own is newer", "not the shared one", "all but the shared one"],
)
@pytest.mark.parametrize("apart_s", [0.0, 3.0])
def test_whatever_the_survivor_has_what_is_missing_is_named(
    prepare: Callable[[Job], object], said: str, apart_s: float
) -> None:
    job = two_lost(stored=True)
    prepare(job)
    for node in ("n2", "n3"):
        job.power_cut(node)
        job.pass_time(apart_s)
    job.until(lambda: bool(job.requeued) or job.core.world.generation == 2, 400)
    (line,) = {text for text in job.said if "is not whole" in text and "without them" in text}
    assert line.startswith(f"step {said} not answer: without them training goes on from step 10 from storage")


def two_lost_in_turn(when: Callable[[Job], bool], *spares: str, waits: bool = False) -> Job:
    """n3 is lost after the newest step had been found whole without n2, and before there is a newer one.

    ``waits``: the next generation does for n4.
    """
    job = Job(("n1", "n2", "n3"), spares, memory=True, shared=True)
    for step in range(25):
        job.train_to(step)
        job.pass_time(1.0)
    job.storage.add(CheckpointId(step=10, generation=1))
    job.writes = False
    if waits:
        job.tell("n4", ready=False)
    job.power_cut("n2")
    job.until(lambda: when(job), 100)
    assert job.core.world.sealed == {1: 24}
    job.power_cut("n3")
    return job


def test_a_step_that_was_whole_until_another_node_was_lost_is_named_before_an_older_one_is_restored() -> None:
    job = two_lost_in_turn(lambda job: job.core.world.generation == 2, "n4", "n5")
    job.until(lambda: job.core.world.generation == 3, 100)
    assert job.events(ev.GenerationLaunched)[-1].restore_step == 10
    line = "step 24 is not whole: the part of rank 1 is on no node that answers: "
    line += "training goes on from step 10 from storage (3 parts)"
    (number,) = (i for i, text in enumerate(job.said) if "is not whole" in text)
    assert job.said[number] == line
    assert job.said[number + 1].startswith("generation 3 resumes from step 10")
    assert line in [event.text for event in job.events(ev.Noted)]


def test_a_lost_step_is_named_if_the_node_is_lost_before_the_new_generation_begins() -> None:
    job = two_lost_in_turn(lambda job: job.stage == "Gathering", "n4", "n5", waits=True)
    job.until(lambda: "n3" not in job.core.world.slots, 100)
    job.change("n4", ready=True)
    job.until(lambda: job.core.world.generation == 2, 100)
    (line,) = [text for text in job.said if "is not whole" in text]
    assert line.startswith("step 24 is not whole: the part of rank 1 is on n2: training goes on from step 10")
    assert line.endswith("(checkpoint.if_parts_are_missing: reseed may take step 24)")


def test_a_lost_step_is_named_in_the_next_run_if_the_node_is_lost_before_it_has_written() -> None:
    job = two_lost_in_turn(lambda job: bool(job.saves))
    job.until(lambda: bool(job.requeued), 100)
    nodes = ("n1", "n4", "n5")
    taken = ev.AllocationTaken(t=job.wall, restart_count=1, nodes=nodes, slots=nodes, spares=())
    copies = {"n1": job.copies.get("n1") or job.heartbeats["n1"].copies}
    later = Job(
        nodes,
        (),
        history=(*job.journal, taken),
        copies=copies,
        memory=True,
        shared=True,
        storage=job.storage,
    )
    (line,) = [text for text in later.said if "is not whole" in text]
    assert line.startswith("step 24 is not whole: the part of rank 1 is on n2: training goes on from step 10")
    nothing = Job(nodes, (), history=(*job.journal, taken), memory=True, shared=True, storage=job.storage)
    assert not any("is not whole" in text for text in nothing.said)


def test_what_the_survivor_has_is_kept_for_nodes_that_come_back_with_theirs() -> None:
    job = two_lost()
    cut(job, {"n2", "n3"}, 5.0)
    job.until(lambda: bool(job.requeued), 400)
    assert job.core.world.unsealed == (1,)
    assert job.kept.get("n1", True)
    copies = {node: heartbeat.copies for node, heartbeat in job.heartbeats.items()}
    later = Job(
        ("n1", "n2", "n3"), ("n4",), history=tuple(job.journal), copies=copies, memory=True, shared=True
    )
    assert later.events(ev.GenerationLaunched)[-1].restore_step == 24


def test_nodes_that_slurm_has_given_up_are_not_called_a_matter_of_the_network() -> None:
    job = two_lost()
    job.dead |= {"n2", "n3"}
    cut(job, {"n2", "n3"}, 30.0)
    job.until(lambda: bool(job.requeued), 60)
    reason = job.events(ev.Decided)[-1].reason
    assert reason.startswith("Slurm has given up n[2-3]: DOWN+NOT_RESPONDING")
    assert "network" not in reason
