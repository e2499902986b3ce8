"""Repairs: what is done by what failed, how often, and that nothing returns that was not proven."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slurm_robust.admin.deep_check import Examination
from slurm_robust.admin.gpu_reset import reset
from slurm_robust.admin.quarantine import Quarantine, QuarantineResult, job_test
from slurm_robust.admin.repair import (
    WEEK_S,
    Repairer,
    RepairJournal,
    RepairKind,
    RepairStep,
    has_booted,
    is_left_by_us,
    outlook,
    plan,
)
from slurm_robust.config.node import Repair
from slurm_robust.kernel.recovery import Recovery
from slurm_robust.model.findings import Finding, Outcome, Suggestion
from slurm_robust.nodes.gpus.facts import Gpu, GpuError, GpuFacts
from slurm_robust.slurm.errors import CommandFailed
from slurm_robust.slurm.process import CompletedCommand
from slurm_robust.slurm.records import SlurmNode
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_slurm import FakeSlurm
from tests.builders import records
from tests.unit.admin.test_quarantine import REASON, Ward, found

NOW = 1_000_000.0


def bad(suggestion: Suggestion, check: str = "gpu.xid", subject: str = "gpu3") -> Finding:
    return Finding(check=check, outcome=Outcome.FAIL, subject=subject, text="bad", suggestion=suggestion)


RESET, REBOOT, REPLACE = map(bad, (Suggestion.RESET, Suggestion.REBOOT, Suggestion.REPLACE))
FABRIC = bad(Suggestion.RESET, "infiniband.state", "mlx5_0/1")
UNKNOWN = msgspec.structs.replace(REBOOT, outcome=Outcome.UNKNOWN)


def ordered(kind: RepairKind, ago_s: float = 60.0) -> RepairStep:
    return RepairStep(t=NOW - ago_s, step="ordered", kind=kind)


@pytest.mark.parametrize(
    ("causes", "journal", "kind"),
    [
        ((RESET,), (), RepairKind.RESET),
        ((REBOOT,), (), RepairKind.REBOOT),
        ((RESET, REBOOT), (), RepairKind.REBOOT),
        ((REPLACE,), (), None),
        ((REBOOT, REPLACE), (), None),
        ((), (), None),
        ((UNKNOWN,), (), None),
        ((UNKNOWN, RESET), (), RepairKind.RESET),
        ((FABRIC,), (), None),
        ((RESET, FABRIC), (), None),
        ((bad(Suggestion.RESET, subject="0000:1b:00.0"),), (), None),
        ((bad(Suggestion.RESET, subject=""),), (), None),
        ((RESET,), (ordered(RepairKind.RESET),), RepairKind.REBOOT),
        ((RESET,), (ordered(RepairKind.RESET, WEEK_S + 1),), RepairKind.RESET),
        ((RESET,), (ordered(RepairKind.REBOOT),), RepairKind.RESET),
        ((REBOOT,), (ordered(RepairKind.REBOOT), ordered(RepairKind.RESET)), None),
        ((REBOOT,), (ordered(RepairKind.REBOOT), ordered(RepairKind.REBOOT, WEEK_S + 1)), RepairKind.REBOOT),
        ((REBOOT,), (ordered(RepairKind.REBOOT, -500.0), ordered(RepairKind.REBOOT)), None),
        ((REBOOT,), (RepairStep(t=NOW, step="done", kind=RepairKind.REBOOT),) * 5, RepairKind.REBOOT),
    ],
)
def test_what_failed_and_what_was_done_say_what_is_done(
    causes: tuple[Finding, ...], journal: tuple[RepairStep, ...], kind: RepairKind | None
) -> None:
    planned = plan(causes, journal, Repair(), NOW)
    assert planned.kind is kind
    assert planned.why
    assert planned.gpus == (("gpu3",) if kind is RepairKind.RESET else ())


def test_nothing_is_done_where_nothing_may_be() -> None:
    assert plan((REBOOT,), (), Repair(most_per_week=0), NOW).kind is None


@pytest.mark.parametrize(
    ("states", "before", "boot", "booted"),
    [
        (("IDLE",), 100.0, 200.0, True),
        (("IDLE", "DRAIN"), 100.0, 200.0, True),
        (("IDLE",), 100.0, 101.0, False),  # slurmd has computed it anew
        (("IDLE",), 100.0, 100.0, False),
        (("IDLE",), None, 200.0, False),
        (("IDLE",), 100.0, None, False),
        (("DOWN",), 100.0, 200.0, False),
        (("IDLE", "NOT_RESPONDING"), 100.0, 200.0, False),
        (("IDLE", "REBOOT_ISSUED"), 100.0, 200.0, False),
        (("IDLE", "REBOOT_REQUESTED"), 100.0, 200.0, False),
    ],
)
def test_a_boot_is_proven_by_its_time_and_by_the_node_that_is_back(
    states: tuple[str, ...], before: float | None, boot: float | None, booted: bool
) -> None:
    node = records.node(*states)
    assert has_booted(before, node, boot) is booted


@pytest.mark.parametrize(
    ("reason", "ours"),
    [
        (f"{REASON} : reboot issued", True),
        (f"{REASON} : reboot issued : reboot complete", True),
        (f"{REASON} : Not responding", True),
        (REASON, False),  # nothing to put right
        (f"{REASON} : reboot issued; NHC: check_hw_gpu", False),
        (f"{REASON} : reboot issued : alice looks at it", False),
        ("srobust: gpu1 XID 48 : reboot issued", False),
        (f"k8s: cordon: x; {REASON} : reboot issued", False),
        ("alice : reboot issued", False),
    ],
)
def test_only_what_a_reboot_makes_slurm_add_is_put_right(reason: str, ours: bool) -> None:
    node = records.node("IDLE", "DRAIN", reason=reason)
    assert (
        is_left_by_us(node, RepairStep(t=0.0, step="ordered", kind=RepairKind.REBOOT, reason=REASON)) is ours
    )


# -- the whole -------------------------------------------------------------------------------------------


class FakeRepairActions:
    """Reboots take 60 s of the cluster's clock; what else happens the test says."""

    def __init__(self, ward: Ward) -> None:
        self.ward = ward
        self.done: list[str] = []
        self.back_s: float | None = 60.0
        self.wrong = ""
        self.on_reboot: Callable[[str], None] = lambda node: None
        self._due: dict[str, float] = {}

    def boot_time(self, node: str) -> float | None:
        due = self._due.get(node)
        return due if due is not None and self.ward.cluster.clock.time() >= due else 100.0

    def reboot(self, node: str) -> None:
        self.done.append(f"reboot {node}")
        assert "MAINTENANCE" in self.ward.cluster.seen(node).states  # nobody else gets it meanwhile
        if self.back_s is not None:
            self._due[node] = self.ward.cluster.clock.time() + self.back_s
        self.on_reboot(node)

    def cancel_reboot(self, node: str) -> None:
        self.done.append(f"cancel {node}")

    def reset_gpus(self, node: str, reservation: str, gpus: Sequence[str]) -> str:
        self.done.append(f"reset {node} {','.join(gpus)}")
        return self.wrong


class Shop:
    """A ward with a repairer."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.ward = Ward(folder)
        self.folder = folder / "repair"
        self.hands = FakeRepairActions(self.ward)
        self.config = Repair(mode="act", **config)
        self.ward.slurm.drain(["n1"], REASON)

    def answers(self, *found: Examination) -> None:
        """Of one test after the other; the last one stays."""
        every = itertools.chain(found, itertools.repeat(found[-1]))
        self.ward.answer = lambda _: next(every)

    def run(self, *names: str) -> dict[str, QuarantineResult]:
        ward = self.ward
        clock: dict[str, Any] = {"clock": ward.cluster.clock.time, "pause": ward.cluster.clock.sleep}
        repairer = Repairer(ward.slurm, self.hands, self.config, ward.log, self.folder, **clock)
        repairer.go_on(ward.slurm.nodes())
        quarantine = Quarantine(
            ward.slurm, job_test(ward.slurm, None), ward.log, ward.notes, runs=1, remedy=repairer, **clock
        )
        results = quarantine.run(names)
        for result in results:
            repairer.finish(result)
        return {result.node: result for result in results}

    @property
    def steps(self) -> list[str]:
        return [step.step for step in RepairJournal(self.folder, "n1").steps]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.mark.parametrize(("cause", "done"), [(RESET, "reset n1 gpu3"), (REBOOT, "reboot n1")])
def test_a_node_that_passes_after_its_repair_returns(shop: Shop, cause: Finding, done: str) -> None:
    shop.answers(found(cause), found())
    assert shop.run()["n1"].returned
    assert shop.hands.done == [done]
    assert shop.steps == ["ordered", "done", "returned"]
    assert (shop.ward.reason("n1"), shop.ward.slurm.reservations()) == ("", ())
    assert shop.ward.log.names == ["repair_ordered", "repair_done", "quarantine_returned"]


@pytest.mark.parametrize("passed", [True, False])
def test_a_node_that_has_forgotten_everything_must_be_seen_to_pass_what_failed(
    shop: Shop, passed: bool
) -> None:
    other = Finding(check="gpu.xid" if passed else "gpu.nvlink", outcome=Outcome.PASS, subject="gpu3")
    after = found(reasons=())
    unknown = Finding(check="clock.sync", outcome=Outcome.UNKNOWN)
    report = msgspec.structs.replace(after.report, findings=(other, unknown))
    forgot = msgspec.structs.replace(after, report=report)
    shop.answers(found(REBOOT), forgot)
    result = shop.run()["n1"]
    assert result.returned is passed
    assert passed or "not proven: gpu.xid gpu3" in result.why


def test_a_node_that_fails_again_stays_drained_and_is_not_repaired_twice_in_a_run(shop: Shop) -> None:
    shop.answers(found(RESET))
    assert not shop.run()["n1"].returned
    assert shop.hands.done == ["reset n1 gpu3"]
    assert shop.steps == ["ordered", "done", "kept"]
    assert shop.ward.reason("n1") == "srobust: quarantine: gpu3 bad"


def test_after_a_reset_that_did_not_help_comes_a_reboot_and_then_a_person(shop: Shop) -> None:
    after = found(RESET, reasons=(REASON, "srobust: quarantine: gpu3 bad"))
    shop.answers(found(RESET), after)
    for _ in range(4):
        result = shop.run()["n1"]
    assert shop.hands.done == ["reset n1 gpu3", "reboot n1"]
    assert "no more (repair.most_per_week)" in result.why


@pytest.mark.parametrize(("left_s", "done"), [(20.0, ["reboot n1"]), (3600.0, [])])
@pytest.mark.parametrize("held", [{"allocated_cpus": 8}, {"states": frozenset({"IDLE", "COMPLETING"})}])
def test_a_test_that_still_holds_its_node_is_waited_for(
    shop: Shop, held: dict[str, Any], left_s: float, done: list[str]
) -> None:
    """Its srun has ended. CPUs were seen so on 24.11 on a busy machine; every epilog shows COMPLETING."""
    clock = shop.ward.cluster.clock

    class Slow(FakeSlurm):
        ended = float("inf")

        def run(self, request: SubmitRequest, timeout_s: float) -> CompletedCommand:
            Slow.ended = min(Slow.ended, clock.time() + left_s)
            return super().run(request, timeout_s)

        def node(self, name: str) -> SlurmNode:
            seen = super().node(name)
            is_held = Slow.ended - left_s <= clock.time() < Slow.ended
            return msgspec.structs.replace(seen, **held) if is_held else seen

    shop.ward.slurm = Slow(shop.ward.cluster, user="root")
    shop.answers(found(REBOOT), found())
    result = shop.run()["n1"]
    assert shop.hands.done == done
    assert result.returned is bool(done)
    assert done or "not repaired: a job is still on it" in result.why


def test_a_good_node_needs_nothing(shop: Shop) -> None:
    shop.answers(found())
    assert shop.run()["n1"].returned
    assert (shop.hands.done, shop.steps) == ([], [])


@pytest.mark.parametrize("back_s", [None, 3600.0])
def test_a_node_that_does_not_come_back_in_time_stays_drained(shop: Shop, back_s: float | None) -> None:
    shop.hands.back_s = back_s
    shop.answers(found(REBOOT), found())
    result = shop.run()["n1"]
    assert not result.returned
    assert "has not come back within 1800 s" in result.why
    assert shop.hands.done == ["reboot n1", "cancel n1"]
    assert shop.steps == ["ordered", "failed", "kept"]
    assert shop.ward.reason("n1").startswith("srobust: quarantine: ")
    assert shop.ward.slurm.reservations() == ()


def test_a_reset_that_the_driver_does_not_confirm_was_in_vain(shop: Shop) -> None:
    shop.hands.wrong = "gpu3 still wants: reboot"
    shop.answers(found(RESET), found())
    assert "reset failed: gpu3 still wants: reboot" in shop.run()["n1"].why
    assert shop.steps == ["ordered", "failed", "kept"]


@pytest.mark.parametrize(
    "reason",
    ["disk, alice", "Kill task failed", f"Epilog error; {REASON}", f"{REASON} OPS-4711", "k8s: cordon: x"],
)
@pytest.mark.parametrize("names", [(), ("n1",)])
def test_what_is_not_wholly_ours_is_not_repaired(shop: Shop, reason: str, names: tuple[str, ...]) -> None:
    shop.ward.slurm.resume(["n1"])
    shop.ward.slurm.drain(["n1"], reason)
    shop.answers(found(REBOOT))
    shop.run(*names)
    assert (shop.hands.done, shop.ward.reason("n1")) == ([], reason)


def test_who_drains_the_node_during_the_test_keeps_it_as_it_is(shop: Shop) -> None:
    def cordoned(node: str) -> Examination:
        shop.ward.slurm.drain([node], "k8s: cordon: node condition GpuXidError")
        return found(REBOOT)

    shop.ward.answer = cordoned
    shop.run()
    assert (shop.hands.done, shop.ward.reason("n1")) == ([], "k8s: cordon: node condition GpuXidError")


def test_a_killed_run_leaves_nobody_an_untested_node_and_the_next_goes_on(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(_: str) -> None:
        raise Killed

    shop.hands.on_reboot = killed
    shop.answers(found(REBOOT), found())
    with monkeypatch.context() as sigkill:
        sigkill.setattr(shop.ward.slurm, "drain", lambda *_: killed(""))  # nothing is cleaned up
        with pytest.raises(Killed):
            shop.run()
    assert shop.steps == ["ordered"]
    assert shop.ward.slurm.reservations() != ()
    (one,) = outlook([shop.ward.slurm.node("n1")], shop.folder, shop.config, shop.ward.cluster.clock.time())
    assert "reboot ordered at" in one.open
    shop.ward.cluster.clock.advance(120)
    assert shop.run()["n1"].returned
    assert shop.hands.done == ["reboot n1"]
    assert shop.steps == ["ordered", "returned"]


def test_what_slurm_added_during_a_reboot_that_was_cut_off_is_put_right(shop: Shop) -> None:
    clock = shop.ward.cluster.clock.time
    RepairJournal(shop.folder, "n1").add(
        RepairStep(
            t=clock(), step="ordered", kind=RepairKind.REBOOT, reason=REASON, boot=50.0, why="gpu.xid gpu3"
        )
    )
    shop.ward.slurm.resume(["n1"])
    shop.ward.slurm.drain(["n1"], f"{REASON} : reboot issued : reboot complete")
    shop.ward.cluster.clock.advance(5)
    shop.answers(found())
    assert shop.run()["n1"].returned
    assert shop.steps == ["ordered", "resumed", "returned"]


def test_who_cannot_count_repairs_does_none(shop: Shop) -> None:
    shop.folder.mkdir()
    (shop.folder / "n1.json").write_text("[{")
    shop.answers(found(REBOOT))
    assert "is damaged" in shop.run()["n1"].why
    assert shop.hands.done == []


def test_a_slurm_that_refuses_the_order_is_said(shop: Shop) -> None:
    def refuses(_: str) -> None:
        raise CommandFailed("scontrol reboot: Access/permission denied")

    shop.hands.on_reboot = refuses
    shop.answers(found(REBOOT))
    assert "permission denied" in shop.run()["n1"].why
    assert shop.steps == ["ordered", "failed", "kept"]


def test_an_outlook_touches_nothing(shop: Shop) -> None:
    shop.ward.slurm.drain(["n2"], "disk, alice")
    nodes = shop.ward.slurm.nodes(["n1", "n2"])
    one, two = outlook(nodes, shop.folder, shop.config, NOW)
    assert (one.obstacle, one.left, one.open) == ("", 2, "")
    assert "not drained by srobust" in two.obstacle
    assert not shop.folder.exists()


# -- the reset itself ------------------------------------------------------------------------------------


def gpus(*found: Gpu) -> Callable[[], GpuFacts]:
    """What the driver says before and after."""
    facts = iter([GpuFacts(gpus=(Gpu(index=3, bus="0000:1b:00.0"),)), GpuFacts(gpus=found)])
    return lambda: next(facts)


GOOD = Gpu(index=3, bus="0000:1b:00.0", recovery=Recovery.NONE)


@pytest.mark.parametrize(
    ("after", "wrong"),
    [
        ((GOOD,), ""),
        ((msgspec.structs.replace(GOOD, recovery=None),), ""),  # an older driver does not say
        ((msgspec.structs.replace(GOOD, recovery=Recovery.REBOOT),), "gpu3 still wants: reboot"),
        ((msgspec.structs.replace(GOOD, recovery=Recovery.UNKNOWN),), "gpu3 still wants: unknown"),
        (
            (msgspec.structs.replace(GOOD, trouble=next(iter(GpuError)), error="lost"),),
            "does not answer: lost",
        ),
        ((), "has not come back"),
    ],
)
def test_a_reset_is_proven_by_what_the_driver_says_afterwards(after: tuple[Gpu, ...], wrong: str) -> None:
    buses: list[str] = []

    def act(gpu: Gpu) -> str:
        buses.append(gpu.bus)
        return ""

    done = reset(["gpu3"], gpus(*after), act)
    assert buses == ["0000:1b:00.0"]
    assert wrong in done.wrong
    assert bool(done.wrong) is bool(wrong)


@pytest.mark.parametrize(
    ("label", "facts", "wrong"),
    [
        ("gpu9", GpuFacts(gpus=(GOOD,)), "does not list gpu9"),
        ("gpu3", GpuFacts(gpus=(msgspec.structs.replace(GOOD, vendor="amd"),)), "nvidia-smi cannot reset"),
        ("gpu3", GpuFacts(gpus=(msgspec.structs.replace(GOOD, bus=""),)), "nvidia-smi cannot reset"),
    ],
)
def test_a_gpu_that_cannot_be_reset_is_left_alone(label: str, facts: GpuFacts, wrong: str) -> None:
    assert wrong in reset([label], lambda: facts, lambda gpu: pytest.fail(gpu.label)).wrong


def test_the_first_gpu_that_refuses_ends_it() -> None:
    both = GpuFacts(gpus=(GOOD, Gpu(index=4, bus="0000:2b:00.0")))
    asked: list[str] = []

    def refuses(gpu: Gpu) -> str:
        asked.append(gpu.label)
        return "is in use"

    assert reset(["gpu3", "gpu4"], lambda: both, refuses).wrong == "gpu3: is in use"
    assert asked == ["gpu3"]
