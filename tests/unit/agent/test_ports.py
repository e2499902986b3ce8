from __future__ import annotations

import os
import socket

import pytest

from slurm_robust.wire.network import PortHolder, bind_free, local_address, taken_by
from tests.forked_python import run_python
from tests.unit.agent.local_job import rival
from tests.users import as_root, run_as


def listen(port: int) -> socket.socket:
    """What torch's TCPStore does."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("", port))
    server.listen()
    return server


def test_a_held_port_can_be_listened_on_by_a_socket_that_shares_it() -> None:
    holder = PortHolder()
    with pytest.raises(OSError, match="in use"):
        listen(holder.port)  # nobody, before it is for somebody
    assert holder.open() is None
    with listen(holder.port), socket.create_connection(("127.0.0.1", holder.port)):
        pass
    holder.close()


@pytest.mark.parametrize("hand_over", [False, True])
@pytest.mark.parametrize("reuse", [False, True])
@as_root
def test_another_user_cannot_have_a_held_port(*, hand_over: bool, reuse: bool) -> None:
    def take() -> str:
        with socket.socket() as mine:
            mine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            mine.bind(("", holder.port))
            return "bound"

    holder = PortHolder(hand_over=hand_over)
    assert "in use" in run_as(65534, take)
    if hand_over:
        assert holder.open() is not None
        assert "in use" in run_as(65534, take)
    holder.renew()
    assert "in use" in run_as(65534, take)
    holder.close()


@as_root
def test_another_user_who_took_the_port_is_named() -> None:
    holder = PortHolder()
    holder.open()
    assert taken_by(holder.port) == ""
    with rival(holder.port, 65534):
        assert f"(uid 65534) listens on port {holder.port}" in taken_by(holder.port)
        assert taken_by(holder.port + 1) == ""
    with rival(holder.port, os.geteuid()):
        assert taken_by(holder.port) == "", "it may be the job's own"
    holder.close()


def test_a_port_that_the_kernel_remembers_is_held_against_others_too() -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as one, server.accept()[0] as other:
            other.close()  # who closes first keeps it in TIME_WAIT
            one.recv(1)
    holder = PortHolder((port,), hand_over=True)
    with pytest.raises(OSError, match="in use"):
        listen(port)
    holder.close()


def test_what_was_handed_over_is_rank_zeros_alone() -> None:
    """With a copy left in the agent, who connects after the end of rank 0 would wait for nobody's answer."""
    holder = PortHolder(hand_over=True)
    port, listener = holder.port, holder.open()
    assert listener is not None
    theirs = listener.dup()
    holder.renew()
    socket.create_connection(("127.0.0.1", port), timeout=60).close()
    theirs.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=60)
    holder.close()


def test_nobody_else_gets_a_held_port() -> None:
    holder = PortHolder()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("", holder.port))
    holder.close()


def test_each_launch_gets_another_port_and_the_used_one_stays_held() -> None:
    holder = PortHolder()
    first = holder.port
    holder.renew()
    assert holder.port != first
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("", first))
    holder.renew()
    with socket.socket() as other:
        other.bind(("", first))
    holder.close()


def test_ports_come_from_the_configured_ones_and_taken_ones_are_passed_over() -> None:
    with socket.socket() as blocked, socket.socket() as probe:
        blocked.bind(("", 0))
        probe.bind(("", 0))
        free = probe.getsockname()[1]
        probe.close()
        holder = PortHolder((blocked.getsockname()[1], free))
        assert holder.port == free
        with pytest.raises(OSError, match="no rendezvous port is free"):
            holder.renew()
        holder.close()


def test_ports_are_used_in_turn() -> None:
    with socket.socket() as a, socket.socket() as b:
        a.bind(("", 0))
        b.bind(("", 0))
        ports = a.getsockname()[1], b.getsockname()[1]
    holder = PortHolder(ports)
    used = [holder.port]
    for _ in range(3):
        holder.open()
        with listen(holder.port), socket.create_connection(("127.0.0.1", holder.port)):
            pass  # leaves the kernel a connection to remember (TIME_WAIT)
        holder.renew()
        used.append(holder.port)
    assert used == [*ports, *ports]
    holder.close()


@pytest.mark.slow
def test_torchs_store_listens_on_a_held_port() -> None:
    holder = PortHolder()
    holder.open()
    code = (
        "import sys, torch.distributed as dist\n"
        f"store = dist.TCPStore('127.0.0.1', {holder.port}, 1, True)\n"
        "store.set('key', 'value'); print(store.get('key').decode())"
    )
    done = run_python("-c", code)
    assert done.stdout == "value\n", done.stderr
    holder.close()


def test_the_own_address_is_that_of_the_route_to_the_peer() -> None:
    assert local_address("127.0.0.1", 5) == "127.0.0.1"
    assert local_address("::1", 5) == "::1"


def test_a_port_for_copies_is_the_last_free_one_and_reached_by_both_protocols() -> None:
    with socket.socket() as a, socket.socket() as b:
        a.bind(("", 0))
        b.bind(("", 0))
        ports = sorted((a.getsockname()[1], b.getsockname()[1]))
        with pytest.raises(OSError, match="no port is free among"):
            bind_free(ports)
    with bind_free(ports) as bound:
        assert bound.getsockname()[1] == ports[1]
        bound.listen()
        for address in ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
            socket.create_connection((address, ports[1]), timeout=60).close()
        holder = PortHolder(ports)
        assert holder.port == ports[0]
        holder.close()
