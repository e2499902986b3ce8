"""What the benchmarks share at the edge: sandboxes, jobs, waiting, the machine's description, files."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from slurm_robust.sandbox import Sandbox, SandboxConfig

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "bench"
USER = "alice"
INSIDE_HOME = f"/home/{USER}"
TRAINING = "training.py"
_PACKAGES = ("slurm_robust", "torch", "pyzmq", "msgspec")
NVRX = OUT / "nvrx"
EVERY_STEP = {"SROBUST_CONFIG_CHECKPOINT_MAX_BLOCKED_SHARE": "null"}
"""Settings of a job that keeps every step, however short: what it repeats is no part of a measurement."""


Folder = tuple[Path, str]
"""Of the user: its path on this machine, and inside."""


class BenchmarkFailed(RuntimeError):
    """A run did not do what it should be measured at: the message holds its log."""


def boot(purpose: str, **settings: object) -> Sandbox:
    """A sandbox of this process, with the training script in the user's home. Use it in ``with``."""
    config = SandboxConfig(accounting=False, shm_mb=4096, binds=(str(OUT),), **settings)  # type: ignore[arg-type]
    OUT.mkdir(parents=True, exist_ok=True)
    sandbox = Sandbox.up(config, name=f"bench-{os.getpid()}-{purpose}")
    script = sandbox.home(USER) / TRAINING
    shutil.copyfile(ROOT / "benchmarks" / TRAINING, script)
    script.chmod(0o644)
    return sandbox


def folder_for(sandbox: Sandbox, name: str) -> Folder:
    """An empty folder of the user."""
    inside = f"{INSIDE_HOME}/{name}"
    sandbox.exec(["mkdir", inside], user=USER)
    return sandbox.home(USER) / name, inside


def submit(sandbox: Sandbox, folder: Folder, options: Sequence[str], script: str) -> int:
    """``sbatch`` with the script's text, as the user, in ``folder``; returns the job id."""
    outside, inside = folder
    (outside / "job.sh").write_text(f"#!/bin/bash\n{script}\n")
    (outside / "job.sh").chmod(0o755)
    words = ["sbatch", "--parsable", f"--chdir={inside}", f"--output={inside}/log", "--open-mode=append"]
    return int(sandbox.exec([*words, *options, f"{inside}/job.sh"], user=USER).stdout)


def exports(values: Mapping[str, object]) -> str:
    """Lines of a shell script that set variables to plain words and numbers."""
    return "\n".join(f"export {name}={value}" for name, value in values.items())


def finish(sandbox: Sandbox, *jobs: int, patience_s: float = 10.0, cancelled_s: float = 60.0) -> None:
    """Wait until Slurm has forgotten the jobs; cancel them when they do not end by themselves in time.

    Raises :class:`BenchmarkFailed` when they have not ended ``cancelled_s`` after that.
    """
    names = ",".join(map(str, jobs))

    def gone() -> bool:
        return not sandbox.exec(["squeue", "-h", "-j", names], user=USER, check=False).stdout.strip()

    try:
        wait_for(gone, patience_s, f"jobs {names} do not end", every_s=0.3)
    except BenchmarkFailed:
        sandbox.exec(["scancel", *map(str, jobs)], user=USER, check=False)
        wait_for(gone, cancelled_s, f"jobs {names} do not end after scancel", every_s=0.3)
    sandbox.wait_idle()


def wait_for(condition: Callable[[], bool], timeout_s: float, failure: str, every_s: float = 0.1) -> None:
    """Look every ``every_s`` until it holds. Raises :class:`BenchmarkFailed` after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise BenchmarkFailed(f"{failure} within {timeout_s:.0f} s")
        time.sleep(every_s)


def tail(log: Path) -> str:
    """The end of a job's output, for an error."""
    return "\n" + log.read_text(errors="replace")[-1500:] if log.exists() else " (none yet)"


def end_group(process: subprocess.Popen[str], patience_s: float = 10.0) -> None:
    """TERM to the process's group, KILL if that does not help."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(patience_s)
            return
        except ProcessLookupError:
            process.wait(patience_s)
            return
        except subprocess.TimeoutExpired:
            continue


def machine() -> dict[str, object]:
    """Hardware, versions, and how busy the machine is by others at this moment."""
    found = {name: _version(name) for name in _PACKAGES} | {"nvidia-resiliency-ext": _nvrx_version()}
    # slurmctld and not sinfo, which wants a slurm.conf before it tells its version.
    slurm = "" if shutil.which("slurmctld") is None else _first_line("slurmctld", "-V").rpartition(" ")[2]
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "slurm": slurm,
        "packages": {name: text for name, text in found.items() if text},
        "load_before": os.getloadavg()[0],
    }


def write(name: str, facts: Mapping[str, object], folder: Path = OUT) -> Path:
    """``build/bench/<name>.json`` with the date, the machine, the command and ``facts``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    command = " ".join(["python", "-m", f"benchmarks.{name}", *sys.argv[1:]])
    whole = {"benchmark": name, "date": date, "command": command, **facts}
    path.write_text(json.dumps(whole, indent=1) + "\n")
    return path


def console() -> Console:
    """Wide enough for the tables, also where the output is no terminal."""
    return Console(width=max(120, Console().width))


def table(title: str, *columns: str) -> Table:
    """An empty table below its title."""
    return Table(*columns, title=title, title_justify="left")


def say(text: str) -> None:
    """A line about what goes on, with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def parser(doc: str | None, reps: int) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    made = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    made.add_argument("--reps", type=int, default=reps, help=f"repetitions (default: {reps})")
    return made


def _first_line(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    return done.stdout.partition("\n")[0].strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _nvrx_version() -> str | None:
    """From the folder's name: NVRx has an environment of its own."""
    found = next(NVRX.glob("lib/python*/site-packages/nvidia_resiliency_ext-*.dist-info"), None)
    return found.name.removesuffix(".dist-info").partition("-")[2] if found else None


def _cpu_name() -> str:
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()
