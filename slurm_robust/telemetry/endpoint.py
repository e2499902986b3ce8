"""A page for Prometheus over HTTP, in a thread of its own that can hold up nothing else.

Two paths exist: ``/metrics``, with a bearer token if one is required, and ``/healthz``. Everything is
bounded: a request in size and time, an answer in time, connections in number. A client that holds connections
open without asking loses them to the next one. There is no TLS: the page names nodes, steps and losses, and a
token that is read from the wire opens nothing but the page.
"""

from __future__ import annotations

import asyncio
import gzip
import hmac
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from slurm_robust.model.record import Record
from slurm_robust.telemetry.metric import CONTENT_TYPE
from slurm_robust.util.threads import start_thread

REQUEST_S = 5.0
"""Time for a request to come, and again for its answer to be taken."""

REQUEST_BYTES = 8192
MAX_CONNECTIONS = 32
RETRY_S = 10.0
"""Between two attempts to open the port."""

FRESH_S = 1.0
"""While the page is scraped, it is looked after this often, so that a scrape only has to send it."""

CACHED_S = 3.0
"""A page that is not older is shown again."""

WANTED_S = 300.0
"""The page is scraped as long as the last request is not older."""

FIRST_S = 2.0
"""How long the first request waits until there is something to show."""

_POLL_S = 0.05
_GZIP_LEVEL = 1  # a page of a thousand nodes in milliseconds, to a tenth of its size

_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class _Response(Record):
    """What a request gets."""

    status: int
    body: bytes = b""
    headers: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Encode the response for the wire."""
        body = self.body or f"{_REASONS[self.status]}\n".encode()
        head = (
            f"HTTP/1.1 {self.status} {_REASONS[self.status]}",
            f"Content-Length: {len(body)}",
            "Connection: close",
            *(self.headers or ("Content-Type: text/plain; charset=utf-8",)),
        )
        return "\r\n".join((*head, "", "")).encode() + body


class HttpRequest(Record):
    """The parts of a request that count."""

    method: str
    path: str
    headers: dict[str, str]
    """By name in lower case."""


def parse(data: bytes) -> HttpRequest | None:
    """Parse a request head; None if malformed."""
    first, *rest = data.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return None
    headers = {name.strip().lower(): value.strip() for name, _, value in (r.partition(":") for r in rest)}
    return HttpRequest(method=words[0], path=words[1].partition("?")[0], headers=headers)


def is_allowed(request: HttpRequest, token: str | None) -> bool:
    """Return whether the request shows ``token``; None: every client may read."""
    if token is None:
        return True
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(shown.strip().encode(), token.encode())


class Endpoint:
    """Serves one page until :meth:`close`. Its thread is a daemon and raises nothing."""

    def __init__(
        self,
        address: tuple[str, int],
        page: Callable[[], bytes | None],
        *,
        token: Callable[[], str | None],
        report: Callable[[str], None],
        opened: Callable[[int], None],
        retry_s: float = RETRY_S,
        request_s: float = REQUEST_S,
        most: int = MAX_CONNECTIONS,
    ) -> None:
        """Take ``address``, host and port, 0 for any free one.

        All functions are called in the thread of the endpoint and must not block: ``page`` makes the page,
        None as long as there is nothing to show; ``token`` gives the token that a request must show, None
        for none, or raises ``OSError``, and then the port stays closed; ``report`` gets each new trouble,
        once; ``opened`` gets the port. A page that is the same object as before is not compressed again.
        """
        self._address = address
        self._page, self._token = page, token
        self._report, self._opened = report, opened
        self._retry_s, self._request_s, self._most = retry_s, request_s, most
        self._secret: str | None = None
        self._asking: dict[
            asyncio.StreamWriter, None
        ] = {}  # connections that have not asked yet, oldest first
        self._answered = 0  # connections that have asked
        self._made: tuple[float, bytes, bytes] | None = None  # when, the page, and the same compressed
        self._asked_at = -WANTED_S
        self._trouble = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready: Final = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._asking) + self._answered

    def start(self) -> None:
        """Start the thread; the port opens a moment later, or as soon as it can."""
        self._thread = start_thread("metrics", self._run)

    def close(self, wait_s: float = 1.0) -> None:
        """Close the port and all connections; wait for that a moment. Call it from any thread."""
        if self._thread is None:
            return
        self._ready.wait(wait_s)
        if self._loop is not None and self._stop is not None:
            try:
                self._loop.call_soon_threadsafe(self._stop.set)
            except RuntimeError:
                return  # it has ended
        self._thread.join(wait_s)

    # -- in the thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception as error:  # noqa: BLE001 - whatever it is, the job goes on without the page
            self._report(f"internal error, the metrics endpoint ends: {error!r}")

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(lambda loop, context: None)  # of connections that broke
        self._ready.set()
        while not self._stop.is_set():
            try:
                server = await self._open()
            except OSError as error:
                self._tell(str(error) if error.filename else error.strerror or str(error))
                await self._pause(self._retry_s)
                continue
            self._trouble = ""
            self._opened(server.sockets[0].getsockname()[1])
            async with server:
                while not self._stop.is_set():
                    await self._pause(FRESH_S)
                    self._look_after_page()
            for writer in tuple(self._asking):
                writer.transport.abort()

    async def _open(self) -> asyncio.Server:
        self._secret = self._token()
        # Asked here: asyncio would ask a name server in a thread that the end of the process waits for.
        host, port = self._address
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return await asyncio.start_server(
            self._serve, str(found[0][4][0]), port, limit=REQUEST_BYTES, backlog=4 * self._most
        )

    def _tell(self, text: str) -> None:
        if text != self._trouble:
            self._trouble = text
            self._report(text)

    async def _pause(self, seconds: float) -> None:
        assert self._stop is not None
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except asyncio.TimeoutError:
            pass

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(0)  # what is drained is gone
        if self.connections >= self._most:
            # A scraper asks immediately; the connection that has not asked for longest hardly ever will.
            if not self._asking:
                writer.transport.abort()
                return
            oldest = next(iter(self._asking))
            del self._asking[oldest]
            oldest.transport.abort()
        self._asking[writer] = None
        try:
            found = await self._read(reader)
            if found is None or writer not in self._asking:
                return
            del self._asking[writer]
            await self._send(found, writer)
        except (OSError, asyncio.TimeoutError):
            pass  # the client has gone, or takes nothing
        finally:
            self._asking.pop(writer, None)
            writer.transport.abort()

    async def _send(self, found: HttpRequest | _Response, writer: asyncio.StreamWriter) -> None:
        self._answered += 1
        try:
            answer = await self._answer(found) if isinstance(found, HttpRequest) else found
            writer.write(answer.encode())
            await asyncio.wait_for(writer.drain(), self._request_s)
            writer.close()
            await asyncio.wait_for(writer.wait_closed(), self._request_s)
        finally:
            self._answered -= 1

    async def _read(self, reader: asyncio.StreamReader) -> HttpRequest | _Response | None:
        """Read the request, else the response to its sender; None if it did not come."""
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), self._request_s)
        except asyncio.LimitOverrunError:
            return _Response(status=431)
        except (asyncio.IncompleteReadError, asyncio.TimeoutError):
            return None
        return parse(head[:-4]) or _Response(status=400)

    async def _answer(self, request: HttpRequest) -> _Response:
        if request.path not in ("/metrics", "/healthz"):
            return _Response(status=404)
        if request.method != "GET":
            return _Response(status=405, headers=("Allow: GET",))
        if request.path == "/healthz":
            return _Response(status=200, body=b"ok\n")
        if not is_allowed(request, self._secret):
            return _Response(status=401, headers=("WWW-Authenticate: Bearer",))
        made = await self._current()
        if made is None:
            return _Response(status=503, headers=("Retry-After: 1",))
        _, page, compressed = made
        packs = "gzip" in request.headers.get("accept-encoding", "")
        return _Response(
            status=200,
            body=compressed if packs else page,
            headers=(f"Content-Type: {CONTENT_TYPE}", *(("Content-Encoding: gzip",) if packs else ())),
        )

    async def _current(self) -> tuple[float, bytes, bytes] | None:
        """Return the newest page; None if there is nothing to show yet."""
        self._asked_at = time.monotonic()
        until = self._asked_at + FIRST_S
        while self._made is None or time.monotonic() - self._made[0] >= CACHED_S:
            if self._make():
                break
            if time.monotonic() >= until:
                return None
            await asyncio.sleep(_POLL_S)
        return self._made

    def _look_after_page(self) -> None:
        if time.monotonic() - self._asked_at >= WANTED_S:
            return
        try:
            self._make()
        except Exception:  # noqa: BLE001 - it was reported; the client is refused
            self._made = None

    def _make(self) -> bool:
        """Make the page anew; False if there is nothing to show yet. Raises what ``page`` raises."""
        try:
            page = self._page()
        except Exception as error:
            self._tell(f"the page of metrics could not be made: {error!r}")
            raise
        if page is None:
            return False
        # Compressed only if it has changed.
        known = self._made is not None and self._made[1] is page
        packed = self._made[2] if self._made is not None and known else gzip.compress(page, _GZIP_LEVEL)
        self._made = time.monotonic(), page, packed
        return True
