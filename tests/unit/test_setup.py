"""tools/setup.sh on a machine that lacks much."""

from __future__ import annotations

import subprocess
from pathlib import Path

SETUP = Path(__file__).resolve().parents[2] / "tools/setup.sh"


def install(tmp_path: Path, calls: str) -> Path:
    """Run ``calls`` with the functions of the script, an idle apt-get, and a policy of its own."""
    policy = tmp_path / "policy-rc.d"
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, code in {"apt-get": "exit 0", "id": "echo 0"}.items():
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
    return policy


def test_a_new_machine_gets_the_packages_of_the_sandbox_and_then_those_of_the_environment(
    tmp_path: Path,
) -> None:
    assert not install(tmp_path, "install_packages slurmd; install_packages python3-venv").exists()


def test_a_policy_that_somebody_else_wrote_stays(tmp_path: Path) -> None:
    calls = "install_packages slurmd; touch $POLICY; install_packages python3-venv"
    assert install(tmp_path, calls).exists()
