"""A real PostgreSQL in a folder of its own, as an unprivileged user, reached by a socket there."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

USER = "postgres"


def programs() -> Path | None:
    """The newest installed server: Debian keeps it out of PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    in_path = shutil.which("pg_ctl")
    return Path(in_path).parent if in_path else None


class Server:
    """One server. It listens on no address."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._data = folder, folder / "data"
        self._bin = programs()
        self._become = ["runuser", "-u", USER, "--"] if os.geteuid() == 0 else []
        self._do("initdb", "--auth=trust", f"--username={USER}", "--no-sync", "-D", str(self._data))
        self._databases = 0

    def start(self) -> None:
        settings = f"-c listen_addresses='' -c unix_socket_directories='{self._folder}' -c fsync=off"
        log = str(self._folder / "log")
        self._do("pg_ctl", "-D", str(self._data), "-o", settings, "-l", log, "-w", "-t", "60", "start")

    def stop(self, mode: str = "immediate") -> None:
        self._do("pg_ctl", "-D", str(self._data), "-m", mode, "-w", "-t", "60", "stop")

    def database(self) -> str:
        """The URL of a new, empty database."""
        self._databases += 1
        name = f"fleet{self._databases}"
        self._do("createdb", "-h", str(self._folder), "-U", USER, name)
        return f"postgresql://{USER}@/{name}?host={self._folder}"

    def _do(self, *words: str) -> None:
        assert self._bin is not None
        subprocess.run(
            [*self._become, str(self._bin / words[0]), *words[1:]],
            check=True, timeout=120, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip


@contextlib.contextmanager
def running_server() -> Iterator[Server]:
    if programs() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    # Not in pytest's folder, which only root can walk; and the path of a socket has 107 bytes at most.
    folder = Path(tempfile.mkdtemp(prefix="srobust-pg-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, USER)
        server = Server(folder)
        server.start()
        try:
            yield server
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):
                server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
