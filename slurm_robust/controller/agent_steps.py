"""The steps that run the agents: started through Slurm, never waited for, their output read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from slurm_robust.slurm.client import SlurmClient, StepHandle
from slurm_robust.slurm.records import Allocation
from slurm_robust.slurm.requests import whole_node_steps

_MAX_READ = 1 << 20


class Refusal(msgspec.Struct):
    """The line that an agent prints when it cannot begin."""

    srobust_agent_error: str
    node: str
    fix: str = ""


class _Output:
    """The output file of one step, read as it grows."""

    def __init__(self, path: Path, handle: StepHandle) -> None:
        self.path = path
        self.handle = handle
        self._offset = 0
        self._rest = b""

    def new_lines(self) -> list[bytes]:
        """Whole lines written since the last call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(_MAX_READ)
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines


class AgentSteps:
    """All agents' steps that this controller started."""

    def __init__(
        self, slurm: SlurmClient, allocation: Allocation, command: tuple[str, ...], folder: Path
    ) -> None:
        self._slurm = slurm
        self._allocation = allocation
        self._command = command
        self._folder = folder
        self._outputs: list[_Output] = []

    def start(self, nodes: tuple[str, ...], epoch: int) -> None:
        """Start an agent on each of ``nodes``, by one srun for all alike nodes.

        Raises ``SlurmCommandError``, ``OSError``.
        """
        # A name of its own for each start: steps of an earlier one may still be listed.
        name = f"agents-{epoch}-{len(self._outputs)}"
        for request in whole_node_steps(self._allocation, nodes, self._command, name=name):
            path = self._folder / f"step-{epoch:06d}-{len(self._outputs):02d}.log"
            self._outputs.append(_Output(path, self._slurm.launch_step(request, path)))

    @property
    def started(self) -> bool:
        """Whether any step was started by this controller."""
        return bool(self._outputs)

    def ended(self) -> bool:
        """Whether every srun that was started has ended."""
        return self.started and all(o.handle.poll() is not None for o in self._outputs)

    def last_words(self) -> str:
        """The last lines of the steps' output, for an error message."""
        lines: list[str] = []
        for output in self._outputs:
            try:
                lines += output.path.read_text(errors="replace").splitlines()[-3:]
            except OSError:
                continue
        return " | ".join(line.strip() for line in lines if line.strip())

    def refusals(self) -> Iterator[Refusal]:
        """Agents that said since the last call that they cannot begin. Touches shared storage."""
        decoder = msgspec.json.Decoder(Refusal)
        for output in self._outputs:
            for line in output.new_lines():
                if b"srobust_agent_error" not in line:
                    continue
                try:
                    yield decoder.decode(line[line.index(b"{") :])
                except (msgspec.DecodeError, ValueError):
                    continue  # srun may tear or mix lines of many tasks; the agent repeats nothing
