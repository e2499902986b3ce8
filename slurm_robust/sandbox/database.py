"""An empty MariaDB data directory, made once per machine and copied into each sandbox."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from slurm_robust.sandbox.errors import BootFailed
from slurm_robust.sandbox.folder import DEFAULT_CACHE

INSTALL_TIMEOUT_S = 120.0
_UNFINISHED = "installing-"


def cache_folder() -> Path:
    """Return ``$SROBUST_SANDBOX_CACHE``, else /var/cache/srobust-sandbox."""
    return Path(os.path.abspath(os.environ.get("SROBUST_SANDBOX_CACHE") or DEFAULT_CACHE))


def prepare_database(target: Path) -> None:
    """Fill the folder ``target`` with an empty data directory. Raises :class:`BootFailed`."""
    template = cache_folder() / f"mariadb-{_version()}"
    if not template.is_dir():
        _install(template)
    # cp clones if the file system can, and keeps holes, which shutil does not.
    subprocess.run(
        ["cp", "--archive", "--reflink=auto", "--sparse=always", f"{template}/.", str(target)],
        timeout=INSTALL_TIMEOUT_S,
        check=True,
        capture_output=True,
    )


def _version() -> str:
    done = subprocess.run(
        ["mariadbd", "--no-defaults", "--version"], capture_output=True, text=True, timeout=10, check=True
    )
    match = re.search(r"Ver (\S+)", done.stdout)
    return match.group(1) if match else "unknown"


def _install(template: Path) -> None:
    """Make the template beside its place, then rename it: two sandboxes may boot at the same time."""
    template.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    _remove_abandoned(template.parent)
    with tempfile.TemporaryDirectory(dir=template.parent, prefix=f"{_UNFINISHED}{os.getpid()}-") as made:
        done = subprocess.run(
            [
                # Dies with this process: a killed `up` leaves nothing running.
                *("setpriv", "--pdeathsig=KILL", "--"),
                "mariadb-install-db",
                "--no-defaults",
                f"--datadir={made}/db",
                "--user=root",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                # Else it fails if /etc/hosts names neither this machine nor localhost.
                "--force",
                "--innodb-log-file-size=8M",
            ],
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise BootFailed(f"mariadb-install-db failed: {(done.stderr or done.stdout)[-1500:]}")
        try:
            os.rename(f"{made}/db", template)
        except OSError:
            if not template.is_dir():
                raise
            # Another boot was faster; its template is as good.


def _remove_abandoned(folder: Path) -> None:
    """Remove what a killed installation left; its folder's name says whose it was."""
    for left in folder.glob(f"{_UNFINISHED}*"):
        owner = left.name.removeprefix(_UNFINISHED).partition("-")[0]
        if not Path(f"/proc/{owner}").exists():
            shutil.rmtree(left, ignore_errors=True)


def remove_cache() -> None:
    """Delete the templates; the next sandbox with accounting makes them again."""
    shutil.rmtree(cache_folder(), ignore_errors=True)
