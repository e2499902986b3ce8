"""The daemons of a node: their command lines, environments and output files. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from slurm_robust.sandbox.config import HEAD, INSIDE
from slurm_robust.sandbox.etcfiles import DATABASE_SOCKET, MUNGE_SOCKET

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SLURM_CONF = f"{INSIDE}/etc/slurm.conf"


@dataclass(frozen=True)
class Service:
    """One daemon in the foreground."""

    argv: tuple[str, ...]
    output: str
    """The file that takes its stdout and stderr; Slurm's daemons also write a log."""

    env: dict[str, str] = field(default_factory=dict)


def service(node: str, name: str, args: tuple[str, ...] = ()) -> Service:
    """Return the daemon ``name`` of ``node`` with more arguments. Raises ``ValueError`` if it is unknown."""
    known = head_services() if node == HEAD else node_services(node)
    if name not in known:
        raise ValueError(f"no daemon {name!r} on {node}; there are: {', '.join(known)}")
    found = known[name]
    return Service((*found.argv, *args), found.output, found.env)


def head_services() -> dict[str, Service]:
    """Return the daemons of the head node, in the order of their start."""
    env = {"PATH": SYSTEM_PATH, "SLURM_CONF": SLURM_CONF}
    return {
        "munged": Service(
            (
                "munged",
                "--foreground",
                "--force",
                f"--key-file={INSIDE}/etc/munge.key",
                f"--socket={MUNGE_SOCKET}",
                "--pid-file=/run/munge/munged.pid",
                "--seed-file=/run/munge/munged.seed",
                f"--log-file={INSIDE}/log/munged.log",
                "--num-threads=4",
            ),
            f"{INSIDE}/log/munged.out",
            env,
        ),
        "mariadbd": Service(
            (
                "mariadbd",
                "--no-defaults",
                f"--datadir={INSIDE}/db",
                "--user=root",
                "--skip-networking",
                f"--socket={DATABASE_SOCKET}",
                "--pid-file=/run/mysqld/mariadbd.pid",
                "--innodb-buffer-pool-size=64M",
                "--innodb-log-file-size=8M",
                "--innodb-lock-wait-timeout=900",
                # The state folder is thrown away by `down`: nothing is worth an fsync.
                "--innodb-flush-log-at-trx-commit=0",
                "--innodb-flush-method=nosync",
                "--sync-frm=0",
                "--skip-log-bin",
            ),
            f"{INSIDE}/log/mariadbd.log",
            env,
        ),
        "slurmdbd": Service(
            ("slurmdbd", "-D"), f"{INSIDE}/log/slurmdbd.out", env | {"MYSQL_UNIX_PORT": DATABASE_SOCKET}
        ),
        "slurmctld": Service(("slurmctld", "-D"), f"{INSIDE}/log/slurmctld.out", env),
    }


def node_services(node: str) -> dict[str, Service]:
    """Return the daemons of a compute node."""
    env = {"PATH": SYSTEM_PATH, "SLURM_CONF": SLURM_CONF}
    return {"slurmd": Service(("slurmd", "-D"), f"{INSIDE}/log/slurmd-{node}.out", env)}


def user_path(prefix: str) -> str:
    """Return PATH of all users inside, beginning with the environment that runs srobust."""
    return os.path.join(prefix, "bin") + ":" + SYSTEM_PATH
