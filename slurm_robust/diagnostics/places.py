"""The places in which parts of tests run: on a job's nodes, as a step beside the others, or on this node."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from slurm_robust.nodes.gpus.nvml import Nvml, NvmlError
from slurm_robust.slurm.client import SlurmClient, StepHandle
from slurm_robust.slurm.companion import Lent
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.process import spawn_detached
from slurm_robust.slurm.records import Allocation

_MAX_READ = 1 << 20
_CANCEL_S = 10.0


class Launched(Protocol):
    """One command, started on some nodes."""

    def lines(self) -> Iterator[str]:
        """Return whole lines written since the last call."""
        ...

    def ended(self) -> bool:
        """Return whether nothing more will come."""
        ...

    def end(self) -> None:
        """Kill all that is left of it. Bounded in time; raises nothing."""
        ...


class TestSite(Protocol):
    """Knows some nodes, and starts commands there."""

    def gpus(self, node: str) -> int:
        """Return how many GPUs we hold there."""
        ...

    def addresses(self, nodes: Sequence[str]) -> Mapping[str, str]:
        """Return the addresses at which the nodes reach each other. Raises ``SlurmError``."""
        ...

    def launch(self, nodes: Sequence[str], command: tuple[str, ...], folder: Path) -> Launched:
        """Start ``command`` once on each node, output in ``folder``. Raises ``SlurmError``, ``OSError``."""
        ...


class Output:
    """A file that grows, read by whole lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._rest = b""

    def lines(self) -> Iterator[str]:
        """Yield those written since the last call."""
        while True:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(_MAX_READ)
            self._offset += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
            if not data:
                return


class SlurmPlace:
    """The nodes of a job. Steps overlap with those that hold the nodes already, and end with their sruns."""

    def __init__(self, slurm: SlurmClient, allocation: Allocation, lent: Lent | None = None) -> None:
        """Take ``lent``, the nodes of companions."""
        self._slurm = slurm
        self._lent = lent or Lent(allocation)
        self._numbers = itertools.count(1)  # also if several tests run in parallel

    def gpus(self, node: str) -> int:
        """See the protocol."""
        return self._lent.holder(node).gpus_per_node.get(node, 0)

    def addresses(self, nodes: Sequence[str]) -> Mapping[str, str]:
        """See the protocol."""
        return {node.name: node.address or node.name for node in self._slurm.nodes(nodes)}

    def launch(self, nodes: Sequence[str], command: tuple[str, ...], folder: Path) -> Launched:
        """See the protocol."""
        number = next(self._numbers)
        # A name of its own for each launch: a step that was killed may still be listed.
        name = f"diagnose-{os.getpid()}-{number}"
        steps = _Steps(self._slurm, {self._lent.holder(node).job_id for node in nodes}, name)
        try:
            for request in self._lent.steps(tuple(nodes), command, name=name, environ=os.environ):
                path = folder / f"{name}-{len(steps.parts)}.log"
                steps.parts.append((Output(path), self._slurm.launch_step(request, path)))
        except BaseException:
            steps.end()
            raise
        return steps


class HerePlace:
    """This node alone. ``names`` are those under which it takes part: one, but in tests of this package."""

    def __init__(self, names: Sequence[str], gpus: int = 0) -> None:
        self._names = tuple(names)
        self._gpus = gpus

    def gpus(self, node: str) -> int:
        """See the protocol."""
        return self._gpus

    def addresses(self, nodes: Sequence[str]) -> Mapping[str, str]:
        """See the protocol."""
        return dict.fromkeys(nodes, "127.0.0.1")

    def launch(self, nodes: Sequence[str], command: tuple[str, ...], folder: Path) -> Launched:
        """See the protocol."""
        started = _Started()
        try:
            for node in nodes:
                path = folder / f"{node}-{time.monotonic_ns()}.log"
                # In a session of their own, as by srun: Ctrl-C is for us, and we end them.
                whole = (*command, "--node", node, "--gpus", str(self._gpus))
                started.parts.append((Output(path), spawn_detached(whole, output=path, env=os.environ)))
        except BaseException:
            started.end()
            raise
        return started


def gpus_here() -> int:
    """Return the GPUs of this node that NVML shows; 0 without a driver."""
    try:
        nvml = Nvml()
    except (OSError, ImportError, NvmlError):
        return 0
    try:
        return int(nvml.api.nvmlDeviceGetCount())
    except nvml.api.NVMLError:
        return 0
    finally:
        nvml.close()


class _Started:
    """Processes with their output."""

    def __init__(self) -> None:
        self.parts: list[tuple[Output, StepHandle]] = []

    def lines(self) -> Iterator[str]:
        """See the protocol."""
        for output, _ in self.parts:
            yield from output.lines()

    def ended(self) -> bool:
        """See the protocol."""
        return all(handle.poll() is not None for _, handle in self.parts)

    def end(self) -> None:
        """See the protocol."""
        for _, handle in self.parts:
            handle.kill()


class _Steps(_Started):
    """Steps of one name."""

    def __init__(self, slurm: SlurmClient, jobs: Collection[int], name: str) -> None:
        super().__init__()
        self._slurm = slurm
        self._jobs = jobs
        self._name = name

    def end(self) -> None:
        """See the protocol. Tasks may outlive their srun, so the steps are cancelled too."""
        if self.ended():
            return
        deadline = time.monotonic() + _CANCEL_S
        try:
            for step in [step for job in self._jobs for step in self._slurm.steps(job)]:
                if step.name == self._name and time.monotonic() < deadline:
                    self._slurm.cancel(step.job_id, step_id=step.step_id, signal="KILL")
        except SlurmError:
            pass  # Without an answer killing srun is all that can be done.
        super().end()
