"""What a node's hook does in Slurm and remembers, against the Slurm in memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from slurm_robust.config.node import Hooks, NodeConfig
from slurm_robust.hooks.client import slurm_client
from slurm_robust.hooks.drainer import BACK_OFF_S
from slurm_robust.hooks.environment import slurm_environment
from slurm_robust.hooks.record import DrainAction
from slurm_robust.model.findings import Finding, Outcome
from slurm_robust.slurm.errors import SlurmTimeout
from slurm_robust.slurm.records import SlurmNode
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurm import FakeSlurm
from tests.unit.hooks.hook_node import Hooked, bad, good


class UnaskedSlurm:
    """Fails the test when it is asked anything."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"Slurm was asked: {name}")


# -- the usual life ---------------------------------------------------------------------------------------


def test_a_fit_node_neither_asks_slurm_nor_writes(hooked: Hooked) -> None:
    hooked.slurm = UnaskedSlurm()  # type: ignore[assignment]
    assert hooked.run(good()).action is DrainAction.NOTHING
    assert not hooked.file.exists()
    assert hooked.log.names == []


def test_a_bad_node_is_drained_with_the_evidence_and_returned_when_proven(hooked: Hooked) -> None:
    done = hooked.run(bad())
    assert (done.action, done.carried_out) == (DrainAction.DRAIN, True)
    assert hooked.reason == "srobust: gpu3 XID 79"
    for _ in range(2):
        assert hooked.run(good()).action is DrainAction.NOTHING
        assert hooked.reason
    done = hooked.run(good())
    assert (done.action, done.carried_out) == (DrainAction.UNDRAIN, True)
    assert not hooked.reason
    assert hooked.log.names == ["drained", "undrained"]
    assert hooked.run(good()).action is DrainAction.NOTHING


def test_runs_that_do_not_check_prove_nothing(hooked: Hooked) -> None:
    hooked.run(bad())
    for _ in range(10):
        hooked.run(Finding(check="clock.offset", outcome=Outcome.PASS))
        hooked.run(good("gpu0"))
    assert hooked.reason


def test_a_fault_in_between_begins_the_count_anew(hooked: Hooked) -> None:
    for findings in ([bad()], [good()], [good()], [bad()], [good()], [good()]):
        hooked.run(*findings)
        assert hooked.reason
    hooked.run(good())
    assert not hooked.reason


def test_no_return_while_a_job_is_there(hooked: Hooked) -> None:
    job = hooked.slurm.submit(SubmitRequest(command=("x",), nodes=1, required_nodes=("n1",)))
    assert "n1" in hooked.slurm.job(job).nodes
    hooked.run(bad())
    for _ in range(4):
        hooked.run(good())
    assert hooked.reason
    hooked.cluster.finish(job)
    hooked.run(good())
    assert not hooked.reason


def test_a_second_fault_is_added_to_the_reason_and_must_pass_too(hooked: Hooked) -> None:
    hooked.run(bad())
    hooked.run(bad("gpu1", "XID 48"), good("gpu3"))
    assert hooked.reason == "srobust: gpu1 XID 48"
    for _ in range(5):
        hooked.run(good("gpu1"))
    assert hooked.reason
    for _ in range(3):
        hooked.run(good("gpu1"), good("gpu3"))
    assert not hooked.reason


# -- persons ----------------------------------------------------------------------------------------------


def test_an_administrators_drain_is_never_touched(hooked: Hooked) -> None:
    hooked.slurm.drain(["n1"], "disk, alice")
    for findings in ([bad()], [bad()], [good()], [good()], [good()], [good()]):
        assert hooked.run(*findings).action is DrainAction.NOTHING
        assert hooked.reason == "disk, alice"
    assert hooked.log.names == ["not_drained"]


def test_a_reason_that_a_person_changed_is_the_persons(hooked: Hooked) -> None:
    hooked.run(bad())
    hooked.slurm.drain(["n1"], "srobust: gpu3 XID 79 RMA 12")
    for _ in range(5):
        hooked.run(good())
    assert hooked.reason == "srobust: gpu3 XID 79 RMA 12"


def test_a_node_that_a_person_returned_is_judged_anew(hooked: Hooked) -> None:
    hooked.run(bad())
    drained_for = hooked.reason
    hooked.slurm.resume(["n1"])
    assert hooked.run(good()).action is DrainAction.NOTHING
    assert hooked.log.names[-1] == "returned_by_others"
    record = hooked.file.load()
    assert record.reason == ""
    assert [cause.subject for cause in record.causes] == ["gpu3"]  # what a quarantine has to see pass
    assert (
        record.former == drained_for
    )  # by which the next one knows a drain that an interrupted one put back
    hooked.run(bad("gpu1"))
    assert hooked.reason
    assert [cause.subject for cause in hooked.file.load().causes] == ["gpu1"]


def test_flapping_ends_with_a_drain_that_stays(hooked: Hooked) -> None:
    for _ in range(3):
        hooked.run(bad())
        hooked.cluster.clock.advance(60)  # else Slurm has not heard of it since the last resume
        for _ in range(3):
            hooked.run(good())
    assert hooked.reason == "srobust: gpu3 XID 79 (drained 3 times in 24 h, stays)"
    hooked.cluster.clock.advance(2 * 86400)
    for _ in range(5):
        hooked.run(good())
    assert hooked.reason


# -- observe mode -----------------------------------------------------------------------------------------


def test_observe_mode_decides_and_does_nothing(cluster: FakeCluster, tmp_path: Path) -> None:
    hooked = Hooked(cluster, tmp_path, mode="observe")
    for times in range(3):
        done = hooked.run(bad())
        assert (done.action, done.carried_out) == (DrainAction.DRAIN, False)
        hooked.slurm = UnaskedSlurm()  # type: ignore[assignment]
        assert hooked.run(bad()).action is DrainAction.NOTHING
        hooked.slurm = FakeSlurm(cluster, user="root")
        hooked.cluster.clock.advance(BACK_OFF_S * 2**times)
    assert not hooked.reason
    assert hooked.log.names == ["would_drain"]  # once, not at every run


# -- caps -------------------------------------------------------------------------------------------------


def test_beyond_the_cap_it_reports_and_does_nothing(cluster: FakeCluster, tmp_path: Path) -> None:
    first, second = (Hooked(cluster, tmp_path, name) for name in ("n1", "n2"))
    first.run(bad())
    assert second.run(bad()).action is DrainAction.NOTHING
    second.run(bad())
    assert not second.reason
    assert second.log.names == ["not_drained"]
    first.slurm.resume(["n1"])
    cluster.clock.advance(BACK_OFF_S)
    assert second.run(bad()).action is DrainAction.DRAIN


def test_what_a_cap_forbids_is_done_when_there_is_room_without_a_new_check(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    first, second = (Hooked(cluster, tmp_path, name) for name in ("n1", "n2"))
    first.run(bad())
    second.run(bad())  # a close look, as after a job that suspected the node
    quick = Finding(check="clock.offset", outcome=Outcome.PASS)
    assert second.run(quick).action is DrainAction.NOTHING
    assert second.log.names == ["not_drained"]
    first.slurm.resume(["n1"])
    cluster.clock.advance(BACK_OFF_S)
    assert second.run(quick).action is DrainAction.DRAIN
    assert second.reason == "srobust: gpu3 XID 79"


def test_a_fleet_that_is_unfit_does_not_ask_slurm_about_all_nodes_at_every_run(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    asked: list[float] = []

    class Counting(FakeSlurm):
        def nodes(self, names: Sequence[str] | None = None) -> tuple[SlurmNode, ...]:
            asked.append(cluster.clock.now)
            return super().nodes(names)

    Hooked(cluster, tmp_path, "n1").run(bad())
    second = Hooked(cluster, tmp_path, "n2")
    second.slurm = Counting(cluster, user="root")
    begun = cluster.clock.now
    while cluster.clock.now < begun + 86400:
        second.run(bad())
        cluster.clock.advance(60.0)
    waits = [later - earlier for earlier, later in pairwise(asked)]
    # Each wait is twice as long as the one before, up to an hour; runs are a minute apart.
    for wait_s, least_s in zip(waits, (300, 600, 1200, 2400, *[3600] * 100), strict=False):
        assert least_s <= wait_s <= least_s + 120
    assert len(asked) <= 28


def test_of_nodes_that_drain_at_the_same_time_never_more_are_drained_than_the_cap_allows(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    hooks = [Hooked(cluster, tmp_path, f"n{i}") for i in range(1, 5)]
    begin = threading.Barrier(len(hooks))
    most: list[int] = []

    class Watched(FakeSlurm):
        def drain(self, nodes: Sequence[str], reason: str) -> None:
            super().drain(nodes, reason)
            most.append(sum(node.is_drained for node in cluster.nodes.values()))

    def run(hook: Hooked) -> None:
        begin.wait(60)
        hook.run(bad(), pause=lambda _: None)

    for hook in hooks:
        hook.slurm = Watched(cluster, user="root")
    threads = [threading.Thread(target=run, args=(hook,)) for hook in hooks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1]
    (drained,) = [hook for hook in hooks if hook.reason]
    others = [hook for hook in hooks if hook is not drained]
    assert drained.log.names == ["drained"]
    assert [hook.file.load().reason for hook in others] == ["", "", ""]
    assert [hook.log.names for hook in others] == [["not_drained"]] * 3
    assert all(hook.file.load().drains == () for hook in others)


# -- Slurm's commands from a hook --------------------------------------------------------------------------


def test_hooks_find_slurm_without_an_environment() -> None:
    config = NodeConfig(hooks=Hooks(slurm_bin="/opt/s/bin", slurm_conf="/etc/s.conf"))
    environ = slurm_environment(config, {}.get)
    assert environ["PATH"].startswith("/opt/s/bin:")
    assert environ["SLURM_CONF"] == "/etc/s.conf"
    given = slurm_environment(NodeConfig(), {"SLURM_CONF": "/x"}.get)
    assert given["SLURM_CONF"] == "/x"
    assert "SLURM_CONF" not in slurm_environment(NodeConfig(), {}.get)


def test_all_commands_together_are_bounded(tmp_path: Path) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\nexit 0\n")
    scontrol.chmod(0o755)
    config = NodeConfig(hooks=Hooks(slurm_bin=str(tmp_path)))
    with pytest.raises(SlurmTimeout):
        slurm_client(config, deadline=0.0).resume(["n1"])
