"""Reboots by Slurm and resets GPUs by a job, for :mod:`slurm_robust.admin.repair`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from slurm_robust.admin.gpu_reset import Done
from slurm_robust.config.node import Repair
from slurm_robust.slurm import commands
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import CommandFailed
from slurm_robust.slurm.process import CommandTimeout, run_command
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.util.text import ascii_line

COMMAND_S = 30.0
START_S = 120.0
REASON = "srobust: repair: reboot"

_BOOT = re.compile(r"\bBootTime=(\d+)")


class SlurmRepairActions:
    """The commands themselves."""

    def __init__(self, slurm: SlurmClient, config_file: Path | None, config: Repair) -> None:
        self._slurm, self._config_file, self._config = slurm, config_file, config

    def boot_time(self, node: str) -> float | None:
        """See the protocol. Slurm prints ``None`` for a node that never registered."""
        found = _BOOT.search(self._scontrol("show", "node", node))
        return float(found[1]) if found and float(found[1]) > 0 else None

    def reboot(self, node: str) -> None:
        """See the protocol. Without ``nextstate`` Slurm leaves a drain as it is."""
        self._scontrol("reboot", f"reason={REASON}", node)

    def cancel_reboot(self, node: str) -> None:
        """See the protocol."""
        self._scontrol("cancel_reboot", node)

    def reset_gpus(self, node: str, reservation: str, gpus: Sequence[str]) -> str:
        """See the protocol."""
        command = (sys.executable, "-m", "slurm_robust.admin.gpu_reset", f"--limit={self._config.reset_s:g}")
        request = SubmitRequest(
            command=(*command, *([f"--config={self._config_file}"] if self._config_file else []), *gpus),
            name="srobust-repair",
            nodes=1,
            required_nodes=(node,),
            reservation=reservation,
            time_limit_s=self._config.reset_s + 60.0,
            work_dir="/",
            exclusive=True,
            options=(f"--immediate={START_S:g}",),
        )
        done = self._slurm.run(request, self._config.reset_s + START_S + 90.0)
        try:
            return msgspec.json.decode(done.stdout.encode(), type=Done).wrong
        except msgspec.MsgspecError:
            return f"exit code {done.exit_code}: {ascii_line(done.stderr or done.stdout, 300)}"

    def _scontrol(self, *words: str) -> str:
        try:
            environ = {**os.environ, **commands.QUERY_ENVIRONMENT}
            done = run_command(("scontrol", *words), timeout_s=COMMAND_S, env=environ)
        except (CommandTimeout, OSError) as error:
            raise CommandFailed(f"scontrol {words[0]}: {error}") from error
        if done.exit_code:
            raise CommandFailed(f"scontrol {words[0]}: {ascii_line(done.stderr or done.stdout, 300)}")
        return done.stdout
