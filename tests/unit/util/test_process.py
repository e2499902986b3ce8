from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_robust.util.process import OTHER_FILES, file_shortage
from slurm_robust.wire.keys import create_keys

HUNDRED_AGENTS = """
import sys, time
from pathlib import Path
import zmq
from slurm_robust.wire.sockets import AgentSocket
from slurm_robust.wire.keys import load_client, load_server
from slurm_robust.wire.messages import Heartbeat, Phase
from slurm_robust.util.process import raise_file_limit
from slurm_robust.wire.sockets import ControllerSocket

raise_file_limit()
folder = Path(sys.argv[1])
controller = ControllerSocket(load_server(folder))
context, keys = zmq.Context(), load_client(folder)
waiting = {f"n{i}": AgentSocket(keys, f"n{i}", context=context) for i in range(100)}
for agent in waiting.values():
    agent.connect([f"tcp://127.0.0.1:{controller.port}"])
heard, deadline = set(), time.monotonic() + 30
while len(heard) < 100 and time.monotonic() < deadline:
    for name, agent in waiting.items():
        if name not in heard:
            agent.send(Heartbeat(node=name, agent=name, seq=1, epoch=1, phase=Phase.IDLE))
    while (received := controller.recv()) is not None:
        heard.add(received[1].node)
print(len(heard))
import os; os._exit(0)
"""


def test_a_hundred_agents_come_where_the_shell_allows_64_files(tmp_path: Path) -> None:
    create_keys(tmp_path)
    command = [sys.executable, "-c", HUNDRED_AGENTS, str(tmp_path)]
    shell = ["bash", "-c", 'ulimit -Sn 64; exec "$@"', "bash", *command]
    done = subprocess.run(shell, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "100\n", done.stderr


def test_a_hard_limit_that_is_too_low_is_reported_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4096, 4096))
    assert file_shortage(4096 - OTHER_FILES, "ranks") == ""
    message = file_shortage(10_000, "ranks at rank 0's store")
    assert "may open 4096 files and needs about 10256" in message
    assert "LimitNOFILE of slurmd" in message
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert file_shortage(10**9, "ranks") == ""
