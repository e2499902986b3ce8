"""What a node's hook does in Slurm and remembers, against the Slurm in memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from slurm_robust.config.node import Drain, Hooks, NodeConfig, Paths
from slurm_robust.health.check import Context
from slurm_robust.health.report import Conclusion, Report
from slurm_robust.model.findings import Finding, Outcome, Suggestion
from slurm_robust.node.hints import Hint
from slurm_robust.node.record import Action, DrainFile
from slurm_robust.node.steward import BACK_OFF_S, Done, after, slurm_client, slurm_environment
from slurm_robust.slurm.errors import SlurmTimeout
from slurm_robust.slurm.records import Node
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurm import FakeSlurm

HINT = Hint(job_id=7, node="n1", at=1.0, reason="silent for 3 s", symptom="node lost")


class Events:
    """A log that keeps what it is told."""

    def __init__(self) -> None:
        self.written: list[tuple[str, dict[str, object]]] = []

    def write(self, event: str, **facts: object) -> None:
        self.written.append((event, facts))

    @property
    def names(self) -> list[str]:
        return [event for event, _ in self.written]


class Hooked:
    """One node whose hooks run again and again."""

    def __init__(self, cluster: FakeCluster, state: Path, name: str = "n1", **drain: object) -> None:
        settings = {"mode": "act", **drain}
        self.config = NodeConfig(drain=Drain(**settings), paths=Paths(state=str(state / name)))  # type: ignore[arg-type]
        self.cluster, self.name, self.log = cluster, name, Events()
        self.slurm = FakeSlurm(cluster, user="root")
        self.boot = "boot-1"

    @property
    def file(self) -> DrainFile:
        return DrainFile(Path(self.config.paths.state))

    @property
    def reason(self) -> str:
        """The reason of a drain that stands."""
        node = self.cluster.seen(self.name)
        return node.reason if node.is_drained else ""

    def run(self, *findings: Finding, hint: Hint | None = None, **more: object) -> Done:
        causes = tuple(f for f in findings if f.outcome is Outcome.FAIL)
        reason = f"srobust: {causes[0].subject} {causes[0].text}" if causes else ""
        report = Report(
            node=self.name,
            at=self.cluster.clock.time(),
            boot_id=self.boot,
            context=Context.PERIODIC,
            findings=findings,
        )
        return after(
            Conclusion(fit=not causes, reason=reason, causes=causes),
            report=report,
            config=self.config,
            now=self.cluster.clock.time(),
            log=self.log,
            hint=hint,
            slurm=self.slurm,
            pause=more.pop("pause", self.cluster.clock.sleep),  # type: ignore[arg-type]
            **more,  # type: ignore[arg-type]
        )


def bad(subject: str = "gpu3", text: str = "XID 79") -> Finding:
    return Finding(
        check="gpu.xid", outcome=Outcome.FAIL, subject=subject, text=text, suggestion=Suggestion.REPLACE
    )


def good(subject: str = "gpu3") -> Finding:
    return Finding(check="gpu.xid", outcome=Outcome.PASS, subject=subject)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def hooked(cluster: FakeCluster, tmp_path: Path) -> Hooked:
    return Hooked(cluster, tmp_path)


class UnaskedSlurm:
    """Fails the test when it is asked anything."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"Slurm was asked: {name}")


# -- the usual life ---------------------------------------------------------------------------------------


def test_a_fit_node_neither_asks_slurm_nor_writes(hooked: Hooked) -> None:
    hooked.slurm = UnaskedSlurm()  # type: ignore[assignment]
    assert hooked.run(good()).action is Action.NOTHING
    assert not hooked.file.exists()
    assert hooked.log.names == []


def test_a_bad_node_is_drained_with_the_evidence_and_returned_when_proven(hooked: Hooked) -> None:
    done = hooked.run(bad())
    assert (done.action, done.carried_out) == (Action.DRAIN, True)
    assert hooked.reason == "srobust: gpu3 XID 79"
    for _ in range(2):
        assert hooked.run(good()).action is Action.NOTHING
        assert hooked.reason
    done = hooked.run(good())
    assert (done.action, done.carried_out) == (Action.UNDRAIN, True)
    assert not hooked.reason
    assert hooked.log.names == ["drained", "undrained"]
    assert hooked.run(good()).action is Action.NOTHING


def test_runs_that_do_not_look_prove_nothing(hooked: Hooked) -> None:
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
        assert hooked.run(*findings).action is Action.NOTHING
        assert hooked.reason == "disk, alice"
    assert hooked.log.names == ["not_drained"]


def test_words_that_a_person_changed_are_the_persons(hooked: Hooked) -> None:
    hooked.run(bad())
    hooked.slurm.drain(["n1"], "srobust: gpu3 XID 79 RMA 12")
    for _ in range(5):
        hooked.run(good())
    assert hooked.reason == "srobust: gpu3 XID 79 RMA 12"


def test_a_node_that_a_person_returned_is_judged_anew(hooked: Hooked) -> None:
    hooked.run(bad())
    hooked.slurm.resume(["n1"])
    assert hooked.run(good()).action is Action.NOTHING
    assert hooked.log.names[-1] == "returned_by_others"
    assert hooked.file.load().reason == ""
    hooked.run(bad())
    assert hooked.reason


def test_flapping_ends_with_a_drain_that_stays(hooked: Hooked) -> None:
    for _ in range(3):
        hooked.run(bad())
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
    for _ in range(3):
        done = hooked.run(bad())
        assert (done.action, done.carried_out) == (Action.DRAIN, False)
        hooked.cluster.clock.advance(BACK_OFF_S)
    assert not hooked.reason
    assert hooked.log.names == ["would_drain"]  # once, not at every run


# -- caps -------------------------------------------------------------------------------------------------


def test_beyond_the_cap_it_reports_and_does_nothing(cluster: FakeCluster, tmp_path: Path) -> None:
    first, second = (Hooked(cluster, tmp_path, name) for name in ("n1", "n2"))
    first.run(bad())
    assert second.run(bad()).action is Action.NOTHING
    second.run(bad())
    assert not second.reason
    assert second.log.names == ["not_drained"]
    first.slurm.resume(["n1"])
    cluster.clock.advance(BACK_OFF_S)
    assert second.run(bad()).action is Action.DRAIN


def test_a_fleet_that_is_unfit_does_not_ask_slurm_about_all_nodes_at_every_run(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    asked: list[Sequence[str] | None] = []

    class Counting(FakeSlurm):
        def nodes(self, names: Sequence[str] | None = None) -> tuple[Node, ...]:
            asked.append(names)
            return super().nodes(names)

    Hooked(cluster, tmp_path, "n1").run(bad())
    second = Hooked(cluster, tmp_path, "n2")
    second.slurm = Counting(cluster, user="root")
    for _ in range(10):
        second.run(bad())
        cluster.clock.advance(BACK_OFF_S / 10 - 1)
    assert asked.count(None) == 1


def test_nodes_that_drain_at_the_same_time_leave_as_many_as_the_cap_allows(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """Each has found room before any drained, and looks again when all have."""
    hooks = [Hooked(cluster, tmp_path, f"n{i}") for i in range(1, 5)]
    looked = threading.Barrier(len(hooks))
    settled = threading.Barrier(len(hooks))

    class Together(FakeSlurm):
        def drain(self, nodes: Sequence[str], reason: str) -> None:
            looked.wait(10)
            super().drain(nodes, reason)

    for hook in hooks:
        hook.slurm = Together(cluster, user="root")
    threads = [
        threading.Thread(target=hook.run, args=(bad(),), kwargs={"pause": lambda _: settled.wait(10)})
        for hook in hooks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [hook.name for hook in hooks if hook.reason] == ["n1"]
    assert [hook.file.load().reason for hook in hooks[1:]] == ["", "", ""]
    assert [hook.log.names for hook in hooks] == [["drained"], *[["not_drained"]] * 3]
    assert all(hook.file.load().drains == () for hook in hooks[1:])


# -- trouble ----------------------------------------------------------------------------------------------


def test_what_slurm_could_not_be_told_is_told_later(hooked: Hooked) -> None:
    hooked.cluster.unreachable = True
    done = hooked.run(bad())
    assert (done.carried_out, bool(done.error)) == (False, True)
    hooked.run(bad())
    assert hooked.log.names == ["slurm_unreachable"]
    hooked.cluster.unreachable = False
    # The next run is another one, which does not look there, as an epilog's deep test is followed by.
    assert hooked.run(Finding(check="clock.offset", outcome=Outcome.PASS)).action is Action.DRAIN
    assert hooked.reason == "srobust: gpu3 XID 79"
    assert hooked.file.load().drains == (hooked.file.load().since,)


def test_a_drain_that_was_refused_is_tried_again_at_the_next_run(hooked: Hooked) -> None:
    class Late(FakeSlurm):
        def drain(self, nodes: Sequence[str], reason: str) -> None:
            raise SlurmTimeout("no answer")

    slurm, hooked.slurm = hooked.slurm, Late(hooked.cluster, user="root")
    assert hooked.run(bad()).error
    hooked.slurm = slurm
    assert hooked.run(bad()).carried_out


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
def test_what_has_passed_since_or_was_before_a_reboot_is_not_told(hooked: Hooked, boot: str) -> None:
    hooked.cluster.unreachable = True
    hooked.run(bad())
    hooked.cluster.unreachable = False
    hooked.boot = boot
    hooked.run(good() if boot == "boot-1" else Finding(check="clock.offset", outcome=Outcome.PASS))
    assert not hooked.reason
    assert hooked.log.names[-1] == "fault_gone"
    assert hooked.file.load().pending is None


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


def test_who_may_not_administer_reports_it(cluster: FakeCluster, tmp_path: Path) -> None:
    hooked = Hooked(cluster, tmp_path)
    hooked.slurm = FakeSlurm(cluster, operator=False)
    done = hooked.run(bad())
    assert "Invalid user id" in done.error
    assert not hooked.reason


# -- suspicions -------------------------------------------------------------------------------------------


def test_a_suspect_that_passes_is_acquitted_and_stays_in_service(hooked: Hooked) -> None:
    hooked.run(good(), hint=HINT)
    assert hooked.log.written == [
        ("acquitted", {"job": 7, "suspected": "silent for 3 s", "symptom": "node lost"})
    ]
    assert not hooked.reason
    assert not hooked.file.exists()


def test_a_suspect_that_fails_is_drained_with_what_was_measured(hooked: Hooked) -> None:
    hooked.run(bad(), hint=HINT, job="7")
    assert hooked.reason == "srobust: gpu3 XID 79"
    ((event, facts),) = hooked.log.written
    assert (event, facts["job"]) == ("drained", "7")


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
