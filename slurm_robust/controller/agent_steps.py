"""The steps that run the agents: started through Slurm, never waited for, their output read."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import structs

from slurm_robust.home import page
from slurm_robust.model.container import OUTSIDE, Container
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.exits import StepEnd, Witness
from slurm_robust.model.record import UNREADABLE, Record
from slurm_robust.policy.starting import MAX_APART
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.companion import Lent
from slurm_robust.slurm.errors import JobNotFound, SlurmError
from slurm_robust.slurm.process import kill_srun
from slurm_robust.slurm.records import Allocation, SlurmNode
from slurm_robust.slurm.step_output import before_abort, step_end, task_ends, why_ended
from slurm_robust.util import proc
from slurm_robust.util.files import read_regular, write_atomically

_MAX_READ = 1 << 20
_TAIL = 1 << 16  # bytes: srun and slurmstepd say at the end of their output why a step ended
_MAX_LINES = 100  # of a step's output; what says why it ended is at its end


class Refusal(msgspec.Struct):
    """The line that an agent prints when it cannot begin."""

    srobust_agent_error: str
    node: str
    fix: str = ""
    job_code: int = ExitCode.JOB_DIR
    unseen: str = ""
    """A folder that the agent does not see, or that lacks what it needs: a container may not mount it."""

    @property
    def text(self) -> str:
        """The error and its fix, in one line."""
        return f"{self.srobust_agent_error}; fix: {self.fix}" if self.fix else self.srobust_agent_error


class News(Record):
    """What the agents' steps have shown since the last call."""

    refusals: tuple[Refusal, ...]
    ends: tuple[StepEnd, ...]


class Srun(Record):
    """The srun of a step, beside its output: for the next controller, which is not its parent."""

    host: str
    """On which it runs: nothing is known here of another host's processes."""
    pid: int
    begun: int
    nodes: tuple[str, ...]
    restart_count: int
    let_go: bool = False
    """It is killed, and its agents live on."""
    ended: float | None = None
    """When a controller found that it had ended, in seconds since the boot of ``host``."""

    def poll(self) -> int | None:
        """Return None while it runs, then -1: only its parent knows the exit code."""
        found = proc.read_process(self.pid)
        lives = found is not None and found.begun == self.begun and found.state not in proc.DEAD
        return None if lives else -1

    def kill(self) -> None:
        """Send SIGKILL to it and its children, as :meth:`StepHandle.kill`."""
        if self.poll() is None:
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)


_sruns = msgspec.json.Decoder(Srun)


class _Process(Protocol):
    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def kill(self) -> None: ...


class _Output:
    """One step: its srun, and its output file, read as it grows."""

    def __init__(
        self,
        path: Path,
        srun: _Process,
        nodes: tuple[str, ...],
        record: Srun | None,
        ended_s: float = 0.0,
        container: Container = OUTSIDE,
    ) -> None:
        """``nodes``: with agents of this step; ``record``: of the srun; ``ended_s``: how long ago an earlier
        controller found that it had ended.
        """
        begins = f"see that what {container.key} names begins there ({page('containers.md')}); "
        self._fix = f"{begins if container.key else ''}all that was said is in {path}"
        self.path = path
        self.record = record
        self.together = record.nodes if record is not None else nodes
        self.is_let_go = False
        self.pid = srun.pid
        self.poll = srun.poll
        self.kill = srun.kill
        self.nodes = nodes
        self._nodes = nodes  # whose agents have not ended
        self._ended_s = ended_s
        self._lines: list[str] = []
        self._aborts = False  # the whole step, one task after the other
        self._offset = 0
        self._rest = b""

    def let_go(self) -> None:
        """Kill the srun, and let the agents of its step live; nothing tells of their ends any more."""
        self.is_let_go = True
        if self.poll() is None:
            kill_srun(self.pid)

    def new_lines(self) -> list[str]:
        """Return the whole lines written since the last call. Raises ``OSError``."""
        try:
            if self.path.stat().st_size == self._offset:
                return []  # asked each second of many files, of which few ever change
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(_MAX_READ)
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = [line.decode(errors="replace") for line in lines]
        self._lines = [*self._lines, *found][-_MAX_LINES:]
        return found

    def ends(self, lines: list[str], code: int | None) -> list[StepEnd]:
        """Return the ends that ``lines`` report, and for all others srun's once it has ended with ``code``.

        If the whole step is aborted, the first task that ends counts as the end of srun.
        """
        if self.is_let_go:
            return []
        alone = [] if self._aborts else before_abort(lines)
        found = list(task_ends(self._nodes, alone, self._lines))
        self._nodes = tuple(n for n in self._nodes if all(n not in end.nodes for end in found))
        self._aborts = self._aborts or len(alone) < len(lines)
        together = any(task_ends(self._nodes, lines[len(alone) :], ()))
        if self._nodes and (together or code is not None):
            # The last line may have no end.
            said = [*self._lines, self._rest.decode(errors="replace")]
            end = step_end(self._nodes, -1 if code is None else code, said)
            found.append(structs.replace(end, age_s=self._ended_s))
            self._nodes = ()
        return [self._with_fix(end) for end in found]

    def _with_fix(self, end: StepEnd) -> StepEnd:
        """Add where to look, unless a better fix is known or the agents themselves said why they ended."""
        told = {refusal.node for line in self._lines if (refusal := _refusal(line)) is not None}
        if end.fix or not end.code or told.issuperset(end.nodes):
            return end
        return structs.replace(end, fix=self._fix)


class AgentSteps:
    """All agents' steps that this controller started or adopted."""

    def __init__(
        self,
        slurm: SlurmClient,
        allocation: Allocation,
        command: tuple[str, ...],
        folder: Path,
        lent: Lent | None = None,
        *,
        image: str = "",
        container_of: Callable[[str], Container] = lambda image: OUTSIDE,
        since_boot: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        """``lent``: nodes of companions, and the container of ``image``. ``container_of``: that of any image;
        "" is that of the job's configuration.
        """
        self._since_boot = since_boot
        self._slurm = slurm
        self._allocation = allocation
        self._lent = lent or Lent(allocation)
        self._container_of, self._image = container_of, image
        self._command = command
        self._folder = folder
        self._outputs: list[_Output] = []  # the oldest first

    def start(
        self, nodes: tuple[str, ...], epoch: int, apart: tuple[str, ...] = (), image: str = ""
    ) -> dict[str, str]:
        """Start an agent on each of ``nodes``, by an srun for some alike nodes at a time.

        Nodes that are ``apart`` get an srun each, or share a few if they are many. Later steps of others go
        into the same ``image`` as the agents. Returns the nodes whose srun could not be started, and why.
        Raises ``SlurmCommandError``, ``OSError`` if none was started.
        """
        if image != self._image:
            self._image, self._lent.container = image, self._container_of(image)
        command = (*self._command, f"--image={image}") if image else self._command
        # A name of its own for each start: steps of an earlier one may still be listed.
        name = f"agents-{epoch}-{len(self._outputs)}"
        few = len(apart) <= MAX_APART
        own = tuple((node,) for node in apart) if few else (apart,)
        groups = (tuple(node for node in nodes if node not in apart), *own)
        requests = [
            request
            for group in groups
            for request in self._lent.steps(group, command, name=name, environ=os.environ)
        ]
        before, failed = len(self._outputs), dict[str, str]()
        for request in requests:
            path = self._folder / f"step-{epoch:06d}-{len(self._outputs):02d}.log"
            try:
                handle = self._slurm.launch_step(request, path)
            except (SlurmError, OSError) as error:
                if len(self._outputs) == before:
                    raise
                failed.update(dict.fromkeys(request.nodes, str(error)))
                continue
            record = self._record(handle.pid, request.nodes)
            output = _Output(path, handle, request.nodes, record, container=self._lent.container)
            self._outputs.append(output)
            self._leave_record(output)
        return failed

    def adopt(self) -> None:
        """Follow the steps of this run that earlier controllers started, of each node the newest."""
        known: set[str] = set()
        for path in sorted(self._folder.glob("step-*.json"), key=_numbers, reverse=True):
            try:
                srun = _sruns.decode(read_regular(path, _MAX_READ))
            except (OSError, *UNREADABLE):
                continue  # what becomes of these agents is seen by their silence
            if (srun.host, srun.restart_count) != (os.uname().nodename, self._allocation.restart_count):
                continue
            nodes = tuple(node for node in srun.nodes if node not in known)
            known.update(nodes)
            log = path.with_suffix(".log")
            ended_s = 0.0 if srun.ended is None else max(0.0, self._since_boot() - srun.ended)
            output = _Output(log, srun, nodes, srun, ended_s, container=self._lent.container)
            self._outputs.insert(0, output)
            if srun.let_go:
                output.let_go()

    def _record(self, pid: int, nodes: tuple[str, ...]) -> Srun | None:
        if (srun := proc.read_process(pid)) is None:
            return None
        return Srun(
            host=os.uname().nodename,
            pid=pid,
            begun=srun.begun,
            nodes=nodes,
            restart_count=self._allocation.restart_count,
        )

    def _leave_record(self, output: _Output, **changes: bool | float) -> None:
        """Write the record of the srun, with ``changes``, for the next controller. Touches shared storage."""
        if output.record is None:
            return
        output.record = structs.replace(output.record, **changes)
        with suppress(OSError):  # only another controller needs it
            path = output.path.with_suffix(".json")
            write_atomically(path, msgspec.json.encode(output.record), durable=False)

    def let_go(self, node: str) -> None:
        """Have Slurm end no agent when ``node``, which is dead, comes back.

        A node that is up again has no step, of which slurmctld tells the srun. It finds its connection to the
        node broken, and ends the step on all of its nodes (22.05). Touches shared storage.
        """
        for output in self._outputs:
            if node in output.together and len(output.together) > 1 and output.poll() is None:
                # First, since the next controller would take the end of the srun for that of the agents.
                self._leave_record(output, let_go=True)
                output.let_go()

    def ended(self) -> bool:
        """Return whether there is any srun, started here or adopted, and all have ended.

        False if one was let go: nothing says when the agents of its step end.
        """
        return bool(self._outputs) and all(o.poll() is not None and not o.is_let_go for o in self._outputs)

    def kill(self) -> None:
        """End every srun: this run of the job is over.

        One whose step has a dead node would outlive the run, and cancel the step of that number after half a
        minute: by then it is the next run's.
        """
        for output in self._outputs:
            output.kill()

    def news(self) -> News:
        """Take what has come since the last call. Touches shared storage."""
        refusals: list[Refusal] = []
        ends: list[StepEnd] = []
        for output in self._outputs:
            code = output.poll()  # asked first: all that it said is in the file then
            try:
                lines = output.new_lines()
            except OSError:
                continue  # storage does not answer now, and an end is judged by what srun said
            told = filter(None, map(_refusal, lines))
            refusals += (self._as_mounted(refusal) for refusal in told if refusal.node in output.nodes)
            ends += output.ends(lines, code)
            if code is not None and output.record is not None and output.record.ended is None:
                # Else each next controller would take this end for a new one, and wait for agents to follow.
                self._leave_record(output, ended=self._since_boot())
        return News(refusals=tuple(refusals), ends=tuple(ends))

    def _as_mounted(self, refusal: Refusal) -> Refusal:
        """Name first what the job's container may not mount, of which the agent inside knows nothing."""
        if not (refusal.unseen and (how := self._lent.container.mount(refusal.unseen))):
            return refusal
        return structs.replace(refusal, fix=f"{how}; if it mounts that, {refusal.fix}")

    def why_ended(self) -> str | None:
        """Return why Slurm ended the job's own steps, as :func:`~slurm_robust.slurm.step_output.why_ended`.

        A step whose agents have all been started again ended before. Touches shared storage.
        """
        lines: list[str] = []
        known: set[str] = set()
        for output in reversed(self._outputs):
            if not known.issuperset(output.nodes):
                with suppress(OSError):
                    lines[:0] = _tail(output.path).splitlines()
            known.update(output.nodes)
        return why_ended(lines, self._allocation.job_id)

    def witnesses(self, nodes: tuple[str, ...]) -> tuple[Witness, ...]:
        """Return what Slurm says of each of ``nodes``, beside their silence. Raises ``SlurmError``."""
        jobs = {node: self._lent.holder(node).job_id for node in nodes}
        held = {job: self._held_by(job) for job in (self._allocation.job_id, *jobs.values())}
        return tuple(_witness(node, node.name in held[jobs[node.name]]) for node in self._slurm.nodes(nodes))

    def drains(self, nodes: tuple[str, ...]) -> dict[str, str]:
        """Return the drained ones of ``nodes``, each with who did it and why. Raises ``SlurmError``."""
        return {
            node.name: f"{node.reason_user or 'an unknown user'}: {node.reason or 'no reason given'}"
            for node in self._slurm.nodes(nodes)
            if node.is_drained
        }

    def _held_by(self, job_id: int) -> tuple[str, ...]:
        try:
            return self._slurm.allocation(job_id).nodes
        except JobNotFound:
            if job_id == self._allocation.job_id:
                raise
            return ()  # a companion that has ended


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        return file.read().decode(errors="replace")


def _numbers(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.name)]


def _refusal(line: str) -> Refusal | None:
    if "srobust_agent_error" not in line:
        return None
    try:
        return msgspec.json.decode(line[line.index("{") :], type=Refusal)
    except (ValueError, RecursionError):
        return None  # srun may tear or mix lines of many tasks; the agent repeats nothing


def _witness(node: SlurmNode, held: bool) -> Witness:
    message = "+".join(sorted(node.states)) + (f" ({node.reason})" if node.reason else "")
    if not held:
        message += ", no longer part of the job"
    gone = node.is_down or not held
    left = not held and not node.is_down and node.responding
    return Witness(node=node.name, message=message, against=gone or not node.responding, gone=gone, left=left)
