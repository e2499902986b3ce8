"""A sandbox that is up depends on nothing that changes on the machine beneath it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_robust.sandbox import Sandbox
from slurm_robust.sandbox.teardown import take_down

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.releases]

# A machine of its own as far as /etc goes, so that this one keeps its files. What adds a user, a package or a
# lease of DHCP puts new files in the place of the old ones.
CHANGES_OF_THE_MACHINE = """
mkdir $HERE/etc
cp --archive /etc/. $HERE/etc
mount --bind $HERE/etc /etc
srobust sandbox up --name $NAME --nodes 1 --gpus-per-node 1 --no-accounting
for file in passwd group hosts nsswitch.conf resolv.conf ld.so.cache; do
    [ ! -e /etc/$file ] || cp /etc/$file /etc/$file.new
    [ ! -e /etc/$file ] || mv /etc/$file.new /etc/$file
done
echo somebody:x:7777:7777::/:/bin/sh >> /etc/passwd
srobust sandbox exec --name $NAME --node n1 --user alice -- sh -c 'id -un; getent hosts head; ldconfig -p'
"""


def test_what_the_machine_changes_in_etc_leaves_the_nodes_alone(sandbox_pool: object, tmp_path: Path) -> None:
    name = f"pytest-{os.getpid()}-0"
    try:
        done = on_another_machine(CHANGES_OF_THE_MACHINE, HERE=str(tmp_path), NAME=name)
    finally:
        take_down(name)
    assert done.returncode == 0, done.stderr
    assert "alice\n10.77.0.1       head\n" in done.stdout
    assert "libnvidia-ml.so.1" in done.stdout


NAMELESS = """
hostname nobody-knows
touch $HERE/hosts
mount --bind $HERE/hosts /etc/hosts
mkdir $HERE/db
python -c "from slurm_robust.sandbox import database as d; d.prepare_database(d.Path('$HERE/db'))"
ls $HERE/db
"""


def test_a_database_is_made_where_the_machine_has_no_name(sandbox_pool: object, tmp_path: Path) -> None:
    done = on_another_machine(NAMELESS, HERE=str(tmp_path), SROBUST_SANDBOX_CACHE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "mysql" in done.stdout.split()


def on_another_machine(script: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script with mounts and a hostname of its own."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["unshare", "--mount", "--uts", "--propagation=private", "sh", "-ec", script],
        env={**os.environ, "PATH": path, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_su_knows_the_users(sandbox: Sandbox) -> None:
    """Slurm asks it for the environment of a job that is submitted without the caller's."""
    assert sandbox.exec(["su", "-", "alice", "-c", "id -un"], user="root").stdout == "alice\n"
    done = sandbox.exec(["sbatch", "--wait", "--export=NONE", "--output=/dev/null", "--wrap=true"])
    assert done.returncode == 0
