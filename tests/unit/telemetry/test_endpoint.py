"""The endpoint over real sockets: who may read, and what the others can do to it."""

from __future__ import annotations

import gzip
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from slurm_robust.telemetry.endpoint import MAX_CONNECTIONS, REQUEST_BYTES, Endpoint, parse
from tests.waiting import wait_for

PAGE = b"# HELP up 1.\n# TYPE up gauge\nup 1\n"


class Served:
    """An endpoint, and what it has said."""

    def __init__(
        self, page: Callable[[], bytes | None], token: Callable[[], str | None], **limits: float
    ) -> None:
        self.said: list[str] = []
        self.port = 0
        self.endpoint = Endpoint(
            ("127.0.0.1", 0), page, token=token, report=self.said.append, opened=self._opened, **limits
        )  # type: ignore[arg-type]
        self.endpoint.start()

    def _opened(self, port: int) -> None:
        self.port = port

    def connect(self) -> socket.socket:
        wait_for(lambda: self.port)
        return socket.create_connection(("127.0.0.1", self.port), 10)

    def get(self, path: str = "/metrics", method: str = "GET", **headers: str) -> http.client.HTTPResponse:
        wait_for(lambda: self.port)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, headers=headers)
        return connection.getresponse()


@contextmanager
def served(
    page: Callable[[], bytes | None] = lambda: PAGE,
    token: Callable[[], str | None] = lambda: None,
    **limits: float,
) -> Iterator[Served]:
    found = Served(page, token, **limits)
    try:
        yield found
    finally:
        found.endpoint.close(5.0)


def ends(connection: socket.socket) -> bool:
    """Whether the other side has closed it, without an answer."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_the_page_is_served_plain_and_compressed() -> None:
    with served() as one:
        plain = one.get()
        assert (plain.status, plain.read()) == (200, PAGE)
        assert plain.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        packed = one.get(**{"Accept-Encoding": "gzip"})
        assert packed.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(packed.read()) == PAGE


def test_a_page_that_is_a_moment_old_is_served_again() -> None:
    made: list[int] = []

    def page() -> bytes:
        made.append(1)
        return PAGE

    with served(page) as one:
        assert [one.get().status for _ in range(20)] == [200] * 20
        assert len(made) < 10


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/metrics/", 404), ("POST", "/metrics", 405), ("HEAD", "/healthz", 405),
     ("GET", "/metrics?x=1", 200), ("GET", "/../etc/passwd", 404), ("GET", "/healthz", 200)],
)  # fmt: skip
def test_nothing_else_is_served(method: str, path: str, status: int) -> None:
    with served() as one:
        assert one.get(path, method).status == status


def test_the_endpoint_serves_no_page_without_the_token() -> None:
    with served(token=lambda: "se-cret") as one:
        assert one.get(Authorization="Bearer se-cret").status == 200
        assert one.get(Authorization="bearer  se-cret ").status == 200
        for wrong in ("Bearer se-cre", "Bearer", "Basic se-cret", "se-cret", "Bearer sé-cret"):
            assert one.get(Authorization=wrong).status == 401
        refused = one.get()
        assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert one.get("/healthz").status == 200  # says nothing of the job


def test_a_token_that_cannot_be_read_keeps_the_port_closed_until_it_can() -> None:
    trouble = [PermissionError(1, "token can be read by others")]

    def token() -> str:
        if trouble:
            raise trouble[0]
        return "x"

    with served(token=token, retry_s=0.02) as one:
        wait_for(lambda: one.said)
        assert one.port == 0
        trouble.clear()
        wait_for(lambda: one.port)
        assert one.said == ["token can be read by others"]  # once


def test_a_taken_port_is_tried_again() -> None:
    said: list[str] = []
    ports: list[int] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        endpoint = Endpoint(
            ("127.0.0.1", port),
            lambda: PAGE,
            token=lambda: None,
            report=said.append,
            opened=ports.append,
            retry_s=0.02,
        )
        endpoint.start()
        wait_for(lambda: said)
    wait_for(lambda: ports)
    endpoint.close(5.0)
    assert ports == [port]
    assert len(said) == 1
    assert "address already in use" in said[0]


def test_before_there_is_anything_to_show_the_first_request_waits() -> None:
    ready = threading.Event()
    with served(lambda: PAGE if ready.is_set() else None) as one:
        connection = one.connect()
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        ready.set()
        assert connection.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    "sent",
    [b"\r\n\r\n", b"GET\r\n\r\n", b"GET /metrics\r\n\r\n", b"\xff\x00 \xfe x\r\n\r\n", b"A B C\r\n\r\n"],
)
def test_what_is_no_request_is_refused(sent: bytes) -> None:
    with served() as one:
        connection = one.connect()
        connection.sendall(sent)
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
        assert one.get().status == 200


def test_a_request_that_does_not_end_is_not_read_to_its_end() -> None:
    with served() as one:
        connection = one.connect()
        connection.sendall(b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * REQUEST_BYTES)
        assert connection.recv(100).startswith(b"HTTP/1.1 431 ")


def test_a_client_that_is_slow_loses_its_connection() -> None:
    with served(request_s=0.1) as one:
        slow = one.connect()
        slow.sendall(b"GET /met")
        assert ends(slow)


def test_a_client_that_takes_nothing_loses_its_connection() -> None:
    with served(lambda: b"#" * (32 << 20), request_s=0.1) as one:
        deaf = one.connect()
        deaf.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        wait_for(lambda: one.endpoint.connections == 1)
        wait_for(lambda: one.endpoint.connections == 0)


def test_connections_that_ask_nothing_keep_nobody_out() -> None:
    with served() as one:
        held = [one.connect() for _ in range(MAX_CONNECTIONS + 8)]
        assert one.get().status == 200
        assert ends(held[0])  # whoever has waited for longest gives place
        assert one.endpoint.connections <= MAX_CONNECTIONS


def test_closing_ends_all_connections_and_the_port() -> None:
    with served() as one:
        connection = one.connect()
        wait_for(lambda: one.endpoint.connections == 1)
    assert ends(connection)
    with pytest.raises(ConnectionRefusedError):
        one.connect()


def test_an_error_of_the_page_costs_that_request_only() -> None:
    pages: list[bytes] = []
    with served(lambda: pages[0]) as one:
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            one.get()
        pages.append(PAGE)
        assert one.get().status == 200
        assert one.said == ["the page of metrics could not be made: IndexError('list index out of range')"]


def test_the_parts_of_a_request() -> None:
    found = parse(b"GET /metrics?a=b HTTP/1.1\r\nHost: x\r\nAUTHORIZATION:  Bearer a:b \r\nnonsense")
    assert found is not None
    assert (found.method, found.path) == ("GET", "/metrics")
    assert found.headers == {"host": "x", "authorization": "Bearer a:b", "nonsense": ""}
