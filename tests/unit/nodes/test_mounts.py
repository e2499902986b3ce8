from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from slurm_robust.config.node import NodeConfig, StorageLimits
from slurm_robust.kernel.host import Host
from slurm_robust.kernel.mountinfo import Declared
from slurm_robust.model.findings import Outcome, Party, Suggestion
from slurm_robust.nodes.checks.mounts import (
    CHECKS,
    Mount,
    MountsFacts,
    gather,
    judge_answer,
    judge_present,
    judge_readonly,
)
from tests.unit.nodes.host_files import only, plant, view
from tests.users import as_root

PASS, FAIL, UNKNOWN = Outcome.PASS, Outcome.FAIL, Outcome.UNKNOWN
CONFIG = NodeConfig()
NFS = Mount(kind="nfs4", network=True, took_s=0.01)
XFS = Mount(kind="xfs")


def config(**limits: object) -> NodeConfig:
    return NodeConfig(storage=StorageLimits(**limits))  # type: ignore[arg-type]


def facts(declared: dict[str, Declared] | None = None, **mounts: Mount) -> MountsFacts:
    return MountsFacts(mounts={f"/{name}": mount for name, mount in mounts.items()}, declared=declared or {})


MOUNTINFO = """
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda2 rw
31 27 0:45 / /home rw,relatime shared:9 - autofs auto.home rw
32 31 0:46 / /home/alice rw shared:9 - nfs4 nas:/home/alice rw
33 27 0:47 / /software ro,relatime - nfs nas:/software rw
34 27 0:48 / /run/user/7 rw - fuse.sshfs alice@x: rw,user_id=7,group_id=7
35 27 0:49 / /data/real rw - lustre mgs:/data rw
36 27 0:50 / /media/usb rw - ext4 /dev/sdz1 rw
37 27 0:51 / /cvmfs rw - fuse.cvmfs2 x rw,user_id=0,allow_other
38 27 0:52 / /tmp rw - tmpfs tmpfs rw
"""


def test_all_that_matters_is_asked_and_users_own_mounts_are_not(tmp_path: Path) -> None:
    tree = {
        "/proc/self/mountinfo": MOUNTINFO,
        "/etc/fstab": "nas:/software /software nfs ro\nmgs:/data /link lustre rw\nx /gone nfs rw\n"
        "tmpfs /tmp tmpfs rw",
    }
    links = {"/link": "/data/real"}
    for name in ("home/alice", "software", "cvmfs"):
        (tmp_path / name).mkdir(parents=True)
    host = plant(tmp_path, tree, links)
    found = gather(host, config(ignore_mounts=("/media/*",)))
    assert {path: mount.kind for path, mount in found.mounts.items()} == {
        "/": "ext4", "/home/alice": "nfs4", "/software": "nfs", "/data/real": "lustre",
        "/cvmfs": "fuse.cvmfs2", "/tmp": "tmpfs", "/link": "lustre",
    }  # fmt: skip
    assert [path for path, mount in found.mounts.items() if mount.automatic] == ["/home/alice"]
    assert [path for path, mount in found.mounts.items() if mount.readonly] == ["/software"]
    assert not any(mount.error or mount.hung or mount.unknown for mount in found.mounts.values())
    missing = [finding for finding in judge_present(view(found), CONFIG) if finding.outcome is FAIL]
    assert [finding.subject for finding in missing] == ["/gone"]
    named = config(mounts=("/link/", "/cvmfs/"))
    assert {finding.outcome for finding in judge_present(view(gather(host, named)), named)} == {PASS}


def test_a_mount_that_cannot_be_asked_for_other_reasons_has_answered(tmp_path: Path) -> None:
    """A folder that went away, or that root may not enter (``root_squash``)."""
    found = gather(plant(tmp_path, {"/proc/self/mountinfo": "1 0 0:1 / /gone rw - nfs x rw"}), CONFIG)
    assert only(judge_answer(view(found), CONFIG)).outcome is PASS


def test_mounts_of_the_real_machine_have_no_fault() -> None:
    found = gather(Host(), CONFIG)
    assert "/" in found.mounts
    results = [finding for check in CHECKS for finding in check.judge(view(found, baseline=found), CONFIG)]
    assert {finding.outcome for finding in results} == {PASS}


def test_without_a_table_of_mounts_nothing_is_known(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="mountinfo"):
        gather(Host(tmp_path), CONFIG)


ROOT = {"/": Declared(kind="ext4")}


@pytest.mark.parametrize(
    ("now", "baseline", "settings", "missing"),
    [
        (facts(), None, {}, {}),
        (facts(scratch=XFS), None, {}, {}),
        (facts({"/scratch": Declared(kind="xfs")}), None, {}, {"/scratch": Suggestion.RESET}),
        (facts({"/scratch": Declared(kind="xfs")}, scratch=XFS), None, {}, {}),
        (facts({"/usb": Declared(kind="xfs", optional=True)}), None, {}, {"/usb": Suggestion.MONITOR}),
        (facts(), facts(nfs=NFS), {}, {"/nfs": Suggestion.RESET}),
        (facts(), facts(nfs=NFS), {"ignore_mounts": ("/n*",)}, {}),
        (facts(), facts(nfs=Mount(kind="nfs", network=True, automatic=True)), {}, {}),
        (facts(), facts(disk=XFS), {}, {}),
        (facts(nfs=NFS), facts(), {"mounts": ("/nfs/",)}, {}),
        (facts({"/x": Declared(kind="nfs")}), facts(nfs=NFS), {"mounts": ("/y",)}, {"/y": Suggestion.RESET}),
    ],
)
def test_mounts_that_must_be_there(
    now: MountsFacts,
    baseline: MountsFacts | None,
    settings: dict[str, object],
    missing: dict[str, Suggestion],
) -> None:
    found = list(judge_present(view(now, baseline=baseline), config(**settings)))
    failed = [finding for finding in found if finding.outcome is not PASS]
    assert {finding.subject: finding.suggestion for finding in failed} == missing
    assert all(finding.outcome is FAIL and finding.blame is Party.SITE for finding in failed)


@pytest.mark.parametrize(
    ("mount", "outcome", "suggestion", "text"),
    [
        (NFS, PASS, Suggestion.NONE, ""),
        (Mount(kind="nfs4", network=True, hung=True), FAIL, Suggestion.RESET, "nfs4 does not answer"),
        (
            Mount(kind="nfs", network=True, error="Stale file handle"),
            FAIL,
            Suggestion.RESET,
            "nfs: Stale file handle",
        ),
        (Mount(kind="nfs", network=True, unknown="no process"), UNKNOWN, Suggestion.NONE, "no process"),
    ],
)
def test_only_a_hang_and_an_error_are_failures(
    mount: Mount, outcome: Outcome, suggestion: Suggestion, text: str
) -> None:
    finding = only(judge_answer(view(facts(data=mount, disk=XFS)), CONFIG))
    assert (finding.outcome, finding.suggestion, finding.text) == (outcome, suggestion, text)
    assert (finding.subject, finding.blame) == ("/data", Party.STORAGE)
    assert finding.value == {"": "0.01 s", "nfs: Stale file handle": "Stale file handle"}.get(
        text, finding.value
    )


RO, RO_NFS = Mount(kind="xfs", readonly=True), Mount(kind="nfs", network=True, readonly=True)
RW_LINE, RO_LINE = {"/m": Declared(kind="x")}, {"/m": Declared(kind="x", readonly=True)}


@pytest.mark.parametrize(
    ("now", "baseline", "outcome", "suggestion"),
    [
        (facts(RW_LINE, m=XFS), None, PASS, Suggestion.NONE),
        (facts(RW_LINE, m=RO), None, FAIL, Suggestion.REBOOT),
        (facts(RO_LINE, m=RO), None, PASS, Suggestion.NONE),
        (facts(RO_LINE, m=RO), facts(m=XFS), PASS, Suggestion.NONE),
        (facts(m=RO), facts(m=XFS), FAIL, Suggestion.REBOOT),
        (facts(m=RO), facts(m=RO), PASS, Suggestion.NONE),
        (facts(m=RO_NFS), facts(m=NFS), FAIL, Suggestion.RESET),
        (facts(m=RO), None, None, Suggestion.NONE),
        (
            facts({"/m": Declared(kind="cvmfs")}, m=Mount(kind="fuse", readonly=True)),
            None,
            None,
            Suggestion.NONE,
        ),
        (facts(RW_LINE, m=Mount(kind="squashfs", readonly=True)), None, None, Suggestion.NONE),
    ],
)
def test_what_was_writable_must_stay_so(
    now: MountsFacts, baseline: MountsFacts | None, outcome: Outcome | None, suggestion: Suggestion
) -> None:
    found = list(judge_readonly(view(now, baseline=baseline), CONFIG))
    assert [(finding.outcome, finding.suggestion) for finding in found] == (
        [(outcome, suggestion)] if outcome else []
    )


@as_root
@pytest.mark.slow
def test_a_dead_mount_is_found_in_time_and_a_live_one_beside_it_too() -> None:
    """A real file system that never answers, and the same one after its server has gone (ENOTCONN)."""
    code = """
        import subprocess, sys, tempfile, time
        from slurm_robust.config.node import NodeConfig, StorageLimits
        from slurm_robust.nodes.checks.mounts import gather
        from slurm_robust.kernel.host import Host

        config = NodeConfig(storage=StorageLimits(answer_s=0.5))
        words = [sys.executable, "-m", "tests.stand_ins.dead_mount"]
        with tempfile.TemporaryDirectory(prefix="srobust-dead-") as folder, subprocess.Popen(
            [*words, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as mount:
            assert mount.stdout.readline() == "mounted\\n"
            begun = time.monotonic()
            found = gather(Host(), config)
            took_s = time.monotonic() - begun
            assert found.mounts[folder].hung, found
            assert not found.mounts["/"].hung
            assert took_s < 60, took_s
            # As when its server has crashed: the kernel answers for it.
            mount.kill()
            mount.wait()
            error = gather(Host(), config).mounts[folder].error
            subprocess.run(["umount", "-l", folder], check=True)
            assert error == "Transport endpoint is not connected"
        print("ok")
    """
    words = ["unshare", "--mount", sys.executable, "-c", textwrap.dedent(code)]
    found = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (found.stdout, found.stderr) == ("ok\n", "")
