"""The .deb on nodes of a real Slurm: installed, tried, named in slurm.conf, taken back without a trace."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_robust.sandbox import Sandbox
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
BUILD_S = 300
NODES = ("head", "n1", "n2")
OWN_PROLOG = "/etc/slurm/own-prolog.sh"

# A node sees the machine's own /usr and /var. What dpkg writes goes to layers in the node's memory. The
# sandbox's /etc/slurm is mounted again on top.
LAYERS = """
set -e
for folder in etc usr var/lib var/log; do
    layer=/run/layers/$(echo $folder | tr / -)
    mkdir -p $layer.upper $layer.work
    mount -t overlay overlay -o lowerdir=/$folder,upperdir=$layer.upper,workdir=$layer.work /$folder
done
mount --bind /run/srobust-sandbox/etc /etc/slurm
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The .deb of this tree, where all nodes see it."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("a .deb is built and installed on Debian and its kin only")
    folder = tmp_path_factory.mktemp("packages")
    environ = {**os.environ, "WORK": str(folder / "work"), "DIST": str(folder)}
    subprocess.run([ROOT / "packaging" / "build.sh", "deb"], env=environ, check=True, timeout=BUILD_S)
    (found,) = folder.glob("*.deb")
    return found


class Cluster:
    """A sandbox whose nodes can have a package installed."""

    def __init__(self, sandbox: Sandbox, package: Path) -> None:
        self.sandbox = sandbox
        self.conf = sandbox.folder.etc / "slurm.conf"
        own = sandbox.folder.etc / "own-prolog.sh"
        own.write_text("#!/bin/sh\necho own >> /run/prologs\n")
        own.chmod(0o755)
        # /tmp is each node's own.
        shutil.copy(package, sandbox.folder.etc / "package.deb")
        for node in NODES:
            self.run(node, "bash", "-c", LAYERS)

    def run(self, node: str, *command: str) -> str:
        return self.sandbox.exec(command, node=node, user="root", timeout_s=120).stdout

    def refused(self, node: str, *command: str) -> str:
        done = self.sandbox.exec(command, node=node, user="root", timeout_s=120, check=False)
        assert done.returncode != 0, done.stdout
        return done.stdout + done.stderr

    def live(self, key: str) -> str:
        lines = self.run("head", "scontrol", "show", "config").splitlines()
        return next(
            line.partition("=")[2].strip() for line in lines if line.split() and line.split()[0] == key
        )


@pytest.fixture(scope="module")
def cluster(sandbox_pool: object, package: Path) -> Cluster:
    from slurm_robust.sandbox import SandboxConfig

    lines = (f"Prolog={OWN_PROLOG}", "SchedulerParameters=bf_interval=7")
    config = SandboxConfig(nodes=2, accounting=False, cred_expire_s=5, slurm_conf_lines=lines)
    get: Callable[[SandboxConfig], Sandbox] = sandbox_pool.get  # type: ignore[attr-defined]
    return Cluster(get(config), package)


def test_a_package_from_its_installation_to_its_removal(cluster: Cluster) -> None:
    """One story, because each chapter needs the one before."""
    before = cluster.conf.read_bytes()
    parameters = cluster.live("SchedulerParameters")
    for node in NODES:
        cluster.run(node, "dpkg", "-i", "/etc/slurm/package.deb")
    assert cluster.conf.read_bytes() == before, "a package alone changes nothing of Slurm"
    assert "not installed on this node" in cluster.refused("n1", "/usr/bin/srobust", "admin", "verify")

    works_by_hand(cluster)
    for node in NODES:
        cluster.run(node, "/usr/bin/srobust", "admin", "install")
    assert cluster.conf.read_bytes() == before
    said = cluster.refused("head", "/usr/bin/srobust", "admin", "install", "--apply")
    assert "on every node first" in said
    assert cluster.conf.read_bytes() == before

    cluster.run("head", "/usr/bin/srobust", "admin", "install", "--apply", "--all-nodes-have-it")
    assert cluster.live("Prolog") == "/etc/slurm-robust/slurm.d/prolog/*"
    assert cluster.live("SchedulerParameters") == f"{parameters},nohold_on_prolog_fail"
    for node in NODES:
        cluster.run(node, "/usr/bin/srobust", "admin", "verify")
    both_prologs_run(cluster)
    is_installed_over_itself(cluster)

    goes_without_a_trace(cluster, before)


def works_by_hand(cluster: Cluster) -> None:
    """With nothing in its environment, as Slurm runs it, and with the distribution's own Python."""
    cluster.run("n1", "env", "-i", "/usr/bin/srobust-node", "periodic")
    assert '"node"' in cluster.run("n1", "cat", "/var/log/slurm-robust/events.jsonl")
    launcher = cluster.run("n1", "cat", "/usr/bin/srobust-node")
    assert launcher.startswith("#!/usr/bin/python3")
    cluster.run("n1", "/usr/lib/slurm-robust/python", "-m", "slurm_robust.cli", "version")
    said = cluster.refused("n1", "/usr/bin/srobust", "run", "train.py")
    assert "activate the environment of your training" in said
    assert "srobust" in cluster.run("n1", "zcat", "/usr/share/man/man8/srobust-node.8.gz")
    completes = (
        ". /usr/share/bash-completion/completions/srobust; COMP_WORDS=(srobust adm) COMP_CWORD=1; "
        'complete -p srobust; _srobust /usr/bin/srobust; echo "${COMPREPLY[@]}"'
    )
    assert cluster.run("n1", "bash", "-c", completes) == "complete -F _srobust srobust\nadmin\n"
    assert cluster.run("n1", "cat", "/usr/share/zsh/vendor-completions/_srobust").startswith(
        "#compdef srobust"
    )
    doc = "/usr/share/doc/slurm-robust"
    assert "Mozilla Public License" in cluster.run("n1", "cat", f"{doc}/copyright")
    assert cluster.run("n1", "zcat", f"{doc}/changelog.Debian.gz").startswith("slurm-robust (")
    assert cluster.run("n1", "zcat", f"{doc}/changelog.gz").startswith("# Changelog")


def both_prologs_run(cluster: Cluster) -> None:
    """The site's own, and ours; the job runs and no node is drained."""
    cluster.run("head", "srun", "--nodes=2", "--time=1", "true")
    for node in ("n1", "n2"):
        assert cluster.run(node, "cat", "/run/prologs") == "own\n"
        assert '"prolog' in cluster.run(node, "cat", "/var/log/slurm-robust/events.jsonl")
    wait_for(lambda: set(cluster.sandbox.node_states().values()) == {"idle"}, 30, "nodes are not idle")


def is_installed_over_itself(cluster: Cluster) -> None:
    """As an upgrade is: hooks go on, and what the site wrote stays."""
    cluster.run("n1", "bash", "-c", "echo 'gpu: {count: 0}' > /etc/slurm-robust/config.yaml")
    cluster.run("n1", "dpkg", "-i", "/etc/slurm/package.deb")
    assert cluster.run("n1", "cat", "/etc/slurm-robust/config.yaml") == "gpu: {count: 0}\n"
    cluster.run("n1", "/usr/bin/srobust", "admin", "install")
    cluster.run("n1", "/usr/bin/srobust", "admin", "verify")


def goes_without_a_trace(cluster: Cluster, before: bytes) -> None:
    said = cluster.refused("n1", "dpkg", "--remove", "slurm-robust")
    assert "still says Prolog=" in said
    cluster.run("n1", "test", "-x", "/usr/bin/srobust-node")

    cluster.run("head", "/usr/bin/srobust", "admin", "uninstall", "--apply")
    assert cluster.conf.read_bytes() == before
    assert cluster.live("Prolog") == OWN_PROLOG
    for node in ("n1", "n2"):
        # A slurmd that has not read slurm.conf again would still look for ours.
        cluster.run(node, "dpkg", "--purge", "slurm-robust")
        left = cluster.run(
            node, "bash", "-c", "ls -d /etc/slurm-robust /usr/lib/slurm-robust 2>/dev/null || true"
        )
        assert left == ""
    cluster.run("head", "srun", "--nodes=2", "--time=1", "true")

    apply = ("/usr/bin/srobust", "admin", "install", "--apply", "--all-nodes-have-it")
    cluster.conf.write_bytes(before + b"Bogus=1\n")
    said = cluster.refused("head", *apply)
    cluster.conf.write_bytes(before)
    assert "nothing was changed" in said
    assert "Bogus" in said

    cluster.sandbox.fault.kill_slurmctld()
    said = cluster.refused("head", *apply)
    cluster.sandbox.fault.start_slurmctld()
    assert "slurm.conf is as it was" in said
    assert cluster.conf.read_bytes() == before
