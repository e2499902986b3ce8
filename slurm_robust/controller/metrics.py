"""The controller's page of metrics: its address, who may read it, and how Prometheus finds it.

The page is the newest live status (:mod:`slurm_robust.controller.live_status_file`), so nothing here touches
the core. It lives in threads of its own, and a page that cannot be served costs the job a note.
"""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from slurm_robust.config.job import MetricsConfig
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.live_status import LiveStatus
from slurm_robust.model.record import Record
from slurm_robust.telemetry.endpoint import Endpoint
from slurm_robust.telemetry.job import page
from slurm_robust.util.files import read_regular, write_atomically
from slurm_robust.util.ours import NotOurs, open_ours
from slurm_robust.util.text import one_line
from slurm_robust.util.threads import start_thread

CLOSE_S = 2.0
"""Seconds for storage to take the files away that lead to the page."""

_MAX_TOKEN = 4096
_EVERY_ADDRESS = ("", "0.0.0.0", "::")


class ScrapeTarget(Record):
    """One element of a file of Prometheus's ``file_sd_configs``."""

    targets: tuple[str, ...]
    labels: dict[str, str]


class About(Record):
    """What the labels of a target say of the job. They stay the same in all its runs and on all hosts."""

    folder: str
    """The name of the job's folder: its id, with what ``--name`` adds to it."""
    cluster: str
    user: str
    name: str
    """The name of the Slurm job."""

    @property
    def key(self) -> str:
        """A name of the job among all that one Prometheus may see; safe as a file's name."""
        text = f"{self.cluster}-{self.folder}" if self.cluster else self.folder
        return "".join(char if char.isascii() and (char.isalnum() or char in "-_.") else "-" for char in text)


def target(about: About, host: str, port: int) -> bytes:
    """Return the content of the file by which Prometheus finds the page.

    ``instance`` names the job instead of the address, so that a takeover or a requeue goes on with the same
    series.
    """
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    labels = {
        "instance": f"job-{about.key}",
        "cluster": about.cluster,
        "user": about.user,
        "name": one_line(about.name, 100),
    }
    found = ScrapeTarget(targets=(place,), labels={name: text for name, text in labels.items() if text})
    return msgspec.json.format(msgspec.json.encode((found,)), indent=2) + b"\n"


def read_token(path: Path) -> str:
    """Return the token in a file of this user that no other user may read. Raises ``OSError``."""
    with os.fdopen(open_ours(path), "rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise NotOurs(path, f"is open to others (mode {mode:04o}): chmod 600 {path}")
        content = file.read(_MAX_TOKEN + 1)
    token = content.decode("ascii", "replace").strip()
    if not (token.isascii() and token.isprintable() and token) or " " in token or len(content) > _MAX_TOKEN:
        raise NotOurs(path, "holds no token: write one line of letters and digits into it")
    return token


class MetricsServer:
    """Serves the page of one controller and writes down its address, until :meth:`close`."""

    def __init__(
        self,
        config: MetricsConfig,
        directory: JobDirectory,
        newest: Callable[[], LiveStatus | None],
        about: About,
        report: Callable[[str], None],
    ) -> None:
        """``newest``: the newest live status. It and ``report`` are called in other threads."""
        assert config.address is not None
        self._config, self._directory, self._about = config, directory, about
        self._newest, self._report = newest, report
        self._shown: tuple[LiveStatus | None, bytes | None] = None, None
        self._known: dict[Path, bytes] = {}  # files that lead here, and what we wrote into them
        self._lock = threading.Lock()
        self._closed = False
        self._endpoint = Endpoint(
            config.address, self._page, token=self._token, report=self._refused, opened=self._opened
        )

    def start(self) -> None:
        """Begin to serve; a port that is taken is tried again and again."""
        self._endpoint.start()

    def close(self) -> None:
        """End the page, and take away what leads to it, within :data:`CLOSE_S` and a moment."""
        self._endpoint.close()
        start_thread("targets", self._remove).join(CLOSE_S)

    def _page(self) -> bytes | None:
        status = self._newest()
        if status is not None and status is not self._shown[0]:
            self._shown = status, page(status)
        return self._shown[1]

    def _token(self) -> str | None:
        return read_token(Path(self._config.token_file)) if self._config.token_file is not None else None

    def _refused(self, why: str) -> None:
        self._report(f"no metrics are served on {self._config.listen} (the controller tries again): {why}")

    # Storage may hang, and the page must not.

    def _opened(self, port: int) -> None:
        start_thread("targets", lambda: self._announce(port))

    def _announce(self, port: int) -> None:
        assert self._config.address is not None
        host = self._config.address[0]
        if host in _EVERY_ADDRESS:
            host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        content = target(self._about, host, port)
        places = [(self._directory.metrics, 0o600)]
        if self._config.discovery_dir is not None:
            places.append((Path(self._config.discovery_dir) / f"srobust-{self._about.key}.json", 0o644))
        with self._lock:
            for path, mode in () if self._closed else places:
                try:
                    write_atomically(path, content, durable=False, mode=mode)
                    self._known[path] = content
                except OSError as error:
                    self._report(
                        f"Prometheus does not find the metrics of this job: {path}: {error.strerror}"
                    )

    def _remove(self) -> None:
        with self._lock:
            self._closed = True
            for path, content in self._known.items():
                try:
                    # Another controller may have written its own.
                    if read_regular(path, len(content)) == content:
                        path.unlink()
                except OSError:
                    pass  # it is gone, another's, or storage does not answer
