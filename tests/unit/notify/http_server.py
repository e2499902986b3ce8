"""A real HTTP server on this machine that does what a test says."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET_PATH = "/services/"


class Server:
    """Answers each POST as ``behaviour`` says."""

    def __init__(self) -> None:
        self.behaviour = "works"
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.over = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer._answer(self)

            def do_GET(self) -> None:
                outer.paths.append(f"GET {self.path}")
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def address(self) -> str:
        """``http://127.0.0.1:port``."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def texts(self) -> list[str]:
        """Of what was posted, as Slack shows it."""
        found = [str(json.loads(body)["text"]) for body in self.bodies]
        return [t.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") for t in found]

    def close(self) -> None:
        """End it, and what hangs in it."""
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        self.paths.append(handler.path)
        behaviour = self.behaviour
        if behaviour == "hangs":
            self.over.wait(60)
            return
        if behaviour == "closes":
            handler.close_connection = True
            return
        if behaviour == "drips":
            try:
                while not self.over.wait(0.02):
                    handler.wfile.write(b"H")
            except OSError:
                pass
            return
        code = {"refuses": 500, "429": 429, "redirect": 302, "echoes": 404}.get(behaviour, 200)
        if code == 200:
            self.bodies.append(body)
        handler.send_response(code)
        if behaviour == "429":
            handler.send_header("Retry-After", "30")
        if behaviour == "redirect":
            handler.send_header("Location", f"{self.address}/elsewhere")
        handler.end_headers()
        try:
            if behaviour == "huge":
                while not self.over.is_set():
                    handler.wfile.write(b"x" * 65536)
            handler.wfile.write(f"no such hook: {handler.path}".encode() if behaviour == "echoes" else b"ok")
        except OSError:
            pass
