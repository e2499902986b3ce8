"""The protected training into which faults are planted: eight ranks on four nodes, with spares."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.common import ROOT, BenchmarkFailed, wait_for
from benchmarks.fault_matrix.nodes import Nodes
from slurm_robust.model import events as ev
from slurm_robust.model.journal import read
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, ProtectedJob

NODES, SPARES, RANKS_PER_NODE, STEP_S = 4, 4, 2, 0.2
HARDWARE = ROOT / "tests" / "unit" / "diagnostics" / "faulty"
STEPS = 1_000_000
END_AFTER = 25
SETTINGS = (
    "limits.per_hour=100",
    "detect.diagnose_s=240",
    "detect.spike_warmup_steps=20",
    # The machine has other work, which makes all steps longer from time to time.
    "detect.slow_factor=2.5",
)


class Training(ProtectedJob):
    """Ends when told to. Its faults are orders to ranks, or whatever is done to their processes and nodes."""

    def __init__(
        self, sandbox: Sandbox, nodes: Nodes, mode: str, *, spares: int = SPARES, steps: int = STEPS
    ) -> None:
        self.nodes = nodes
        home = sandbox.home(USER)
        self.faults, self._hardware = home / "faults", home / "hardware"
        for folder in (self.faults, self._hardware):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o777)
            for left in folder.iterdir():
                left.unlink()
        words = [f"--spares {spares} --nproc-per-node {RANKS_PER_NODE} --set mode={mode}"]
        words += [f"--set {setting}" for setting in SETTINGS]
        words += [f"faulty.py --out OUT --faults faults --each --steps {steps}"]
        words += [f"--step-s {STEP_S if steps == STEPS else 0}"]
        environment = f"--export=ALL,PYTHONPATH={HARDWARE},SROBUST_TEST_FAULTS=/home/{USER}/hardware"
        super().__init__(sandbox, " ".join(words), nodes=NODES + spares, sbatch=(environment,))

    # -- what it does ------------------------------------------------------------------------------

    def journal(self) -> list[ev.AnyEvent]:
        """All events so far."""
        return read(self.folder / "journal.jsonl")

    def until(self, condition: Callable[[], object], timeout_s: float, what: str) -> None:
        """Wait for it. Raises :class:`BenchmarkFailed` with the job's output."""
        try:
            wait_for(lambda: bool(condition()), timeout_s, f"no {what}", every_s=0.2)
        except BenchmarkFailed as error:
            raise BenchmarkFailed(
                f"{error}\njob {self.id} ({self.slurm_state()}):\n{self.log[-4000:]}"
            ) from None

    def until_warm(self, steps: int) -> None:
        """Wait until the generation that runs has made so many steps."""

        def warm() -> bool:
            state = self.state
            return (
                state.world.running
                and state.world.incident is None
                and self.step() >= state.world.restored_step + steps
            )

        self.until(warm, 180.0, f"{steps} steps")

    def hashes(self) -> dict[int, set[str]]:
        """Hashes of rank 0's weights after each step, all that were ever computed."""
        found: dict[int, set[str]] = {}
        path = self.out.with_suffix(".steps")
        for line in path.read_text().splitlines() if path.exists() else ():
            step, _, text = line.partition(" ")
            found.setdefault(int(step), set()).add(text)
        return found

    # -- faults ------------------------------------------------------------------------------------

    def order(self, rank: int, fault: str) -> float:
        """Have ``rank`` commit it at its next step; when it did."""
        return self.order_each((rank,), fault)

    def order_each(self, ranks: Iterable[int], fault: str) -> float:
        """Have each of them commit it at its next step; when the first did, which may stop the rest."""
        done = [self._tell(rank, fault) for rank in ranks]
        self.until(lambda: any(map(Path.exists, done)), 60.0, f"ranks {[*ranks]} that commit {fault}")
        return min(float(path.read_text()) for path in done if path.exists())

    def _tell(self, rank: int, fault: str) -> Path:
        """Give it the order; the file that it writes when it has committed it."""
        done = self.faults / f"{rank}.at"
        done.unlink(missing_ok=True)
        beside = self.faults / f".{rank}"
        beside.write_text(fault)
        beside.chmod(0o666)
        beside.rename(self.faults / str(rank))
        return done

    def wears(self, node: str, fault: str) -> None:
        """Tests of the node's hardware fail from now on."""
        (self._hardware / node).write_text(fault)

    def kill_controller(self) -> float:
        """SIGKILL to the controller."""
        controller = [e for e in self.journal() if isinstance(e, ev.ControllerStarted)][-1]
        begun = time.time()
        words = ["kill", "-9", str(controller.pid)]
        self.sandbox.exec(words, node=controller.host, user="root")
        return begun

    # -- its end -----------------------------------------------------------------------------------

    def end(self) -> int:
        """Let it end by itself; its exit code."""
        last = self.faults / "last"
        beside = self.faults / ".last"
        beside.write_text(str(self.step() + END_AFTER))
        beside.chmod(0o644)
        beside.rename(last)
        self.until(lambda: self.state.ended is not None, 60.0, "end")
        ended = self.state.ended
        assert ended is not None
        return ended.code

    def cancel(self) -> None:
        """End it at once."""
        self.sandbox.exec(["scancel", str(self.id)], user=USER, check=False)
