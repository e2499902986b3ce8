"""Controller and agent ends against each other over real sockets of this host."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import pytest
import zmq

from slurm_robust.wire.keys import ClientKeys, create_keys, load_client, load_server
from slurm_robust.wire.messages import Ack, Foreign, Heartbeat, Phase, Ping, Pong, Refused, ToController
from slurm_robust.wire.protocol import PROTOCOL
from slurm_robust.wire.sockets import AgentSocket, ControllerSocket, PortTaken, ask, probe_ports
from tests.waiting import wait_for

BEAT = Heartbeat(node="n1", agent="a1", seq=1, epoch=1, phase=Phase.IDLE)


@pytest.fixture
def controller(tmp_path: Path, keys: ClientKeys) -> Iterator[ControllerSocket]:
    socket = ControllerSocket(load_server(tmp_path / "keys"))
    yield socket
    socket.close()


def endpoint(controller: ControllerSocket) -> str:
    return f"tcp://127.0.0.1:{controller.port}"


def receive(controller: ControllerSocket) -> tuple[bytes, ToController | Foreign]:
    found: list[tuple[bytes, ToController | Foreign]] = []

    def came() -> bool:
        message = controller.recv()
        if message:
            found.append(message)
        return bool(found)

    wait_for(came, message="no message came")
    return found[0]


def test_a_heartbeat_and_its_answer(controller: ControllerSocket, keys: ClientKeys) -> None:
    with closing(AgentSocket(keys, "a1")) as agent:
        agent.connect([endpoint(controller)])
        wait_for(lambda: agent.send(BEAT))
        identity, message = receive(controller)
        assert message == BEAT
        assert identity.startswith(b"a1")
        assert controller.send(identity, Ack(epoch=1, seq=1))
        answers = []
        wait_for(lambda: (m := agent.recv()) is not None and (answers.append(m) or True))
        assert answers == [Ack(epoch=1, seq=1)]
    assert controller.received == 1


def test_the_first_address_that_answers_is_used(controller: ControllerSocket, keys: ClientKeys) -> None:
    """An address of a network that this node cannot reach does not stand in the way."""
    with closing(AgentSocket(keys, "a1")) as agent:
        agent.connect(["tcp://192.0.2.1:9", "tcp://127.0.0.1:1", endpoint(controller)])
        wait_for(lambda: agent.send(BEAT))
        assert receive(controller)[1] == BEAT


def test_nothing_is_sent_without_a_controller(keys: ClientKeys) -> None:
    with closing(AgentSocket(keys, "a1")) as agent:
        agent.connect(["tcp://127.0.0.1:1"])
        assert not agent.send(BEAT)
        assert not agent.connected


def test_another_jobs_key_gets_nothing(
    controller: ControllerSocket, keys: ClientKeys, tmp_path: Path
) -> None:
    """Knowing the controller's public key is not enough: the client's own key must be the job's."""
    create_keys(tmp_path / "other")
    stranger = ClientKeys(client=load_client(tmp_path / "other").client, server_public=keys.server_public)
    assert ask([endpoint(controller)], stranger, Ping(), 0.3) is None
    wait_for(lambda: controller.refused > 0)
    assert controller.recv() is None


def test_a_plain_connection_gets_nothing(controller: ControllerSocket) -> None:
    context = zmq.Context()
    with context.socket(zmq.DEALER) as plain:
        plain.linger = 0
        plain.connect(endpoint(controller))
        plain.send(b"hello")
        assert not plain.poll(200)
    context.term()
    assert controller.recv() is None


def test_a_client_does_not_talk_to_a_false_controller(tmp_path: Path, controller: ControllerSocket) -> None:
    """Somebody else who listens at the address does not become connected."""
    create_keys(tmp_path / "other")
    with closing(AgentSocket(load_client(tmp_path / "other"), "a1")) as agent:
        agent.connect([endpoint(controller)])
        (socket, flags) = agent.pollers(writing=True)[0]
        assert not socket.poll(300, flags)
        assert not agent.send(BEAT)


def test_malformed_messages_are_counted_and_passed_over(
    controller: ControllerSocket, keys: ClientKeys
) -> None:
    with closing(AgentSocket(keys, "a1")) as agent:
        agent.connect([endpoint(controller)])
        wait_for(lambda: agent.connected)
        (raw, _) = agent.pollers(writing=False)[0]
        raw.send(b"\xff garbage")
        raw.send_multipart([b"two", b"frames"])
        assert agent.send(BEAT)
        assert receive(controller)[1] == BEAT
    assert controller.malformed == 2


def test_messages_of_another_version_are_named_to_both_ends(
    controller: ControllerSocket, keys: ClientKeys
) -> None:
    with closing(AgentSocket(keys, "a1")) as agent:
        agent.connect([endpoint(controller)])
        wait_for(lambda: agent.connected)
        (raw, _) = agent.pollers(writing=False)[0]
        raw.send(msgspec.msgpack.encode({"kind": "weather", "node": "n1", "protocol": 9}))
        identity, message = receive(controller)
        assert message == Foreign(kind="weather", node="n1", protocol=9)
        controller.socket.send_multipart([identity, msgspec.msgpack.encode({"kind": "dance", "epoch": 1})])
        assert controller.send(identity, Refused(refused="weather", protocol=PROTOCOL))
        answers: list[object] = []
        wait_for(lambda: (m := agent.recv()) is not None and (answers.append(m) or len(answers) == 2))
        assert answers == [Foreign(kind="dance"), Refused(refused="weather", protocol=PROTOCOL)]
    assert controller.malformed == 0


def test_sending_to_a_peer_that_is_gone_does_not_wait(controller: ControllerSocket) -> None:
    assert not controller.send(b"nobody", Ack(epoch=1, seq=1))
    assert controller.unreachable == 1


def test_sending_to_a_peer_that_does_not_read_does_not_wait(
    controller: ControllerSocket, keys: ClientKeys
) -> None:
    with closing(AgentSocket(keys, "a1")) as agent:
        agent.connect([endpoint(controller)])
        wait_for(lambda: agent.send(BEAT))
        identity, _ = receive(controller)
        order = Ack(epoch=1, seq=1)
        assert not all(controller.send(identity, order) for _ in range(1_000_000))


def test_a_taken_port_is_told_with_the_fix(controller: ControllerSocket, tmp_path: Path) -> None:
    with pytest.raises(PortTaken, match=str(controller.port)) as raised:
        ControllerSocket(load_server(tmp_path / "keys"), controller.port)
    assert "0 to take any free one" in raised.value.fix


def test_an_agent_finds_a_controller_that_comes_back_at_the_same_port(
    tmp_path: Path, keys: ClientKeys
) -> None:
    first = ControllerSocket(load_server(tmp_path / "keys"))
    with closing(AgentSocket(keys, "a1")) as agent:
        agent.connect([endpoint(first)])
        wait_for(lambda: agent.send(BEAT))
        first.close()
        with closing(ControllerSocket(load_server(tmp_path / "keys"), first.port)) as second:
            wait_for(lambda: agent.send(BEAT) and second.recv() is not None)


def test_ask_gives_the_answer_and_gives_up(controller: ControllerSocket, keys: ClientKeys) -> None:
    def serve() -> None:
        identity, message = receive(controller)
        assert message == Ping()
        controller.send(identity, Pong(epoch=3, host="h", pid=1))

    server = threading.Thread(target=serve)
    server.start()
    assert ask([endpoint(controller)], keys, Ping(), 5) == Pong(epoch=3, host="h", pid=1)
    server.join()
    assert ask([endpoint(controller)], keys, Ping(), 0.1) is None


@pytest.mark.slow
def test_1250_agents_connect_and_get_their_answers(controller: ControllerSocket, keys: ClientKeys) -> None:
    """All connect, every heartbeat comes, every one gets its answer."""
    count = 1250
    context = zmq.Context(io_threads=1)
    context.set(zmq.MAX_SOCKETS, 2 * count)
    agents = [AgentSocket(keys, f"a{i}", context=context) for i in range(count)]
    try:
        for agent in agents:
            agent.connect([endpoint(controller)])
        waiting = dict(enumerate(agents))
        heard: dict[bytes, ToController] = {}

        def all_heard() -> bool:
            for i in [i for i, agent in waiting.items() if agent.send(BEAT)]:
                del waiting[i]
            while (message := controller.recv()) is not None:
                heard[message[0]] = message[1]
            return len(heard) == count

        wait_for(all_heard, 60, "not all agents came")
        assert all(controller.send(identity, Ack(epoch=1, seq=1)) for identity in heard)
        for agent in agents:
            wait_for(agent.recv)
    finally:
        for agent in agents:
            agent.close()
        context.term()


NOWHERE = "192.0.2.1"  # RFC 5737: no packet to it is answered


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def place(of: socket.socket) -> tuple[str, int]:
    return of.getsockname()[0], of.getsockname()[1]


def test_who_listens_takes_connections_although_nobody_accepts(listener: socket.socket) -> None:
    assert probe_ports({"n1": place(listener)}) == ({"n1"}, set())


def test_who_does_not_listen_any_more_refuses(listener: socket.socket) -> None:
    with ExitStack() as stack:
        gone = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        where = place(gone)
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    found = probe_ports({"n1": place(listener), "n2": where, "n3": place(bound)})
    assert found == ({"n1"}, {"n2", "n3"})
    bound.close()


def test_silence_ends_at_the_limit(listener: socket.socket) -> None:
    found = probe_ports({"n1": place(listener), "n2": (NOWHERE, 9), "n3": ("no such host.invalid", 9)}, 0.2)
    assert (found.taken, "n3" in found.refused) == ({"n1"}, False)


def test_nobody_is_asked() -> None:
    assert probe_ports({}) == (set(), set())
