"""A real Prometheus scrapes the page of a simulated job's controller, through a fault and a takeover."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from slurm_robust.config.job import MetricsConfig
from slurm_robust.controller.live_status import LiveStatusMaker, Storage, picture
from slurm_robust.controller.metrics import About, MetricsServer
from slurm_robust.ledger.summary import summary_of
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.live_status import LiveStatus
from tests.unit.engine.stories import core_of, trained
from tests.unit.telemetry.monitoring import MONITORING, expressions
from tests.waiting import wait_for

PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROMETHEUS is None, reason="Prometheus is not installed: apt-get install prometheus"),
]
ABOUT = About(folder="7", cluster="c1", user="alice", name="train")


class Watched:
    """A simulated job and its newest moment."""

    def __init__(self) -> None:
        self.sim = trained(2, 1, to=0)
        self._live_status, self._known = LiveStatusMaker(), 0
        self.moment = self.look()

    def look(self) -> LiveStatus:
        core, now = core_of(self.sim)
        news, self._known = self.sim.journal[self._known :], len(self.sim.journal)
        self._live_status.on_ledger(summary_of(self.sim.journal, now.wall), now.mono)
        self.moment = self._live_status.make(picture(core, now, news, Storage(), 0.01))
        return self.moment


class Prometheus:
    """One that scrapes every second what a job's folder says."""

    def __init__(self, folder: Path, targets: Path, token: Path) -> None:
        assert PROMETHEUS is not None
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.place = f"127.0.0.1:{free.getsockname()[1]}"
        scrape = {
            "job_name": "srobust",
            "authorization": {"credentials_file": str(token)},
            "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}],
        }
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(MONITORING / "alerts.yml")],
            "scrape_configs": [scrape],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        words = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        words += [f"--web.listen-address={self.place}", "--log.level=warn"]
        with (folder / "prometheus.log").open("wb") as log:
            self.process = subprocess.Popen([PROMETHEUS, *words], stdout=log, stderr=log)

    def get(self, path: str) -> Any:
        connection = http.client.HTTPConnection(self.place, timeout=60)
        with closing(connection):
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())

    def ask(self, expression: str) -> list[tuple[dict[str, str], str]]:
        """Labels and value of each series; none as long as Prometheus does not answer yet."""
        try:
            found = self.get(f"/api/v1/query?query={quote(expression)}")
        except (ConnectionRefusedError, json.JSONDecodeError):
            return []
        assert found["status"] == "success", (expression, found)
        result = found["data"]["result"]
        return [(each["metric"], each["value"][1]) for each in result if isinstance(each, dict)]

    def value(self, expression: str) -> float | None:
        found = self.ask(expression)
        return float(found[0][1]) if found else None


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("s3cret")
    path.chmod(0o600)
    return path


@pytest.fixture
def directory(tmp_path: Path) -> JobDirectory:
    (tmp_path / "7").mkdir()
    return JobDirectory(tmp_path / "7")


@pytest.fixture
def prometheus(tmp_path: Path, directory: JobDirectory, token: Path) -> Iterator[Prometheus]:
    found = Prometheus(tmp_path, directory.metrics, token)
    yield found
    found.process.terminate()
    found.process.wait(60)


def test_prometheus_follows_a_job_through_a_fault_and_a_takeover(
    prometheus: Prometheus, directory: JobDirectory, token: Path
) -> None:
    watched, said = Watched(), list[str]()
    config = MetricsConfig(listen="127.0.0.1:0", token_file=str(token))

    def serve() -> MetricsServer:
        server = MetricsServer(config, directory, lambda: watched.moment, ABOUT, said.append)
        server.start()
        return server

    sim, first = watched.sim, serve()
    try:
        wait_for(lambda: prometheus.value('up{instance="job-c1-7"}') == 1)
        sim.run_until(lambda: watched.look().step == 5, within_s=30.0)
        wait_for(lambda: prometheus.value("srobust_job_step") == 5)
        sim.node_dies("n2")
        sim.run_until(lambda: sim.state.world.incident is not None, within_s=30.0)
        watched.look()
        wait_for(lambda: prometheus.value("srobust_job_incident_open") == 1)
        assert prometheus.value('srobust_job_incidents_total{symptom="node lost"}') == 1
    finally:
        first.close()
    wait_for(lambda: prometheus.get("/api/v1/targets")["data"]["activeTargets"] == [])
    sim.run_until(lambda: watched.look().step == 20, within_s=90.0)
    with closing(serve()):
        wait_for(lambda: prometheus.value("srobust_job_step") == 20)
        assert prometheus.value("srobust_job_incident_open") == 0
        # The same series: counters go on, and an increase is seen across the move.
        (labels, count), *_ = prometheus.ask("count_over_time(srobust_job_evictions_total[10m])")
        assert float(count) >= 2
        assert labels["instance"] == "job-c1-7"
        assert (labels["cluster"], labels["job_id"]) == ("c1", str(watched.moment.job_id))
        for where, expression in expressions():
            assert prometheus.ask(expression.replace('"42"', f'"{watched.moment.job_id}"')) is not None, where
        health = [r["health"] for g in prometheus.get("/api/v1/rules")["data"]["groups"] for r in g["rules"]]
        assert set(health) == {"ok"}
        assert len(health) == 10
    assert said == []
