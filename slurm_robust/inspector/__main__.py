"""The inspector: ``python -m slurm_robust.inspector``, the agent's child that checks the node.

A process of its own, because reading a machine may hang, and because nothing here may cost the training
anything.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec

from slurm_robust.config.nodefile import FILE
from slurm_robust.inspector.observation import Observation, encode
from slurm_robust.inspector.probes import Send, probes
from slurm_robust.kernel.host import Host
from slurm_robust.model.job import InspectionSpec
from slurm_robust.util.process import die_with_parent

try:
    import pynvml  # noqa: F401 - here, or each child would import it
except ImportError:
    pass

# Below the workers, above nothing that a process waits for.
_NICE = 10


def main() -> int:
    """Inspect until the agent ends; another end is an error."""
    arguments = _arguments()
    die_with_parent(arguments.parent)
    # Slurm tells all processes of a step to end; this one ends with its agent. No SIG_IGN, which what it
    # starts would inherit.
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.nice(_NICE)
    channel = socket.socket(fileno=arguments.channel)
    spec = msgspec.json.decode(arguments.spec, type=InspectionSpec)
    for probe in probes(spec, Host(arguments.root), arguments.config):
        parent = os.getpid()
        if os.fork() == 0:
            _live(probe, channel, parent)
    os.wait()  # if one ends, all end, and the agent starts them again
    return 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m slurm_robust.inspector", description=__doc__)
    parser.add_argument("--channel", type=int, required=True, help="descriptor of a socket to the agent")
    parser.add_argument("--parent", type=int, required=True, help="the agent's process id")
    parser.add_argument("--spec", required=True, help="intervals, as JSON")
    parser.add_argument("--root", type=Path, default=Path("/"), help="check a copy of a machine's files")
    parser.add_argument("--config", type=Path, default=FILE, help="the node's configuration")
    return parser.parse_args()


def _live(probe: Callable[[Send], None], channel: socket.socket, parent: int) -> NoReturn:
    def send(observation: Observation) -> None:
        channel.send(encode(observation))

    try:
        die_with_parent(parent)
        probe(send)
    except BrokenPipeError:
        pass  # the agent has ended
    except Exception:  # noqa: BLE001 - a bug: the agent's output has it, and the agent starts all again
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
