"""Nodes of a sandbox with what the matrix breaks: a kernel log, a link and a configuration of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.common import ROOT, wait_for
from slurm_robust.sandbox import Sandbox
from tests.cluster import network_link

KMSG = "/run/kmsg"
DEAD = "/run/dead"
_READY = "/run/srobust-matrix"
_CGROUPS = Path("/sys/fs/cgroup")
_PREPARE = f"""set -e
touch {KMSG} && chmod 644 {KMSG} && mount --bind {KMSG} /dev/kmsg
mkdir -p {DEAD}
touch {_READY}
"""


class Nodes:
    """Breaks and mends them. What breaks something tells when, ``time.time()``."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._mounts: list[subprocess.Popen[str]] = []
        self._groups: list[Path] = []

    def prepare(self) -> None:
        """All nodes as new; one that was off has lost everything."""
        for node in self.sandbox.config.node_names:
            if self.sandbox.exec(["test", "-e", _READY], node=node, check=False).returncode != 0:
                network_link.add(self.sandbox, node)
                network_link.configure(self.sandbox, node)
                self.root(node, _PREPARE)
            self.root(node, f"echo '6,0,1000000,-;Linux version' > {KMSG}")
            self.link(node, "up")

    def root(self, node: str, script: str) -> float:
        """Run a script as root on a node."""
        begun = time.time()
        self.sandbox.exec(["sh", "-c", script], node=node, user="root", timeout_s=30.0)
        return begun

    def kernel_says(self, node: str, text: str) -> float:
        """A line of the kernel's own, of the level of an error."""
        path = Path(f"/proc/{self.sandbox.node_pid(node)}/root{KMSG}")
        with path.open("a") as file:
            begun = time.time()
            file.write(f"3,1,{int(time.monotonic() * 1e6)},-;{text}\n")
        return begun

    def link(self, node: str, state: str) -> float:
        """The far end of the node's link goes ``up`` or ``down``."""
        begun = time.time()
        network_link.far_end(self.sandbox, node, state)
        return begun

    def dead_mount(self, node: str) -> float:
        """A mount whose server takes requests and never answers."""
        words = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tests.stand_ins.dead_mount", DEAD]
        mounts = Path(f"/proc/{self.sandbox.node_pid(node)}/mounts")
        begun = time.time()
        self._mounts.append(self.sandbox.popen(words, node=node, user="root", stdin=subprocess.PIPE))
        wait_for(lambda: f" {DEAD} fuse" in mounts.read_text(), 20.0, f"no mount on {node}")
        return begun

    def limit_memory(self, pid: int, mb: int) -> None:
        """The process gets no more than so many MiB beyond those that it has."""
        first = (_CGROUPS / "memory").is_dir()  # cgroups of version 1, a tree for each controller
        folder, file = ("memory", "memory.limit_in_bytes") if first else ("", "memory.max")
        group = _CGROUPS / folder / f"srobust-matrix-{os.getpid()}-{len(self._groups)}"
        group.mkdir()
        self._groups.append(group)
        (group / file).write_text(str(mb << 20))
        (group / "cgroup.procs").write_text(str(pid))

    def mend(self) -> None:
        """Undo what would outlive a training."""
        for mount in self._mounts:
            mount.kill()
            mount.communicate()
        self._mounts.clear()
        for group in self._groups:
            _dissolve(group)
        self._groups.clear()


def _dissolve(group: Path) -> None:
    for pid in (group / "cgroup.procs").read_text().split():
        try:
            (group.parent / "cgroup.procs").write_text(pid)
        except ProcessLookupError:
            pass  # it has ended meanwhile
    group.rmdir()
