"""All output of ``srobust`` passes here, so that text of jobs, logs, Slurm and users controls no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO, cast

from slurm_robust.util.text import visible


class VisibleStream:
    """A stream that writes :func:`visible` text only, and what its encoding lacks as ``\\u2026``.

    rich has to control the terminal: it finds the stream behind this one by its own attribute and writes
    there. :class:`~slurm_robust.report.console.Screen` cleans what rich is given.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        """Write ``text`` cleaned. Raises ``OSError``."""
        encoding = self.rich_proxied_file.encoding or "utf-8"
        self.rich_proxied_file.write(visible(text).encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write them one after the other. Raises ``OSError``."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def visible_only() -> Iterator[None]:
    """Standard output and standard error take visible text only."""
    # A stream is None where the caller has closed it.
    out, err = (s and cast(TextIO, VisibleStream(s)) for s in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(err):
        yield
