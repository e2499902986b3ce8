"""Plants the faults of a plan, mends them when their time has come, and waits for new steps."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.common import BenchmarkFailed
from benchmarks.fault_storm.plan import Kind, Planned
from benchmarks.fault_storm.training import Training, Watch
from benchmarks.fault_storm.verdict import Planted
from slurm_robust.model import events as ev
from slurm_robust.sandbox import Sandbox, SandboxError
from tests.cluster.shared_storage import HOME, fill

JOBS = f"{HOME}/srobust-jobs"
AGENT = b"slurm_robust.agent\0--job-dir\0"
FILLERS = ("filler", "rest")
SLOWLY = 2 << 20
RECOVER_S = 420.0
SIGN_S = 15.0
"""So long a midway fault waits for the incident of the one before; some faults open none."""

TARGET_S = 15.0
"""So long a fault waits for a target: workers are about to start, or the controller."""

SURELY_NEW = 2
"""A step may have passed its last collective when the fault comes, the one after it cannot."""


class NothingToHit(Exception):
    """The plan's fault finds no target now."""


class Storm:
    """One run of a plan. ``planted`` grows; ``say`` gets a line for each fault."""

    def __init__(
        self, sandbox: Sandbox, training: Training, disk: Path, seed: int, say: Callable[[str], None]
    ) -> None:
        self.planted: list[Planted] = []
        self.skipped: list[str] = []
        self._sandbox, self._training, self._disk, self._seed, self._say = sandbox, training, disk, seed, say
        self.watch = Watch(training.steps_file)
        self._mends: list[tuple[float, Planted, Callable[[], object]]] = []

    def run(self, plan: Sequence[Planned], faults: int, until: float) -> None:
        """Plant the first ``faults`` of ``plan`` that find a target, none after ``until``, a monotonic time.

        Raises :class:`BenchmarkFailed` for no new step.
        """
        self._until(lambda: self.watch.best >= plan[0].apart, RECOVER_S, "the training does not begin")
        for fault, following in pairwise(plan):
            found = self._plant(fault)
            if len(self.planted) == faults or time.monotonic() > until:
                self._recovered(fault, None)
                return
            if following.midway_s is not None:
                self._until_incident(found, following.midway_s)
            else:
                self._recovered(fault, following)

    def mend(self) -> None:
        """Mend all that is still broken."""
        self._until(lambda: not self._mends, 180.0, "faults are not mended")

    # -- one fault ---------------------------------------------------------------------------------

    def _plant(self, fault: Planned) -> Planted | None:
        deadline = time.monotonic() + TARGET_S
        while True:
            try:
                found = self._strike(fault)
                break
            except (NothingToHit, SandboxError, OSError) as error:
                if time.monotonic() > deadline or fault.midway_s is not None:
                    self._say(f"{fault.number} {fault.kind.value}: skipped, {error}")
                    self.skipped.append(f"{fault.number} {fault.kind.value}: {error}")
                    return None
                self._tend()
                time.sleep(0.2)
        found.before = self.watch.best
        self.planted.append(found)
        self._say(
            f"{fault.number} {fault.kind.value}{' midway' if found.midway else ''}: {found.target}, "
            f"step {found.before}, for {fault.lasts_s:g} s"
        )
        return found

    def _recovered(self, fault: Planned, following: Planned | None) -> None:
        """Wait until training has made a new step after all that was planted, and some more."""
        waiting = [found for found in self.planted if found.new_step_s is None]
        if waiting:
            step = max(found.before for found in waiting) + SURELY_NEW
            self._until(
                lambda: self.watch.best >= step,
                RECOVER_S,
                f"fault {fault.number} ({fault.kind.value}) of seed {self._seed}: no new step",
            )
            for found in waiting:
                at = self.watch.made(found.before + SURELY_NEW)
                found.new_step_s = (at if at is not None else time.time()) - found.t
            self._say("  new step after " + ", ".join(f"{found.new_step_s:.1f} s" for found in waiting))
        apart = following.apart if following is not None else 0
        step = self.watch.best + apart
        what = f"fault {fault.number} ({fault.kind.value}) of seed {self._seed}: training does not go on"
        self._until(lambda: self.watch.best >= step, RECOVER_S, what)

    def _until_incident(self, found: Planted | None, delay_s: float) -> None:
        deadline, since = time.monotonic() + SIGN_S, found.t if found is not None else time.time()

        def opened() -> bool:
            late = time.monotonic() > deadline
            return late or any(e.t >= since for e in self._training.events(ev.IncidentOpened))

        self._until(opened, 2 * SIGN_S, "unreachable")
        until = time.monotonic() + delay_s
        self._until(lambda: time.monotonic() >= until, delay_s + 60.0, "unreachable")

    # -- kinds -------------------------------------------------------------------------------------

    def _strike(self, planned: Planned) -> Planted:
        fault, kind = self._sandbox.fault, planned.kind
        state = self._training.state
        host = state.own_node

        def among(choices: Sequence[str]) -> str:
            on = [node for node in choices if self._is_well(node)]
            if not on:
                raise NothingToHit("no node that is well")
            return on[int(planned.pick * len(on))]

        def planted(target: str, node: str, t: float, mend: Callable[[], object] | None = None) -> Planted:
            midway = planned.midway_s is not None
            made = Planted(planned.number, kind, midway, target, node, t)
            if mend is not None:
                self._mends.append((time.monotonic() + planned.lasts_s, made, mend))
            return made

        train = [node for node in state.world.slots if node != host]
        match kind:
            case Kind.KILL_RANK | Kind.STOP_RANK:
                rank = int(planned.pick * len(state.world.slots))
                strike = fault.kill_rank if kind is Kind.KILL_RANK else fault.stop_rank
                done = strike(self._training.id, rank)
                node = state.world.placement.node_of(rank)
                return planted(f"rank {rank} on {node}", node, done.t)
            case Kind.KILL_AGENT:
                node = among(state.world.slots)
                return planted(node, node, self._kill_agent(node))
            case Kind.KILL_CONTROLLER:
                return planted(host, host, self._kill_controller())
            case Kind.KILL_SLURMD:
                node = among(state.world.slots)
                return planted(node, node, fault.kill_slurmd(node).t, lambda: self._start_slurmd(node))
            case Kind.POWER_CUT | Kind.CUT_SPARE | Kind.CUT_HOST:
                choices = {Kind.POWER_CUT: train, Kind.CUT_SPARE: state.spares, Kind.CUT_HOST: (host,)}
                node = among(choices[kind])
                return planted(node, node, fault.power_cut(node).t, lambda: self._boot(node))
            case Kind.CUT_NETWORK | Kind.CUT_HOST_NETWORK:
                node = among(train if kind is Kind.CUT_NETWORK else (host,))
                return planted(node, node, fault.cut_network(node).t, lambda: fault.heal_network(node))
            case Kind.KILL_SLURMCTLD:
                return planted("slurmctld", "", fault.kill_slurmctld().t, fault.start_slurmctld)
            case Kind.RESTART_SLURMCTLD:
                return planted("slurmctld", "", fault.restart_slurmctld().t)
            case Kind.FULL_STORAGE:
                return planted("storage", "", self._fill(), self._free)

    def _is_well(self, node: str) -> bool:
        state = self._sandbox.control.nodes().get(node)
        return state is not None and state.on and state.connected

    def _kill_agent(self, node: str) -> float:
        pids = [pid for pid in self._sandbox.host_pids(node) if AGENT in _command_line(pid)]
        if not pids:
            raise NothingToHit(f"no agent on {node}")
        at = time.time()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return at

    def _kill_controller(self) -> float:
        last = self._training.events(ev.ControllerStarted)[-1]
        node = last.node or last.host
        at = time.time()
        done = self._sandbox.exec(["kill", "-9", str(last.pid)], node=node, user="root", check=False)
        if done.returncode != 0:
            raise NothingToHit(f"no controller on {node}")
        return at

    def _fill(self) -> float:
        """All at once but the last bit, since writing it all takes a while."""
        room = os.statvfs(self._disk)
        with (self._disk / FILLERS[0]).open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, room.f_bavail * room.f_bsize - SLOWLY))
        fill(self._disk / FILLERS[1])
        return time.time()

    # -- mending -----------------------------------------------------------------------------------

    def _boot(self, node: str) -> None:
        self._sandbox.fault.boot(node)
        device = subprocess.run(
            ["findmnt", "-n", "-o", "SOURCE", str(self._disk)], capture_output=True, text=True, check=True
        ).stdout.split()[0]
        script = f"grep -q ' {JOBS} ' /proc/mounts || mount {device} {JOBS}"
        self._sandbox.exec(["sh", "-c", script], node=node, user="root")

    def _free(self) -> None:
        for name in FILLERS:
            (self._disk / name).unlink(missing_ok=True)

    def _start_slurmd(self, node: str) -> None:
        state = self._sandbox.control.nodes().get(node)
        is_on = state is not None and state.on  # else it is started with the node
        if is_on and self._sandbox.fault.daemon_pid(node, "slurmd") is None:
            self._sandbox.fault.start_slurmd(node)

    def _tend(self) -> None:
        for mend in [m for m in self._mends if time.monotonic() >= m[0]]:
            _, found, act = mend
            try:
                act()
            except SandboxError as error:
                self._say(f"  {found.number} {found.kind.value}: not mended yet: {error}")
                self._mends[self._mends.index(mend)] = (time.monotonic() + 5.0, found, act)
                continue
            self._mends.remove(mend)
            found.mended = time.time()

    def _until(self, condition: Callable[[], bool], timeout_s: float, failure: str) -> None:
        deadline, looked = time.monotonic() + timeout_s, 0.0
        while not condition():
            self._tend()
            now = time.monotonic()
            if now - looked > 2.0:
                looked = now
                ended = self._training.state.ended
                alive = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED")
                if ended is not None and (ended.final or self._training.slurm_state() not in alive):
                    raise BenchmarkFailed(f"{failure}: the job ended with {ended.code}: {ended.reason}")
            if now > deadline:
                raise BenchmarkFailed(f"{failure} within {timeout_s:.0f} s")
            time.sleep(0.05)


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
