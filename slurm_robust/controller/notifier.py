"""The supervisor's end of the process that tells people (``python -m slurm_robust.notify``).

It is a process of its own, so that neither a channel nor a defect of it delays or ends the controller. It
holds no right over the job: it reads the journal, and writes what it has told to a file beside it.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from contextlib import suppress

from slurm_robust.model.job import JobDirectory
from slurm_robust.util.output import say
from slurm_robust.util.program import kill_group

FINISH_S = 17.0
"""More than the process takes for its last messages."""

PAUSES_S = (0.0, 2.0, 10.0, 60.0)
"""Before the first start, the second, ...; the last ever after."""


class Notifier:
    """Starts the process, starts it again if it ends, and lets it end at last."""

    def __init__(self, job: JobDirectory, run_id: str, after: int) -> None:
        """``after``: the newest epoch before a controller is started here."""
        try:
            since = job.journal.stat().st_size
        except OSError:
            since = 0  # a new job
        options = (
            "--job-dir",
            str(job.path),
            "--run-id",
            run_id,
            "--since",
            str(since),
            "--after",
            str(after),
        )
        self._command = (sys.executable, "-m", "slurm_robust.notify", *options)
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._not_before = 0.0

    @property
    def pid(self) -> int:
        """Id of the process; 0 before there is one."""
        return self._process.pid if self._process is not None else 0

    def keep(self) -> float:
        """See that the process runs. Returns after how many seconds to call again; infinite: when it ends."""
        now = time.monotonic()
        if self._process is not None and self._process.poll() is None:
            return math.inf
        if self._process is not None:
            self._close(self._process)
            self._process = None
            self._not_before = now + PAUSES_S[min(self._starts, len(PAUSES_S) - 1)]
        if now < self._not_before:
            return self._not_before - now
        self._starts += 1
        try:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, start_new_session=True)
        except OSError as error:
            self._not_before = now + PAUSES_S[-1]
            say(f"notifications: their process cannot be started: {error}")
            return PAUSES_S[-1]
        return math.inf

    def finish(self, code: int) -> None:
        """Have the last messages sent, within :data:`FINISH_S`. ``code``: the exit code of the run."""
        process = self._process
        if process is None or process.poll() is not None:
            # It may have ended a moment ago: what is left to tell is worth another start.
            self._not_before, self._process = 0.0, None
            self.keep()
            process = self._process
        if process is None or process.stdin is None:
            return
        with suppress(OSError):
            os.write(process.stdin.fileno(), b"%d" % code)
        self._close(process)
        try:
            process.wait(FINISH_S)
        except subprocess.TimeoutExpired:
            say(f"notifications: their process still runs after {FINISH_S:.0f} s: it is killed")
            kill_group(process)

    @staticmethod
    def _close(process: subprocess.Popen[bytes]) -> None:
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
