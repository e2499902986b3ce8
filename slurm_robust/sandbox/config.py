"""What a sandbox is made of: one frozen record, refused when it cannot work, and the names that follow."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import re
from dataclasses import dataclass
from typing import Any

from slurm_robust.sandbox.errors import InvalidSandbox

HEAD = "head"
"""Name of the node that runs slurmctld, slurmdbd, MariaDB and munged, and on which users submit."""

CLUSTER = "sandbox"
PARTITION = "main"
ACCOUNT = "users"
NETWORK = ipaddress.IPv4Network("10.77.0.0/16")
FIRST_UID = 10001
INSIDE = "/run/srobust-sandbox"
"""The path of the state folder on every node of the sandbox, wherever it lies on the machine."""

MAX_NODES = 512
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_USER = re.compile(r"[a-z][a-z0-9_-]{0,30}")


@dataclass(frozen=True, kw_only=True)
class SandboxConfig:
    """Size and settings of one sandbox. Raises :class:`InvalidSandbox` for what cannot work."""

    nodes: int = 4
    """Compute nodes n1..nN; the head node is not counted."""

    cpus: int = 16
    """CPUs that each node claims to have; even, the machine's own number does not matter."""

    memory_mb: int = 64_000
    """Memory that each node claims to have, in MiB (Slurm's RealMemory)."""

    gpus_per_node: int = 0
    """GPUs that each node claims to have, GRES ``gpu:h200``; NVML shows them, and they can be broken."""

    accounting: bool = True
    """Whether to run slurmdbd and a private MariaDB, hence ``sacct``."""

    users: tuple[str, ...] = ("alice", "bob")
    """Ordinary users, with uids from 10001 on; they exist only inside."""

    shm_mb: int = 2048
    """Size limit of each node's /dev/shm, in MiB."""

    tmp_mb: int = 2048
    """Size limit of each node's /tmp, in MiB (it is memory)."""

    slurmd_timeout_s: int = 300
    """Silence after which slurmctld takes a node for DOWN; 300 is Slurm's default."""

    cred_expire_s: int | None = None
    """Life of a job credential; a requeued job waits this long. None: Slurm's default of 120."""

    leaf_size: int | None = None
    """Nodes per leaf switch for topology/tree; None: no topology. With ``TopologyPlugin=topology/block`` in
    :attr:`slurm_conf_lines` they are the nodes of a block."""

    cgroups: bool = False
    """Whether Slurm tracks and limits the processes of jobs by cgroups, of version 1."""

    slurm_conf_lines: tuple[str, ...] = ()
    """Further lines of slurm.conf, ``Key=value``; they win over the sandbox's own."""

    binds: tuple[str, ...] = ()
    """Absolute paths of the machine that ordinary users inside must be able to reach, writable."""

    def __post_init__(self) -> None:
        """Check every field; the message names it."""
        _between("nodes", self.nodes, 1, MAX_NODES)
        _between("cpus", self.cpus, 1, 4096)
        _between("memory_mb", self.memory_mb, 64, 2**31)
        _between("gpus_per_node", self.gpus_per_node, 0, 64)
        _between("shm_mb", self.shm_mb, 1, 2**20)
        _between("tmp_mb", self.tmp_mb, 1, 2**20)
        _between("slurmd_timeout_s", self.slurmd_timeout_s, 5, 65533)
        if self.cred_expire_s is not None:
            _between("cred_expire_s", self.cred_expire_s, 5, 65533)
        if self.leaf_size is not None:
            _between("leaf_size", self.leaf_size, 1, self.nodes)
        if not self.users:
            raise InvalidSandbox("users: none is named", fix="name at least one, for example alice")
        for user in self.users:
            if not _USER.fullmatch(user) or user == "root":
                raise InvalidSandbox(f"users: {user!r} cannot be a user's name", fix="use one like alice")
        if len(set(self.users)) != len(self.users):
            raise InvalidSandbox(
                f"users: a name is given twice in {', '.join(self.users)}", fix="give each name once"
            )
        for line in self.slurm_conf_lines:
            if "=" not in line or "\n" in line:
                raise InvalidSandbox(
                    f"slurm_conf_lines: {line!r} is not of the form Key=value",
                    fix="give each line by itself, as it stands in slurm.conf",
                )
        for path in self.binds:
            if not path.startswith("/"):
                raise InvalidSandbox(
                    f"binds: {path!r} is not an absolute path", fix="give the path from / on"
                )

    @property
    def node_names(self) -> tuple[str, ...]:
        """``n1`` .. ``nN``."""
        return tuple(f"n{i}" for i in range(1, self.nodes + 1))

    @property
    def all_names(self) -> tuple[str, ...]:
        """``head`` and the compute nodes."""
        return (HEAD, *self.node_names)

    def address(self, node: str) -> str:
        """Return the node's IPv4 address. The same in every sandbox: each has a network of its own."""
        index = 1 if node == HEAD else 10 + int(node[1:])
        return str(NETWORK[index])

    def uid(self, user: str) -> int:
        """Return uid, and gid, of one of ``users``; 0 for root. Raises :class:`InvalidSandbox` for others."""
        if user == "root":
            return 0
        if user not in self.users:
            raise InvalidSandbox(f"no user {user!r} here", fix=f"name one of root, {', '.join(self.users)}")
        return FIRST_UID + self.users.index(user)

    def to_json(self) -> str:
        """Encode it as JSON text, for the state folder."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> SandboxConfig:
        """Return the record that :meth:`to_json` wrote."""
        raw = json.loads(text)
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()}
        return cls(**fields)


def check_name(name: str) -> str:
    """Return a sandbox's name, which is also a folder's. Raises :class:`InvalidSandbox`."""
    if not _NAME.fullmatch(name):
        raise InvalidSandbox(f"{name!r} cannot name a sandbox", fix="use up to 32 of a-z, 0-9, - and _")
    return name


def _between(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidSandbox(f"{name}: {value} is out of range", fix=f"give a number from {low} to {high}")
