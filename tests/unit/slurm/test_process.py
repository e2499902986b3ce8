from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from slurm_robust.slurm.process import CommandTimeout, run_command, spawn_detached
from tests.waiting import wait_for


def python(source: str) -> list[str]:
    return [sys.executable, "-c", source]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_output_and_exit_code() -> None:
    source = "import sys; print(sys.stdin.read()); print('e', file=sys.stderr); sys.exit(3)"
    done = run_command(python(source), timeout_s=20, stdin="é")
    assert (done.exit_code, done.stdout, done.stderr) == (3, "é\n", "e\n")


def test_the_environment_is_what_was_given() -> None:
    done = run_command(python("import os; print(os.environ['A'])"), timeout_s=20, env={"A": "1"})
    assert done.stdout == "1\n"


def test_a_time_out_kills_the_children_too(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    source = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(file)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    with pytest.raises(CommandTimeout, match="within 1 s") as caught:
        run_command(python(source), timeout_s=1.0)
    assert caught.value.timeout_s == 1.0
    wait_for(lambda: not alive(int(file.read_text())), message="the grandchild is dead")


def test_a_detached_process(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.write_text("before\n")
    source = "import os, time; print(os.getsid(0) == os.getpid(), flush=True); time.sleep(600)"
    process = spawn_detached(python(source), output=output, env=os.environ)
    wait_for(lambda: output.read_text() == "before\nTrue\n", message="output is appended")
    assert process.poll() is None
    process.kill()
    assert wait_for(lambda: process.poll(), message="it ends") == -9
    process.kill()
