"""A drainer whose Slurm or disk does not do what it should: nothing is lost, and nothing is done twice."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from slurm_robust.hooks.drainer import BACK_OFF_S, NO_ANSWER_S
from slurm_robust.hooks.record import LOCK_LASTS_S, DrainAction
from slurm_robust.model.findings import Finding, Outcome
from slurm_robust.slurm.errors import SlurmTimeout
from slurm_robust.slurm.records import SlurmNode
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurm import FakeSlurm
from tests.unit.hooks.hook_node import Hooked, bad, good

# -- trouble ----------------------------------------------------------------------------------------------


def test_a_drain_that_slurm_did_not_take_is_ordered_later(hooked: Hooked) -> None:
    hooked.cluster.unreachable = True
    done = hooked.run(bad())
    assert (done.carried_out, bool(done.error)) == (False, True)
    hooked.run(bad())
    assert hooked.log.names == ["slurm_unreachable"]
    hooked.cluster.unreachable = False
    hooked.cluster.clock.advance(NO_ANSWER_S)
    # The next run is another one, which does not look there, as an epilog's deep test is followed by.
    assert hooked.run(Finding(check="clock.offset", outcome=Outcome.PASS)).action is DrainAction.DRAIN
    assert hooked.reason == "srobust: gpu3 XID 79"
    assert hooked.file.load().drains == (hooked.file.load().since,)


def test_a_pending_drain_is_not_forgotten_over_another_fault(hooked: Hooked) -> None:
    hooked.cluster.unreachable = True
    hooked.run(bad("gpu3"))
    hooked.cluster.unreachable = False
    hooked.cluster.clock.advance(NO_ANSWER_S)
    hooked.run(bad("gpu1", "XID 48"))
    assert hooked.reason == "srobust: gpu1 XID 48"
    for _ in range(5):
        hooked.run(good("gpu1"))
    assert hooked.reason
    for _ in range(3):
        hooked.run(good("gpu1"), good("gpu3"))
    assert not hooked.reason


@pytest.mark.parametrize(
    ("took_effect", "more"),
    [(False, ()), (True, ()), (False, ("gpu2",))],
    ids=["it took no effect", "it took effect", "two of them"],
)
def test_a_new_reason_without_an_answer_leaves_the_drain_ours(
    hooked: Hooked, took_effect: bool, more: tuple[str, ...]
) -> None:
    class Silent(FakeSlurm):
        def drain(self, nodes: Sequence[str], reason: str) -> None:
            if took_effect:
                super().drain(nodes, reason)
            raise SlurmTimeout("no answer")

    hooked.run(bad("gpu3"))
    slurm, hooked.slurm = hooked.slurm, Silent(hooked.cluster, user="root")
    hooked.run(bad("gpu1", "XID 48"), good("gpu3"))
    for subject in more:
        hooked.run(bad(subject, "XID 94"), good("gpu1"), good("gpu3"))
    hooked.slurm = slurm
    for _ in range(4):
        hooked.run(*(good(subject) for subject in ("gpu1", *more, "gpu3")))
    assert not hooked.reason


def test_a_drain_that_is_taken_after_the_next_one_was_ordered_is_known(hooked: Hooked) -> None:
    ordered: list[str] = []

    class Slow(FakeSlurm):
        def drain(self, nodes: Sequence[str], reason: str) -> None:
            ordered.append(reason)
            raise SlurmTimeout("no answer")

    slurm, hooked.slurm = hooked.slurm, Slow(hooked.cluster, user="root")
    hooked.run(bad("gpu3"))
    hooked.cluster.clock.advance(2 * LOCK_LASTS_S)
    hooked.run(bad("gpu1", "XID 48"), good("gpu3"))
    assert ordered == ["srobust: gpu3 XID 79", "srobust: gpu1 XID 48"]
    slurm.drain(["n1"], ordered[0])
    hooked.slurm = slurm
    for _ in range(4):
        hooked.cluster.clock.advance(LOCK_LASTS_S)
        hooked.run(good("gpu1"), good("gpu3"))
    assert not hooked.reason


def test_a_drain_that_was_refused_is_tried_again_at_the_next_run(hooked: Hooked) -> None:
    class Late(FakeSlurm):
        def drain(self, nodes: Sequence[str], reason: str) -> None:
            raise SlurmTimeout("no answer")

    slurm, hooked.slurm = hooked.slurm, Late(hooked.cluster, user="root")
    assert hooked.run(bad()).error
    hooked.slurm = slurm
    hooked.cluster.clock.advance(LOCK_LASTS_S)
    assert hooked.run(bad()).carried_out


def test_a_hook_that_is_killed_before_its_order_loses_nothing(hooked: Hooked) -> None:
    class Killed(FakeSlurm):
        def drain(self, nodes: Sequence[str], reason: str) -> None:
            raise SystemExit(143)

    slurm, hooked.slurm = hooked.slurm, Killed(hooked.cluster, user="root")
    with pytest.raises(SystemExit):
        hooked.run(bad())
    hooked.slurm = slurm
    hooked.cluster.clock.advance(BACK_OFF_S)
    assert hooked.run(Finding(check="clock.offset", outcome=Outcome.PASS)).carried_out
    assert hooked.reason == "srobust: gpu3 XID 79"
    assert hooked.file.load().pending is None


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
def test_what_has_passed_since_or_was_before_a_reboot_is_not_reported(hooked: Hooked, boot: str) -> None:
    hooked.cluster.unreachable = True
    hooked.run(bad())
    hooked.cluster.unreachable = False
    hooked.boot = boot
    hooked.run(good() if boot == "boot-1" else Finding(check="clock.offset", outcome=Outcome.PASS))
    assert not hooked.reason
    assert hooked.log.names[-1] == "fault_gone"
    assert hooked.file.load().pending is None


def test_what_was_found_while_another_hook_was_at_it_is_done_by_the_next(hooked: Hooked) -> None:
    with hooked.file.locked(1.0):
        done = hooked.run(bad(), budget_s=0.05)
    assert (done.action, done.why) == (DrainAction.NOTHING, "another hook is at it")
    quick = Finding(check="clock.offset", outcome=Outcome.PASS)
    assert hooked.run(quick).action is DrainAction.DRAIN
    assert hooked.reason == "srobust: gpu3 XID 79"
    assert hooked.file.take_left() is None


def test_faults_found_while_slurm_was_silent_are_drained_for_together(hooked: Hooked) -> None:
    hooked.cluster.unreachable = True
    hooked.run(bad("gpu1"))
    with hooked.file.locked(1.0):
        hooked.run(bad("gpu3"), budget_s=0.05)
    hooked.cluster.unreachable = False
    hooked.cluster.clock.advance(NO_ANSWER_S)
    assert hooked.run(Finding(check="clock.offset", outcome=Outcome.PASS)).carried_out
    assert {cause.subject for cause in hooked.file.load().causes} == {"gpu1", "gpu3"}


def test_what_was_left_may_be_damaged(hooked: Hooked) -> None:
    with hooked.file.locked(1.0):
        hooked.run(bad(), budget_s=0.05)
    left = hooked.file.path.with_name("drain.left")
    left.write_bytes(left.read_bytes()[:20])
    assert hooked.run(good()).why == "the node is fit"
    assert not left.exists()


def test_a_drain_that_took_effect_without_an_answer_is_known_as_ours(hooked: Hooked) -> None:
    record = hooked.file.load()
    hooked.slurm.drain(["n1"], "srobust: gpu3 XID 79")
    Path(hooked.config.paths.state).mkdir(parents=True)
    hooked.file.save(msgspec.structs.replace(record, reason="srobust: gpu3 XID 79", since=5.0))
    hooked.run(bad())
    assert hooked.file.load().drains == (5.0,)
    assert hooked.reason == "srobust: gpu3 XID 79"


def test_a_state_folder_that_cannot_be_written_keeps_no_bad_node_in_service(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    hooked = Hooked(cluster, tmp_path)
    Path(hooked.config.paths.state).write_text("not a folder")
    assert hooked.run(bad()).carried_out
    assert hooked.reason
    assert "record_not_written" in hooked.log.names


def test_a_user_who_may_not_administer_reports_it(cluster: FakeCluster, tmp_path: Path) -> None:
    hooked = Hooked(cluster, tmp_path)
    hooked.slurm = FakeSlurm(cluster, operator=False)
    done = hooked.run(bad())
    assert "Invalid user id" in done.error
    assert not hooked.reason
    ((event, facts),) = hooked.log.written
    assert event == "slurm_refused"
    assert "Invalid user id" in str(facts["error"])
    assert "AdminLevel" in str(facts["fix"])


# -- a slurmctld that is slow, and clocks that were wrong --------------------------------------------------


@pytest.mark.parametrize("error", ["all of it", "the table"])
def test_a_slurmctld_that_does_not_answer_is_asked_ever_more_rarely(
    cluster: FakeCluster, tmp_path: Path, error: str
) -> None:
    asked: list[float] = []

    class Silent(FakeSlurm):
        def node(self, name: str) -> SlurmNode:
            asked.append(cluster.clock.now)
            if error == "all of it":
                raise SlurmTimeout("no answer within 5 s")
            return super().node(name)

        def nodes(self, names: Sequence[str] | None = None) -> tuple[SlurmNode, ...]:
            raise SlurmTimeout("no answer within 5 s")

    hooked = Hooked(cluster, tmp_path)
    hooked.slurm = Silent(cluster, user="root")
    begun = cluster.clock.now
    while cluster.clock.now < begun + 6 * 3600:
        hooked.run(bad())
        cluster.clock.advance(60.0)
    assert len(asked) <= 14
    waits = [later - earlier for earlier, later in pairwise(asked)]
    assert max(waits) >= 3600
    assert not hooked.reason


@pytest.mark.parametrize("story", ["it has healed in between", "another part fails as well"])
def test_a_new_fault_does_not_wait_as_long_as_the_old_one(
    cluster: FakeCluster, tmp_path: Path, story: str
) -> None:
    first, second = (Hooked(cluster, tmp_path, name) for name in ("n1", "n2"))
    first.run(bad())
    for _ in range(7):
        second.run(bad())
        cluster.clock.advance(max(0.0, second.file.load().waits_until - cluster.clock.now))
    second.run(bad())
    assert second.file.load().waits_until >= cluster.clock.now + 3500
    first.slurm.resume(["n1"])
    if story == "it has healed in between":
        second.run(good())
    second.run(bad("gpu1", "XID 48"))
    cluster.clock.advance(BACK_OFF_S)
    assert second.run(bad("gpu1", "XID 48")).carried_out


@pytest.mark.parametrize("ahead_s", [86400.0, 10 * 365 * 86400.0])
def test_a_clock_that_was_ahead_once_forbids_nothing_when_it_is_right(
    cluster: FakeCluster, tmp_path: Path, ahead_s: float
) -> None:
    first, second = (Hooked(cluster, tmp_path, name) for name in ("n1", "n2"))
    first.run(bad())
    now = cluster.clock.now
    cluster.clock.now += ahead_s
    second.run(bad())  # finds no room
    cluster.clock.now = now + 60
    cluster.reservations.clear()  # slurmctld has a clock of its own
    first.slurm.resume(["n1"])
    assert second.run(bad()).carried_out


def test_drains_of_a_clock_that_was_ahead_do_not_count(hooked: Hooked) -> None:
    now = hooked.cluster.clock.now
    hooked.cluster.clock.now += 365 * 86400
    for _ in range(2):
        hooked.run(bad())
        for _ in range(3):
            hooked.run(good())
    assert len(hooked.file.load().drains) == 2
    hooked.cluster.clock.now = now + 60
    hooked.run(bad())
    assert hooked.reason == "srobust: gpu3 XID 79"  # and not: drained 3 times in 24 h, stays
    assert len(hooked.file.load().drains) == 1


# -- drains that nobody would end -------------------------------------------------------------------------

OTHER = Finding(check="clock.offset", outcome=Outcome.PASS)


@pytest.mark.parametrize(
    ("findings", "left_out", "words"),
    [
        (
            [OTHER],
            {"gpu.xid": "switched off in the configuration"},
            "gpu.xid gpu3 is not checked: switched off",
        ),
        ([OTHER], {}, "gpu.xid gpu3 is not checked by the periodic check (removed"),
        ([good("gpu0"), OTHER], {}, "gpu.xid gpu3 is not there any more"),
        ([Finding(check="gpu.xid", outcome=Outcome.UNKNOWN, subject="gpu3")], {}, "gpu.xid gpu3 is unknown"),
    ],
)
def test_the_log_says_once_why_a_fit_node_stays_drained_and_what_to_do(
    hooked: Hooked, findings: list[Finding], left_out: dict[str, str], words: str
) -> None:
    hooked.run(bad())
    for _ in range(2):
        hooked.run(*findings, left_out=left_out, whole=True)
    assert hooked.log.names == ["drained"]
    for _ in range(5):
        hooked.run(*findings, left_out=left_out, whole=True)
    assert hooked.log.names == ["drained", "not_returned"]
    why = str(hooked.log.written[-1][1]["why"])
    assert why.startswith(words)
    assert "scontrol update nodename=n1 state=resume" in why
    assert hooked.reason


def test_runs_of_other_hooks_and_parts_of_a_watch_say_nothing_about_that(hooked: Hooked) -> None:
    hooked.run(bad())
    for _ in range(20):
        hooked.run(OTHER)
    assert hooked.log.names == ["drained"]


def test_a_healed_node_that_slurm_has_down_after_a_boot_is_reported_once(hooked: Hooked) -> None:
    hooked.run(bad())
    node = hooked.cluster.nodes["n1"]
    hooked.cluster.nodes["n1"] = msgspec.structs.replace(node, states=frozenset({"DOWN", "DRAIN"}))
    hooked.boot = "boot-2"
    for _ in range(6):
        hooked.run(good(), whole=True)
    assert hooked.log.names == ["drained", "not_returned"]
    assert "Slurm has it DOWN" in str(hooked.log.written[-1][1]["why"])
    assert hooked.cluster.nodes["n1"].states == {"DOWN", "DRAIN"}
