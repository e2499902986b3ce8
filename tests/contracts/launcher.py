"""The contract of Launcher as tests: the fake and the zygote must both pass it.

Derive a class from :class:`LauncherContract` in a pytest module and give it a fixture ``world``.
"""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from slurm_robust.agent.launcher import Gone, Launcher, LauncherMessage, LoadOver, TryOver
from slurm_robust.model.job import CommandKind
from slurm_robust.worker.spawning import Exited, Fatal, RankProgram, Ready, Spawn, Spawned

M = TypeVar("M", bound=LauncherMessage)
_PATIENCE_S = 120.0


class LauncherWorld(Protocol):
    """Makes launchers and orders; ends what it made by itself."""

    def launcher(self) -> Launcher:
        """A new one that can prepare, not started yet."""
        ...

    def ready(self) -> Launcher:
        """One that is ready, maybe after other tests: all that it had to say has been read."""
        ...

    def broken_launcher(self) -> Launcher:
        """One that cannot prepare."""
        ...

    def order(self, generation: int, *behaviours: str) -> Spawn:
        """A Spawn of one worker for each behaviour, ranks from 0.

        ``sleeps``: lives until a signal; ``ignores TERM``; ``exits 0``, ``exits 3``.
        """
        ...

    def program(self) -> RankProgram:
        """What workers of :meth:`order` run."""
        ...

    def wait_until_stopped(self, pid: int) -> None:
        """Return when the STOP that was sent to ``pid`` has taken effect."""
        ...

    def destroy(self, launcher: Launcher) -> None:
        """Kill the launcher itself."""
        ...


class MessageReader:
    """Reads, then waits by the launcher's descriptor, as the agent's loop does."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self.seen: list[LauncherMessage] = []

    def wait(self, kind: type[M], count: int = 1) -> list[M]:
        """The first ``count`` messages of ``kind``."""
        return self.until(lambda: [m for m in self.seen if isinstance(m, kind)], count)

    def until(self, find: Callable[[], list[M]], count: int) -> list[M]:
        """Read until ``find`` gives ``count`` messages."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            self.seen.extend(self._launcher.read())  # an answer may need no packet
            if len(find()) >= count:
                return find()
            left = deadline - time.monotonic()
            assert left > 0, f"only {self.seen} came within {_PATIENCE_S} s"
            assert self._launcher.fileno() >= 0, f"nothing more can come after {self.seen}"
            select.select([self._launcher.fileno()], [], [], left)


def start_ready(launcher: Launcher) -> MessageReader:
    """Start ``launcher`` and wait until it is ready."""
    launcher.start()
    reader = MessageReader(launcher)
    reader.wait(Ready)
    return reader


class LauncherContract:
    """What every launcher does."""

    def test_ready_comes_after_start(self, world: LauncherWorld) -> None:
        """Nothing is there before; Ready is the first message."""
        launcher = world.launcher()
        assert launcher.fileno() == -1
        assert isinstance(start_ready(launcher).seen[0], Ready)

    def test_a_launcher_that_cannot_prepare_says_why_and_ends(self, world: LauncherWorld) -> None:
        """Fatal, then Gone."""
        launcher = world.broken_launcher()
        launcher.start()
        reader = MessageReader(launcher)
        reader.wait(Gone)
        assert [type(m) for m in reader.seen] == [Fatal, Gone]
        assert launcher.fileno() == -1

    def test_workers_start_and_their_ends_are_reported(self, world: LauncherWorld) -> None:
        """Each worker is told of with its pid and its exit code."""
        launcher = world.ready()
        reader = MessageReader(launcher)
        launcher.spawn(world.order(4, "exits 0", "exits 3"))
        spawned = reader.wait(Spawned, 2)
        assert [(s.generation, s.rank) for s in spawned] == [(4, 0), (4, 1)]
        exits = {e.rank: e for e in reader.wait(Exited, 2)}
        assert [(exits[r].code, exits[r].signal) for r in (0, 1)] == [(0, None), (3, None)]
        assert [exits[r].pid for r in (0, 1)] == [s.pid for s in spawned]
        assert all(0 <= time.monotonic() - e.ended < _PATIENCE_S for e in exits.values())

    def test_term_ends_a_worker_that_lets_it(self, world: LauncherWorld) -> None:
        """The exit carries the signal."""
        launcher = world.ready()
        reader = MessageReader(launcher)
        launcher.spawn(world.order(1, "sleeps"))
        (spawned,) = reader.wait(Spawned)
        launcher.terminate(spawned.pid)
        (exited,) = reader.wait(Exited)
        assert (exited.code, exited.signal) == (None, signal.SIGTERM)

    def test_kill_ends_any_worker(self, world: LauncherWorld) -> None:
        """Also one that ignores TERM."""
        launcher = world.ready()
        reader = MessageReader(launcher)
        launcher.spawn(world.order(1, "ignores TERM"))
        (spawned,) = reader.wait(Spawned)
        launcher.kill(spawned.pid)
        (exited,) = reader.wait(Exited)
        assert exited.signal == signal.SIGKILL

    def test_a_stopped_worker_is_killed_instead_of_asked(self, world: LauncherWorld) -> None:
        """TERM would wait for the grace to pass."""
        launcher = world.ready()
        reader = MessageReader(launcher)
        launcher.spawn(world.order(1, "sleeps"))
        (spawned,) = reader.wait(Spawned)
        launcher.inject(spawned.pid, signal.SIGSTOP)
        world.wait_until_stopped(spawned.pid)
        launcher.terminate(spawned.pid)
        (exited,) = reader.wait(Exited)
        assert exited.signal == signal.SIGKILL

    def test_signals_to_what_has_ended_do_nothing(self, world: LauncherWorld) -> None:
        """Neither before nor after the sweep."""
        launcher = world.ready()
        reader = MessageReader(launcher)
        launcher.spawn(world.order(1, "exits 0"))
        (exited,) = reader.wait(Exited)
        for act in (launcher.terminate, launcher.kill):
            act(exited.pid)
        launcher.inject(exited.pid, signal.SIGKILL)
        launcher.sweep()
        launcher.spawn(world.order(2, "exits 0"))
        assert reader.wait(Exited, 2)[1].generation == 2

    def test_a_launcher_that_is_gone_can_be_started_again(self, world: LauncherWorld) -> None:
        """Gone is the last message of the first life; the second works like the first."""
        launcher = world.launcher()
        reader = start_ready(launcher)
        launcher.spawn(world.order(1, "sleeps"))
        reader.wait(Spawned)
        world.destroy(launcher)
        reader.wait(Gone)
        assert isinstance(reader.seen[-1], Gone)
        launcher.sweep()
        launcher.spawn(world.order(2, "exits 0"))  # to nobody
        reader = start_ready(launcher)
        launcher.spawn(world.order(3, "exits 0"))
        assert reader.wait(Exited)[0].generation == 3

    def test_modules_are_loaded_while_a_worker_lives(self, world: LauncherWorld) -> None:
        """It goes on, and later ones start as before."""
        launcher = world.ready()
        reader = MessageReader(launcher)
        launcher.spawn(world.order(1, "sleeps"))
        (spawned,) = reader.wait(Spawned)
        launcher.load(3, ("wave",))
        (over,) = reader.wait(LoadOver)
        assert (over.number, over.notes) == (3, ())
        launcher.terminate(spawned.pid)
        (exited,) = reader.wait(Exited)
        assert exited.signal == signal.SIGTERM
        launcher.sweep()
        launcher.spawn(world.order(2, "exits 0"))
        assert reader.wait(Exited, 2)[1].code == 0

    def test_a_release_is_tried_while_a_worker_lives(self, world: LauncherWorld) -> None:
        """What it needs can be imported; the worker goes on, and later ones start as before."""
        launcher = world.ready()
        reader = MessageReader(launcher)
        launcher.spawn(world.order(1, "sleeps"))
        (spawned,) = reader.wait(Spawned)
        launcher.attempt(5, world.program(), ("wave",), _PATIENCE_S)
        (over,) = reader.wait(TryOver)
        assert (over.number, over.ok, over.traceback) == (5, True, "")
        launcher.terminate(spawned.pid)
        reader.wait(Exited)
        launcher.sweep()
        launcher.spawn(world.order(2, "exits 0"))
        assert reader.wait(Exited, 2)[1].code == 0

    def test_a_release_whose_modules_are_not_here_is_told_with_the_reason(self, world: LauncherWorld) -> None:
        """Unless it is a program, which imports nothing here; workers start as before."""
        launcher = world.ready()
        reader = MessageReader(launcher)
        launcher.attempt(6, world.program(), ("there_is_no_such_module",), _PATIENCE_S)
        (over,) = reader.wait(TryOver)
        assert over.number == 6
        if world.program().command_kind is not CommandKind.EXEC:
            assert not over.ok
            assert over.text.startswith("module there_is_no_such_module cannot be imported on this node")
            assert "ModuleNotFoundError" in over.traceback
        launcher.spawn(world.order(1, "exits 0"))
        assert reader.wait(Exited)[0].code == 0

    def test_loading_does_not_end_a_trial_and_a_trial_ends_loading(self, world: LauncherWorld) -> None:
        """Each order gets its answer."""
        launcher = world.ready()
        reader = MessageReader(launcher)
        launcher.load(7, ("wave",))
        launcher.attempt(7, world.program(), ("tabnanny",), _PATIENCE_S)
        launcher.load(8, ("wave",))
        assert reader.wait(TryOver)[0].ok
        assert [over.number for over in reader.wait(LoadOver, 2)] == [7, 8]

    def test_a_module_that_cannot_be_loaded_hurts_nobody(self, world: LauncherWorld) -> None:
        """It is over, and workers start as before."""
        launcher = world.ready()
        reader = MessageReader(launcher)
        launcher.load(4, ("there_is_no_such_module",))
        assert reader.wait(LoadOver)[0].number == 4
        launcher.spawn(world.order(1, "exits 0"))
        assert reader.wait(Exited)[0].code == 0
