"""A job in a sandbox whose code changes while it runs: ``scripts/released``, one release after the other."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

from slurm_robust.model import events as ev
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import SCRIPTS, USER, ProtectedJob
from tests.cluster.undisturbed import undisturbed

CODE = SCRIPTS / "released"
AS_IT_IS = "    return loss\n"
GOOD_STEPS = 70  # more than show that a release is slow
KEEP = "--set updates.keep=100"  # all are looked into at the end
SETTINGS = (
    f"{KEEP} --set updates.good_steps={GOOD_STEPS} --set detect.hang_floor_s=4 --set limits.per_hour=100"
)
_numbers = itertools.count()


def variant(weight: float, *, spoil: str = "", first: str = "", width: int = 32) -> str:
    """A ``variant.py``: ``first`` is its first line, and ``spoil`` a line that a step passes."""
    text = (CODE / "variant.py").read_text()
    text = text.replace("WEIGHT = 1.0", f"WEIGHT = {weight}").replace("WIDTH = 32", f"WIDTH = {width}")
    return f"{first}\n" * bool(first) + text.replace(AS_IT_IS, f"    {spoil}\n" * bool(spoil) + AS_IT_IS)


class ReleasedJob(ProtectedJob):
    """A job whose owner edits ``variant.py`` and calls ``srobust update``."""

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        nodes: int,
        options: str = "",
        step_s: float = 0.05,
        sbatch: tuple[str, ...] = (),
        before: str = "",
    ) -> None:
        """``before``: a line of the batch script before ``srobust run``."""
        self.code = sandbox.home(USER) / f"code{next(_numbers)}"
        shutil.copytree(CODE, self.code, ignore=shutil.ignore_patterns("__pycache__"))
        owner = sandbox.home(USER).stat()
        for path in (self.code, *self.code.iterdir()):
            os.chown(path, owner.st_uid, owner.st_gid)
        command = f"{SETTINGS} {options} {self.code.name}/train.py --out OUT --step-s {step_s}"
        super().__init__(sandbox, command, nodes=nodes, sbatch=sbatch, before=before)

    def srobust(
        self, command: str, *words: str, timeout_s: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """A command of the owner's about this job, and what it says."""
        line = ["srobust", command, str(self.id), *words]
        done = self.sandbox.exec(line, user=USER, timeout_s=timeout_s, check=False)
        print(f"$ {' '.join(line)}\n{done.stdout}{done.stderr}[{done.returncode}]")
        return done

    def update(self, text: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Edit ``variant.py`` and apply it: ``--now`` unless ``words`` say otherwise."""
        self.write(text)
        return self.srobust("update", *(words or ("--now",)))

    def write(self, text: str) -> None:
        (self.code / "variant.py").write_text(text)

    # -- what became of it ----------------------------------------------------------------------------------

    def wait_ended(self, update: int, timeout: float = 90.0) -> ev.UpdateEnded:
        """The end of an update that is not applied."""

        def found() -> list[ev.UpdateEnded]:
            return [event for event in self.events(ev.UpdateEnded) if event.update == update]

        self.wait(found, timeout, f"end of update {update}")
        return found()[0]

    def wait_applied(self, update: int, timeout: float = 90.0) -> ev.UpdateApplied:
        """It is applied, and the next generation has been launched."""

        def found() -> list[ev.UpdateApplied]:
            return [event for event in self.events(ev.UpdateApplied) if event.update == update]

        self.wait(found, timeout, f"update {update} is applied")
        return found()[0]

    def launched_after(self, applied: ev.UpdateApplied) -> ev.GenerationLaunched:
        """The first generation of an update."""
        self.wait(lambda: self._launches_after(applied), 30, "launch of the update")
        return self._launches_after(applied)[0]

    def _launches_after(self, applied: ev.UpdateApplied) -> list[ev.GenerationLaunched]:
        return [event for event in self.events(ev.GenerationLaunched) if event.t >= applied.t]

    def lost_nothing(self, applied: ev.UpdateApplied) -> None:
        """The new release begins right behind the last step of the one before."""
        launched = self.launched_after(applied)
        assert launched.restore_step == applied.step, (applied, launched)

    def weight_of(self, release: str) -> float:
        """The weight in the copy of the code."""
        with tarfile.open(self.folder / "releases" / release / "code.tar") as archive:
            (name,) = (name for name in archive.getnames() if Path(name).name == "variant.py")
            member = archive.extractfile(name)
            assert member is not None
            text = member.read().decode()
        (line,) = (line for line in text.splitlines() if line.startswith("WEIGHT = "))
        return float(line.removeprefix("WEIGHT = "))

    def printed(self) -> dict[int, float]:
        """The weight of each step that counts, by what rank 0 of each generation has printed."""
        found: dict[int, float] = {}
        for log in sorted(self.folder.glob("logs/gen-*/rank-00000.out")):
            for line in log.read_text().splitlines():
                match line.split():
                    case ["step", step, "pid", _, "weight", weight]:
                        found[int(step)] = float(weight)
        return found

    def recorded(self) -> dict[int, float]:
        """The same by the journal and the copies of the code."""
        found: dict[int, float] = {}
        last = max(self.printed(), default=-1)
        for launched in self.events(ev.GenerationLaunched):
            weight = self.weight_of(launched.release)
            found.update(dict.fromkeys(range(launched.restore_step + 1, last + 1), weight))
        return found

    def finish(self, timeout: float = 180.0) -> int:
        """Have the training end soon; the exit code of the run, known before Slurm has ended the job."""
        last = self.out.with_suffix(".last")
        last.with_suffix(".next").write_text(str(max(self.step(), 0) + 15))
        last.with_suffix(".next").rename(last)

        def ended() -> bool:
            end = self.state.ended
            return end is not None and end.final

        self.wait(ended, timeout, "end of the run")
        return self.state.ended.code  # type: ignore[union-attr]

    def assert_bitwise(self) -> None:
        """The weights are those of a run without a fault that had these releases at these steps."""
        printed = self.printed()
        weights = schedule(printed)
        assert weights == schedule(self.recorded())
        words = f"--steps {len(printed)} --schedule {weights}"
        words += " --step-s 0 --every 100000"
        assert self.out.read_text() == undisturbed(2, f"released/train.py --out OUT {words}")

    def assert_nothing_left(self) -> None:
        """No copy of code or state is left on any node."""

        def left() -> list[str]:
            command = ["bash", "-c", "ls /dev/shm /tmp"]
            nodes = self.sandbox.config.node_names
            found = [word for node in nodes for word in self.sandbox.exec(command, node=node).stdout.split()]
            return [name for name in found if name.startswith("srobust-")]

        self.wait(lambda: not left(), 30, "runtime folders removed")


def schedule(weights: Mapping[int, float]) -> str:
    """``0:1.0,40:1.5``: where the weight changes."""
    groups = itertools.groupby(sorted(weights), key=lambda step: weights[step])
    return ",".join(f"{next(steps)}:{weight}" for weight, steps in groups)
