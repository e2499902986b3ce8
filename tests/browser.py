"""A headless Chromium, driven by the DevTools protocol over a pipe: needs no driver and no port."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE_S = 60.0


def program() -> str | None:
    """The path of a Chromium on this machine."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Page:
    """One page of the browser, and all that it said and asked for."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back, self._number, self._buffer = to, back, 0, b""
        self._session = ""
        self.requests: list[str] = []
        self.said: list[str] = []
        """Errors and warnings: of scripts, of the console, and of the browser (such as its refusals)."""
        (target,) = [
            one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"
        ]  # fmt: skip
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """The answer to one command; events that come meanwhile are noted."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, found
                answer: dict[str, Any] = found["result"]
                return answer

    def open(self, path: Path) -> None:
        self.call("Page.navigate", url=path.as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def look(self, *, width: int, height: int, dark: bool) -> None:
        """As on a screen of this size with this color scheme."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="screen", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if len(key) == 1 and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **text)

    def settle(self) -> None:
        """Two frames are drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def shoot(self, path: Path, *, whole: bool = False) -> None:
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def print(self, path: Path) -> None:
        """As on paper, whatever it looks like on the screen."""
        self.call("Emulation.setEmulatedMedia", media="", features=[])
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"]))

    def close(self) -> None:
        """End the browser with all its processes."""
        self._session = ""
        self.call("Browser.close")

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._back], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._back, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        self._note(found.get("method", ""), found.get("params", {}))
        return found

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.said.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.said.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded":
            self.said.append(params["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.said.append(f"dialog: {params['message']}")


def _pipe() -> tuple[int, int]:
    """Above the two descriptors that the browser takes for the protocol."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


@contextmanager
def browser() -> Iterator[Page]:
    """A page of a new browser, without a network and without a profile; it ends with the block."""
    path = program()
    assert path is not None
    (theirs, to), (back, ours) = _pipe(), _pipe()
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        command = [
            *("bash", "-c", f'exec "$@" 3<&{theirs} 4>&{ours}', "bash", path),
            *("--headless=new", "--no-sandbox"),
            *("--remote-debugging-pipe", f"--user-data-dir={profile}", "--disable-gpu", "--no-first-run"),
            *("--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update"),
            *("--host-resolver-rules=MAP * ~NOTFOUND", "--hide-scrollbars", "about:blank"),
        ]
        process = subprocess.Popen(
            command, pass_fds=(theirs, ours), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        os.close(ours)
        try:
            page = Page(to, back)
            yield page
            with suppress(AssertionError, OSError):
                page.close()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE_S)
            os.close(to)
            os.close(back)
