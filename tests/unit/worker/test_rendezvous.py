from __future__ import annotations

import socket
import threading

from slurm_robust.worker.rendezvous import wait_until_listening


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
        waiter.join(5)
        assert answers == [True]


def test_waiting_is_bounded() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        assert not wait_until_listening("127.0.0.1", server.getsockname()[1], 4, limit_s=0.03)


def test_an_unknown_host_is_left_to_torch() -> None:
    assert not wait_until_listening("no-such-host.invalid", 1, 4, limit_s=0.03)
