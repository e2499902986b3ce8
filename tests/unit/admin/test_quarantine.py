"""Nodes in quarantine: in service only after a test that passed, whatever happens in between."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from slurm_robust.admin.deep_check import Examination
from slurm_robust.admin.quarantine import (
    CUT_OFF,
    PREFIX,
    NoNotes,
    Quarantine,
    QuarantineResult,
    QuarantineRuns,
    job_test,
    obstacle_of,
)
from slurm_robust.hooks.record import DrainCause
from slurm_robust.model.findings import Finding, Outcome, Suggestion
from slurm_robust.nodes.check import CheckContext
from slurm_robust.nodes.verdict import Report
from slurm_robust.slurm.process import CompletedCommand
from slurm_robust.slurm.records import Reservation
from slurm_robust.slurm.requests import ReservationRequest, SubmitRequest
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurm import FakeSlurm
from tests.builders import records
from tests.unit.hooks.hook_node import Events
from tests.users import as_another_user

REASON = "srobust: gpu3 XID 79"
XID = Finding(
    check="gpu.xid", outcome=Outcome.FAIL, subject="gpu3", text="XID 79", suggestion=Suggestion.REPLACE
)


def found(
    *causes: Finding, still_open: tuple[DrainCause, ...] = (), reasons: tuple[str, ...] = (REASON,)
) -> Examination:
    findings = causes or (Finding(check="gpu.xid", outcome=Outcome.PASS, subject="gpu3"),)
    reason = f"srobust: {causes[0].subject} {causes[0].text}" if causes else ""
    report = Report(
        node="n1",
        at=1.0,
        boot_id="b",
        context=CheckContext.DEEP,
        findings=findings,
        reason=reason,
        causes=causes,
    )
    return Examination(
        fit=report.fit,
        report=report,
        reasons=reasons,
        remembered=bool(still_open),
        open=still_open,
        serials={"product_serial": "42"},
    )


class Ward:
    """A cluster with a quarantine whose tests answer what the test says."""

    def __init__(self, folder: Path) -> None:
        self.cluster = FakeCluster()
        self.slurm = FakeSlurm(self.cluster, user="root")
        self.log, self.notes = Events(), folder / "quarantine"
        self.answer: Callable[[str], Examination | CompletedCommand] = lambda node: found()
        self.seen: list[tuple[str, frozenset[str]]] = []
        self.cluster.programs = self._program

    def _program(self, request: SubmitRequest, nodes: tuple[str, ...]) -> CompletedCommand:
        (node,) = nodes
        self.seen.append((node, self.cluster.seen(node).states))
        answer = self.answer(node)
        if isinstance(answer, CompletedCommand):
            return answer
        return CompletedCommand(
            command=request.command, exit_code=0, stdout=msgspec.json.encode(answer).decode(), stderr=""
        )

    def run(self, *nodes: str, runs: int = 1) -> dict[str, QuarantineResult]:
        quarantine = Quarantine(
            self.slurm,
            job_test(self.slurm, None),
            self.log,
            self.notes,
            runs=runs,
            clock=self.cluster.clock.time,
            pause=self.cluster.clock.sleep,
        )
        return {result.node: result for result in quarantine.run(nodes)}

    def reason(self, name: str) -> str:
        node = self.cluster.seen(name)
        return node.reason if node.is_drained else ""


@pytest.fixture
def ward(tmp_path: Path) -> Ward:
    return Ward(tmp_path)


def test_a_good_node_returns_and_a_bad_one_stays_with_new_evidence(ward: Ward) -> None:
    ward.slurm.drain(["n1", "n3"], REASON)
    ward.answer = lambda node: found(XID) if node == "n3" else found()
    results = ward.run(runs=2)
    assert {name: result.returned for name, result in results.items()} == {"n1": True, "n3": False}
    assert (ward.reason("n1"), ward.reason("n3")) == ("", "srobust: quarantine: gpu3 XID 79")
    assert [node for node, _ in ward.seen] == ["n1", "n1", "n3"]
    assert all("MAINTENANCE" in states for _, states in ward.seen)
    assert results["n3"].evidence == (XID,)
    assert results["n3"].serials == {"product_serial": "42"}
    assert ward.slurm.reservations() == ()
    assert ward.log.names == ["quarantine_returned", "quarantine_kept"]


def test_what_failed_must_have_been_seen_to_pass(ward: Ward) -> None:
    ward.slurm.drain(["n1"], REASON)
    ward.answer = lambda _: found(still_open=(DrainCause(check="gpu.xid", subject="gpu3"),))
    assert not ward.run()["n1"].returned
    assert ward.reason("n1") == "srobust: quarantine: not proven: gpu.xid gpu3"


def test_a_reason_that_a_person_has_changed_stays_and_keeps_the_node(ward: Ward) -> None:
    reason = f"{REASON} OPS-4711 keep for vendor"
    ward.slurm.drain(["n1"], reason)
    for names in ([], ["n1"]):
        result = ward.run(*names)["n1"]
        assert not result.returned
        assert "a person keeps it" in result.why
        assert "scontrol update nodename=n1 state=resume" in result.why
        assert ward.reason("n1") == reason
    assert ward.slurm.reservations() == ()


def test_a_reason_that_the_node_does_not_remember_may_be_a_person_s_unless_it_is_named(ward: Ward) -> None:
    ward.slurm.drain(["n1"], REASON)
    ward.answer = lambda _: found(reasons=())
    result = ward.run()["n1"]
    assert (result.returned, ward.reason("n1")) == (False, REASON)
    assert "srobust admin quarantine n1" in result.why
    assert ward.run("n1")["n1"].returned
    assert ward.reason("n1") == ""


def test_the_next_quarantine_knows_the_reason_of_the_one_before(ward: Ward) -> None:
    ward.slurm.drain(["n1"], REASON)
    ward.answer = lambda _: found(XID)
    reason = ward.run()["n1"].drained
    assert ward.reason("n1") == reason == "srobust: quarantine: gpu3 XID 79"
    ward.answer = lambda _: found(reasons=(REASON, reason))
    assert ward.run()["n1"].returned


@pytest.mark.parametrize("remembered", [False, True])
def test_a_node_that_forgot_its_fault_must_not_have_anything_unknown(ward: Ward, remembered: bool) -> None:
    ward.slurm.drain(["n1"], REASON)
    unknown = Finding(check="gpu.ecc", outcome=Outcome.UNKNOWN)
    good = found()
    report = msgspec.structs.replace(good.report, findings=(*good.report.findings, unknown))
    answer = msgspec.structs.replace(good, report=report, remembered=remembered)
    ward.answer = lambda _: answer
    assert ward.run()["n1"].returned is remembered


def test_without_an_answer_the_old_reason_stays(ward: Ward) -> None:
    ward.slurm.drain(["n1"], REASON)
    ward.answer = lambda _: CompletedCommand(command=("x",), exit_code=1, stdout="", stderr="no such file")
    result = ward.run()["n1"]
    assert "no such file" in result.why
    assert ward.reason("n1") == REASON
    assert ward.slurm.reservations() == ()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_quarantine_puts_no_untested_node_into_service(
    ward: Ward, error: type[BaseException]
) -> None:
    ward.slurm.drain(["n1"], REASON)

    def interrupted(_: str) -> Examination:
        raise error

    ward.answer = interrupted
    with pytest.raises(error):
        ward.run()
    assert ward.reason("n1") == REASON
    assert ward.slurm.reservations() == ()


def test_what_a_killed_run_left_is_finished_and_tested(ward: Ward) -> None:
    reserve(ward, "n2")
    ward.notes.mkdir()
    (ward.notes / f"{PREFIX}n2").touch()
    ward.answer = lambda _: found(XID)
    results = ward.run()
    assert not results["n2"].returned
    assert results["n2"].reason == CUT_OFF
    assert ward.reason("n2") == "srobust: quarantine: gpu3 XID 79"
    assert ward.slurm.reservations() == ()
    assert sorted(path.name for path in ward.notes.iterdir()) == ["lock"]


def test_a_test_that_was_cut_off_gives_the_node_its_reason_back(ward: Ward) -> None:
    reason = f"{REASON} OPS-4711"
    ward.slurm.drain(["n2"], reason)

    class Killed(BaseException):
        pass

    class Dying(FakeSlurm):
        def drain(self, nodes: Sequence[str], reason: str) -> None:
            raise Killed

    def killed(_: str) -> Examination:
        raise Killed

    ward.answer = killed
    healthy, ward.slurm = ward.slurm, Dying(ward.cluster, user="root")
    with pytest.raises(Killed):
        ward.run()
    assert ward.reason("n2") == ""
    ward.slurm, ward.answer = healthy, lambda _: found()
    assert ward.run()["n2"].reason == reason
    assert ward.reason("n2") == reason


def test_a_test_that_still_runs_is_ended_before_its_reservation_goes(ward: Ward) -> None:
    reserve(ward, "n2")
    ward.notes.mkdir()
    (ward.notes / f"{PREFIX}n2").touch()
    job = ward.slurm.submit(SubmitRequest(command=("x",), nodes=1, reservation=PREFIX + "n2"))
    assert ward.slurm.job(job).is_running
    ward.run()
    assert "CANCELLED" in ward.slurm.job(job).states
    assert ward.slurm.reservations() == ()


@pytest.mark.parametrize(("age_s", "finished"), [(3599.0, False), (3601.0, True)])
def test_a_run_on_another_host_is_left_alone_for_an_hour(ward: Ward, age_s: float, finished: bool) -> None:
    reserve(ward, "n2")
    ward.cluster.clock.advance(age_s)
    ward.run()
    assert bool(ward.slurm.reservations()) is not finished


def test_of_two_hosts_that_begin_at_once_one_tests_the_node(ward: Ward) -> None:
    ward.slurm.drain(["n1"], REASON)

    class Late(FakeSlurm):
        def reservations(self) -> tuple[Reservation, ...]:
            return ()

    reserve(ward, "n1")
    ward.slurm = Late(ward.cluster, user="root")
    assert ward.run()["n1"].why == "it is being tested from another host"
    assert ward.reason("n1") == REASON
    assert list(ward.cluster.reservations) == [PREFIX + "n1"]


def reserve(ward: Ward, name: str) -> None:
    """As a quarantine that died after the resume."""
    request = ReservationRequest(name=PREFIX + name, nodes=(name,), users=("root",), flags=("MAINT",))
    ward.slurm.create_reservation(request)


def test_only_one_quarantine_runs_on_a_host(ward: Ward) -> None:
    ward.notes.mkdir()
    fd = os.open(ward.notes / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(QuarantineRuns):
        ward.run()
    os.close(fd)
    assert ward.run() == {}


def test_an_ordinary_user_is_refused_since_it_needs_root(ward: Ward) -> None:
    ward.slurm.drain(["n1"], REASON)
    ward.notes.parent.chmod(0o500)
    try:
        with as_another_user(), pytest.raises(NoNotes, match="cannot be written: Permission denied") as error:
            ward.run()
    finally:
        ward.notes.parent.chmod(0o700)
    assert "run it as root" in error.value.fix
    assert ward.cluster.seen("n1").reason == REASON


def test_an_administrators_drain_is_not_tested_even_when_named(ward: Ward) -> None:
    ward.slurm.drain(["n1"], "disk, alice")
    assert not ward.run("n1")["n1"].returned
    assert ward.run() == {}
    assert ward.reason("n1") == "disk, alice"
    assert ward.seen == []


@pytest.mark.parametrize(
    "reason",
    [
        f"Epilog error; {REASON}",
        f"Epilog error & {REASON}",
        f"{REASON} : Not responding",
        f"{REASON} : reboot issued : reboot complete",
        f"{REASON}; NHC: check_hw_gpu: 7 of 8 GPUs",
        f"NHC: check_hw_gpu: 7 of 8 GPUs, {REASON}",
        f"k8s: cordon: node condition GpuXidError; {REASON}",
        f"alice keeps this; {REASON}",
    ],
)
@pytest.mark.parametrize("named", [False, True])
def test_a_drain_in_which_others_have_a_part_is_said_and_stays(ward: Ward, reason: str, named: bool) -> None:
    ward.slurm.drain(["n1"], reason)
    ward.answer = lambda _: found(reasons=())
    result = ward.run(*["n1"] * named)["n1"]
    assert (result.returned, "others have a part in its drain" in result.why) == (False, True)
    assert (ward.reason("n1"), ward.seen) == (reason, [])


@pytest.mark.parametrize("good", [False, True])
def test_a_drain_by_others_during_the_test_stays_theirs(ward: Ward, good: bool) -> None:
    ward.slurm.drain(["n1"], REASON)

    def cordoned(node: str) -> Examination:
        ward.slurm.drain([node], "k8s: cordon: node condition GpuXidError")
        return found(*[XID] * (not good))

    ward.answer = cordoned
    result = ward.run()["n1"]
    assert not result.returned
    assert "drained by others during the test" in result.why
    assert ward.reason("n1") == "k8s: cordon: node condition GpuXidError"
    assert ward.slurm.reservations() == ()


@pytest.mark.parametrize(
    ("states", "more", "obstacle"),
    [
        (("IDLE", "DRAIN"), {}, ""),
        (("IDLE", "DRAIN"), {"reason_user": "bob"}, "bob has taken it over"),
        (("DOWN", "DRAIN"), {}, "it is DOWN"),
        (("IDLE", "DRAIN", "MAINTENANCE"), {}, "it is MAINTENANCE"),
        (("IDLE", "DRAIN", "REBOOT_ISSUED"), {}, "REBOOT_ISSUED"),
        (("MIXED", "DRAIN"), {}, "a job is still on it"),
        (("IDLE", "DRAIN"), {"allocated_cpus": 1}, "a job is still on it"),
        (("IDLE", "DRAIN", "NOT_RESPONDING"), {}, "not heard of it"),
        (("IDLE",), {}, "not drained by srobust"),
    ],
)
def test_what_keeps_a_node_from_being_given_back_is_named(
    states: tuple[str, ...], more: dict[str, object], obstacle: str
) -> None:
    fields: dict[str, object] = {"reason": REASON, "reason_user": "root", **more}
    node = records.node(*states, **fields)
    assert obstacle in obstacle_of(node)
    assert bool(obstacle_of(node)) is bool(obstacle)
