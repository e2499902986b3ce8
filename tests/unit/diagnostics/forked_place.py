"""A place whose parts of tests are forks of a process with PyTorch, and whose nodes may be bad for real."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_robust.diagnostics.__main__ import main
from slurm_robust.diagnostics.places import HerePlace, Launched, Output
from tests.ranks import end, processes


class ForkedPlace(HerePlace):
    """Nodes on this machine, whose parts need not import PyTorch.

    ``faults`` of nodes. ``arithmetic``: the lowest bit of an element of every product of matrices is
    flipped. ``stop``: the process stops itself and can only be killed.
    """

    def __init__(self, names: Sequence[str], faults: Mapping[str, str] | None = None) -> None:
        super().__init__(names)
        self._faults = dict(faults or {})

    def launch(self, nodes: Sequence[str], command: tuple[str, ...], folder: Path) -> Launched:
        assert command[1:3] == ("-m", "slurm_robust.diagnostics")
        parts = []
        for number, node in enumerate(nodes):
            output = folder / f"{node}-{number}.log"
            output.touch()
            argv = (*command[3:], "--node", node, "--gpus", "0")
            part = processes().Process(
                target=_run, args=(argv, self._faults.get(node, ""), output, dict(os.environ))
            )
            part.start()
            parts.append((Output(output), part))
        return _Forked(parts)


class _Forked:
    def __init__(self, parts: Sequence[tuple[Output, Any]]) -> None:
        self._parts = parts

    def lines(self) -> Iterator[str]:
        for output, _ in self._parts:
            yield from output.lines()

    def ended(self) -> bool:
        return all(part.exitcode is not None for _, part in self._parts)

    def end(self) -> None:
        end([part for _, part in self._parts])


def _run(argv: Sequence[str], fault: str, output: Path, environ: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environ)
    log = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    match fault:
        case "arithmetic":
            _break_arithmetic()
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
    from slurm_robust.diagnostics.programs import memory

    memory._MAX_BYTES = memory._CHUNK  # what else is free is walked over in the same way
    main(argv)


def _break_arithmetic() -> None:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Flipped(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm):
                bits = result.detach().view(torch.int32 if result.element_size() == 4 else torch.int16)
                bits.view(-1)[0] ^= 1
            return result

    Flipped().__enter__()
