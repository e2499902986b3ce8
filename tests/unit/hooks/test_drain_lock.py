"""One node at a time drains itself, whatever becomes of Slurm's answers and of the hooks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurm_robust.hooks.drain_lock import PREFIX, TRIES, USED_S, DrainLock, NoDrainLock, drain_lock
from slurm_robust.hooks.drainer import MAX_UNANSWERED
from slurm_robust.hooks.record import LOCK_LASTS_S, DrainFile, OwnDrain
from slurm_robust.slurm.errors import SlurmTimeout
from slurm_robust.slurm.records import Reservation, SlurmNode
from slurm_robust.slurm.requests import ReservationRequest
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurm import FakeSlurm
from tests.unit.hooks.hook_node import Hooked, bad, good

# -- the lock -----------------------------------------------------------------------------------------------


NAME = f"{PREFIX}main"


@contextmanager
def held(
    cluster: FakeCluster, node: str, *partitions: str, slurm: FakeSlurm | None = None, budget_s: float = 100.0
) -> Iterator[DrainLock | NoDrainLock]:
    clock = cluster.clock
    client, deadline = slurm or FakeSlurm(cluster), clock.now + budget_s
    where = (client, node, partitions or ("main",))
    with drain_lock(*where, clock.monotonic, deadline, clock.sleep, lambda: 0.5) as mine:
        yield mine


def is_free(cluster: FakeCluster, *partitions: str) -> bool:
    with held(cluster, "n4", *partitions) as mine:
        return isinstance(mine, DrainLock)


def test_one_node_at_a_time_has_it_and_gives_it_back(cluster: FakeCluster) -> None:
    with held(cluster, "n1"):
        assert cluster.reservations[NAME].nodes == ("n1",)
        assert not is_free(cluster)
    assert cluster.reservations == {}
    assert is_free(cluster)


def test_nodes_of_different_partitions_do_not_wait_for_each_other(cluster: FakeCluster) -> None:
    with held(cluster, "n1", "gpu", "all"):
        assert is_free(cluster, "cpu")
        assert not is_free(cluster, "cpu", "gpu")
        assert not is_free(cluster, "all", "cpu")
        assert sorted(cluster.reservations) == [f"{PREFIX}all", f"{PREFIX}gpu"]


def test_the_lock_of_a_full_partition_expires_by_itself(cluster: FakeCluster) -> None:
    with held(cluster, "n1", "gpu", "all") as mine:
        assert isinstance(mine, DrainLock)
        mine.leave("gpu")
    assert list(cluster.reservations) == [f"{PREFIX}gpu"]
    assert is_free(cluster, "all")
    cluster.clock.advance(LOCK_LASTS_S)
    assert is_free(cluster, "gpu")


def test_a_node_that_finds_the_lock_taken_asks_again_soon(cluster: FakeCluster) -> None:
    pauses: list[float] = []
    FakeSlurm(cluster).create_reservation(ReservationRequest(name=NAME, nodes=("n1",)))
    cluster.clock.on_advance.append(pauses.append)
    with held(cluster, "n2") as mine:
        assert isinstance(mine, NoDrainLock)
    assert len(pauses) == TRIES - 1
    assert cluster.reservations[NAME].nodes == ("n1",)


def test_the_lock_of_a_node_that_died_expires_by_itself(cluster: FakeCluster) -> None:
    with pytest.raises(SystemExit), held(cluster, "n1"):
        raise SystemExit(143)
    assert not is_free(cluster)
    cluster.clock.advance(LOCK_LASTS_S)
    assert is_free(cluster)


@pytest.mark.parametrize("ahead_s", [-600.0, -300.0, -31.0, 31.0, 300.0, 600.0])
def test_a_lock_lasts_its_minute_whatever_the_clock_of_its_node_shows(
    cluster: FakeCluster, ahead_s: float
) -> None:
    slurm = FakeSlurm(cluster, ahead_s=ahead_s)
    with held(cluster, "n1", slurm=slurm) as mine:
        assert isinstance(mine, DrainLock)
        assert abs(mine.now - cluster.clock.time()) <= 1
        cluster.clock.advance(USED_S - 0.1)
        assert mine.lasts
        cluster.clock.advance(LOCK_LASTS_S - USED_S - 2)
        assert not mine.lasts
        assert mine.is_sole(slurm)
        assert not is_free(cluster)
    assert not is_free(cluster)  # Nor is it given back, which could be another's by then.
    cluster.clock.advance(3)
    assert is_free(cluster)


def test_drains_of_the_hour_are_those_of_slurms_hour(cluster: FakeCluster, tmp_path: Path) -> None:
    bounds = {"max_share": 1.0, "max_per_hour": 1}
    Hooked(cluster, tmp_path, "n1", **bounds).run(bad())
    cluster.clock.advance(3300)
    second = Hooked(cluster, tmp_path, "n2", ahead_s=600.0, **bounds)
    assert "drain.max_per_hour" in second.run(bad()).why
    cluster.clock.advance(400)
    assert Hooked(cluster, tmp_path, "n3", ahead_s=-600.0, **bounds).run(bad()).carried_out


class Slow(FakeSlurm):
    """Creates a reservation a second after it was asked to."""

    def create_reservation(self, request: ReservationRequest) -> None:
        self.cluster.clock.advance(1.0)
        super().create_reservation(request)


def test_a_hook_that_needs_too_long_for_the_lock_releases_it_and_says_so(hooked: Hooked) -> None:
    cluster = hooked.cluster
    cluster.set_node("n1", partitions=tuple(f"p{i}" for i in range(20)))
    hooked.slurm = Slow(cluster, user="root")
    begun = cluster.clock.now
    done = hooked.run(bad(), budget_s=10.0)
    assert not hooked.reason
    assert "got the drain lock in 5 of 20 partitions" in done.why
    assert hooked.log.names == ["not_drained"]
    assert cluster.reservations == {}
    assert cluster.clock.now - begun < 10
    cluster.clock.advance(600)
    assert hooked.run(bad(), budget_s=50.0).carried_out  # as of a periodic run


def test_a_node_without_time_for_a_second_try_does_not_wait_for_it(cluster: FakeCluster) -> None:
    FakeSlurm(cluster).create_reservation(ReservationRequest(name=NAME, nodes=("n1",)))
    begun = cluster.clock.now
    with held(cluster, "n2", budget_s=1.0) as mine:
        assert isinstance(mine, NoDrainLock)
        assert "other nodes" in mine.why
    assert cluster.clock.now == begun


def test_a_node_that_could_not_release_its_lock_does_not_take_it_again(cluster: FakeCluster) -> None:
    """Its order to delete may be carried out late, when the reservation is another's."""

    class Undeleted(FakeSlurm):
        def delete_reservation(self, name: str) -> None:
            raise SlurmTimeout("no answer")

    FakeSlurm(cluster).create_reservation(ReservationRequest(name=f"{PREFIX}b", nodes=("n1",)))
    begun = cluster.clock.now
    with held(cluster, "n2", "a", "b", slurm=Undeleted(cluster)) as mine:
        assert isinstance(mine, NoDrainLock)
    assert cluster.clock.now == begun


# -- orders that go out late --------------------------------------------------------------------------------


def test_a_record_that_is_slow_to_save_keeps_the_order_from_going_out_late(
    hooked: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = DrainFile.save

    def slow(file: DrainFile, record: OwnDrain) -> None:
        save(file, record)
        if record.unverified:
            hooked.cluster.clock.advance(USED_S)

    monkeypatch.setattr(DrainFile, "save", slow)
    done = hooked.run(bad(), budget_s=1000.0)
    assert not hooked.reason
    assert "expired before the order could go out" in done.why
    assert hooked.log.names == ["not_drained"]
    record = hooked.file.load()
    assert (record.reason, record.unverified, record.pending is None) == ("", False, False)
    monkeypatch.undo()
    hooked.cluster.clock.advance(600)
    assert hooked.run(bad()).carried_out


@pytest.mark.parametrize("meanwhile", ["another is drained", "nothing"])
def test_a_drain_that_is_answered_after_the_lock_expired_is_compared_with_the_caps(
    cluster: FakeCluster, tmp_path: Path, meanwhile: str
) -> None:
    first, second = (Hooked(cluster, tmp_path, name) for name in ("n1", "n2"))

    class Late(FakeSlurm):
        def drain(self, nodes: Sequence[str], reason: str) -> None:
            cluster.clock.advance(LOCK_LASTS_S)
            if meanwhile == "another is drained":
                assert second.run(bad()).carried_out
                cluster.clock.advance(1)
            super().drain(nodes, reason)

    first.slurm = Late(cluster, user="root")
    done = first.run(bad(), budget_s=1000.0)
    assert (done.carried_out, done.reason) == (False, "")  # so its prolog lets the job start
    assert first.log.names == ["cap_not_verified"]
    first.slurm = FakeSlurm(cluster, user="root")
    first.run(bad())  # The holder at that time may still drain itself.
    assert first.reason
    assert first.log.names == ["cap_not_verified"]
    cluster.clock.advance(OLD_S)
    first.run(bad())
    stays = meanwhile == "nothing"
    assert bool(first.reason) is stays
    assert first.log.names[1:] == ["drained" if stays else "not_drained"]
    assert drained(cluster) == 1


def test_a_holder_that_took_too_long_drains_nothing(cluster: FakeCluster, tmp_path: Path) -> None:
    class SlowTable(FakeSlurm):
        def nodes(self, names: Sequence[str] | None = None) -> tuple[SlurmNode, ...]:
            cluster.clock.advance(USED_S)
            return super().nodes(names)

    hooked = Hooked(cluster, tmp_path)
    hooked.slurm = SlowTable(cluster)
    hooked.run(bad(), budget_s=1000.0)
    assert not hooked.reason
    assert hooked.log.names == ["not_drained"]


# -- orders without an answer -------------------------------------------------------------------------------


class Unreliable(FakeSlurm):
    """Each request has a fate; without one it is answered.

    ``lost``: nothing happens, and no answer comes. ``mute``: it is done, and no answer comes. ``killed`` and
    ``killed after``: the hook is, before and after it is done. A number: no answer comes, and it is done so
    many seconds later.
    """

    def __init__(
        self, cluster: FakeCluster, fates: Sequence[str | int] = (), *, ahead_s: float = 0.0
    ) -> None:
        super().__init__(cluster, user="root", ahead_s=ahead_s)
        self.fates = iter(fates)

    def now(self) -> float:
        return self._meet(lambda: FakeSlurm.now(self))

    def node(self, name: str) -> SlurmNode:
        return self._meet(lambda: FakeSlurm.node(self, name))

    def nodes(self, names: Sequence[str] | None = None) -> tuple[SlurmNode, ...]:
        return self._meet(lambda: FakeSlurm.nodes(self, names))

    def drain(self, nodes: Sequence[str], reason: str) -> None:
        self._meet(lambda: FakeSlurm.drain(self, nodes, reason))

    def resume(self, nodes: Sequence[str]) -> None:
        self._meet(lambda: FakeSlurm.resume(self, nodes))

    def create_reservation(self, request: ReservationRequest) -> None:
        self._meet(lambda: FakeSlurm.create_reservation(self, request))

    def delete_reservation(self, name: str) -> None:
        self._meet(lambda: FakeSlurm.delete_reservation(self, name))

    def reservations(self) -> tuple[Reservation, ...]:
        return self._meet(lambda: FakeSlurm.reservations(self))

    def _meet(self, request: Callable[[], object]) -> object:  # type: ignore[misc]
        fate = next(self.fates, "")
        if fate == "killed":
            raise SystemExit(143)
        if fate == "lost":
            raise SlurmTimeout("no answer")
        if isinstance(fate, int):
            self._later(request, self.cluster.clock.now + fate)
            raise SlurmTimeout("no answer")
        answer = request()
        if fate == "mute":
            raise SlurmTimeout("no answer")
        if fate == "killed after":
            raise SystemExit(143)
        return answer

    def _later(self, request: Callable[[], object], when: float) -> None:
        def done(now: float) -> None:
            if now >= when and done in self.cluster.clock.on_advance:
                self.cluster.clock.on_advance.remove(done)
                try:
                    request()
                except Exception as error:  # noqa: BLE001 - refused, and nobody hears of it
                    print(error)

        self.cluster.clock.on_advance.append(done)


OLD_S = LOCK_LASTS_S + 1
"""The holder at the time of the drain has lost the lock."""


def late(hooked: Hooked, after_s: int) -> None:
    """The drain of a node gets no answer and is done so much later: own look, time, turn, table, order."""
    hooked.slurm = Unreliable(hooked.cluster, ["", "", "", "", after_s])
    assert hooked.run(bad()).error
    hooked.slurm = FakeSlurm(hooked.cluster, user="root")


def test_a_late_drain_that_is_one_too_many_is_taken_back(cluster: FakeCluster, tmp_path: Path) -> None:
    first, second = (Hooked(cluster, tmp_path, name) for name in ("n1", "n2"))
    late(first, 200)
    cluster.clock.advance(LOCK_LASTS_S)
    assert second.run(bad()).carried_out
    cluster.clock.advance(200)
    assert first.reason
    assert second.reason
    assert not first.run(bad()).error
    assert first.reason
    cluster.clock.advance(OLD_S)
    assert "cap" in first.run(bad()).why
    assert (first.reason, second.reason) == ("", "srobust: gpu3 XID 79")
    assert first.file.load().drains == ()
    assert first.log.names == ["slurm_unreachable", "not_drained"]
    assert not first.run(bad()).reason  # so its prolog lets jobs start


def test_a_late_drain_for_which_there_is_room_stands_and_is_reported(hooked: Hooked) -> None:
    late(hooked, 1)
    hooked.cluster.clock.advance(1)
    hooked.cluster.clock.advance(OLD_S)
    hooked.run(bad())
    assert hooked.reason
    assert hooked.log.names == ["slurm_unreachable", "drained"]
    for _ in range(3):
        hooked.run(good())
    assert not hooked.reason


@pytest.mark.parametrize("meanwhile", ["another is drained", "another has the lock", "Slurm is silent"])
def test_a_late_delete_that_removes_another_nodes_lock_drains_no_more_than_may(
    cluster: FakeCluster, tmp_path: Path, meanwhile: str
) -> None:
    """Turns of a partition share a name, so a delete that slurmctld carries out late removes any of them."""
    bounds = {"max_share": 0.5, "max_per_hour": 2}
    first, second, before = (Hooked(cluster, tmp_path, name, **bounds) for name in ("n1", "n2", "n3"))
    before.slurm = Unreliable(cluster, [""] * 6 + [int(LOCK_LASTS_S) + 5])  # the last of its orders
    assert before.run(bad()).carried_out
    cluster.clock.advance(LOCK_LASTS_S)

    class Deprived(FakeSlurm):
        def drain(self, nodes: Sequence[str], reason: str) -> None:
            assert cluster.reservations[NAME].nodes == ("n1",)
            cluster.clock.advance(10)
            assert NAME not in cluster.reservations
            if meanwhile == "another is drained":
                assert second.run(bad()).carried_out
                self.cluster.clock.advance(1)
            elif meanwhile == "another has the lock":
                FakeSlurm(cluster).create_reservation(ReservationRequest(name=NAME, nodes=("n2",)))
            super().drain(nodes, reason)

        def reservations(self) -> tuple[Reservation, ...]:
            if meanwhile == "Slurm is silent":
                raise SlurmTimeout("no answer within 5 s")
            return super().reservations()

    first.slurm = Deprived(cluster, user="root")
    done = first.run(bad())
    assert (done.carried_out, done.reason) == (False, "")  # so its prolog lets the job start
    assert first.log.names == ["cap_not_verified"]
    others = [r.nodes for r in cluster.reservations.values()]
    assert others == ([("n2",)] if meanwhile == "another has the lock" else [])
    first.slurm = FakeSlurm(cluster, user="root")
    cluster.clock.advance(OLD_S)
    first.run(bad())
    assert bool(first.reason) is (meanwhile != "another is drained")
    assert drained(cluster) == 2


def test_a_late_drain_that_nobody_can_verify_is_taken_back(hooked: Hooked) -> None:
    class NoTable(FakeSlurm):
        def nodes(self, names: Sequence[str] | None = None) -> tuple[SlurmNode, ...]:
            raise SlurmTimeout("no answer within 5 s")

    late(hooked, 1)
    hooked.cluster.clock.advance(1)
    hooked.cluster.clock.advance(OLD_S)
    hooked.slurm = NoTable(hooked.cluster, user="root")
    for _ in range(MAX_UNANSWERED - 1):
        hooked.run(bad())
        assert hooked.reason
    hooked.run(bad())
    assert not hooked.reason
    assert hooked.log.names == ["slurm_unreachable", "cap_not_verified", "not_drained"]


def test_what_was_never_done_is_not_said_to_be_undone_by_others(hooked: Hooked) -> None:
    hooked.slurm = Unreliable(hooked.cluster, ["", "", "", "", "lost"])
    hooked.run(bad())
    hooked.slurm = FakeSlurm(hooked.cluster, user="root")
    hooked.cluster.clock.advance(2 * LOCK_LASTS_S)
    assert hooked.run(bad()).carried_out
    assert hooked.log.names == ["slurm_unreachable", "drained"]


fates = st.one_of(st.sampled_from(["", "", "lost", "mute", "killed", "killed after"]), st.integers(1, 300))
clocks = st.lists(st.sampled_from([0.0, -600.0, -45.0, 45.0, 600.0]), min_size=4, max_size=4)
of_the_order = fates.map(lambda fate: ["", "", "", "", fate])
scripts = st.one_of(st.lists(fates, max_size=8), of_the_order)
runs = st.tuples(st.integers(1, 4), scripts, st.sampled_from([0, 1, 5, 40, 70, 400]))


@settings(max_examples=30, deadline=None)
@given(st.lists(runs, max_size=14), clocks)
@example([(1, ["", "", "", "", 20], 1), (2, [], 40)], [-600.0, 0.0, 0.0, 0.0])
def test_whatever_becomes_of_orders_and_hooks_no_more_stay_drained_than_may(
    story: list[tuple[int, list[str | int], int]], ahead_s: list[float]
) -> None:
    """Nor whatever the clocks of the nodes show. And at no time are there more, unless orders are done later
    than a turn lasts. All come back.
    """
    cluster = FakeCluster()
    with world(cluster, ahead_s) as hooks:
        most = []
        cluster.clock.on_advance.append(lambda _: most.append(drained(cluster)))
        for number, script, wait_s in story:
            hooked = hooks[number - 1]
            hooked.slurm = Unreliable(cluster, script, ahead_s=hooked.ahead_s)
            try:
                hooked.run(bad())
            except SystemExit:
                pass
            most.append(drained(cluster))
            cluster.clock.advance(wait_s)
        latest = [fate for _, script, _ in story for fate in script if isinstance(fate, int)]
        if max(latest, default=0) < LOCK_LASTS_S - USED_S:
            assert max(most, default=0) <= 1
        cluster.clock.advance(700)
        for hooked in hooks:
            hooked.slurm = FakeSlurm(cluster, user="root", ahead_s=hooked.ahead_s)
        for _ in range(3):
            for hooked in hooks:
                hooked.run(bad())
            cluster.clock.advance(6000)
        assert drained(cluster) == 1
        for _ in range(4):
            for hooked in hooks:
                hooked.run(good())
        assert drained(cluster) == 0


def drained(cluster: FakeCluster) -> int:
    return sum(node.is_drained for node in cluster.nodes.values())


@contextmanager
def world(cluster: FakeCluster, ahead_s: Sequence[float]) -> Iterator[list[Hooked]]:
    """Four nodes with their clocks in a folder of their own, in memory where there is such a place."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield [
            Hooked(cluster, Path(folder), f"n{i}", ahead_s=ahead, most_per_day=1000)
            for i, ahead in enumerate(ahead_s, 1)
        ]
