"""What the controller says in the job's own output, each line with the time and our name."""

from __future__ import annotations

import time


def say(text: str) -> None:
    """Print ``text``; lines after the first are kept as they are."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
    try:
        # In one piece: threads say something too, and print() would write text and line end apart.
        print(f"srobust: {stamp} {text}\n", end="", flush=True)
    except OSError:
        # A full or lost file system under the job's output must not end the job's supervision; what
        # was to be said stands in the journal.
        pass
