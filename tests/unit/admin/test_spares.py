"""The reservation of spares: what is refused and why, what each node of it is worth, how it goes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import structs

from slurm_robust.admin import spares
from slurm_robust.admin.spare_plan import SpareRequirements
from slurm_robust.admin.spares import NAME, TooFewNodes, request_of
from slurm_robust.cli.main import main
from slurm_robust.model.errors import ExitCode
from slurm_robust.slurm import errors
from slurm_robust.slurm.records import Reservation
from slurm_robust.slurm.requests import ReservationRequest, SubmitRequest
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurm import FakeSlurm

FOR_ALICE = request_of(
    NAME, count=2, nodes=(), users=("alice",), accounts=(), partition="main", ignore_jobs=False
)
RATE = SpareRequirements(rate=0.0012)


@pytest.fixture
def slurm() -> FakeSlurm:
    return FakeSlurm(FakeCluster([f"n{i}" for i in range(1, 7)]))


def create(slurm: FakeSlurm, *, apply: bool = True, is_root: bool = True, **changes: Any) -> int:
    request = structs.replace(FOR_ALICE, **changes)
    return spares.create(request, apply=apply, slurm=slurm, is_root=is_root)


def pool(
    slurm: FakeSlurm, capsys: pytest.CaptureFixture[str], wanted: SpareRequirements = RATE
) -> tuple[int, Any]:
    capsys.readouterr()
    code = spares.status(NAME, wanted, json=True, slurm=slurm)
    return code, json.loads(capsys.readouterr().out)


def states(found: Any) -> dict[str, str]:
    return {spare["node"]: spare["state"] for spare in found["spares"]}


def train(slurm: FakeSlurm, nodes: int = 1, reservation: str = "") -> int:
    request = SubmitRequest(command=("x",), nodes=nodes, reservation=reservation)
    return FakeSlurm(slurm.cluster, user="alice").submit(request)


# -- create -----------------------------------------------------------------------------------------------


def test_without_apply_nothing_is_done(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    assert create(slurm, apply=False) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("scontrol create reservation reservationname=srobust_spares starttime=now")
    assert "nodecnt=2 users=alice flags=REPLACE_DOWN partition=main" in shown
    assert "Slurm keeps 2 of the 6 nodes that are available now for the users alice" in shown
    assert "--reservation=srobust_spares" in shown
    assert "Nothing was done; --apply does it." in shown
    assert slurm.reservations() == ()


def test_slurm_chooses_and_replaces_the_nodes(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    create(slurm)
    (made,) = slurm.reservations()
    assert (made.name, made.node_count, made.users, made.partition) == (NAME, 2, ("alice",), "main")
    assert made.flags == {"REPLACE_DOWN"}
    assert "srobust_spares holds n[1-2]" in capsys.readouterr().out
    slurm.cluster.node_down("n1")
    assert slurm.reservations()[0].nodes == ("n2", "n3")


def test_named_nodes_are_not_replaced(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    create(slurm, apply=False, nodes=("n5", "n6"), node_count=None, flags=())
    assert "Slurm replaces none that fails" in capsys.readouterr().out
    create(slurm, nodes=("n5", "n6"), node_count=None, flags=())
    slurm.cluster.node_down("n5")
    code, found = pool(slurm, capsys)
    assert (code, states(found), found["replaced"]) == (1, {"n5": "down", "n6": "ready"}, False)


@pytest.mark.parametrize("apply", [False, True])
@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"node_count": 7}, TooFewNodes, "partition main has 6 nodes, and 7 are asked for"),
        ({"partition": "", "node_count": 7}, TooFewNodes, "the cluster has 6 nodes"),
        ({"partition": "nope"}, errors.InvalidPartition, "no partition nope; there are: main"),
        ({"nodes": ("n6", "n9"), "node_count": None}, errors.InvalidNode, "n9: no node of partition main"),
        ({"name": "other"}, errors.ReservationExists, "a reservation other already"),
    ],
)
def test_what_cannot_be_is_refused_before_slurm_is_asked(
    slurm: FakeSlurm, changes: dict[str, Any], error: type[Exception], text: str, apply: bool
) -> None:
    other = ReservationRequest(name="other", node_count=1, users=("root",))
    slurm.create_reservation(other)
    with pytest.raises(error, match=text):
        create(slurm, apply=apply, **changes)
    assert [made.name for made in slurm.reservations()] == ["other"]


@pytest.mark.parametrize("apply", [False, True])
def test_too_few_free_nodes(slurm: FakeSlurm, apply: bool) -> None:
    train(slurm, 4)
    slurm.drain(["n6"], "test")
    with pytest.raises(errors.NodesBusy, match=r"^2 are asked for: of 6 nodes .* 5 are .* 1 of") as busy:
        create(slurm, apply=apply)
    assert "--ignore-jobs" in busy.value.fix
    create(slurm, apply=apply, node_count=1)


def test_named_nodes_that_others_have(slurm: FakeSlurm) -> None:
    train(slurm, 1)
    with pytest.raises(errors.NodesBusy, match="n1 cannot be reserved now"):
        create(slurm, nodes=("n1", "n2"), node_count=None, flags=())


def test_nodes_whose_jobs_still_run(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    job = train(slurm, 6)
    flags = ("REPLACE_DOWN", "IGNORE_JOBS")
    create(slurm, apply=False, flags=flags)
    assert "a spare when its job ends" in capsys.readouterr().out
    create(slurm, flags=flags)
    code, found = pool(slurm, capsys)
    assert (code, states(found)) == (1, {"n1": "busy", "n2": "busy"})
    slurm.cluster.finish(job)
    code, found = pool(slurm, capsys)
    assert (code, states(found)) == (0, {"n1": "ready", "n2": "ready"})


class Smaller(FakeSlurm):
    """Others take nodes between the look and the order, in a partition that is too small."""

    def create_reservation(self, request: ReservationRequest) -> None:
        super().create_reservation(structs.replace(request, node_count=1))


def test_fewer_nodes_than_ordered_are_given_back(slurm: FakeSlurm) -> None:
    with pytest.raises(TooFewNodes, match="only 1 nodes for 2 spares"):
        create(Smaller(slurm.cluster))
    assert slurm.reservations() == ()


def test_fewer_nodes_than_ordered_that_a_job_has_already(slurm: FakeSlurm) -> None:
    class Eager(Smaller):
        def reservations(self) -> tuple[Reservation, ...]:
            found = super().reservations()
            if found:
                train(self, 1, NAME)
            return found

    with pytest.raises(TooFewNodes, match="a job uses them already, so srobust_spares stands"):
        create(Eager(slurm.cluster))


def test_of_two_who_create_at_once_one_is_told(slurm: FakeSlurm) -> None:
    class Late(FakeSlurm):
        def reservations(self) -> tuple[Reservation, ...]:
            return ()

    create(slurm)
    with pytest.raises(errors.ReservationExists) as refused:
        create(Late(slurm.cluster))
    assert "another user was faster" in refused.value.in_full()
    assert len(slurm.reservations()) == 1


@pytest.mark.parametrize(
    ("users", "is_root", "text"),
    [
        (("root",), False, "only root and operators"),
        (("no-such-user",), False, "does not know the user no-such-user"),
        (("root",), True, "does not know the user root"),
    ],
)
def test_slurms_invalid_user_id_is_told_apart(users: tuple[str, ...], is_root: bool, text: str) -> None:
    error = spares.not_permitted(errors.PermissionDenied("Invalid user id"), users, is_root=is_root)
    assert text in str(error)


def test_an_ordinary_user_may_not_make_shared_spares(slurm: FakeSlurm) -> None:
    with pytest.raises(errors.PermissionDenied, match="only root and operators"):
        create(FakeSlurm(slurm.cluster, operator=False), is_root=False, users=("root",))


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"users": ("nobody-here",)}, errors.PermissionDenied, "does not know the user nobody-here"),
        ({"accounts": ("nope",)}, errors.InvalidAccount, "does not know the account nope"),
        ({"accounts": ("Users", "root")}, errors.InvalidAccount, "account root does not have the user alice"),
    ],
)
def test_users_and_accounts_that_slurm_does_not_know(
    slurm: FakeSlurm, changes: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        create(slurm, **changes)
    assert slurm.reservations() == ()


def test_spares_that_no_job_could_get_are_pointed_at(
    slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    create(slurm, apply=False, accounts=("root",))
    assert "you, the account root does not have the user alice; with --apply" in capsys.readouterr().out
    create(slurm, apply=False, accounts=("users",))
    assert "sacctmgr" not in capsys.readouterr().out


def test_without_accounting_nobody_can_tell_of_accounts(slurm: FakeSlurm) -> None:
    slurm.cluster.slurmdbd = False
    assert create(slurm, accounts=("nope",)) == 0
    assert slurm.reservations()[0].accounts == ("nope",)


def test_a_user_of_whom_this_host_does_not_know_is_pointed_at(
    slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    create(slurm, apply=False, users=("root", "nobody-here"))
    assert "This host does not know nobody-here" in capsys.readouterr().out


def test_an_order_without_an_answer_may_have_been_carried_out(slurm: FakeSlurm) -> None:
    class Silent(FakeSlurm):
        def create_reservation(self, request: ReservationRequest) -> None:
            super().create_reservation(request)
            raise errors.SlurmTimeout("scontrol gave no answer within 60 s")

    with pytest.raises(errors.SlurmTimeout) as late:
        create(Silent(slurm.cluster))
    assert "it may exist all the same: see 'srobust spares status" in late.value.fix


def test_a_slurmctld_that_is_down(slurm: FakeSlurm) -> None:
    slurm.cluster.unreachable = True
    with pytest.raises(errors.ControllerUnreachable):
        create(slurm)
    with pytest.raises(errors.ControllerUnreachable):
        spares.status(NAME, RATE, json=False, slurm=slurm)
    with pytest.raises(errors.ControllerUnreachable):
        spares.remove(NAME, apply=True, force=False, slurm=slurm)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--count", "2"], "no user may use the spares"),
        (["--users", "a"], "one of the arguments --count --nodes is required"),
        (["--nodes", ",", "--users", "a"], "',' names no node"),
        (["--count", "0", "--users", "a"], "'0' is not a number from 1"),
        (["--count", "2", "--users", "a,-b"], "'-b' is not a valid name"),
        (["--count", "2", "--users", "a", "--name", "x y"], "'x y' is not a valid name"),
        (["--count", "2", "--nodes", "n1", "--users", "a"], "not allowed with"),
    ],
)
def test_wrong_options_for_shared_spares_are_refused(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["spares", "create", *argv]) == ExitCode.USAGE
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("quantile", ["0", "1", "1.5", "nan", "x"])
def test_a_quantile_lies_between_0_and_1(quantile: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spares", "plan", "--nodes", "8", "--quantile", quantile]) == ExitCode.USAGE
    assert "is not a number" in capsys.readouterr().err


# -- status -----------------------------------------------------------------------------------------------


def test_every_node_has_its_state(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    create(slurm, nodes=tuple(slurm.cluster.nodes), node_count=None, flags=())
    job = train(slurm, 2, NAME)
    slurm.drain(["n2"], "OPS-1")
    slurm.drain(["n3"], "OPS-2")
    slurm.cluster.node_down("n4", "Not responding")
    slurm.cluster.set_node("n5", states=frozenset({"IDLE", "POWERED_DOWN"}))
    code, found = pool(slurm, capsys)
    assert code == 1
    assert states(found) == {
        "n1": "in use",
        "n2": "draining",
        "n3": "drained",
        "n4": "down",
        "n5": "powered down",
        "n6": "ready",
    }
    assert (found["size"], found["ready"], found["usable"]) == (6, 1, 2)
    assert found["spares"][0]["job_id"] == job
    assert [spare["reason"] for spare in found["spares"][:4]] == ["", "OPS-1", "OPS-2", "Not responding"]


def test_spares_in_use_are_what_they_are_for(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    create(slurm)
    job = train(slurm, 1, NAME)
    waiting = train(slurm, 2, NAME)
    code, found = pool(slurm, capsys)
    assert (code, found["ready"], found["usable"], found["waiting"]) == (0, 1, 2, [waiting])
    assert spares.status(NAME, RATE, json=False, slurm=slurm) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "ready 1 of 2, 1 in use" in shown
    assert f"n1 in use {job} alice" in shown
    assert f"jobs {waiting} wait for a node of it" in shown


def test_fewer_than_the_plan_asks_for(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    create(slurm)
    assert pool(slurm, capsys, SpareRequirements(rate=0.0012, group=2))[0] == 0
    code, found = pool(slurm, capsys, SpareRequirements(rate=0.0012, group=3))
    assert (code, found["plan"]["spares"], found["plan"]["nodes"]) == (1, 3, 6)
    spares.status(NAME, SpareRequirements(rate=0.0012, group=3), json=False, slurm=slurm)
    assert "3 for 6 nodes: 1 more than there are" in capsys.readouterr().out


def test_no_reservation_has_no_state(slurm: FakeSlurm) -> None:
    with pytest.raises(errors.ReservationNotFound, match="there is no reservation srobust_spares") as missing:
        spares.status(NAME, RATE, json=False, slurm=slurm)
    assert missing.value.exit_code == ExitCode.NO_INPUT


def test_an_end_that_is_near_is_told(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    """Slurm's UNLIMITED is a year."""
    create(slurm)
    made = slurm.cluster.reservations[NAME]

    def shown(ends_in_s: float) -> str:
        now = slurm.cluster.clock.time()
        slurm.cluster.reservations[NAME] = structs.replace(made, end_time=now + ends_in_s)
        spares.status(NAME, RATE, json=False, slurm=slurm, clock=slurm.cluster.clock.time)
        return capsys.readouterr().out

    prolong = "scontrol update reservationname=srobust_spares endtime=now+365days"
    assert prolong in shown(29 * 86400.0)
    assert prolong not in shown(31 * 86400.0)


# -- remove -----------------------------------------------------------------------------------------------


def test_removal_is_shown_and_then_done(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    create(slurm)
    capsys.readouterr()
    assert spares.remove(NAME, apply=False, force=False, slurm=slurm) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("scontrol delete reservationname=srobust_spares\n")
    assert "Nothing was done; --apply does it." in shown
    assert len(slurm.reservations()) == 1
    assert spares.remove(NAME, apply=True, force=False, slurm=slurm) == 0
    assert "srobust_spares is removed; n[1-2] are open to all jobs again" in capsys.readouterr().out
    assert slurm.reservations() == ()


@pytest.mark.parametrize("apply", [False, True])
def test_what_is_gone_needs_no_removal(
    slurm: FakeSlurm, apply: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spares.remove(NAME, apply=apply, force=False, slurm=slurm) == 0
    assert "nothing to remove" in capsys.readouterr().out


def test_deleted_behind_our_back(slurm: FakeSlurm) -> None:
    class Faster(FakeSlurm):
        def delete_reservation(self, name: str) -> None:
            super().delete_reservation(name)
            super().delete_reservation(name)

    create(slurm)
    assert spares.remove(NAME, apply=True, force=False, slurm=Faster(slurm.cluster)) == 0
    assert slurm.reservations() == ()


def test_spares_in_use_are_not_removed(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    create(slurm)
    running, waiting = train(slurm, 2, NAME), train(slurm, 1, NAME)
    spares.remove(NAME, apply=False, force=False, slurm=slurm)
    shown = capsys.readouterr().out
    assert f"Slurm refuses while they run: job {running} of alice. --force cancels them." in shown
    assert f"Slurm holds those that wait in it: job {waiting} of alice." in shown
    with pytest.raises(errors.ReservationInUse, match=f"in use: job {running} of alice") as refused:
        spares.remove(NAME, apply=True, force=False, slurm=slurm)
    assert "--force" in refused.value.fix
    assert slurm.job(running).is_running


def test_force_cancels_the_jobs_in_it_and_no_other(slurm: FakeSlurm) -> None:
    create(slurm)
    running, waiting, other = train(slurm, 2, NAME), train(slurm, 1, NAME), train(slurm, 1)
    clock = slurm.cluster.clock
    code = spares.remove(NAME, apply=True, force=True, slurm=slurm, clock=clock.time, pause=clock.sleep)
    assert code == 0
    assert slurm.reservations() == ()
    assert [slurm.job(job).is_finished for job in (running, waiting, other)] == [True, True, False]


def test_jobs_that_do_not_end_end_the_wait(slurm: FakeSlurm) -> None:
    class Deaf(FakeSlurm):
        def cancel(self, job_id: int, *, step_id: str | None = None, signal: str | None = None) -> None:
            pass

    create(slurm)
    train(slurm, 1, NAME)
    clock = slurm.cluster.clock
    with pytest.raises(errors.ReservationInUse):
        spares.remove(
            NAME, apply=True, force=True, slurm=Deaf(slurm.cluster), clock=clock.time, pause=clock.sleep
        )
    assert len(slurm.reservations()) == 1


def test_only_an_operator_removes(slurm: FakeSlurm) -> None:
    create(slurm)
    with pytest.raises(errors.PermissionDenied):
        spares.remove(NAME, apply=True, force=False, slurm=FakeSlurm(slurm.cluster, operator=False))
