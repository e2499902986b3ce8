"""tools/setup.sh on a machine that lacks much."""

from __future__ import annotations

import subprocess
from pathlib import Path

SETUP = Path(__file__).resolve().parents[2] / "tools/setup.sh"


def run_calls(tmp_path: Path, calls: str, uid: int = 0) -> str:
    """Run ``calls`` with the functions of the script, an idle apt-get, and a policy of its own."""
    policy = tmp_path / "policy-rc.d"
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, code in {"apt-get": "exit 0", "id": f"echo {uid}"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{code}\n")
        (programs / name).chmod(0o755)
    text = SETUP.read_text()
    assert 'cd "$(dirname "$0")/.."\n' in text
    text = text.replace('cd "$(dirname "$0")/.."\n', f"cd {SETUP.parents[1]}; PATH={programs}:$PATH\n")
    text = text.replace("POLICY=/usr/sbin/policy-rc.d", f"POLICY={policy}").replace(
        '\nmain "$@"\n', f"\n{calls}\n"
    )
    done = subprocess.run(["bash"], input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stderr


def install(tmp_path: Path, calls: str) -> Path:
    """Run ``calls`` as root; returns the place of the policy."""
    run_calls(tmp_path, calls)
    return tmp_path / "policy-rc.d"


def test_a_new_machine_gets_the_packages_of_the_sandbox_and_then_those_of_the_environment(
    tmp_path: Path,
) -> None:
    assert not install(tmp_path, "install_packages slurmd; install_packages python3-venv").exists()


def test_a_policy_that_somebody_else_wrote_stays(tmp_path: Path) -> None:
    calls = "install_packages slurmd; touch $POLICY; install_packages python3-venv"
    assert install(tmp_path, calls).exists()


def test_who_is_not_root_hears_at_the_end_that_the_sandbox_is_not_ready(tmp_path: Path) -> None:
    said = run_calls(tmp_path, "install_packages slurmd munge; say_the_end", uid=1000).splitlines()
    assert said[-1].endswith("the sandbox is not (make demo, make test-cluster): it lacks slurmd munge")


def test_setup_is_done_once_root_has_what_is_missing(tmp_path: Path) -> None:
    assert run_calls(tmp_path, "install_packages slurmd; say_the_end").splitlines()[-1] == "setup: done"
