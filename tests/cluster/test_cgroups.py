"""Control groups of a real Slurm, read from the node on which a job runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from slurm_robust.sandbox.cgroups import check_kernel
from slurm_robust.sandbox.errors import RequirementMissing
from slurm_robust.slurm.cli_client import CliSlurmClient
from slurm_robust.slurm.process import run_command
from slurm_robust.slurm.requests import SubmitRequest
from tests.waiting import wait_for

if TYPE_CHECKING:
    from slurm_robust.sandbox import Sandbox

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.releases]

# What the node's checks see, from outside of the job and from inside.
READ = """
import json
from slurm_robust.config.node import NodeConfig
from slurm_robust.nodes.checks import pressure
from slurm_robust.kernel.host import Host
from slurm_robust.kernel.jobgroups import jobs_here
job = pressure.gather(Host(), NodeConfig()).job
jobs = jobs_here(Host())
print(json.dumps([None if jobs is None else sorted(jobs), job and [job.name, job.limit]]), flush=True)
"""


def test_the_jobs_of_a_node_are_known_by_its_cgroups(
    sandboxes: Callable[..., Sandbox], tmp_path: Path
) -> None:
    try:
        check_kernel()
    except RequirementMissing as missing:
        pytest.skip(str(missing))
    memory = ("SelectTypeParameters=CR_Core_Memory",)  # else --mem limits nothing
    box = sandboxes(nodes=1, accounting=False, cgroups=True, slurm_conf_lines=memory)
    user = box.config.users[0]
    client = CliSlurmClient(prefix=box.enter_command(user=user))
    on_node = [*box.enter_command("n1", user="root"), sys.executable, "-c", READ]

    def seen() -> object:
        done = run_command(on_node, timeout_s=60, env=os.environ)
        return json.loads(done.stdout or "null") or done.stderr

    assert seen() == [[], None]
    command = f"{sys.executable} -c '{READ}'; sleep 300"
    log = Path("/home") / user / "cgroup.log"
    written = box.home(user) / "cgroup.log"
    request = SubmitRequest(command=(command,), wrap=True, nodes=1, output=str(log), options=("--mem=200",))
    job_id = client.submit(request)
    wait_for(lambda: written.exists() and written.read_text(), 60, "the job has read its cgroup")
    assert json.loads(written.read_text()) == [[job_id], [f"job_{job_id}", 200]]
    assert seen() == [[job_id], None]
    client.cancel(job_id)
    wait_for(lambda: seen() == [[], None], 60, "its group is gone")
