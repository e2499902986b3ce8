"""Daemons: which must run, and a munged that is asked."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.config.node import NodeConfig, ServiceLimits
from slurm_robust.kernel.host import Host
from slurm_robust.model.findings import Outcome, Party, Suggestion
from slurm_robust.nodes.checks import processes, services
from slurm_robust.nodes.checks.processes import ProcessFacts
from slurm_robust.nodes.checks.services import MungeFacts, gather_munge, judge_munge, judge_running
from tests.unit.nodes.host_files import only, plant, view
from tests.users import as_root
from tests.waiting import wait_for

CONFIG = NodeConfig()


def facts(*daemons: str, units: tuple[str, ...] = ()) -> ProcessFacts:
    return ProcessFacts(count=1, cpus=1, load=(0, 0, 0), daemons=daemons, units=frozenset(units))


def test_nothing_is_asked_of_a_node_where_nothing_is_enabled() -> None:
    assert list(judge_running(view(facts("systemd")), CONFIG)) == []


def test_a_user_who_sees_no_daemon_at_all_gets_unknown() -> None:
    assert only(judge_running(view(facts(units=("munge",))), CONFIG)).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("daemon", "unit", "comm", "suggestion"),
    [
        ("munged", "munge", "munged", Suggestion.RESET),
        ("slurmd", "slurmd", "slurmd", Suggestion.RESET),
        ("nvidia-fabricmanager", "nvidia-fabricmanager", "nv-fabricmanage", Suggestion.RESET),
        ("nv-hostengine", "nvidia-dcgm", "nv-hostengine", Suggestion.MONITOR),
        ("nv-hostengine", "dcgm", "nv-hostengine", Suggestion.MONITOR),
        ("nvidia-persistenced", "nvidia-persistenced", "nvidia-persiste", Suggestion.MONITOR),
    ],
)
def test_an_enabled_daemon_must_run(daemon: str, unit: str, comm: str, suggestion: Suggestion) -> None:
    found = only(judge_running(view(facts(comm, units=(unit,))), CONFIG))
    assert (found.subject, found.outcome) == (daemon, Outcome.PASS)
    found = only(judge_running(view(facts("other", units=(unit,))), CONFIG))
    assert (found.subject, found.outcome, found.suggestion) == (daemon, Outcome.FAIL, suggestion)


def test_what_the_site_names_must_run_whatever_is_enabled() -> None:
    config = NodeConfig(services=ServiceLimits(required=("sssd", "nv-hostengine")))
    sssd, engine = judge_running(view(facts("nv-hostengine")), config)
    assert (sssd.outcome, sssd.suggestion) == (Outcome.FAIL, Suggestion.RESET)
    assert (engine.outcome, engine.suggestion) == (Outcome.PASS, Suggestion.NONE)


UNITS = {
    "/proc/loadavg": "0 0 0 1/1 1",
    "/etc/systemd/system/multi-user.target.wants/munge.service": "",
    "/etc/systemd/system/graphical.target.wants/slurmd.service": "",
    "/etc/systemd/system/timers.target.wants/apt.timer": "",
    "/etc/systemd/system/off.service": "",
}


def test_units_count_that_systemd_starts(tmp_path: Path) -> None:
    container = plant(tmp_path / "container", UNITS)
    assert processes.gather(container, CONFIG).units == frozenset()
    node = plant(tmp_path / "node", {**UNITS, "/run/systemd/system/transient": ""})
    assert processes.gather(node, CONFIG).units == {"munge", "slurmd"}


def munge_at(path: Path, munge_s: float = 0.2) -> NodeConfig:
    return NodeConfig(services=ServiceLimits(munge_socket=str(path), munge_s=munge_s))


@pytest.fixture
def folder() -> Iterator[Path]:
    # The path of a socket must be short, and munged wants folders that others cannot write.
    with tempfile.TemporaryDirectory(prefix="munge-", dir="/tmp") as name:
        yield Path(name)


@pytest.mark.skipif(not shutil.which("munged"), reason="needs munged")
def test_a_real_munged_works_until_it_stops(folder: Path) -> None:
    munged = munged_at(folder)
    config = munge_at(folder / "socket", munge_s=5.0)
    try:
        wait_for(lambda: gather_munge(Host(), config).state == "works", message="munged answers")
        found = only(judge_munge(view(gather_munge(Host(), config)), config))
        assert (found.outcome, found.value.startswith("credential in")) == (Outcome.PASS, True)
        munged.send_signal(signal.SIGSTOP)
        silent = munge_at(folder / "socket", munge_s=0.1)
        wait_for(lambda: not gather_munge(Host(), silent).taken, message="all its threads have stopped")
        assert gather_munge(Host(), silent) == MungeFacts(state="silent", detail="no answer")
        assert only(judge_munge(view(gather_munge(Host(), silent)), silent)).outcome is Outcome.FAIL
        munged.send_signal(signal.SIGCONT)
    finally:
        munged.kill()
        munged.wait()
    found = only(judge_munge(view(gather_munge(Host(), config)), config))
    assert found.text == "munged makes no credential (Connection refused): restart it"
    assert (found.outcome, found.suggestion) == (Outcome.FAIL, Suggestion.RESET)


def munged_at(folder: Path) -> subprocess.Popen[bytes]:
    (folder / "key").write_bytes(b"k" * 1024)
    (folder / "key").chmod(0o600)
    files = {name: f"--{name}-file={folder / name}" for name in ("key", "pid", "log", "seed")}
    return subprocess.Popen(
        ["munged", "--foreground", "--force", f"--socket={folder / 'socket'}", *files.values()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("munged"), reason="needs munged")
@as_root
def test_a_munged_that_users_keep_busy_is_not_to_blame(folder: Path) -> None:
    """It gives each silent client 2 s, in two threads: a few of them keep everybody else waiting."""
    folder.chmod(0o755)
    munged = munged_at(folder)
    config = munge_at(folder / "socket", munge_s=0.3)
    patient = munge_at(folder / "socket", munge_s=5.0)
    held = subprocess.Popen([sys.executable, "-c", HOLD, str(folder / "socket")], stdin=subprocess.PIPE)
    try:
        wait_for(lambda: gather_munge(Host(), patient).state == "works", message="munged answers")
        assert held.stdin is not None
        held.stdin.write(b"now")
        held.stdin.close()
        wait_for(lambda: gather_munge(Host(), config).is_held, message="it is kept busy")
        found = gather_munge(Host(), config)
        finding = only(judge_munge(view(found), config))
        assert (finding.outcome, finding.blame, finding.suggestion) == (
            Outcome.UNKNOWN,
            Party.JOB,
            Suggestion.NONE,
        )
        assert "uid 65534" in finding.text
        # One that has stopped takes no connection, whoever else waits.
        munged.send_signal(signal.SIGSTOP)
        wait_for(lambda: not gather_munge(Host(), config).taken, message="it takes no more")
        assert only(judge_munge(view(gather_munge(Host(), config)), config)).outcome is Outcome.FAIL
        munged.send_signal(signal.SIGCONT)
        held.kill()
        wait_for(lambda: gather_munge(Host(), patient).state == "works", message="munged is free")
    finally:
        for process in (munged, held):
            process.kill()
            process.wait()


HOLD = """
import os, socket, sys
sys.stdin.read()
os.setgid(65534); os.setuid(65534)
held = []
while True:
    while len(held) < 16:
        held.append(socket.socket(socket.AF_UNIX))
        held[-1].connect(sys.argv[1])
    held.pop(0).recv(1)  # until munged has lost its patience with this one
"""


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        (MungeFacts(state="silent", taken=True, holders={1234: 1}), Outcome.UNKNOWN),
        (MungeFacts(state="silent", taken=True), Outcome.FAIL),
        (MungeFacts(state="silent", holders={1234: services.FLOOD - 1}), Outcome.FAIL),
        (MungeFacts(state="silent", holders={1234: 1, 1235: services.FLOOD}), Outcome.UNKNOWN),
    ],
)
def test_who_keeps_munged_silent(facts: MungeFacts, outcome: Outcome) -> None:
    assert only(judge_munge(view(facts), CONFIG)).outcome is outcome


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        (MungeFacts(state="silent", taken=True, unnamed=1), Outcome.UNKNOWN),
        (MungeFacts(state="silent", holders={1234: 1}, unnamed=services.FLOOD), Outcome.UNKNOWN),
        (MungeFacts(state="silent", known=False), Outcome.UNKNOWN),
        (MungeFacts(state="silent", unnamed=1), Outcome.FAIL),  # it takes no connection: it has stopped
        (MungeFacts(state="works", known=False), Outcome.PASS),
    ],
)
def test_owners_that_the_kernel_does_not_report_convict_nobody(facts: MungeFacts, outcome: Outcome) -> None:
    """Neither munged nor users: kernels before 5.3 name none, and none of another network namespace."""
    found = only(judge_munge(view(facts), CONFIG))
    assert (found.outcome, found.blame) == (outcome, Party.SITE)
    assert ("the kernel does not tell" in found.text) == (outcome is Outcome.UNKNOWN)


@pytest.mark.parametrize(
    ("answer", "state", "outcome"),
    [
        (b"", "silent", Outcome.FAIL),
        (b"x", "unclear", Outcome.UNKNOWN),
        (b"HTTP/1.1 400 Bad Request", "unclear", Outcome.UNKNOWN),
        (services._HEAD.pack(services._MAGIC, 5, 3, 0, 1) + b"\0", "unclear", Outcome.UNKNOWN),
        (services._HEAD.pack(services._MAGIC, 4, 3, 0, 2) + b"\x01\0", "unclear", Outcome.UNKNOWN),
        (services._HEAD.pack(services._MAGIC, 4, 3, 0, 2) + b"\0\0", "works", Outcome.PASS),
    ],
)
def test_answers_of_services_that_are_no_health(
    folder: Path, answer: bytes, state: str, outcome: Outcome
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        server = threading.Thread(target=serve)
        server.start()
        config = munge_at(folder / "socket", munge_s=5.0)
        found = gather_munge(Host(), config)
        server.join()
    assert found.state == state
    assert only(judge_munge(view(found), config)).outcome is outcome


def test_a_node_without_munge_has_no_finding(tmp_path: Path) -> None:
    assert list(judge_munge(view(gather_munge(Host(tmp_path), CONFIG)), CONFIG)) == []
