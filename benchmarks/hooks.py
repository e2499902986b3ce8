"""What a hook costs, wall time and CPU: the whole script that Slurm runs, beside LBNL NHC.

All run in turns, so that they meet the same machine. They see its real /sys, but only their own processes
and folders, in namespaces, and the default configuration. The scripts are as ``srobust admin install`` writes
them. ``--nhc`` names a tree of NHC; ``--realtime`` runs all before whatever else the machine does.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.table import Table

from benchmarks import common
from slurm_robust.admin.items import Layout, scripts
from slurm_robust.config.node import NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.nodes.check import CheckContext
from slurm_robust.nodes.runner import all_checks, choose

REPS = 100
OWN, LIBEXEC, SLURM_D = Path("/run/srobust-node"), Path("/run/libexec/slurm-robust"), Path("/run/slurm.d")
STATE, LOG = Path("/var/lib/slurm-robust"), Path("/var/log/slurm-robust/events.jsonl")
_PR_SET_CHILD_SUBREAPER = 36
# As the packages install it: without the site module, whose .pth files cost as much as the interpreter does.
LAUNCHER = """#!{python} -IS
import sys
sys.path[:0] = {paths!r}
from slurm_robust.hooks.command import program
program()
"""
# Each process of a hook ends by os._exit(); this one notes before what it has imported.
SPY = """
import os, sys
sys.path[:0] = {path!r}
leave = os._exit
def end(code):
    found = [sys.modules[name].__file__ for name in list(sys.modules) if name.startswith("slurm_robust.")]
    with open({paths!r}, "a") as file:
        file.write("\\n".join([*found, ""]))
    leave(code)
os._exit = end
from slurm_robust.hooks.command import program
program()
"""
# As many checks as the published figure of 101 ms has, as far as they fit any machine.
NHC_CONF = """
* || check_fs_mount_rw -f /
* || check_fs_free / 1%
* || check_fs_inodes / 1%
* || check_fs_free /tmp 1%
* || check_hw_physmem_free 1kB
* || check_hw_mem_free 1kB
* || check_hw_swap 0 1TB
* || check_ps_loadavg 9999
* || check_ps_unauth_users log
* || check_ps_blacklist nobody-runs-this
* || check_file_test -r -f /etc/passwd
* || check_file_test -d -r -w /tmp
* || check_file_test -d -x /usr
* || check_hw_eth lo
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write build/bench/hooks.json."""
    parser = common.parser(__doc__, REPS)
    parser.add_argument("--nhc", type=Path, help="a tree of LBNL NHC to measure beside it")
    parser.add_argument("--realtime", action="store_true", help="with real-time priority: on a busy machine")
    parser.add_argument("--inside", action="store_true", help="in the mount namespace already")
    options = parser.parse_args(argv)
    if not options.inside:
        words = [
            sys.executable,
            "-m",
            "benchmarks.hooks",
            "--inside",
            *(sys.argv[1:] if argv is None else argv),
        ]
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--mount-proc"]
        return subprocess.run([*namespaces, *words], cwd=common.ROOT, check=False).returncode
    _own_folders()
    machine = common.machine()
    if options.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    kinds = _kinds(options.nhc)
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    for _ in range(options.reps):
        for name, (prepare, command) in kinds.items():
            prepare()
            samples[name].append(_run(command))
    asked = len(choose(all_checks(NodeConfig(), Host()), NodeConfig(), CheckContext.PROLOG)[0])
    checks = f"{asked} checks, {_checks()} of which found their hardware"
    results = {name: _summary(found) for name, found in samples.items()}
    facts = {"reps": options.reps, "realtime": options.realtime, "machine": machine, "checks": checks}
    modules = dict(zip(("modules", "lines"), _imported(), strict=True))
    raw = {
        "wall_s": {name: [wall for wall, _ in s] for name, s in samples.items()},
        "cpu_s": {name: [cpu for _, cpu in s] for name, s in samples.items()},
    }
    common.write("hooks", facts | {"prolog_imports": modules, "results": results} | raw)
    common.console().print(_table(results, checks))
    return 0


def _kinds(nhc: Path | None) -> dict[str, tuple[Callable[[], object], list[str]]]:
    def forget() -> None:
        (STATE / "facts.msgpack").unlink(missing_ok=True)

    def nothing() -> None:
        pass

    own = str(OWN)
    kinds: dict[str, tuple[Callable[[], object], list[str]]] = {
        "python3 -c pass": (nothing, [sys.executable, "-c", "pass"]),
        "python3 -IS -c pass": (nothing, [sys.executable, "-IS", "-c", "pass"]),
        "healthcheck.sh": (nothing, [str(SLURM_D / "healthcheck.sh")]),
        "prolog.sh after a periodic run": (nothing, [str(SLURM_D / "prolog.sh")]),
        "  of which srobust-node prolog": (nothing, [own, "prolog"]),
        "prolog.sh, nothing remembered": (forget, [str(SLURM_D / "prolog.sh")]),
        "epilog.sh": (nothing, [str(SLURM_D / "epilog.sh")]),
    }
    if nhc:
        conf = Path("/run/nhc.conf")
        conf.write_text(NHC_CONF)
        settings = (f"CONFFILE={conf}", f"INCDIR={nhc}/scripts", f"HELPERDIR={nhc}/helpers", "MARK_OFFLINE=0")
        kinds["LBNL NHC, 14 checks"] = (nothing, [str(nhc / "nhc"), *settings, "LOGFILE=/run/nhc.log"])
    return kinds


def _own_folders() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for folder in ("/run", "/var/lib", "/var/log"):
        subprocess.run(["mount", "-t", "tmpfs", "srobust-bench", folder], check=True)
    paths = [str(common.ROOT), sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]]
    OWN.write_text(LAUNCHER.format(python=sys.executable, paths=paths))
    OWN.chmod(0o755)
    LIBEXEC.mkdir(parents=True)
    SLURM_D.mkdir()
    for name, text in scripts(Layout(node_command=str(OWN), prefix="/run")).items():
        (LIBEXEC / name).write_text(text)
        (LIBEXEC / name).chmod(0o755)
        (SLURM_D / name).symlink_to(LIBEXEC / name)


def _imported() -> tuple[int, int]:
    """Modules of the project that a prolog imports in its own process and its children, and their lines."""
    paths = OWN.with_name("imported")
    spy = SPY.format(path=sys.path, paths=str(paths))
    subprocess.run([sys.executable, "-IS", "-c", spy, "prolog"], check=True)
    found = set(paths.read_text().split())
    return len(found), sum(len(Path(path).read_text().splitlines()) for path in found)


def _run(command: Sequence[str]) -> tuple[float, float]:
    """Wall-clock time, and CPU with all descendants, seconds. Those that are left behind count as well."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    done = subprocess.run(
        command,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    wall_s = time.perf_counter() - begun
    if done.returncode != 0:
        raise common.BenchmarkFailed(
            f"{command} ended with {done.returncode}: {done.stdout!r} {done.stderr!r}"
        )
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _checks() -> int:
    """How many checks the prologs did."""
    runs = [event for event in map(json.loads, LOG.read_text().splitlines()) if event["event"] == "run"]
    return min(int(run["checks"]) for run in runs if run["hook"] == "prolog")


def _summary(samples: Sequence[tuple[float, float]]) -> dict[str, float]:
    walls, cpus = (sorted(found) for found in zip(*samples, strict=True))
    return {
        "median_s": statistics.median(walls),
        "min_s": walls[0],
        "p99_s": walls[min(len(walls) - 1, round(0.99 * (len(walls) - 1)))],
        "cpu_median_s": statistics.median(cpus),
        "cpu_min_s": cpus[0],
        "cpu_max_s": cpus[-1],
    }


def _table(results: dict[str, dict[str, float]], checks: str) -> Table:
    table = common.table(f"Hooks on this machine, {checks}", "")
    for name in ("median ms", "least ms", "p99 ms", "CPU ms", "CPU least-most"):
        table.add_column(name, justify="right")
    for name, found in results.items():
        ms = {key: f"{1000 * value:.1f}" for key, value in found.items()}
        between = f"{ms['cpu_min_s']}-{ms['cpu_max_s']}"
        table.add_row(name, ms["median_s"], ms["min_s"], ms["p99_s"], ms["cpu_median_s"], between)
    return table


if __name__ == "__main__":
    sys.exit(main())
