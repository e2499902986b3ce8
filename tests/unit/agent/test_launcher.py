"""The launchers against their contract, and what only real processes can show."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from slurm_robust.agent.copies.flush import ForkedWriter
from slurm_robust.agent.launcher import Gone, Launcher, ZygoteLauncher
from slurm_robust.model.job import CommandKind
from slurm_robust.testing.fake_launcher import Behaviour, FakeLauncher
from slurm_robust.worker.spawning import Exited, Prepare, RankProgram, Spawn, Spawned, WorkerSpec
from tests.contracts.launcher import LauncherContract, start_ready
from tests.forked_zygote import ForkedZygoteLauncher
from tests.unit.agent.local_job import is_alive
from tests.waiting import wait_for

PROGRAM = """
import os, signal, sys, time
what = os.environ["BEHAVIOUR"]
if what.startswith("exits"):
    sys.exit(int(what.split()[1]))
if what == "ignores TERM":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if what == "leaves a child":
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
    print(pid, flush=True)
    sys.exit(0)
if what == "leaves a session":
    pid = os.fork()
    if pid == 0:
        os.setsid()
        time.sleep(1000)
    print(pid, flush=True)
    sys.exit(0)
if what == "has a child":
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
    print(pid, flush=True)
print("up", flush=True)
time.sleep(1000)
"""


class RealWorld:
    """Real processes; ``kind`` EXEC runs each worker as a program of its own."""

    def __init__(self, folder: Path, kind: CommandKind) -> None:
        self._folder = folder
        self._kind = kind
        self._made: list[ZygoteLauncher] = []
        self._ready: ZygoteLauncher | None = None
        program = folder / "program.py"
        program.write_text(PROGRAM)
        self._command: tuple[str, ...] = (str(program),)
        if kind is CommandKind.EXEC:
            self._command = (sys.executable, str(program))

    def launcher(self, preload: tuple[str, ...] = ()) -> ZygoteLauncher:
        # A program needs no PyTorch; of the others one zygote is an interpreter of its own.
        is_fork = self._kind is not CommandKind.EXEC and bool(self._made)
        launcher = (ForkedZygoteLauncher if is_fork else ZygoteLauncher)(
            Prepare(
                command_kind=self._kind,
                command=self._command,
                cwd=str(self._folder),
                nproc_per_node=2,
                preload=preload,
            )
        )
        self._made.append(launcher)
        return launcher

    def ready(self) -> ZygoteLauncher:
        if self._ready is None:
            self._ready = self.launcher()
            start_ready(self._ready)
        self._ready.sweep()
        return self._ready

    def broken_launcher(self) -> Launcher:
        return self.launcher(("there_is_no_such_module",))

    def out(self, rank: int) -> Path:
        return self._folder / "logs" / f"{rank}.out"

    def order(self, generation: int, *behaviours: str) -> Spawn:
        return Spawn(
            generation=generation,
            command_kind=self._kind,
            command=self._command,
            cwd=str(self._folder),
            workers=tuple(
                WorkerSpec(
                    rank=rank,
                    env={"BEHAVIOUR": behaviour},
                    out=str(self.out(rank)),
                    err=str(self._folder / "logs" / f"{rank}.err"),
                    error=str(self._folder / f"{generation}-{rank}.error"),
                    record=str(self._folder / "no-record"),
                )
                for rank, behaviour in enumerate(behaviours)
            ),
        )

    def program(self) -> RankProgram:
        return RankProgram(command_kind=self._kind, command=self._command)

    def wait_until_stopped(self, pid: int) -> None:
        wait_for(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")

    def destroy(self, launcher: Launcher) -> None:
        assert isinstance(launcher, ZygoteLauncher)
        os.kill(launcher.pid, signal.SIGKILL)

    def close(self) -> None:
        for launcher in self._made:
            launcher.close()


class FakeWorld:
    """No processes."""

    def launcher(self) -> Launcher:
        return FakeLauncher(self._behave, lacking=("there_is_no_such_module",))

    def ready(self) -> Launcher:
        launcher = self.launcher()
        start_ready(launcher)
        return launcher

    def broken_launcher(self) -> Launcher:
        return FakeLauncher(fatal="no such module")

    def order(self, generation: int, *behaviours: str) -> Spawn:
        return Spawn(
            generation=generation,
            command_kind=CommandKind.SCRIPT,
            command=behaviours,
            cwd="/",
            workers=tuple(
                WorkerSpec(rank=rank, env={}, out="", err="", error="", record="")
                for rank in range(len(behaviours))
            ),
        )

    def program(self) -> RankProgram:
        return RankProgram(command_kind=CommandKind.SCRIPT, command=("train.py",))

    def wait_until_stopped(self, pid: int) -> None:
        pass  # at once

    def destroy(self, launcher: Launcher) -> None:
        assert isinstance(launcher, FakeLauncher)
        launcher.die()

    @staticmethod
    def _behave(order: Spawn, worker: WorkerSpec) -> Behaviour:
        what = order.command[worker.rank]
        if what.startswith("exits"):
            return Behaviour(exit_code=int(what.split()[1]))
        return Behaviour(ignores_term=what == "ignores TERM")


class TestFakeLauncher(LauncherContract):
    @pytest.fixture
    def world(self) -> FakeWorld:
        return FakeWorld()


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[RealWorld]:
    """Workers as programs of their own: nothing to import, so this is the quick real world."""
    world = RealWorld(tmp_path, CommandKind.EXEC)
    yield world
    world.close()


class TestExecLauncher(LauncherContract):
    @pytest.fixture
    def world(self, programs: RealWorld) -> RealWorld:
        return programs

    def test_a_launcher_that_cannot_prepare_says_why_and_ends(self, world: RealWorld) -> None:  # type: ignore[override]
        """Programs need no preparation, so there is nothing that can fail."""
        start_ready(world.broken_launcher())


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealWorld]:
    """Workers as forks, one world for all tests: each zygote imports PyTorch."""
    world = RealWorld(tmp_path_factory.mktemp("zygotes"), CommandKind.SCRIPT)
    yield world
    world.close()


@pytest.mark.slow
class TestZygoteLauncher(LauncherContract):
    @pytest.fixture
    def world(self, forks: RealWorld) -> RealWorld:
        return forks


def _up(world: RealWorld, rank: int) -> list[str]:
    wait_for(lambda: world.out(rank).exists() and "up" in world.out(rank).read_text())
    return world.out(rank).read_text().split()


def test_workers_die_when_the_agent_is_gone(programs: RealWorld) -> None:
    """Closing the channel is what the kernel does when an agent is killed."""
    launcher = programs.launcher()
    reader = start_ready(launcher)
    launcher.spawn(programs.order(1, "has a child", "sleeps"))
    pids = [s.pid for s in reader.wait(Spawned, 2)] + [int(_up(programs, 0)[0])]
    launcher.close()
    wait_for(lambda: not any(is_alive(pid) for pid in pids))


def test_workers_die_with_the_zygote(programs: RealWorld) -> None:
    launcher = programs.launcher()
    reader = start_ready(launcher)
    launcher.spawn(programs.order(1, "sleeps"))
    (spawned,) = reader.wait(Spawned)
    programs.destroy(launcher)
    (gone,) = reader.wait(Gone)
    assert "SIGKILL" in gone.reason
    wait_for(lambda: not is_alive(spawned.pid))


def test_term_and_kill_reach_the_whole_group(programs: RealWorld) -> None:
    launcher = programs.launcher()
    reader = start_ready(launcher)
    launcher.spawn(programs.order(1, "has a child"))
    reader.wait(Spawned)
    child = int(_up(programs, 0)[0])
    launcher.terminate(reader.wait(Spawned)[0].pid)
    reader.wait(Exited)
    wait_for(lambda: not is_alive(child))


def test_what_an_ended_worker_left_is_swept(programs: RealWorld) -> None:
    """Its id stays reserved until then, so the sweep cannot meet a stranger's group."""
    launcher = programs.launcher()
    reader = start_ready(launcher)
    launcher.spawn(programs.order(1, "leaves a child"))
    (exited,) = reader.wait(Exited)
    child = int(programs.out(0).read_text())
    assert is_alive(child)
    assert Path(f"/proc/{exited.pid}").exists()
    launcher.sweep()
    wait_for(lambda: not is_alive(child) and not Path(f"/proc/{exited.pid}").exists())


def test_children_in_sessions_of_their_own_end_when_no_worker_lives(programs: RealWorld) -> None:
    launcher = programs.launcher()
    reader = start_ready(launcher)
    launcher.spawn(programs.order(1, "leaves a session", "sleeps"))
    reader.wait(Exited)
    child = int(programs.out(0).read_text())
    launcher.sweep()
    _up(programs, 1)
    assert is_alive(child)  # it may be of the rank that lives
    launcher.kill(reader.wait(Spawned, 2)[1].pid)
    reader.wait(Exited, 2)
    launcher.sweep()
    wait_for(lambda: not is_alive(child), 10)


def test_a_worker_is_marked_for_people_and_for_the_kernel(programs: RealWorld) -> None:
    launcher = programs.launcher()
    reader = start_ready(launcher)
    launcher.spawn(programs.order(1, "sleeps"))
    (spawned,) = reader.wait(Spawned)
    _up(programs, 0)
    assert os.getpgid(spawned.pid) == spawned.pid
    assert int(Path(f"/proc/{spawned.pid}/oom_score_adj").read_text()) >= 500
    status = Path(f"/proc/{spawned.pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(fields["SigBlk"], 16) == 0
    assert not int(fields["SigIgn"], 16) & (1 << (signal.SIGTERM - 1))


def test_a_program_that_is_not_there_is_told_with_the_path(tmp_path: Path) -> None:
    world = RealWorld(tmp_path, CommandKind.EXEC)
    world._command = ("no-such-program",)
    launcher = world.launcher()
    try:
        reader = start_ready(launcher)
        launcher.spawn(world.order(1, "sleeps"))
        (exited,) = reader.wait(Exited)
    finally:
        world.close()
    assert exited.code == 127
    assert exited.error is not None
    assert "PATH is" in exited.error.message


def test_a_storage_writer_is_forked_that_slurms_signals_do_not_end(tmp_path: Path) -> None:
    with closing(RealWorld(tmp_path, CommandKind.SCRIPT)) as world:
        channel = world.ready().fork_writer()
        assert channel is not None
        writer = ForkedWriter(channel)
        for number in (signal.SIGTERM, signal.SIGUSR1):
            writer.send("nonsense")
            assert "not an order" in writer.receive(30.0)
            os.kill(writer.pid, number)
        assert writer.alive
        writer.close()
        wait_for(lambda: not is_alive(writer.pid))


def test_a_program_has_no_zygote_that_could_fork_a_writer(tmp_path: Path) -> None:
    world = RealWorld(tmp_path, CommandKind.EXEC)
    assert world.launcher().fork_writer() is None
