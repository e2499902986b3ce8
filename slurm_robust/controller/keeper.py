"""The process that the batch script becomes: it keeps a controller alive and passes signals on.

It holds no state, so there is nothing in it that could go wrong with the job. A controller that was
killed, or that met an error of its own, is started again and continues from the journal; training
does not notice.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from types import FrameType

from slurm_robust.controller.output import say
from slurm_robust.model.exitcodes import ExitCode
from slurm_robust.wire import openfiles

# So many starts within the window are bad luck; more are a defect that another start does not mend.
MAX_STARTS = 6
WINDOW_S = 600.0
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def keep(directory: Path, run_id: str = "") -> int:
    """Run controllers on ``directory``, the one of ``run_id``, until one ends by itself; its exit code."""
    openfiles.raise_limit()
    command = [sys.executable, "-m", "slurm_robust.controller", "--job-dir", str(directory)]
    command += ["--run-id", run_id]
    child: subprocess.Popen[bytes] | None = None
    pending: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        # One that comes between two controllers is kept for the next.
        if child is not None and child.poll() is None:
            child.send_signal(number)
        else:
            pending.append(number)

    before = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    starts: deque[float] = deque()
    try:
        while True:
            starts.append(time.monotonic())
            # A session of its own: Ctrl-C and Slurm's signals come once, through us.
            child = subprocess.Popen(command, start_new_session=True)
            while pending:
                child.send_signal(pending.pop(0))
            code = _wait(child)
            if code >= 0 and code != ExitCode.INTERNAL:
                return code
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else "met an error of its own"
            while starts and time.monotonic() - starts[0] > WINDOW_S:
                starts.popleft()
            if len(starts) >= MAX_STARTS:
                say(f"the controller {how}, {len(starts)} times within {WINDOW_S:.0f} s; giving up")
                return int(ExitCode.INTERNAL)
            say(f"the controller {how}; starting the next one (training goes on)")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(child: subprocess.Popen[bytes]) -> int:
    while True:
        pid, status = os.waitpid(child.pid, 0)
        if pid == child.pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            return child.returncode
