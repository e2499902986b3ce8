"""A job of a real Slurm gets into the fleet index: by its controller, the epilog, and a collection."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_robust.sandbox import Sandbox
from tests.cluster.installed_hooks import installed
from tests.cluster.protected_job import USER, ProtectedJob
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

STATE, LOG, INDEX = "/run/srobust-state", "/run/srobust-events.jsonl", "/run/fleet.sqlite"
CONFIG = f"""
drain: {{mode: observe}}
hooks: {{epilog_s: 20, slurm_s: 5}}
paths: {{state: {STATE}, log: {LOG}, syslog: false}}
fleet: {{collect: true, index: {INDEX}}}
"""


@pytest.fixture(scope="module")
def hooks() -> Iterator[Path]:
    with installed(CONFIG) as folder:
        yield folder


def test_a_job_gets_from_its_folder_into_the_index(sandboxes: Callable[..., Sandbox], hooks: Path) -> None:
    sandbox = sandboxes(
        nodes=3,
        slurmd_timeout_s=60,
        slurm_conf_lines=(f"Epilog={hooks}/epilog.sh", "PrologEpilogTimeout=60"),
    )
    job = ProtectedJob(sandbox, "--spares 1 tiny.py --out OUT --steps 60 --step-s 0.2", nodes=3)
    job.wait_step(5)
    node = job.state.own_node
    sandbox.fault.kill_rank(job.id, 1)
    job.wait_recovered(1)
    assert job.wait_end() == 0

    def root(*words: str, check: bool = True) -> str:
        return sandbox.exec(list(words), node=node, user="root", timeout_s=60.0, check=check).stdout

    def comment() -> str:
        shown = sandbox.exec(["squeue", "-h", "-t", "all", "-j", str(job.id), "-o", "%k"], user=USER)
        return shown.stdout.strip()

    wait_for(lambda: comment().startswith("srobust: ETTR "), 30, comment())
    spool = f"{STATE}/fleet-spool"
    wait_for(lambda: root("ls", spool, check=False).strip(), 60, root("cat", LOG, check=False))
    given = ("--config", f"{hooks}/config.yaml", "--json")
    collected: list[dict[str, Any]] = []

    def is_in() -> bool:
        collected.append(json.loads(root("srobust", "admin", "fleet", "collect", *given)))
        return collected[-1]["new"] == 1

    # slurmdbd has the end of the run some seconds late.
    wait_for(is_in, 60, str(collected[-1:]))
    assert collected[-1]["unverified"] == 0, collected[-1]
    (incident,) = json.loads(root("srobust", "incidents", "--all", *given))
    assert (incident["job_id"], incident["user"], incident["symptom"]) == (job.id, USER, "worker exit")
    report = json.loads(root("srobust", "fleet", *given))
    assert (report["totals"]["jobs"], report["totals"]["unverified"]) == (1, 0)
    assert 0 < report["totals"]["ettr"] < 1
    rows = json.loads(root("srobust", "nodes", *given))["nodes"]
    assert {row["node"] for row in rows if row["hours"]} == {"n1", "n2", "n3"}
    assert root("ls", spool).strip() == ""
