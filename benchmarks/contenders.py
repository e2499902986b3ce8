"""Everything that can bring a killed training back, started in a sandbox: each runs the same script once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import common, timeline
from slurm_robust.model import events as ev
from slurm_robust.model.journal import read
from slurm_robust.sandbox import Sandbox

RANKS = 4
KILL_STEP = 4
STEPS = KILL_STEP + 2
LIMIT_S = 90.0
# torchrun's restarts read the addresses of the dead run from a shared store otherwise, and fail.
NO_SHARED_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": 1}

Folder = common.Folder


@dataclass(frozen=True)
class Outcome:
    """One run. ``phases`` (only ours): seconds one after the other, their sum is ``step``."""

    recovery: timeline.Recovery | timeline.NeverRecovered
    phases: dict[str, float]


@dataclass(frozen=True)
class Contender:
    """``run`` gets an empty folder and returns when the training is over."""

    name: str
    sandbox: Sandbox
    run: Callable[[Sandbox, Folder], Outcome]


def srobust(sandbox: Sandbox, folder: Folder) -> Outcome:
    """``srobust run``, as a user's job."""
    command = f"exec srobust run --job-dir {folder[1]}/jobs --nproc-per-node {RANKS} ../{common.TRAINING}"
    script = f"{_variables(folder, 'srobust')}\n{command}"
    job = common.submit(sandbox, folder, ["--nodes=1", "--exclusive"], script)
    _wait_for_end(folder, LIMIT_S)
    common.finish(sandbox, job)
    outcome = _outcome(folder)
    journal = read(folder[0] / "jobs" / str(job) / "journal.jsonl")
    if isinstance(outcome.recovery, timeline.Recovery):
        marks = timeline.read(folder[0] / "events.jsonl")
        return Outcome(outcome.recovery, phases(journal, marks, outcome.recovery))
    return outcome


def torchrun(sandbox: Sandbox, folder: Folder) -> Outcome:
    """torchrun with the shared store off, without which it does not recover."""
    return _launcher(sandbox, folder, _torchrun_words(), "torch", NO_SHARED_STORE)


def torchrun_default(sandbox: Sandbox, folder: Folder) -> Outcome:
    """torchrun as it is."""
    return _launcher(sandbox, folder, _torchrun_words(), "torch", {})


def nvrx(sandbox: Sandbox, folder: Folder) -> Outcome:
    """The launcher of nvidia-resiliency-ext, with its heartbeats in the script."""
    words = [str(common.NVRX / "bin" / "ft_launcher"), "--ignore-missing-fault-tol-cfg"]
    words += ["--rdzv-backend=c10d"]
    words += [f"--rdzv-endpoint=127.0.0.1:{29600 + os.getpid() % 300}", "--nnodes=1", "--max-restarts=3"]
    words += [f"--nproc-per-node={RANKS}", "--ft-param-rank_heartbeat_timeout=300"]
    return _launcher(sandbox, folder, words, "nvrx", NO_SHARED_STORE)


def requeue(sandbox: Sandbox, folder: Folder, limit_s: float = LIMIT_S) -> Outcome:
    """``scontrol requeue`` by the job itself as soon as srun has ended the other ranks."""
    script = f"""{_variables(folder, "torch")}
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((17000 + SLURM_JOB_ID % 900))
srun --kill-on-bad-exit=1 {sys.executable} ../{common.TRAINING} && exit 0
[ ${{SLURM_RESTART_COUNT:-0}} -lt 3 ] && scontrol requeue $SLURM_JOB_ID
sleep 60"""
    options = ["--nodes=1", f"--ntasks-per-node={RANKS}", "--exclusive", "--requeue"]
    job = common.submit(sandbox, folder, options, script)
    _wait_for_end(folder, limit_s)
    common.finish(sandbox, job)
    return _outcome(folder)


def slow_requeue(sandbox: Sandbox, folder: Folder) -> Outcome:
    """As :func:`requeue` in a cluster with Slurm's default times, which takes minutes."""
    return requeue(sandbox, folder, 300.0)


def install_nvrx() -> str:
    """Put NVRx into an environment of its own that uses our torch; returns why that failed, or ""."""
    if (common.NVRX / "bin" / "ft_launcher").exists():
        return ""
    common.OUT.mkdir(parents=True, exist_ok=True)
    packages = ["nvidia-resiliency-ext", "defusedxml", "packaging"]
    pip = [str(common.NVRX / "bin" / "pip"), "install", "--quiet", "--no-deps", *packages]
    try:
        subprocess.run([sys.executable, "-m", "venv", str(common.NVRX)], check=True, timeout=120)
        _site_packages(common.NVRX).joinpath("base.pth").write_text(f"{_site_packages(Path(sys.prefix))}\n")
        subprocess.run(pip, check=True, timeout=300, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        return f"{error.cmd[0]} failed: {(error.stderr or '').strip()[-300:]}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return ""


def phases(
    journal: list[ev.AnyEvent], marks: list[timeline.Mark], found: timeline.Recovery
) -> dict[str, float]:
    """Where our time goes, from the kill to the new step; the slowest rank ends each phase. Pure."""
    opened = next(e.t for e in journal if isinstance(e, ev.IncidentOpened))
    ended = next(e.t for e in journal if isinstance(e, ev.GenerationEnded) and e.t >= opened)
    launched = next(e.t for e in journal if isinstance(e, ev.GenerationLaunched) and e.t >= ended)
    built = max(m.t for m in marks if m.name == "built" and m.t > found.killed_at)
    ends = {
        "detect": opened - found.killed_at,
        "stop": ended - found.killed_at,
        "decide": launched - found.killed_at,
        "fork": found.imported,
        "group": found.group,
        "build": built - found.killed_at,
        "restore": found.ready,
        "first step": found.step,
    }
    starts = [0.0, *ends.values()]
    return {name: end - start for (name, end), start in zip(ends.items(), starts, strict=False)}


def _launcher(sandbox: Sandbox, folder: Folder, words: list[str], save: str, more: dict[str, int]) -> Outcome:
    """A launcher on the node itself, without Slurm, until it ends."""
    env = {**_settings(folder, save), **more, "PYTHONWARNINGS": "ignore"}
    command = [*words, f"{common.INSIDE_HOME}/{common.TRAINING}"]
    with (folder[0] / "log").open("w") as log:
        process = sandbox.popen(
            command,
            node="n1",
            user=common.USER,
            env={name: str(value) for name, value in env.items()},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            pass  # it hangs, which its marks say
        finally:
            common.end_group(process)
            pids = {str(m.pid) for m in timeline.read(folder[0] / "events.jsonl")}
            # Pids of the node's own namespace, which only this training had.
            sandbox.exec(["kill", "-KILL", *pids], node="n1", user=common.USER, check=False)
    return _outcome(folder)


def _torchrun_words() -> list[str]:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=3"]
    return [*words, f"--nproc-per-node={RANKS}"]


def _settings(folder: Folder, save: str) -> dict[str, object]:
    return {
        "BENCH_DIR": folder[1],
        "BENCH_SAVE": save,
        "BENCH_STEPS": STEPS,
        "BENCH_KILL_STEP": KILL_STEP,
        **common.EVERY_STEP,
        "OMP_NUM_THREADS": 1,
        "PYTHONDONTWRITEBYTECODE": 1,
    }


def _variables(folder: Folder, save: str) -> str:
    return common.exports(_settings(folder, save))


def _wait_for_end(folder: Folder, limit_s: float) -> None:
    """Until all ranks have reached the end of the script, or the time is over, which the marks say."""

    def ended() -> bool:
        return sum(m.name == "end" for m in timeline.read(folder[0] / "events.jsonl")) >= RANKS

    try:
        common.wait_for(ended, limit_s, "")
    except common.BenchmarkFailed:
        pass  # what happened instead is in the marks


def _outcome(folder: Folder) -> Outcome:
    found = timeline.recovery(timeline.read(folder[0] / "events.jsonl"), KILL_STEP, RANKS)
    if found is None:
        log = (folder[0] / "log").read_text(errors="replace")[-2000:]
        raise common.BenchmarkFailed(f"the training never came to the step of the kill; its output:\n{log}")
    return Outcome(found, {})


def _site_packages(prefix: Path) -> Path:
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return prefix / "lib" / name / "site-packages"
