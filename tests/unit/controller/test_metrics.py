"""The controller's page of metrics: who may read it, how Prometheus finds it, and what is left at the end."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from slurm_robust.config.job import MetricsConfig
from slurm_robust.controller.metrics import About, MetricsServer, read_token, target
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.live_status import LiveStatus
from slurm_robust.util.ours import NotOurs
from tests.builders.live_statuses import live_incident
from tests.waiting import wait_for

ABOUT = About(folder="42", cluster="big one", user="alice", name='x"\x1b[31m')


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("s3cret\n")
    path.chmod(0o600)
    return path


class Pages:
    """Servers of one job folder."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.directory, self._stack = JobDirectory(folder / "42"), stack
        self.directory.path.mkdir()
        self.said: list[str] = []

    def serve(
        self, config: MetricsConfig, newest: Callable[[], LiveStatus | None] = live_incident
    ) -> MetricsServer:
        server = MetricsServer(config, self.directory, newest, ABOUT, self.said.append)
        self._stack.enter_context(closing(server))
        server.start()
        return server

    def places(self) -> list[str]:
        wait_for(self.directory.metrics.exists)
        (found,) = json.loads(self.directory.metrics.read_bytes())
        return list(found["targets"])


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Pages]:
    with ExitStack() as stack:
        yield Pages(tmp_path, stack)


def scrape(place: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(place, timeout=60)
    connection.request("GET", "/metrics", headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_a_scrape_shows_the_newest_moment_with_the_token(pages: Pages, token: Path) -> None:
    pages.serve(MetricsConfig(listen="127.0.0.1:0", token_file=str(token)))
    (place,) = pages.places()
    assert scrape(place)[0] == 401
    status, text = scrape(place, Authorization="Bearer s3cret")
    assert status == 200
    assert 'srobust_job_step{job_id="42"} 120\n' in text
    assert pages.said == []


def test_prometheus_finds_the_page_until_the_end(pages: Pages, tmp_path: Path) -> None:
    shared = tmp_path / "targets"
    shared.mkdir()
    server = pages.serve(MetricsConfig(listen="127.0.0.1:0", discovery_dir=str(shared)))
    copy = shared / "srobust-big-one-42.json"
    wait_for(copy.exists)
    assert copy.read_bytes() == pages.directory.metrics.read_bytes()
    assert (copy.stat().st_mode & 0o777, pages.directory.metrics.stat().st_mode & 0o777) == (0o644, 0o600)
    (place,) = pages.places()
    server.close()
    assert list(shared.iterdir()) == []
    assert not pages.directory.metrics.exists()
    with pytest.raises(ConnectionRefusedError):
        scrape(place)


def test_a_target_keeps_its_labels_wherever_it_moves() -> None:
    (before,) = json.loads(target(ABOUT, "n1", 9480))
    (after,) = json.loads(target(ABOUT, "fd00::7", 31000))
    assert before["labels"] == {
        "instance": "job-big-one-42",
        "cluster": "big one",
        "user": "alice",
        "name": 'x"',
    }
    assert after == before | {"targets": ["[fd00::7]:31000"]}


def test_the_end_of_an_old_controller_leaves_the_new_ones_word(pages: Pages) -> None:
    old = pages.serve(MetricsConfig(listen="127.0.0.1:0"))
    first = pages.places()
    pages.serve(MetricsConfig(listen="127.0.0.1:0"))
    wait_for(lambda: pages.places() != first)
    new = pages.places()
    old.close()
    assert pages.places() == new
    assert scrape(new[0])[0] == 200


def test_every_interface_is_announced_by_the_name_of_the_node(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    pages.serve(MetricsConfig(listen="0.0.0.0:0", public=True))
    (place,) = pages.places()
    assert place.startswith("n7:")
    assert scrape(f"127.0.0.1:{place.partition(':')[2]}")[0] == 200


def test_a_taken_port_is_a_note_and_nothing_else(pages: Pages) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        server = pages.serve(MetricsConfig(listen=listen))
        wait_for(lambda: pages.said)
        server.close()
    (text,) = pages.said
    assert text.startswith(f"no metrics are served on {listen} (the controller tries again): ")
    assert "address already in use" in text
    assert not pages.directory.metrics.exists()


def test_a_host_of_another_node_is_a_note(pages: Pages) -> None:
    pages.serve(MetricsConfig(listen="192.0.2.1:9480", public=True))
    wait_for(lambda: pages.said)
    assert "192.0.2.1:9480" in pages.said[0]


def test_a_folder_that_takes_no_file_costs_only_the_word(pages: Pages, tmp_path: Path) -> None:
    pages.serve(MetricsConfig(listen="127.0.0.1:0", discovery_dir=str(tmp_path / "none")))
    (place,) = pages.places()
    wait_for(lambda: pages.said)
    assert pages.said == [
        f"Prometheus does not find the metrics of this job: {tmp_path}/none/srobust-big-one-42.json: "
        "No such file or directory"
    ]
    assert scrape(place)[0] == 200


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        ("ok", 0o640, "is open to others (mode 0640): chmod 600"),
        ("ok", 0o604, "is open to others (mode 0604)"),
        ("", 0o600, "holds no token"),
        ("two words", 0o600, "holds no token"),
        ("é", 0o600, "holds no token"),
        ("x" * 5000, 0o600, "holds no token"),
    ],
)
def test_a_token_that_protects_nothing_is_refused(token: Path, content: str, mode: int, why: str) -> None:
    token.write_text(content)
    token.chmod(mode)
    with pytest.raises(NotOurs) as told:
        read_token(token)
    assert why in str(told.value)


def test_a_token_is_neither_a_link_nor_a_pipe_nor_anothers(token: Path, tmp_path: Path) -> None:
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(token)
    os.mkfifo(pipe, 0o600)
    for path in (link, pipe):
        with pytest.raises(NotOurs):
            read_token(path)
    if os.geteuid() == 0:
        os.chown(token, 1, 1)
        with pytest.raises(NotOurs, match="belongs to uid 1"):
            read_token(token)
