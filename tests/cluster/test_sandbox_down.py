"""``down`` leaves nothing, whatever happened before: no process, namespace, link, mount or file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from slurm_robust.model.errors import ExitCode
from slurm_robust.sandbox import Sandbox, SandboxConfig
from slurm_robust.sandbox.errors import AlreadyUp, BootFailed, NotUp
from slurm_robust.sandbox.folder import MADE, StateFolder
from slurm_robust.sandbox.heal import heal
from slurm_robust.sandbox.procs import INIT_MODULE, is_gone, read_process, sandbox_processes
from slurm_robust.sandbox.teardown import take_down
from tests.conftest import SandboxPool
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SMALL = SandboxConfig(nodes=2, accounting=False)
NAMESPACES = ("mnt", "net", "pid", "uts", "ipc")


def namespaces_of(pid: int) -> set[str]:
    found = set()
    for kind in NAMESPACES:
        try:
            found.add(os.readlink(f"/proc/{pid}/ns/{kind}"))
        except OSError:
            pass  # Gone, or a zombie, which has none but the PID namespace.
    return found


def links() -> set[str]:
    done = subprocess.run(["ip", "-j", "link"], capture_output=True, text=True, check=True)
    return {link["ifname"] for link in json.loads(done.stdout)}


def describe(pid: int) -> str:
    process = read_process(pid)
    return f"{pid} {process.comm} {process.cmdline}" if process else f"{pid} gone"


class Traces:
    """What a sandbox could leave. Its name and namespaces tell it apart from what else runs here."""

    def __init__(self, name: str) -> None:
        self.folder = StateFolder(name)
        self._own = namespaces_of(os.getpid())
        self._namespaces: set[str] = set()
        self._pids: set[int] = set()

    def look(self) -> None:
        """Remember every process and namespace of the sandbox as it is now."""
        inits = sandbox_processes(self.folder.path)
        for pid in inits:
            self._namespaces |= namespaces_of(pid) - self._own
        # A process in any namespace of the sandbox belongs to it, wherever it was started.
        self._pids |= {pid for pid in psutil.pids() if namespaces_of(pid) & self._namespaces} | set(inits)

    def assert_none(self) -> None:
        """Nothing that was seen is left, and no new process carries the sandbox's name."""
        assert [pid for pid in self._pids if not is_gone(pid)] == []
        inside = [pid for pid in psutil.pids() if namespaces_of(pid) & self._namespaces]
        # A zombie still names its PID namespace; this machine's PID 1 reaps when it likes.
        assert [describe(pid) for pid in inside if not is_gone(pid)] == []
        named = [pid for pid in psutil.pids() if pid != os.getpid() and self._is_named(pid)]
        assert named == []
        assert not self.folder.path.exists()
        assert str(self.folder.path) not in Path("/proc/mounts").read_text()
        assert not {name for name in links() if name == "switch" or name.startswith("v-")}

    def _is_named(self, pid: int) -> bool:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return str(self.folder.path).encode() in words


@pytest.fixture
def name(sandbox_pool: SandboxPool, request: pytest.FixtureRequest) -> Iterator[str]:
    """A name of the test's own; whatever runs under it at the end of the test is ended."""
    del sandbox_pool  # Asked for only because it skips where no sandbox can run.
    found = f"pytest-{os.getpid()}-{abs(hash(request.node.nodeid)) % 10**6}"
    try:
        yield found
    finally:
        take_down(found)


def launch(name: str, *options: str) -> subprocess.Popen[str]:
    """``srobust sandbox up`` in a process group of its own, as a terminal would start it."""
    words = [sys.executable, "-m", "slurm_robust.cli", "sandbox", "up", "--name", name]
    return subprocess.Popen(
        [*words, "--nodes=3", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_phase(up: subprocess.Popen[str], phase: str) -> None:
    """Read the progress until it names the phase."""
    assert up.stderr is not None
    said = []
    for line in up.stderr:
        if line.startswith(f"starting {phase}"):
            return
        said.append(line)
    raise AssertionError(f"up ended before the phase {phase}: {''.join(said)}")


def test_down_leaves_nothing(name: str) -> None:
    traces = Traces(name)
    with Sandbox.up(SMALL, name=name) as sandbox:
        sandbox.exec(["sh", "-c", "setsid sleep 1000 > /dev/null 2>&1 &"], node="n1")
        shell = sandbox.popen(["sleep", "1000"])
        traces.look()
        assert len(traces._pids) >= 10
    shell.communicate(timeout=10)
    traces.assert_none()


def test_down_twice_is_fine(name: str) -> None:
    sandbox = Sandbox.up(SMALL, name=name)
    sandbox.down()
    sandbox.down()
    take_down(name)
    with pytest.raises(NotUp):
        Sandbox.attach(name)


def test_killing_the_first_process_ends_everything(name: str) -> None:
    traces = Traces(name)
    sandbox = Sandbox.up(SMALL, name=name)
    traces.look()
    os.kill(sandbox.init_pid(), signal.SIGKILL)
    wait_for(lambda: not sandbox_processes(sandbox.folder.path), 10, "end of the sandbox")
    with pytest.raises(NotUp, match="srobust sandbox up --name"):
        Sandbox.attach(name)
    take_down(name)
    traces.assert_none()


def test_what_a_crash_left_does_not_stop_the_next_up(name: str) -> None:
    sandbox = Sandbox.up(SMALL, name=name)
    os.kill(sandbox.init_pid(), signal.SIGKILL)
    wait_for(lambda: not sandbox_processes(sandbox.folder.path), 10, "end of the sandbox")
    with Sandbox.up(SMALL, name=name) as again:
        assert again.exec(["srun", "-N2", "hostname"]).returncode == 0


def test_a_second_up_leaves_the_first_alone(name: str) -> None:
    with Sandbox.up(SMALL, name=name) as sandbox:
        with pytest.raises(AlreadyUp, match=f"srobust sandbox down --name {name}"):
            Sandbox.up(SMALL, name=name)
        assert sandbox.exec(["srun", "-N2", "hostname"]).returncode == 0


def test_of_two_ups_at_once_one_wins(name: str) -> None:
    ups = [launch(name, "--no-accounting") for _ in range(2)]
    said = [up.communicate(timeout=60)[1] for up in ups]
    assert sorted(up.returncode for up in ups) == [ExitCode.SUCCESS, ExitCode.REFUSED], said
    assert any("exists in" in text for text in said)
    assert Sandbox.attach(name).exec(["srun", "-N3", "hostname"]).returncode == 0


@pytest.mark.parametrize("phase", ["switch", "nodes", "MariaDB", "slurmctld", "slurmd"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "term"])
def test_an_interrupted_up_cleans_up_by_itself(name: str, phase: str, number: signal.Signals) -> None:
    traces = Traces(name)
    up = launch(name)
    wait_phase(up, phase)
    os.killpg(up.pid, signal.SIGSTOP)  # a look takes longer than some phases
    traces.look()
    os.killpg(up.pid, number)
    os.killpg(up.pid, signal.SIGCONT)
    _, said = up.communicate(timeout=60)
    assert up.returncode == 130, said
    traces.assert_none()


FORKED = """
import fcntl, os, sys, time
held = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(held, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(0.3)
os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)", "-m", *sys.argv[:0:-1]])
"""


def test_down_ends_a_launcher_that_a_killed_up_had_just_forked(name: str) -> None:
    folder = StateFolder(name).path
    folder.mkdir(parents=True)
    (folder / MADE).touch()
    words = [sys.executable, "-c", FORKED, str(folder), INIT_MODULE]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "held\n"
        take_down(name)
        assert launcher.wait(5) == -signal.SIGKILL
    assert not folder.exists()


@pytest.mark.parametrize("phase", ["switch", "MariaDB", "slurmd"])
def test_down_removes_what_a_killed_up_has_started(name: str, phase: str) -> None:
    traces = Traces(name)
    up = launch(name)
    wait_phase(up, phase)
    up.kill()
    up.communicate(timeout=10)
    traces.look()
    take_down(name)
    traces.assert_none()


def test_a_boot_that_fails_tells_why_and_leaves_nothing(name: str) -> None:
    traces = Traces(name)
    config = SandboxConfig(nodes=2, accounting=False, slurm_conf_lines=("SelectType=select/nonsense",))
    with pytest.raises(BootFailed, match="nonsense"):
        Sandbox.up(config, name=name)
    traces.assert_none()


def test_a_long_state_path_and_a_closed_one_are_fine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / ("x" * 100)
    closed.mkdir(mode=0o700)
    monkeypatch.setenv("SROBUST_SANDBOX_DIR", str(closed))
    with Sandbox.up(SMALL, name=name) as sandbox:
        assert str(sandbox.folder.path).startswith(str(closed))
        assert sandbox.exec(["srun", "-N2", "pwd"]).stdout == "/home/alice\n" * 2
    assert list(closed.iterdir()) == []  # the folder itself is the user's own


def test_a_bound_path_is_reached_by_ordinary_users_and_outlives_healing(name: str, tmp_path: Path) -> None:
    bound = tmp_path / "data"
    bound.mkdir(mode=0o777)
    bound.chmod(0o777)
    with Sandbox.up(SandboxConfig(nodes=1, accounting=False, binds=(str(bound),)), name=name) as sandbox:
        sandbox.exec(["sh", "-c", f"echo hello > {bound}/file; echo mine > /tmp/file"], node="n1")
        heal(sandbox)
        assert sandbox.exec(["sh", "-c", "ls /tmp/file || true"], node="n1").stdout == ""
    assert (bound / "file").read_text() == "hello\n"


def test_eight_nodes_with_accounting_are_idle_soon(name: str) -> None:
    with Sandbox.up(SandboxConfig(nodes=8), name=name) as sandbox:
        assert set(sandbox.node_states().values()) == {"idle"}
