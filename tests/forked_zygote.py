"""A zygote that need not import PyTorch, where it is not the zygote's own start that is tested."""

from __future__ import annotations

import os
import subprocess
from typing import cast

from slurm_robust.agent.launcher import ZygoteLauncher
from tests.forked_python import ForkedPython

_CHANNEL = 200  # a number that is free there


class ForkedZygoteLauncher(ZygoteLauncher):
    """A launcher whose zygote is a fork of a process with PyTorch."""

    def _run(self, channel: int) -> subprocess.Popen[bytes]:
        words = ("-m", "slurm_robust.worker.zygote", "--channel", str(_CHANNEL))
        zygote = ForkedPython(*words, stdout=1, stderr=2, others={_CHANNEL: channel}, begin=os.setsid)
        return cast("subprocess.Popen[bytes]", zygote)
