"""An epilog beside GPUs whose memory is still being freed: it waits for them, and calls none of them bad."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slurm_robust.nodes.checks.gpu import GPU_USE
from slurm_robust.nodes.memory import Memory
from slurm_robust.sandbox.gpus import StandInGpus
from tests.unit.nodes.fake_nvml import environment
from tests.users import as_root
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, as_root]

HOOK = "import sys; from slurm_robust.hooks.command import main; sys.exit(main(sys.argv[1:]))"
ALONE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
MANY_MB = 60_000


class Node:
    """A node with one GPU, on which no job is left."""

    def __init__(self, folder: Path) -> None:
        self.gpus = StandInGpus(folder / "gpus", "n1", 1)
        self.gpus.reset()
        self._state, self._log, self._config = folder / "state", folder / "events", folder / "config.yaml"
        self._config.write_text(
            "hooks: {epilog_s: 30, sweep: false}\ndrain: {mode: observe}\nsuspects: {enabled: false}\n"
            f"paths: {{state: {self._state}, log: {self._log}, syslog: false}}\n"
        )

    def begin(self, hook: str) -> subprocess.Popen[bytes]:
        words = [*ALONE, sys.executable, "-c", HOOK, hook, "--config", str(self._config)]
        env = environment(self.gpus) | {"SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "7"}
        return subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def run(self, hook: str) -> float:
        begun = time.monotonic()
        with self.begin(hook) as process:
            assert process.wait(60.0) == 0
        return time.monotonic() - begun

    @property
    def amounts(self) -> list[int | None]:
        """What the looks have seen."""
        samples = Memory(self._state).before(GPU_USE, time.time() + 1.0)
        return [sample.facts.gpus[0].memory_mb for sample in samples]

    def said(self) -> tuple[list[str], list[str]]:
        """What the last run found to be wrong with what is left over, and whether it is unknown."""
        runs = [msgspec.json.decode(line) for line in self._log.read_bytes().splitlines()]
        (last,) = [event for event in runs if event["event"] == "run"][-1:]
        found: list[dict[str, Any]] = [*last["causes"], *last["warnings"]]
        bad = [str(one["text"]) for one in found if one["check"] == "gpu.leftovers"]
        return bad, [name for name in last["unknown"] if name.startswith("gpu.leftovers")]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def seen(node: Node, amount: int) -> Callable[[], bool]:
    return lambda: amount in node.amounts


def test_an_epilog_waits_while_the_memory_of_a_big_job_is_being_freed(node: Node) -> None:
    node.gpus.set(0, memory_used=MANY_MB)
    with node.begin("epilog") as process:
        wait_for(seen(node, MANY_MB))
        node.gpus.set(0, memory_used=MANY_MB // 2)
        wait_for(seen(node, MANY_MB // 2))
        assert process.poll() is None
        node.gpus.set(0, memory_used=0)
        assert process.wait(60.0) == 0
    assert node.said() == ([], [])
    assert node.amounts[-1] == 0


def test_a_prolog_waits_no_longer_than_a_moment_and_drains_nothing(node: Node) -> None:
    node.gpus.set(0, memory_used=MANY_MB)
    assert node.run("prolog") < 10.0
    assert node.said() == ([], ["gpu.leftovers gpu0"])


def test_an_epilog_beside_free_gpus_checks_once(node: Node) -> None:
    node.run("epilog")
    assert node.said() == ([], [])
    assert node.amounts == [0]
