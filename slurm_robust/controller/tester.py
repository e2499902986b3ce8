"""Tests of held nodes as the controller asks for them. Nothing that goes wrong there may hurt the job."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from slurm_robust.config.job import ReplayConfig
from slurm_robust.diagnostics.replay.steps import ReplayCommand, Replayer
from slurm_robust.diagnostics.runner import Diagnoser
from slurm_robust.model.incident import Diagnosis
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.util.files import make_folder

_log = logging.getLogger(__name__)


class Tester:
    """Tests nodes of this job on which no worker lives."""

    def __init__(
        self,
        diagnoser: Diagnoser,
        replayer: Replayer,
        command: Callable[[str], ReplayCommand],
        config: ReplayConfig,
        storage: str,
        make_quick: Callable[[], Diagnoser],
        make: Callable[[Path], None] = make_folder,
    ) -> None:
        """``storage``: the folder whose file system is tested, "" for none; ``make`` makes it.

        ``command``: gives what a release replays, "" for none; it may raise anything.
        ``make_quick``: a diagnoser with the quick test only.
        """
        self._diagnoser = diagnoser
        self._quick = make_quick()
        self._make_quick = make_quick
        self._lock = threading.Lock()
        self._standby: tuple[int, Diagnoser] | None = None  # the newest test of a standby
        self._over_through = 0  # tests of standbys up to this number are not wanted any more
        self._replayer = replayer
        self._command = command
        self._config = config
        self._storage = storage
        self._make = make

    def test(self, nodes: Sequence[str], *, bitwise: bool, budget_s: float) -> Diagnosis:
        """Test ``nodes`` within ``budget_s`` seconds. Blocks, raises nothing."""
        if self._storage:
            with suppress(OSError):  # the test of the storage reports it
                self._make(Path(self._storage))  # before the first checkpoint there is none
        try:
            return self._diagnoser.diagnose(nodes, bitwise=bitwise, storage=self._storage, budget_s=budget_s)
        except Exception as error:  # noqa: BLE001 - whatever it is, the job goes on
            return _nothing(error)

    def test_quickly(self, nodes: Sequence[str], budget_s: float) -> Diagnosis:
        """Run the quick test of ``nodes`` within ``budget_s`` seconds. Blocks, raises nothing."""
        try:
            return self._quick.diagnose(nodes, bitwise=False, storage="", budget_s=budget_s)
        except Exception as error:  # noqa: BLE001 - whatever it is, the job goes on
            return _nothing(error)

    def test_standby(self, number: int, node: str, budget_s: float) -> Diagnosis:
        """Run the quick test of one standby within ``budget_s`` seconds, beside all else.

        ``number``: above that of the last test. Blocks, raises nothing.
        """
        diagnoser = self._make_quick()
        with self._lock:
            self._standby = (number, diagnoser)
            if number <= self._over_through:
                diagnoser.stop()
        try:
            return diagnoser.diagnose((node,), bitwise=False, storage="", budget_s=budget_s)
        except Exception as error:  # noqa: BLE001 - whatever it is, the job goes on
            return _nothing(error)

    def end_standby_test(self, number: int) -> None:
        """End the test of a standby with this number, also if it has not begun. From any thread."""
        with self._lock:
            self._over_through = max(self._over_through, number)
            if self._standby is not None and self._standby[0] <= number:
                self._standby[1].stop()

    def replay(self, nodes: Sequence[str], layout: ParallelLayout, release: str = "") -> Diagnosis:
        """Have ``nodes`` replay training steps of a release, if there is one. Blocks, raises nothing."""
        config = self._config
        try:
            verdict = self._replayer.replay(
                nodes, layout, self._command(release), steps=config.steps, budget_s=config.budget_s
            )
            return verdict.diagnosis()
        except Exception as error:  # noqa: BLE001 - whatever it is, the job goes on
            return _nothing(error)

    def stop(self) -> None:
        """End what runs. From any thread."""
        self._diagnoser.stop()
        self._quick.stop()
        self.end_standby_test(sys.maxsize)
        self._replayer.stop()


def _nothing(error: Exception) -> Diagnosis:
    # The job waits for an answer, and "nothing found" is the harmless one.
    _log.exception("tests of nodes failed")
    return Diagnosis(reason=f"the tests could not be run: {type(error).__name__}: {error}")
