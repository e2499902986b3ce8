"""Examples as real processes that are killed at steps, outside of any ``srobust run``."""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import sys
from pathlib import Path
from typing import Any

from tests.ranks import end, free_port, processes, surroundings
from tests.waiting import wait_for

ROOT = Path(__file__).parents[3]


class Example:
    """One example with fixed options, run by a number of ranks (gloo) in one folder."""

    def __init__(self, folder: Path, script: str, *options: str, ranks: int) -> None:
        self._script = ROOT / "examples" / script
        self._options = options
        self._folder = folder
        self._ranks = ranks
        folder.mkdir()

    def finish(self) -> dict[str, Any]:
        """Run to the end; what rank 0 wrote as its result."""
        ranks = self._start()
        try:
            for rank in ranks:
                rank.join(250.0)
            codes = [rank.exitcode for rank in ranks]
        finally:
            end(ranks)
        assert codes == [0] * self._ranks, self.log(*range(self._ranks))
        result: dict[str, Any] = json.loads((self._folder / "out.json").read_text())
        return result

    def break_at(self, step: int, victim: int) -> None:
        """Run until rank 0 has completed ``step``, SIGKILL ``victim``, then the others as a launcher does."""
        ranks = self._start()
        try:
            wait_for(lambda: self.step() >= step or _ended(ranks), 250.0, f"step {step}")
            assert not _ended(ranks), self.log(*range(self._ranks))
            ranks[victim].kill()
            ranks[victim].join(60.0)
        finally:
            end(ranks)

    def step(self) -> int:
        """Newest step that rank 0 of the newest run has told."""
        lines = [line for line in self.log(0).splitlines() if line.startswith("step ")]
        return int(lines[-1].split()[1]) if lines else -1

    def log(self, *ranks: int) -> str:
        """Output of these ranks in the newest run."""
        logs = [self._folder / f"log-{rank}" for rank in ranks]
        return "\n".join(log.read_text(errors="replace") for log in logs if log.exists())

    def _start(self) -> list[Any]:
        environments: list[dict[str, str]] = [{}]
        if self._ranks > 1:
            common = {
                "WORLD_SIZE": str(self._ranks),
                "LOCAL_WORLD_SIZE": str(self._ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(free_port()),
                "TORCHELASTIC_RUN_ID": "none",  # tells Lightning that the ranks are started by somebody else
            }
            environments = [{**common, "RANK": str(r), "LOCAL_RANK": str(r)} for r in range(self._ranks)]
        ranks = []
        for number, environ in enumerate(environments):
            log = self._folder / f"log-{number}"
            log.unlink(missing_ok=True)
            ranks.append(
                processes().Process(
                    target=_run_script, args=(self._script, self._options, self._folder, environ, log)
                )
            )
            ranks[-1].start()
        return ranks


def _run_script(
    script: Path, options: tuple[str, ...], folder: Path, environ: dict[str, str], log: Path
) -> None:
    """In a process of its own: become ``python SCRIPT OPTIONS``."""
    for name in surroundings():
        del os.environ[name]
    os.environ.update(environ, CUDA_VISIBLE_DEVICES="")
    os.chdir(folder)
    # As in a process that was started the usual way; here it would be the way by which this one was started.
    multiprocessing.set_start_method("fork", force=True)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.argv = [str(script), *options]
    runpy.run_path(str(script), run_name="__main__")


def _ended(ranks: list[Any]) -> bool:
    return any(rank.exitcode is not None for rank in ranks)
