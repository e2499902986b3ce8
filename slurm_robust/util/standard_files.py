"""Standard input, output and error that the caller has closed (``>&-``)."""

from __future__ import annotations

import os
import sys


def open_standard_files() -> None:
    """Open each that is closed as ``/dev/null``: the next file that is opened would take its place.

    What a program prints there is dropped, and its exit code still counts. Python has None for such a stream.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # so that children have it, too
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
