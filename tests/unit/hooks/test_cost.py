"""What a prolog of a healthy node imports: each module is time before every job, and code that root runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.users import as_root

MAX_MODULES = 86
"""Of the project: what there is now, and two more. Who needs more shows what they cost (benchmarks.hooks)."""

HEAVY = """yaml rich torch numpy zmq psutil dataclasses inspect subprocess json argparse asyncio
logging typing_extensions difflib"""

# Every process of a hook, also each child, ends by os._exit(); before that this writes what it has imported.
SPY = """
import os, sys
leave = os._exit
def end(code):
    with open(os.environ["IMPORTED"], "a") as file:
        file.write(" ".join([str(os.getpid()), *sys.modules]) + "\\n")
    leave(code)
os._exit = end
from slurm_robust.hooks.command import program
program()
"""
# The first run compiles the configuration and measures; the second is the prolog that follows it.
OWN_FOLDERS = """
for folder in /run /var/lib /var/log; do mount -t tmpfs own $folder || exit 99; done
"$@" periodic && : > "$IMPORTED" && "$@" prolog
"""


@as_root
def test_a_prolog_of_a_healthy_node_imports_little(tmp_path: Path) -> None:
    imported = tmp_path / "imported"
    words = ["unshare", "--mount", "sh", "-c", OWN_FOLDERS, "sh", sys.executable, "-c", SPY]
    env = {"PATH": os.environ["PATH"], "IMPORTED": str(imported), "SLURMD_NODENAME": "n1"}
    subprocess.run(words, env=env, check=True, timeout=60)
    processes = [line.split()[1:] for line in imported.read_text().splitlines()]
    modules = {name for process in processes for name in process}
    ours = {name for name in modules if name.partition(".")[0] == "slurm_robust"}
    assert "slurm_robust.nodes.checks.gpu" in ours, "the prolog did not run"
    assert len(ours) <= MAX_MODULES, sorted(ours)
    assert not {name.partition(".")[0] for name in modules} & {*HEAVY.split()}


def test_the_process_that_waits_for_the_hook_imports_next_to_nothing() -> None:
    """What it imports is copied, page by page, for the child that does the work."""
    code = "import sys; import slurm_robust.hooks.command; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-IS", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    names = done.stdout.split()
    assert [name for name in names if name.startswith("slurm_robust.")] == [
        "slurm_robust.version",
        "slurm_robust.hooks",
        "slurm_robust.hooks.stages",
        "slurm_robust.util",
        "slurm_robust.util.isolate",
        "slurm_robust.util.standard_files",
        "slurm_robust.hooks.command",
    ]
    assert "msgspec" not in names
