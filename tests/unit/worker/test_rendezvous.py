from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from slurm_robust.wire.network import PortHolder
from slurm_robust.worker.rendezvous import BACKLOG, patient, wait_until_listening
from tests.forked_python import run_python
from tests.forked_zygote import ForkedZygoteLauncher
from tests.unit.worker.script_runner import ScriptRunner


def test_waiting_ends_as_soon_as_somebody_listens() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        answers: list[bool] = []
        port = server.getsockname()[1]
        waiter = threading.Thread(target=lambda: answers.append(wait_until_listening("127.0.0.1", port, 4)))
        waiter.start()
        waiter.join(0.05)
        assert waiter.is_alive()
        server.listen()
        waiter.join(60)
        assert answers == [True]


def test_waiting_is_bounded() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        assert not wait_until_listening("127.0.0.1", server.getsockname()[1], 4, limit_s=0.03)


def test_an_unknown_host_is_left_to_torch() -> None:
    assert not wait_until_listening("no-such-host.invalid", 1, 4, limit_s=0.03)


def ask(store: socket.socket, ranks: int, world_size: int) -> list[socket.socket]:
    """Connections of so many ranks, one after the other, before rank 0 takes any of them."""

    def connect(**named: object) -> socket.socket:
        return socket.create_connection((str(named["host_name"]), store.getsockname()[1]), timeout=0.9)

    asked = patient(connect)
    name, port = store.getsockname()
    return [asked(host_name=name, port=port, world_size=world_size, is_master=False) for _ in range(ranks)]


@pytest.mark.parametrize(("ranks", "world_size", "tried"), [(8, BACKLOG, 0), (4, 4, 4)])
def test_where_ranks_are_many_the_queue_is_for_their_connections_alone(
    ranks: int, world_size: int, tried: int
) -> None:
    with socket.socket() as store:
        store.bind(("127.0.0.1", 0))
        store.listen(8)  # and one more
        made = ask(store, ranks, world_size)
        taken = [store.accept()[0] for _ in range(ranks + tried)]
        dead = 0
        for connection in taken:
            connection.setblocking(False)
            try:
                dead += connection.recv(1) == b""
            except BlockingIOError:
                pass
        assert dead == tried
        for connection in (*made, *taken):
            connection.close()


STORES = {
    "by init_process_group": (
        "dist.init_process_group('gloo', init_method='env://')\n"
        "print(dist.get_world_size())\n"
        "dist.destroy_process_group()\n"
        "dist.init_process_group('gloo')\n"  # by then torch binds the port itself
        "print(dist.get_world_size())\n"
    ),
    "made by the script": (
        "store = dist.TCPStore('127.0.0.1', port, 1, True)\nstore.set('a', '1')\nprint(int(store.get('a')))\n"
        "del store\nprint(1)\n"
    ),
    "by an interpreter that the script starts": (
        "import subprocess, sys\n"
        "code = f'import socket; socket.create_server(({chr(34)}{chr(34)}, {port})); print(1)'\n"
        "done = subprocess.run([sys.executable, '-c', code], check=True, capture_output=True)\n"
        "print(done.stdout.decode() * 2)\n"
    ),
}


@pytest.mark.slow
def test_rank_zero_listens_on_the_socket_that_its_agent_held(tmp_path: Path) -> None:
    runner = ScriptRunner(cwd=tmp_path, launcher=ForkedZygoteLauncher)
    for name, code in STORES.items():
        holder = PortHolder(hand_over=True)
        port = holder.port
        script = tmp_path / "script.py"
        script.write_text(f"import torch.distributed as dist\nport = {port}\n{code}")
        env = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        listener = holder.open()
        assert listener is not None
        result = runner.run((str(script),), tmp_path, env=env, listener=listener)
        assert result.out.split() == ["1", "1"], (name, result.err)
        with pytest.raises(ConnectionRefusedError):  # nobody has kept a copy
            socket.create_connection(("127.0.0.1", port), timeout=60)
    runner.close()


WITH_AN_OLD_TORCH = """
import os, socket, torch, torch.distributed as dist
from slurm_robust.worker import rendezvous

server = socket.create_server(("127.0.0.1", 0))
port = server.getsockname()[1]
os.environ["MASTER_PORT"] = str(port)
torch.__version__ = "2.7.1+cu126"
rendezvous.listen_on(server.detach())
print(dist.TCPStore("127.0.0.1", port, 1, True).libuvBackend)
"""


@pytest.mark.slow
def test_a_torch_whose_libuv_takes_no_socket_has_the_store_that_does() -> None:
    done = run_python("-c", WITH_AN_OLD_TORCH)
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr
