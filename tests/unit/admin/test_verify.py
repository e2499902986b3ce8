"""What ``srobust admin verify`` makes of the live configuration."""

from __future__ import annotations

import os
import pwd
from functools import partial
from pathlib import Path

import pytest

from slurm_robust.admin import verify
from slurm_robust.admin.files import MANIFEST, Tree
from slurm_robust.admin.site import Site
from slurm_robust.config.node import Hooks, NodeConfig
from slurm_robust.slurm.errors import SlurmTimeout, classify
from slurm_robust.slurm.process import CompletedCommand
from slurm_robust.slurm.requests import ReservationRequest
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurm import FakeSlurm
from tests.users import NOBODY, as_root, run_as


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.mark.parametrize(
    ("limit", "periodic_s", "bad"),
    [
        ((), 59.0, []),  # before 26.05
        (("55 sec",), 30.0, []),
        (("60 sec",), 30.0, ["HealthCheckInterval: 60 s, HealthCheckTimeout is 60 s"]),
        (("20 sec",), 30.0, ["HealthCheckTimeout: 20 s, hooks.periodic_s is 30 s"]),
    ],
)
def test_a_periodic_check_ends_before_slurm_kills_it(
    limit: tuple[str, ...], periodic_s: float, bad: list[str]
) -> None:
    live = {"healthcheckinterval": ("60 sec",), **({"healthchecktimeout": limit} if limit else {})}
    config = NodeConfig(hooks=Hooks(periodic_s=periodic_s))
    points = list(verify.cluster_points(live, config, timer=False))
    assert [point.what for point in points if not point.good and "HealthCheckTimeout" in point.what] == bad
    by_systemd = verify.cluster_points(live, config, timer=True)
    assert not [point for point in by_systemd if "HealthCheckTimeout" in point.what]


def test_a_configuration_that_hooks_refuse_hides_none_of_the_other_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cluster: FakeCluster
) -> None:
    file = tmp_path / "etc/slurm-robust/config.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("drian: {}\ngpu: {count: x}\n")
    here = partial(Site, tree=Tree(tmp_path), slurm=FakeSlurm(cluster), node_command="/bin/true")
    monkeypatch.setattr(verify, "Site", here)
    monkeypatch.setenv("PATH", "")  # no scontrol
    assert verify.main() == 1
    said = capsys.readouterr().out
    assert said.count("why: hooks run with the defaults, which only observe") == 2
    assert "unknown key drian" in said
    assert "not installed on this node" in said
    assert "BAD   Slurm:" in said


def test_the_hooks_beside_slurmctld_can_write_their_events(tmp_path: Path) -> None:
    """SlurmUser is nobody of this test: others may pass the way, and only in the folder write."""
    tmp_path.chmod(0o755)
    site = Site(tree=Tree(tmp_path), node_command="/usr/bin/srobust-node")
    script = "/usr/libexec/slurm-robust/prolog_slurmctld.sh"
    live = {
        "prologslurmctld": (script,),
        "slurmctldhost": ("head(10.0.0.1)",),
        "slurmuser": ("slurm(64030)",),
    }
    [missing] = verify.allocation_points(live, site, "head.example.org")
    assert not missing.good
    assert missing.fix.endswith("install -d -m 750 -o slurm /var/log/slurm-robust/slurmctld")
    folder = tmp_path / "var/log/slurm-robust/slurmctld"
    folder.mkdir(parents=True)
    assert not verify.may_write(site.tree, Path("/var/log/slurm-robust/slurmctld"), 64030)
    folder.chmod(0o777)
    [point] = verify.allocation_points(live, site, "head")
    assert point.good
    folder.parent.chmod(0o750)
    [point] = verify.allocation_points(live, site, "head")
    assert not point.good
    [point] = verify.allocation_points({**live, "slurmuser": ("root(0)",)}, site, "head")
    assert point.good
    assert not list(verify.allocation_points(live, site, "n1"))
    assert not list(verify.allocation_points({**live, "prologslurmctld": ("/site.sh",)}, site, "head"))


@as_root
@pytest.mark.parametrize(("mode", "writes"), [(0o770, True), (0o707, False), (0o750, False), (0o730, True)])
def test_slurm_user_writes_also_as_a_member_of_its_group(tmp_path: Path, mode: int, writes: bool) -> None:
    """And where its group may not, no right of all others helps it."""
    tmp_path.chmod(0o755)
    user = next(one for one in pwd.getpwall() if one.pw_uid not in (0, 65534))
    folder = tmp_path / "log"
    folder.mkdir()
    os.chown(folder, 0, user.pw_gid)
    folder.chmod(mode)
    assert verify.may_write(Tree(tmp_path), Path("/log"), user.pw_uid) is writes


@pytest.mark.parametrize(
    ("program", "fix"),
    [
        ((), "--apply makes it"),
        (("/usr/sbin/nhc",), "--systemd-timer on every node; or link /usr/sbin/nhc into"),
    ],
)
def test_the_fix_for_the_periodic_checks_is_one_that_helps(program: tuple[str, ...], fix: str) -> None:
    """A program of the site stays, whatever --apply changes."""
    live = {"healthcheckprogram": program, "healthcheckinterval": ("60 sec",)}
    (point,) = (
        point
        for point in verify.cluster_points(live, NodeConfig(), timer=False)
        if point.what.startswith("HealthCheckProgram")
    )
    assert not point.good
    assert fix in point.fix
    assert ("--apply" in point.fix) != bool(program)


LOCK = "srobust-turn-verify-n1"


def test_a_fix_for_several_points_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    def bad(what: str, fix: str) -> verify.Point:
        return verify.Point(good=False, what=what, why="it matters", fix=fix)

    points = [bad("a", "install"), verify.Point(good=True, what="b"), bad("c", "chmod"), bad("d", "install")]
    assert verify.report(points) == 1
    assert capsys.readouterr().out.split("\n")[:-1] == [
        "  good  b",
        "  BAD   a",
        "          why: it matters",
        "  BAD   d",
        "          why: it matters",
        "          fix: install (for all 2)",
        "  BAD   c",
        "          why: it matters",
        "          fix: chmod",
    ]


@as_root
def test_a_user_hears_which_points_need_root(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    manifest = tree.path(MANIFEST)
    manifest.parent.mkdir(parents=True)
    manifest.touch(0o600)
    tmp_path.chmod(0o700)
    site = Site(tree=tree, node_command="/bin/true")
    said = run_as(NOBODY, lambda: [(point.good, point.what) for point in verify.file_points(site)])
    assert said == f"[(True, 'files: not checked, for only root may read {manifest}: run it with sudo')]"


def test_the_drain_lock_is_tried_and_released(cluster: FakeCluster) -> None:
    made: list[str] = []

    class Watched(FakeSlurm):
        def delete_reservation(self, name: str) -> None:
            reservation = self.cluster.reservations[name]
            made.append(name)
            assert (reservation.nodes, reservation.users) == (("n1",), ("root",))
            super().delete_reservation(name)

    (point,) = verify.lock_points(Watched(cluster, user="root"), "n1")
    assert point.good
    assert made == [LOCK]
    assert cluster.reservations == {}


def test_a_drain_lock_that_is_refused_is_reported_with_the_fix(cluster: FakeCluster) -> None:
    (point,) = verify.lock_points(FakeSlurm(cluster, operator=False), "n1")
    assert not point.good
    assert "refused: Invalid user id" in point.what
    assert "root or AdminLevel" in point.fix

    class Enforcing(FakeSlurm):
        def create_reservation(self, request: ReservationRequest) -> None:
            text = (
                "Error creating the reservation: Invalid account or account/partition combination specified"
            )
            raise classify(CompletedCommand(command=("scontrol",), exit_code=1, stdout="", stderr=text))

    (point,) = verify.lock_points(Enforcing(cluster), "n1")
    assert not point.good
    assert "sacctmgr add user root account=root" in point.fix


@pytest.mark.parametrize("error", [SlurmTimeout("no answer"), KeyboardInterrupt()])
def test_a_trial_that_is_cut_off_leaves_nothing(cluster: FakeCluster, error: BaseException) -> None:
    class CutOff(FakeSlurm):
        def create_reservation(self, request: ReservationRequest) -> None:
            super().create_reservation(request)
            raise error

    slurm = CutOff(cluster, user="root")
    if isinstance(error, SlurmTimeout):
        (point,) = verify.lock_points(slurm, "n1")
        assert not point.good
        assert "no answer" in point.what
    else:
        with pytest.raises(KeyboardInterrupt):
            list(verify.lock_points(slurm, "n1"))
    assert cluster.reservations == {}


def test_what_a_killed_trial_has_left_is_removed(cluster: FakeCluster) -> None:
    slurm = FakeSlurm(cluster, user="root")
    slurm.create_reservation(ReservationRequest(name=LOCK, nodes=("n1",)))
    (point,) = verify.lock_points(slurm, "n1")
    assert point.good
    assert cluster.reservations == {}


def test_no_drain_lock_is_tried_on_a_host_that_is_not_a_node(cluster: FakeCluster) -> None:
    (point,) = verify.lock_points(FakeSlurm(cluster, user="root"), "login")
    assert point.good
    assert "not tried" in point.what
