"""A rehearsal: on a standby, the job's own script makes a step or two as one rank of a pretended world.

``python -m slurm_robust.worker.rehearsal TASK`` runs it, in the environment that torchrun sets. Then what the
start of a worker needs is warm: the page cache, the caches of compilers, the indexes of data sets. And a node
on which the script cannot run is known before it is needed.

It may change nothing that counts: ``Checkpointer`` restores and saves nothing, and files can be changed in
caches and in its own temporary folder only (:func:`folders`). What Python code writes elsewhere goes to the
latter, and what else is tried fails.
"""

from __future__ import annotations

import getpass
import os
import re
import sys
import tempfile
from collections.abc import Mapping

import msgspec

from slurm_robust.model.exits import WorkerError
from slurm_robust.model.job import CommandKind
from slurm_robust.model.record import Record
from slurm_robust.util import process
from slurm_robust.util.confine import NoLandlock, confine_changes
from slurm_robust.worker import crash, optimizer_steps, script, trial
from slurm_robust.worker.copied import CopiedCode
from slurm_robust.worker.diverted import Diversion
from slurm_robust.worker.fakegroup import NoFakeGroup, pretend_world

IMPOSSIBLE = 75
"""Exit code if this torch or this kernel allows no rehearsal."""

NICENESS = 10
"""A standby has nothing else to do; if nodes share CPUs, as in a sandbox, training comes first."""
OOM_SCORE = 1000
"""Out of 1000: the kernel takes a rehearsal before anything else."""

_NO_GPU = re.compile(
    r"no (CUDA|HIP|NVIDIA|AMD)[ -](GPUs?|devices?|capable)|no CUDA-capable device|found no NVIDIA driver"
    r"|not (compiled|built) with CUDA|torch\.cuda\.is_available\(\) is False|CUDA (driver )?initializ"
    r"|only supported with GPUs|invalid device ordinal|NVML_|no GPUs? found|GPU is not available",
    re.IGNORECASE,
)
_CAUSES = 8
_NAME = "srobust-rehears"
_HIDDEN = script.RUNNER_FILES | {__file__}

# With what is said of them by their owners: all are filled by content or version, so that more or less of it
# is never wrong.
_CACHES = (
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "TORCH_HOME",
    "HF_HOME",
    "HF_DATASETS_CACHE",
    "CUDA_CACHE_PATH",
    "NUMBA_CACHE_DIR",
    "XDG_CACHE_HOME",
    "CUDA_MPS_PIPE_DIRECTORY",
)
_HOME_CACHES = (".cache", ".triton", ".nv")
# Devices and shared memory; a process's own entries; the pipes of NVIDIA's MPS.
_ALWAYS = ("/dev", "/proc", "/tmp/nvidia-mps")

# Trackers of experiments keep what they get to themselves then, by their own documentation.
_TRACKERS = {"WANDB_MODE": "disabled", "CLEARML_OFFLINE_MODE": "1", "NEPTUNE_MODE": "debug"}


class DryRunTask(Record):
    """One rehearsal, as the agent orders it."""

    kind: CommandKind
    command: tuple[str, ...]
    cwd: str
    steps: int
    """Optimizer steps after which it ends."""
    parent: int
    """Process id of the agent, with which it ends."""
    scratch: str
    """Its temporary folder."""
    error: str
    """The file for its :class:`~slurm_robust.model.exits.WorkerError`."""
    writes: tuple[str, ...] = ()
    """More folders in which it may change files."""
    code: CopiedCode | None = None
    """The copy of the code that it runs, None for the code in its place."""
    beside: bool = False
    """Workers train on the node, and have all but what they leave."""


def folders(task: DryRunTask, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the folders in which files may be changed, beside what every process needs."""
    return (task.scratch, *(environ[name] for name in _CACHES if environ.get(name)), *task.writes)


def main() -> None:
    """Rehearse; the exit code is 0 after the last step, and at the end of a script that ends before."""
    task = msgspec.json.decode(sys.argv[1], type=DryRunTask)
    process.die_with_parent(task.parent)
    process.set_name(_NAME)
    process.prefer_for_oom(OOM_SCORE)
    if task.beside:
        process.use_idle_time()
    else:
        os.nice(NICENESS)
    code = 1
    try:
        os.chdir(task.cwd)
        # At the place of workers, which do not have this temporary folder.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{_user()}")
        made = folders(task, os.environ)
        for folder in made:
            try:
                os.makedirs(folder, exist_ok=True)
            except OSError:
                continue  # the script may not need it
        allowed = (*made, *_ALWAYS, *(os.path.expanduser(f"~/{name}") for name in _HOME_CACHES))
        os.environ["TMPDIR"] = tempfile.tempdir = task.scratch
        os.environ.update(_TRACKERS, MLFLOW_TRACKING_URI=f"file://{task.scratch}/mlflow")
        sys.dont_write_bytecode = True
        Diversion(allowed, f"{task.scratch}/diverted").begin()
        confine_changes(allowed)
        command = trial.enter(task.kind, task.command, task.cwd, task.code)
        pretend_world()
        done = 0

        def count() -> None:
            nonlocal done
            done += 1
            if done == task.steps:
                trial.leave("rehearsal")

        optimizer_steps.call_after_each(count)
        script.run(task.kind, command)
        code = 0
    except (NoFakeGroup, NoLandlock) as error:
        crash.leave(WorkerError(type=type(error).__name__, message=str(error)), task.error)
        code = IMPOSSIBLE
    except BaseException as error:  # noqa: BLE001 - what ends a script is reported, whatever it is
        code = _report(error, task)
    finally:
        trial.end(code)


def _user() -> str:
    """Return the user as torch names the folder."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid_{os.getuid()}"
    return re.sub(r'[\\/:*?"<>|]', "_", name)


def _report(error: BaseException, task: DryRunTask) -> int:
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return 0
    trace = crash.own_traceback(error, _HIDDEN)
    crash.leave(crash.describe(error, trace, task.cwd), task.error)
    crash.show(error, trace)
    return IMPOSSIBLE if task.beside and needs_gpu(error) else 1


def needs_gpu(error: BaseException) -> bool:
    """Return whether ``error``, or what led to it, is the want of a GPU, in torch's and drivers' words."""
    found: BaseException | None = error
    for _ in range(_CAUSES):
        if found is None:
            return False
        if _NO_GPU.search(str(found)):
            return True
        found = found.__cause__ or found.__context__
    return False


if __name__ == "__main__":
    # By the module's own name: this copy of it gives way to the user's __main__.
    from slurm_robust.worker import rehearsal

    rehearsal.main()
