"""On a real Slurm: the page of a job's controller is scraped while it trains, and gone when it has ended."""

from __future__ import annotations

import json
import re
import secrets
import sys

import pytest

from slurm_robust.model import events as ev
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, ProtectedJob

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

CONFIG = """
metrics:
  listen: 0.0.0.0:0
  token_file: /home/{user}/metrics-token
  discovery_dir: /home/{user}/targets
"""
SCRAPE = """
import sys, urllib.request as u
request = u.Request(sys.argv[1], headers={"Authorization": sys.argv[2]})
sys.stdout.write(u.urlopen(request, timeout=10).read().decode())
"""


class Scraped(ProtectedJob):
    """A job with a page of metrics."""

    def __init__(self, sandbox: Sandbox, options: str, *, nodes: int) -> None:
        home = sandbox.home(USER)
        self.token, self.targets = secrets.token_hex(16), home / "targets"
        script = (
            f"umask 077 && mkdir -p targets && printf %s {self.token} > metrics-token "
            f"&& printf %s '{CONFIG.format(user=USER)}' > metrics.yaml"
        )
        sandbox.exec(["sh", "-c", f"cd && {script}"], user=USER)
        super().__init__(sandbox, f"--config metrics.yaml {options}", nodes=nodes)

    def place(self) -> str:
        """Where the page is, by what Prometheus reads; "" as long as it is nowhere."""
        found = list(self.targets.glob("srobust-*.json"))
        return str(json.loads(found[0].read_bytes())[0]["targets"][0]) if found else ""

    def page(self) -> dict[str, float]:
        """What another node of the cluster sees, by name and labels; empty where it sees nothing."""
        command = [sys.executable, "-c", SCRAPE, f"http://{self.place()}/metrics", f"Bearer {self.token}"]
        done = self.sandbox.exec(command, user=USER, timeout_s=30.0, check=False)
        lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
        label = f'job_id="{self.id}"'
        assert all(label in line for line in lines)
        pairs = (line.rpartition(" ") for line in lines)
        return {re.sub(rf"{label},?", "", name).replace("{}", ""): float(value) for name, _, value in pairs}


def test_a_job_is_scraped_while_it_trains_and_its_page_ends_with_it(sandbox: Sandbox) -> None:
    job = Scraped(sandbox, "--spares 1 tiny.py --out OUT --steps 60 --step-s 0.5", nodes=3)
    job.wait(lambda: job.place() and job.page().get("srobust_job_step", -1) >= 2, 90, "steps on the page")
    page = job.page()
    assert page['srobust_job_stage{stage="running"}'] == 1
    assert page['srobust_job_nodes{state="training"}'] == 2
    assert page["srobust_job_incident_open"] == 0
    assert page['srobust_job_node_state{node="n1",state="training"}'] == 1
    refused = sandbox.exec(
        [sys.executable, "-c", SCRAPE, f"http://{job.place()}/metrics", "Bearer x"], user=USER, check=False
    )
    assert "401" in refused.stderr

    sandbox.fault.kill_rank(job.id, 1)
    job.wait_recovered(1)
    # A page may be some seconds old, and shows the incident before the launch that ends it.
    job.wait(lambda: job.page().get("srobust_job_launches_total") == 2, 30, "the second launch on the page")
    page = job.page()
    assert page['srobust_job_incidents_total{symptom="worker exit"}'] == 1
    (opened,) = job.events(ev.IncidentOpened)
    (mark,) = [
        value
        for name, value in page.items()
        if name.startswith("srobust_job_incident_start_timestamp_seconds")
    ]
    assert abs(mark - opened.t) < 30

    place = job.place()
    assert job.wait_end() == 0
    assert job.place() == ""
    assert not (job.folder / "metrics.json").exists()
    gone = sandbox.exec(
        [sys.executable, "-c", SCRAPE, f"http://{place}/healthz", "x"], user=USER, check=False
    )
    assert "Connection refused" in gone.stderr
    assert "no metrics" not in job.log
