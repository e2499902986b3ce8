"""The summary that a job leaves for the fleet index: what the epilog takes, and every trick that must not
work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from slurm_robust.config.node import FleetConfig, NodeConfig, Paths
from slurm_robust.hooks.summaries import Kept, NotKept, judge, spool_folder, spool_summary
from slurm_robust.hooks.suspects import EndedJob, Ignored
from slurm_robust.model.jobsummary import (
    FORMAT,
    MAX_BYTES,
    JobSummary,
    SpooledSummary,
    decode_spooled,
    encode,
)
from tests.unit.fleet.samples import summary
from tests.users import as_root

JOB = EndedJob(job_id=7, uid=1234, gid=1234, user="alice", work_dir="/home/alice", started=99.0)
ALICE = 12345
NOW = 1_700_000_000.0


def test_what_slurm_says_stands_beside_what_the_user_says() -> None:
    environ = {"SLURM_CLUSTER_NAME": "alpha", "SLURM_JOB_NODELIST": "n[1-4]"}
    found = judge(encode(summary(cluster="theirs")), JOB, "n1", environ, NOW)
    assert isinstance(found, SpooledSummary)
    assert (found.job_id, found.uid, found.user, found.node) == (7, 1234, "alice", "n1")
    assert (found.cluster, found.nodes, found.t, found.started) == ("alpha", "n[1-4]", NOW, 99.0)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\n", "empty"),
        (b"{}", "not a summary"),
        (encode(summary())[:-30], "not a summary"),
        (encode(summary(job_id=8)), "another job"),
        (encode(structs.replace(summary(), format=FORMAT + 1)), "a later release"),
        (b"[" * 100_000, "not a summary"),
        (encode(summary()).replace(b"alpha", b"\xc3\x28\xff\xff\xff"), "not a summary"),
    ],
)
def test_summaries_that_do_not_count(data: bytes, why: str) -> None:
    found = judge(data, JOB, "n1", {}, NOW)
    assert isinstance(found, Ignored)
    assert why in found.why


def test_the_epilog_of_another_node_takes_the_summary() -> None:
    assert judge(encode(summary()), JOB, "n2", {}, NOW) is None


@pytest.mark.parametrize("cluster", ["../etc", "a b", "x" * 50, ""])
def test_a_cluster_makes_no_path(cluster: str) -> None:
    found = judge(encode(summary()), JOB, "n1", {"SLURM_CLUSTER_NAME": cluster}, NOW)
    assert isinstance(found, SpooledSummary)
    assert found.cluster == ""


# -- as root with a real user --------------------------------------------------------------------------------


class Node:
    """A node with the folder of Alice's job."""

    def __init__(self, path: Path) -> None:
        self.folder = path / "alice" / "srobust-jobs" / "7"
        self.folder.mkdir(parents=True)
        self.state = path / "state"
        self.file = self.folder / "summary.json"
        for folder in (path / "alice", *(path / "alice").rglob("*")):
            os.chown(folder, ALICE, ALICE)

    def put(self, said: JobSummary | None = None, data: bytes | None = None) -> None:
        self.file.write_bytes(encode(said or summary()) if data is None else data)
        os.chown(self.file, ALICE, ALICE)
        self.file.chmod(0o600)

    def epilog(self, node: str = "n1", job: int = 7, **fleet: object) -> object:
        environ = {
            "SLURM_JOB_ID": str(job),
            "SLURM_JOB_UID": str(ALICE),
            "SLURM_JOB_GID": str(ALICE),
            "SLURM_JOB_USER": "alice",
            "SLURM_JOB_WORK_DIR": str(self.folder.parents[1]),
        }
        return spool_summary(self.config(**fleet), environ, node, time.time())

    def config(self, **fleet: object) -> NodeConfig:
        wanted = {"collect": True, **fleet}
        return NodeConfig(fleet=FleetConfig(**wanted), paths=Paths(state=str(self.state)))  # type: ignore[arg-type]

    @property
    def spooled(self) -> list[str]:
        folder = Path(spool_folder(self.config()))
        return sorted(os.listdir(folder)) if folder.exists() else []


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    # pytest's own folders are root's only; alice must be able to walk to hers.
    opened = [p for p in tmp_path.parents if p.stat().st_uid == os.geteuid() and not p.stat().st_mode & 0o001]
    for folder in opened:
        folder.chmod(0o711)
    tmp_path.chmod(0o711)
    yield Node(tmp_path)
    for folder in opened:
        folder.chmod(0o700)


@as_root
def test_the_epilog_spools_one_file_for_each_job(node: Node) -> None:
    assert node.epilog() is None
    node.put()
    assert isinstance(node.epilog(), Kept)
    node.put(summary(generations=9))
    assert isinstance(node.epilog(), Kept)
    assert node.spooled == [f"{ALICE}.7.json"]
    file = Path(spool_folder(node.config()), node.spooled[0])
    assert decode_spooled(file.read_bytes()).summary.generations == 9
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


@as_root
def test_nothing_is_read_unless_the_site_collects(node: Node) -> None:
    node.put()
    assert node.epilog(collect=False) is None
    assert node.epilog("n2") is None
    assert node.spooled == []


@as_root
def test_links_pipes_and_what_is_too_long_are_refused(node: Node, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(encode(summary()))
    secret.chmod(0o600)
    node.file.symlink_to(secret)
    assert isinstance(node.epilog(), Ignored)
    node.file.unlink()
    os.mkfifo(node.file)
    assert isinstance(node.epilog(), Ignored)
    node.file.unlink()
    node.put(data=b" " * (MAX_BYTES + 1))
    assert isinstance(node.epilog(), Ignored)
    node.file.unlink()
    os.link(secret, node.file)
    assert isinstance(node.epilog(), Ignored)
    assert node.spooled == []


@as_root
def test_a_spool_that_others_can_write_to_is_not_used(node: Node) -> None:
    node.put()
    folder = Path(spool_folder(node.config()))
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    found = node.epilog()
    assert isinstance(found, NotKept)
    assert "root's alone" in found.why


@as_root
def test_a_spool_that_nobody_collects_is_bounded(node: Node) -> None:
    node.put()
    folder = Path(spool_folder(node.config()))
    folder.mkdir(parents=True, mode=0o700)
    for number in range(3):
        (folder / f"5.{number}.json").write_bytes(b"x" * 400 * 1024)
    found = node.epilog(spool_mb=1)
    assert isinstance(found, NotKept)
    assert "is full" in found.why
    assert "srobust admin fleet collect" in found.why
    # One user's files leave room for those of others.
    for number in range(3):
        (folder / f"5.{number}.json").rename(folder / f"{ALICE}.{100 + number}.json")
    found = node.epilog(spool_mb=4)
    assert isinstance(found, NotKept)
    assert "this user" in found.why
    assert isinstance(node.epilog(spool_mb=64), Kept)
