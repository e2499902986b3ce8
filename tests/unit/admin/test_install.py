"""Installing, installing again, upgrading, verifying and removing, in a tree of its own with Slurm's text."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from slurm_robust import __version__
from slurm_robust.admin import install, items, verify
from slurm_robust.admin.files import MANIFEST, FileAction, InstallError, Item, Manifest, Tree
from slurm_robust.admin.site import Site
from slurm_robust.cli.main import main
from slurm_robust.config.errors import InvalidSettings
from slurm_robust.config.node import CheckRule, NodeConfig
from slurm_robust.kernel.host import node_name
from slurm_robust.model.errors import ExitCode
from slurm_robust.slurm.configuration import ConfigurationRefused, LiveConfiguration
from slurm_robust.slurm.process import CompletedCommand
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurm import FakeSlurm
from tests.users import as_root

pytestmark = as_root
CONF = "/etc/slurm/slurm.conf"


class Scontrol:
    """slurmctld as scontrol tells of it: it has in force what slurm.conf said at the last reconfigure."""

    def __init__(self, conf: Path) -> None:
        self.conf = conf
        self.refuses = ""
        self.in_force = conf.read_text()
        self.calls: list[str] = []

    def __call__(
        self,
        command: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> CompletedCommand:
        self.calls.append(" ".join(command))
        assert env is not None
        text = Path(env["SLURM_CONF"]).read_text() if "hostnames" in command else self.conf.read_text()
        broken = "Bogus" in text
        out = ""
        if not broken and command[1] == "reconfigure" and (not self.refuses or self.refuses not in text):
            self.in_force = text
        elif command[1] == "reconfigure":
            broken = True
        if command[1:] == ("show", "config"):
            out = "\n".join(line.replace("=", " = ", 1) for line in self.in_force.splitlines())
        error = "error: Parsing error at unrecognized key: Bogus\nfatal: no" if broken else ""
        return CompletedCommand(command=tuple(command), exit_code=int(broken), stdout=out, stderr=error)


class Machine:
    """A node with a slurm.conf, and what srobust admin does there."""

    def __init__(self, root: Path, text: str) -> None:
        self.root = root
        self.conf = root / CONF.lstrip("/")
        self.conf.parent.mkdir(parents=True)
        self.conf.write_text(text)
        self.scontrol = Scontrol(self.conf)
        self.program = root / "opt" / "srobust-node"
        self.program.parent.mkdir()
        self.program.write_text("#!/bin/sh\n")
        self.program.chmod(0o755)

    def site(self) -> Site:
        live = LiveConfiguration({"SLURM_CONF": str(self.conf)}, run=self.scontrol)
        slurm = FakeSlurm(FakeCluster([node_name({})]), user="root")
        return Site(CONF, tree=Tree(self.root), live=live, slurm=slurm, node_command="/bin/true")

    def install(self, **options: bool) -> int:
        return install.main(site=self.site(), **options)  # type: ignore[arg-type]  # only flags

    def apply(self) -> int:
        return self.install(apply=True, all_nodes=True)

    def verify(self) -> int:
        return verify.main(site=self.site())

    def uninstall(self, **options: bool) -> int:
        return install.uninstall(site=self.site(), **options)  # type: ignore[arg-type]  # only flags

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def tree(self) -> dict[str, str]:
        """Everything below the root with its content; backups of slurm.conf left out."""
        return {
            str(path.relative_to(self.root)): os.readlink(path)
            if path.is_symlink()
            else path.read_text()
            if path.is_file()
            else "folder"
            for path in sorted(self.root.rglob("*"))
            if "slurm.conf.slurm-robust-" not in path.name
        }


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    # Below a folder that only root can write to, as a real installation.
    return Machine(tmp_path / "machine", "ClusterName=c\nPrologFlags=Contain\n")


def test_a_dry_run_changes_nothing_and_shows_everything(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    before = machine.tree()
    assert machine.install(dry_run=True) == 0
    said = capsys.readouterr().out
    assert machine.tree() == before
    for part in (items.CONFIG, "+Prolog=", "nohold_on_prolog_fail", "was not changed", "every node first"):
        assert part in said
    assert "why HealthCheckNodeState: nodes in every state are checked" in said
    assert f"     new  {items.CONFIG}\n" in said
    machine.install()
    capsys.readouterr()
    machine.install(dry_run=True)
    assert f"    same  {items.CONFIG}\n" in capsys.readouterr().out


def test_a_dry_run_is_one_document_for_programs(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    before = machine.tree()
    machine.install(dry_run=True, json=True)
    found = msgspec.json.decode(capsys.readouterr().out, type=install.DryRun)
    assert machine.tree() == before
    actions = {file.path: file.action for file in found.files}
    assert actions[items.CONFIG] == "new"
    assert "+Prolog=" in found.slurm_conf
    assert found.why["Prolog"] == "without it nothing is checked at the start of a job"
    assert install.NODES_FIRST in found.notes
    machine.install()
    capsys.readouterr()
    machine.install(dry_run=True, json=True)
    found = msgspec.json.decode(capsys.readouterr().out, type=install.DryRun)
    assert {file.path: file.action for file in found.files}[items.CONFIG] == "same"
    machine.uninstall(dry_run=True, json=True)
    found = msgspec.json.decode(capsys.readouterr().out, type=install.DryRun)
    assert {file.action for file in found.files} == {"remove"}
    assert main(["admin", "install", "--json"]) == ExitCode.USAGE


def test_what_was_installed_is_taken_away_to_the_last_file(machine: Machine) -> None:
    before = machine.tree()
    machine.install()
    assert machine.path(items.CONFIG).exists()
    assert machine.path("/var/lib/slurm-robust").stat().st_mode & 0o777 == 0o700
    assert machine.uninstall() == 0
    left = {name: text for name, text in machine.tree().items() if text != "folder"}
    assert left == {name: text for name, text in before.items() if text != "folder"}
    assert not machine.path(items.ETC).exists()


def test_a_second_time_changes_nothing(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.install()
    before = machine.tree()
    capsys.readouterr()
    machine.install()
    assert machine.tree() == before
    assert "files: all as they should be" in capsys.readouterr().out


def test_slurm_conf_is_changed_with_a_backup_and_comes_back_byte_for_byte(machine: Machine) -> None:
    before = machine.conf.read_bytes()
    machine.conf.chmod(0o640)
    assert machine.apply() == 0
    assert b"nohold_on_prolog_fail" in machine.conf.read_bytes()
    assert machine.conf.stat().st_mode & 0o777 == 0o640
    (backup,) = machine.conf.parent.glob("slurm.conf.slurm-robust-*")
    assert backup.read_bytes() == before
    assert machine.verify() == 0
    assert machine.uninstall(apply=True) == 0
    assert machine.conf.read_bytes() == before
    assert "Prolog" not in str(machine.site().live.read().get("prolog", ""))


def test_slurm_conf_is_never_touched_without_the_word_for_it(machine: Machine) -> None:
    machine.install()
    with pytest.raises(InstallError) as caught:
        machine.install(apply=True)
    assert "every node first" in caught.value.fix
    assert machine.conf.read_text() == machine.scontrol.in_force == "ClusterName=c\nPrologFlags=Contain\n"


def test_what_slurmctld_refuses_is_undone_and_reported(machine: Machine) -> None:
    before = machine.conf.read_bytes()
    machine.scontrol.refuses = "nohold"
    with pytest.raises(InstallError, match=r"slurm\.conf is as it was: scontrol reconfigure"):
        machine.apply()
    assert machine.conf.read_bytes() == before
    assert machine.scontrol.calls[-1] == "scontrol reconfigure"


def test_what_slurm_cannot_parse_never_becomes_the_real_file(machine: Machine) -> None:
    machine.conf.write_text("Bogus=1\n")
    with pytest.raises(InstallError, match="nothing was changed"):
        machine.apply()
    assert machine.conf.read_text() == "Bogus=1\n"
    assert [path.name for path in machine.conf.parent.iterdir()] == ["slurm.conf"]


def test_files_stay_while_slurm_names_them(machine: Machine) -> None:
    machine.apply()
    before = machine.tree()
    with pytest.raises(InstallError, match=r"nothing was removed: .* still says Prolog"):
        machine.uninstall()
    machine.conf.write_text("ClusterName=c\n")
    with pytest.raises(InstallError, match="slurmctld still has Prolog"):
        machine.uninstall()
    assert machine.tree() == {**before, CONF.lstrip("/"): "ClusterName=c\n"}


def test_what_is_not_done_is_not_announced_and_backups_are_named(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.apply()
    (backup,) = machine.conf.parent.glob("slurm.conf.slurm-robust-*")
    capsys.readouterr()
    with pytest.raises(InstallError, match="nothing was removed"):
        machine.uninstall()
    assert "remove  /" not in capsys.readouterr().out
    machine.uninstall(apply=True)
    said = capsys.readouterr().out
    assert "remove  /etc/slurm-robust/slurm.d/prolog/50-slurm-robust" in said
    for left in machine.conf.parent.glob("slurm.conf.slurm-robust-*"):
        assert f"left as it is: {left} (--purge removes it)" in said
    assert backup.exists()
    machine.uninstall(purge=True)
    assert [path.name for path in machine.conf.parent.iterdir()] == ["slurm.conf"]


def test_a_folder_of_the_site_never_becomes_empty(machine: Machine) -> None:
    own = machine.path("/etc/slurm/prolog.d/10-own")
    own.parent.mkdir()
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    machine.conf.write_text("Prolog=/etc/slurm/prolog.d/*\n")
    machine.install(link_site=True)
    assert os.readlink(own.with_name("50-slurm-robust")).endswith("/prolog.sh")
    own.unlink()
    with pytest.raises(InstallError, match="would match nothing any more"):
        machine.uninstall(apply=True)
    own.write_text("#!/bin/sh\n")
    machine.uninstall(apply=True)
    assert [path.name for path in own.parent.iterdir()] == ["10-own"]


def site_folder(machine: Machine) -> Path:
    """Where a link of ours runs as soon as it is there."""
    folder = machine.path("/etc/slurm/epilog.d")
    folder.mkdir()
    (folder / "10-own").write_text("#!/bin/sh\n")
    (folder / "10-own").chmod(0o755)
    machine.conf.write_text("Epilog=/etc/slurm/epilog.d/*\n")
    machine.scontrol.in_force = machine.conf.read_text()
    return folder


def test_without_an_option_no_hook_goes_live_in_a_folder_of_the_site(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = site_folder(machine)
    machine.install()
    assert [path.name for path in folder.iterdir()] == ["10-own"]
    assert machine.path(f"{items.HOOKS}/epilog").is_dir()
    said = capsys.readouterr().out
    assert "note: /etc/slurm/epilog.d/50-slurm-robust is not made yet" in said
    assert "--link-site-folders" in said
    assert machine.verify() == 1
    assert "BAD   Epilog runs slurm_robust" in capsys.readouterr().out
    machine.install(link_site=True)
    assert os.readlink(folder / "50-slurm-robust").endswith("/epilog.sh")
    # What was asked for once stays asked for.
    machine.install()
    assert (folder / "50-slurm-robust").is_symlink()
    machine.uninstall()
    assert [path.name for path in folder.iterdir()] == ["10-own"]


def test_a_change_of_slurm_conf_links_in_the_folder_of_the_site_as_well(machine: Machine) -> None:
    folder = site_folder(machine)
    machine.apply()
    assert (folder / "50-slurm-robust").is_symlink()


@pytest.mark.parametrize(("kind", "refused"), [("nfs4", True), ("fuse.glusterfs", True), ("ext4", False)])
def test_a_folder_that_nodes_share_waits_for_all_of_them(machine: Machine, kind: str, refused: bool) -> None:
    """One link there runs on every node, and drains each that has no package yet."""
    folder = site_folder(machine)
    mounts = machine.path("/proc/self/mountinfo")
    mounts.parent.mkdir(parents=True)
    mounts.write_text(
        "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        f"30 20 0:40 / {machine.path('/etc/slurm')} rw - {kind} server:/etc/slurm rw\n"
    )
    before = machine.tree()
    for words in ({"link_site": True}, {"apply": True}):
        if refused:
            with pytest.raises(InstallError, match=f"network file system .{kind}.") as error:
                machine.install(**words)
            assert "--all-nodes-have-it" in error.value.fix
            assert machine.tree() == before
    machine.install()
    assert not (folder / "50-slurm-robust").is_symlink()
    machine.install(link_site=True, all_nodes=refused)
    assert (folder / "50-slurm-robust").is_symlink()
    machine.install(link_site=True)  # it is there


def test_a_link_of_a_user_to_the_program_is_refused(machine: Machine, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "srobust-node").symlink_to(machine.program)
    os.chown(home, 1000, 1000)
    site = Site(
        CONF, tree=Tree(machine.root), live=machine.site().live, node_command=str(home / "srobust-node")
    )
    assert site.node_command == str(machine.program)  # what a script gets is where the links lead
    before = machine.tree()
    with pytest.raises(InstallError, match=f"{home} does not belong to root"):
        install.main(site=site)
    assert machine.tree() == before


def test_a_module_of_a_user_is_refused_and_reported(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.apply()
    module = machine.path("/opt/lib/slurm_robust/hooks/sweep.py")
    module.parent.mkdir(parents=True)
    module.write_text("")
    os.chown(module, 1000, 1000)
    site = machine.site()
    site.modules = (str(machine.path("/opt/lib")),)
    with pytest.raises(InstallError, match=f"{module} does not belong to root"):
        install.main(site=site)
    capsys.readouterr()
    assert verify.main(site=site) == 1
    assert f"BAD   {machine.path('/opt/lib')}: {module} does not belong to root" in capsys.readouterr().out


def test_a_prefix_that_others_may_write_to_is_refused(machine: Machine) -> None:
    machine.path("/opt/scripts").mkdir()
    machine.path("/opt/scripts").chmod(0o777)
    before = machine.tree()
    with pytest.raises(InstallError, match="/opt/scripts can be written by others") as error:
        install.main(prefix="/opt/scripts", site=machine.site())
    assert "--prefix" in error.value.fix
    assert machine.tree() == before


def test_the_installed_program_is_checked_whole(machine: Machine) -> None:
    """All folders from which modules come; how they are kept on a developer's machine is not our matter."""
    site = Site(CONF, tree=Tree(machine.root), live=machine.site().live)
    assert any(Path(folder, "msgspec").is_dir() for folder in site.modules)
    assert any(Path(folder, "admin", "site.py").is_file() for folder in site.modules)
    assert any(Path(folder, "json").is_dir() for folder in site.modules)


def test_what_the_site_changed_is_kept_and_named(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.install()
    config = machine.path(items.CONFIG)
    config.write_text("gpu: {count: 8}\n")
    machine.install()
    assert config.read_text() == "gpu: {count: 8}\n"
    capsys.readouterr()
    machine.uninstall()
    assert config.read_text() == "gpu: {count: 8}\n"
    assert items.CONFIG in capsys.readouterr().out.partition("left as they are")[2]


def test_a_file_that_was_there_before_is_not_removed(machine: Machine) -> None:
    unit = machine.path("/etc/logrotate.d/slurm-robust")
    unit.parent.mkdir(parents=True)
    unit.write_text((items.DATA / "logrotate").read_text())
    machine.install()
    machine.uninstall()
    assert unit.exists()


def test_an_upgrade_replaces_unchanged_files_and_removes_obsolete_ones(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    old = [Item(path="/a", text="1"), Item(path="/b", text="1"), Item(path="/c", text="1")]
    tree.carry_out(tree.steps(old), old, "1")
    tree.path("/b").write_text("mine")
    new = [Item(path="/a", text="2"), Item(path="/b", text="2")]
    steps = tree.steps(new)
    assert {step.path: step.action for step in steps} == {
        "/a": FileAction.REPLACE,
        "/b": FileAction.KEEP,
        "/c": FileAction.REMOVE,
    }
    kept = tree.carry_out(steps, new, "2")
    assert [step.path for step in kept] == ["/b"]
    assert (tree.path("/a").read_text(), tree.path("/b").read_text()) == ("2", "mine")
    assert not tree.path("/c").exists()
    assert tree.manifest().version == "2"


def test_modes_and_owners_are_put_right(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    wanted = [Item(path="/a", text="1", mode=0o755)]
    tree.carry_out(tree.steps(wanted), wanted, "1")
    os.chown(tree.path("/a"), 1000, 1000)
    tree.path("/a").chmod(0o777)
    tree.carry_out(tree.steps(wanted), wanted, "1")
    found = tree.path("/a").stat()
    assert (found.st_mode & 0o7777, found.st_uid) == (0o755, 0)


def test_an_interrupted_installation_is_removed_as_well(tmp_path: Path) -> None:
    """A path that cannot be written stops it half way; what was written by then is known."""
    tree = Tree(tmp_path)
    (tmp_path / "x").write_text("a file where a folder should be")
    wanted = [Item(path="/a", text="1"), Item(path="/x/y", text="1")]
    with pytest.raises(InstallError, match="x"):
        tree.carry_out(tree.steps(wanted), wanted, "1")
    assert tree.path("/a").exists()
    tree.carry_out(tree.steps(()), (), "1")
    assert not tree.path("/a").exists()
    assert not tree.path(MANIFEST).exists()


def test_an_installation_that_cannot_write_its_first_file_leaves_nothing(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    (tmp_path / "x").write_text("a file where a folder should be")
    wanted = [Item(path="/x/y", text="1"), Item(path="/a", text="1")]
    with pytest.raises(InstallError, match="x"):
        tree.carry_out(tree.steps(wanted), wanted, "1")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "x"]
    assert not tree.path(MANIFEST).parent.exists()


def test_a_damaged_manifest_is_an_error_with_its_reason(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.path(MANIFEST).parent.mkdir(parents=True)
    tree.path(MANIFEST).write_text("{")
    with pytest.raises(InstallError, match="cannot be read"):
        tree.steps(())


def test_act_and_timer_stay_until_they_are_taken_away(machine: Machine) -> None:
    machine.install(act=True, timer=True)
    assert machine.site().config.drain.mode == "act"
    assert machine.path(f"{items.UNITS}/{items.TIMER}").exists()
    machine.install()
    assert machine.site().config.drain.mode == "act"
    machine.path(items.ACT).unlink()
    machine.install()
    assert machine.site().config.drain.mode == "observe"
    assert "HealthCheckProgram" not in str(machine.site().wish(timer=True))


def test_a_wrong_configuration_stops_it_before_anything_is_written(machine: Machine) -> None:
    path = machine.path(items.CONFIG)
    path.parent.mkdir(parents=True)
    path.write_text("drian: {}\n")
    before = machine.tree()
    with pytest.raises(InvalidSettings, match="unknown key drian"):
        machine.install()
    assert machine.tree() == before


def test_the_program_must_be_roots_alone(machine: Machine) -> None:
    os.chown(machine.program, 1000, 1000)
    site = machine.site()
    site.program = (str(machine.program),)
    with pytest.raises(InstallError, match="to uid 1000"):
        install.main(site=site)


def test_a_prefix_that_depends_on_the_folder_is_refused(machine: Machine) -> None:
    with pytest.raises(InstallError, match="not an absolute path"):
        install.main(prefix="usr", dry_run=True, site=machine.site())


def test_another_prefix_is_where_everything_goes(machine: Machine) -> None:
    install.main(prefix="/opt/x/", site=machine.site())
    hook = machine.path(f"{items.HOOKS}/prolog/50-slurm-robust")
    assert os.readlink(hook) == "/opt/x/libexec/slurm-robust/prolog.sh"
    assert machine.path("/opt/x/share/man/man8/srobust-node.8").exists()
    assert machine.path("/opt/x/share/zsh/site-functions/_srobust").read_text().startswith("#compdef srobust")
    assert ".SS srobust status" in machine.path("/opt/x/share/man/man1/srobust.1").read_text()
    assert not machine.path("/usr/local").exists()


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("script gone", "is gone"),
        ("script changed", "was changed after it was installed"),
        ("note in folder", "note.txt"),
        ("live", "nohold_on_prolog_fail"),
        ("version", "installed by version 0.0"),
        ("down", "Slurm: scontrol show config"),
    ],
)
def test_verify_tells_what_is_wrong_and_why(
    machine: Machine, capsys: pytest.CaptureFixture[str], harm: str, said: str
) -> None:
    machine.apply()
    script = machine.path("/usr/local/libexec/slurm-robust/prolog.sh")
    if harm == "script gone":
        script.unlink()
    elif harm == "script changed":
        script.write_text("exit 0\n")
    elif harm == "note in folder":
        machine.path(f"{items.HOOKS}/prolog/note.txt").write_text("")
    elif harm == "live":
        machine.scontrol.in_force = machine.scontrol.in_force.replace("nohold_on", "hold_on")
    elif harm == "version":
        manifest = machine.site().tree.manifest()
        old = Manifest(version="0.0", digests=manifest.digests)
        machine.path(MANIFEST).write_bytes(msgspec.json.encode(old))
    else:
        machine.conf.write_text("Bogus=1\n")
        machine.scontrol.in_force = ""
    capsys.readouterr()
    assert machine.verify() == 1
    bad = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  BAD")]
    assert any(said in line for line in bad), bad


def test_a_rule_for_no_check_is_reported_with_the_nearest_name() -> None:
    rules = {"gpu.*": CheckRule(), "gpu.ecc": CheckRule(), "gpu.ec": CheckRule()}
    (found,) = verify.rule_points(NodeConfig(checks=rules), ["gpu.ecc", "site.own"])
    assert (found.good, found.what) == (False, "configuration: no check matches checks.gpu.ec")
    assert "gpu.ecc" in found.fix


def test_verify_without_an_installation_says_so(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert machine.verify() == 1
    assert "not installed on this node" in capsys.readouterr().out


def test_what_scontrol_says_is_in_the_error(machine: Machine) -> None:
    machine.conf.write_text("Bogus\n")
    with pytest.raises(ConfigurationRefused, match=r"unrecognized key: Bogus / fatal"):
        machine.site().live.read()


def test_the_version_of_the_manifest_is_this_one(machine: Machine) -> None:
    machine.install()
    assert machine.site().tree.manifest().version == __version__
