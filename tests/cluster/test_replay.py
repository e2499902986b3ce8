"""A node that computes wrongly without any error is found by replaying the training in small groups."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from slurm_robust.analysis.replay import ReplayVerdict
from slurm_robust.model.findings import Outcome
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import SCRIPTS, USER

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

# Python imports this at its start where PYTHONPATH names its folder, which only a broken node has.
CORRUPTS = """
import os
if "RANK" in os.environ:
    import torch
    sound, calls = torch.nn.functional.linear, 0

    def linear(*args, **kwargs):
        global calls
        calls += 1
        result = sound(*args, **kwargs)
        if calls % 7 == 0:
            result.data.view(torch.int32).view(-1)[0] ^= 1 << 18
        return result

    torch.nn.functional.linear = linear
"""
EXAMPLE = Path(__file__).parents[2] / "examples" / "train_gpt.py"
HANGS = """
import os, signal
if "RANK" in os.environ:
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture
def cluster(sandboxes: Callable[..., Sandbox]) -> Sandbox:
    return sandboxes(nodes=8)


def break_node(cluster: Sandbox, node: str, fault: str) -> None:
    words = ["bash", "-c", "mkdir -p /tmp/broken && cat > /tmp/broken/sitecustomize.py"]
    cluster.exec(words, node=node, user="root", input=fault)


def replay(
    cluster: Sandbox, script: Path = SCRIPTS / "tiny.py", args: tuple[str, ...] = ("--step-s", "0")
) -> tuple[int, ReplayVerdict]:
    """Exit code and verdict of ``srobust replay`` in an allocation of all nodes."""
    shutil.copy(script, cluster.home(USER))
    words = [script.name, "--steps", "100", "--out", "never", *args]
    done: subprocess.CompletedProcess[str] = cluster.exec(
        ["salloc", "--quiet", "--nodes=8", "--cpus-per-task=2", "srobust", "replay", "--json", *words],
        user=USER,
        env={"OMP_NUM_THREADS": "1", "PYTHONPATH": "/tmp/broken"},
        timeout_s=600,
        check=False,
    )
    assert done.stdout.startswith("{"), done.stderr
    return done.returncode, msgspec.json.decode(done.stdout, type=ReplayVerdict)


def ranks_left(cluster: Sandbox) -> list[str]:
    pids = [pid for node in cluster.config.node_names for pid in cluster.host_pids(node)]
    names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids if Path(f"/proc/{pid}").exists()]
    return [name for name in names if name.startswith("srobust-rank")]


def test_a_silent_corruption_is_found_exactly(cluster: Sandbox) -> None:
    break_node(cluster, "n6", CORRUPTS)
    code, verdict = replay(cluster)
    assert verdict.suspects == ("n6",), verdict
    assert (code, verdict.is_ambiguous) == (1, False)
    assert [seen.nodes for seen in verdict.horizontal if seen.outcome is Outcome.FAIL] == [("n5", "n6")]
    assert [seen.nodes for seen in verdict.vertical if seen.outcome is Outcome.FAIL] == [("n2", "n6")]
    assert "other bits than the majority from step" in verdict.reason
    # The script has checkpoints and would have made 100 steps: a replay leaves nothing but its own folder.
    assert not (cluster.home(USER) / "checkpoints").exists()
    assert not (cluster.home(USER) / "never").exists()


@pytest.mark.soak
def test_sound_nodes_agree(cluster: Sandbox) -> None:
    code, verdict = replay(cluster, EXAMPLE, ("--layers", "1", "--width", "64"))
    assert (code, verdict.suspects) == (0, ()), verdict
    assert [seen.outcome for seen in verdict.horizontal] == [Outcome.PASS] * 4


@pytest.mark.soak
def test_a_node_that_hangs_is_found_and_nothing_stays_behind(cluster: Sandbox) -> None:
    break_node(cluster, "n3", HANGS)
    code, verdict = replay(cluster)
    assert (code, verdict.suspects) == (1, ("n3",)), verdict
    assert "no result within" in verdict.reason
    assert ranks_left(cluster) == []
