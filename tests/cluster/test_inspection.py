"""The agent of an ordinary user's job step sees the faults of its node in time, and tells its controller."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from slurm_robust.model.findings import Alert
from slurm_robust.sandbox import Sandbox
from tests.cluster.installed_hooks import ROOT
from tests.cluster.protected_job import USER
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

NODE = "n1"
LOG = "/run/kmsg"  # each node has its own /run
# The node's kernel log becomes a file of its own: the real one is the same on all nodes of the machine.
COVER = f"echo '6,0,1000000,-;Linux version' > {LOG} && chmod 644 {LOG} && mount --bind {LOG} /dev/kmsg"
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus."


class Told:
    """What the listening controller of the step has printed."""

    def __init__(self, sandbox: Sandbox, output: Path) -> None:
        self.gpus = sandbox.gpus(NODE)
        self._sandbox = sandbox
        self._output = output

    def alerts(self) -> list[Alert]:
        lines = self._output.read_text().splitlines(keepends=True)
        return [
            msgspec.json.decode(line, type=Alert)
            for line in lines
            if line.startswith("{") and line[-1] == "\n"
        ]

    def wait(self, check: str, timeout_s: float = 60.0) -> Alert:
        """The first alert of a check."""
        try:
            return wait_for(lambda: [a for a in self.alerts() if a.check == check], timeout_s)[0]
        except AssertionError:
            raise AssertionError(
                f"no alert of {check} in {timeout_s:g} s:\n{self._output.read_text()}"
            ) from None

    def kernel_says(self, text: str) -> None:
        """A line of the kernel's own."""
        line = f"3,1,{int(time.monotonic() * 1e6)},-;{text}"
        self._sandbox.exec(["sh", "-c", f"echo '{line}' >> {LOG}"], node=NODE, user="root")


@pytest.fixture
def told(sandboxes: Callable[..., Sandbox]) -> Iterator[Told]:
    """Of a step on n1 whose inspection has begun."""
    sandbox = sandboxes(nodes=2, gpus_per_node=8, accounting=False)
    with _own_kernel_log(sandbox), _listening(sandbox) as told:
        told.gpus.set(0, recovery_action=1)
        told.wait("gpu.recovery")
        yield told


@contextmanager
def _own_kernel_log(sandbox: Sandbox) -> Iterator[None]:
    sandbox.exec(["sh", "-c", COVER], node=NODE, user="root")
    try:
        yield
    finally:
        sandbox.exec(["umount", "/dev/kmsg"], node=NODE, user="root")


@contextmanager
def _listening(sandbox: Sandbox) -> Iterator[Told]:
    name = f"inspected-{time.monotonic_ns()}"
    output = sandbox.home(USER) / f"{name}.out"
    words = ["srun", f"-w{NODE}", f"--chdir={ROOT}", sys.executable, "-m", "tests.stand_ins.alerts"]
    with output.open("w") as file:
        step = sandbox.popen(
            [*words, f"/home/{USER}/{name}"], user=USER, stdin=subprocess.PIPE, stdout=file, stderr=file
        )
    try:
        yield Told(sandbox, output)
    finally:
        step.communicate(timeout=60)


def test_a_lost_gpu_reaches_the_controller_within_5_s(told: Told) -> None:
    begun = time.monotonic()
    told.gpus.set(3, lost=True)
    alert = told.wait("gpu.lost")
    assert time.monotonic() - begun < 5.0
    assert alert.subject == "gpu3"
    assert alert.suggestion.keeps_jobs_away


def test_a_line_of_the_kernel_reaches_the_controller_within_2_s(told: Told) -> None:
    begun = time.monotonic()
    told.kernel_says(XID)
    alert = told.wait("kernel.xid")
    assert time.monotonic() - begun < 2.0
    assert (alert.subject, alert.suggestion.value) == ("0000:9b:00", "reboot")
