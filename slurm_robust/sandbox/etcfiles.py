"""Files in /etc of a sandbox's nodes, as pure functions of a :class:`SandboxConfig`."""

from __future__ import annotations

from slurm_robust.sandbox.config import CLUSTER, HEAD, INSIDE, PARTITION, SandboxConfig

MUNGE_SOCKET = "/run/munge/munge.socket.2"
DATABASE_SOCKET = "/run/mysqld/mysqld.sock"
SLURMCTLD_PORT = 6817
SLURMD_PORT = 6818
SLURMDBD_PORT = 6819

# The first release that can do without a cgroup plugin.
_CGROUP_DISABLED_SINCE = (24, 11)

# Keys whose value is a list: a line of the user's adds items to the sandbox's own.
_LISTS = ("authinfo", "schedulerparameters", "slurmdparameters", "slurmctldparameters", "prologflags")
# Keys that name a new object in each line.
_REPEATED = ("nodename", "partitionname", "nodeset", "downnodes", "include")


# -- Slurm's files ------------------------------------------------------------------------------------


def slurm_conf(config: SandboxConfig) -> str:
    """Return slurm.conf. The user's lines replace those of the same key, or add to lists."""
    auth = f"socket={MUNGE_SOCKET}"
    if config.cred_expire_s is not None:
        auth += f",cred_expire={config.cred_expire_s}"
    settings = {
        "ClusterName": CLUSTER,
        "SlurmctldHost": f"{HEAD}({config.address(HEAD)})",
        "SlurmUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": auth,
        "SlurmctldPort": str(SLURMCTLD_PORT),
        "SlurmdPort": str(SLURMD_PORT),
        "StateSaveLocation": f"{INSIDE}/state",
        # A short path: slurmstepd's sockets lie here, and a socket's path may have 107 characters.
        "SlurmdSpoolDir": "/run/slurmd",
        "SlurmctldPidFile": "/run/slurmctld.pid",
        "SlurmdPidFile": "/run/slurmd.pid",
        "SlurmctldLogFile": f"{INSIDE}/log/slurmctld.log",
        "SlurmdLogFile": f"{INSIDE}/log/slurmd-%n.log",
        "LogTimeFormat": "iso8601_ms",
        "SwitchType": "switch/none",
        "MpiDefault": "none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        # Nodes claim more CPUs and memory than the machine has.
        "SlurmdParameters": "config_overrides",
        "ReturnToService": "1",
        "MailProg": "/bin/true",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "batch_sched_delay=0,sched_interval=5,bf_interval=5",
        "JobCompType": "jobcomp/none",
        "ProctrackType": "proctrack/cgroup" if config.cgroups else "proctrack/linuxproc",
        "TaskPlugin": "task/cgroup" if config.cgroups else "task/none",
        "SlurmdTimeout": str(config.slurmd_timeout_s),
    }
    settings |= _accounting(config)
    if config.gpus_per_node:
        settings["GresTypes"] = "gpu"
    if config.leaf_size is not None:
        settings["TopologyPlugin"] = "topology/tree"
    extra = _merge(settings, config.slurm_conf_lines)
    lines = [f"{key}={value}" for key, value in settings.items()]
    lines += [_node_line(config, node) for node in config.node_names]
    lines.append(
        f"PartitionName={PARTITION} Nodes={node_range(config)} Default=YES MaxTime=INFINITE "
        "DefaultTime=01:00:00 State=UP OverSubscribe=NO"
    )
    return "\n".join([*lines, *extra]) + "\n"


def gres_conf(config: SandboxConfig) -> str:
    """Return gres.conf: the fake GPU devices of every node; empty without GPUs."""
    if not config.gpus_per_node:
        return ""
    last = config.gpus_per_node - 1
    devices = "gpu0" if last == 0 else f"gpu[0-{last}]"
    return f"NodeName={node_range(config)} Name=gpu Type=h200 File={INSIDE}/dev/{devices}\n"


def cgroup_conf(config: SandboxConfig, version: tuple[int, int]) -> str:
    """Return cgroup.conf for the given Slurm release (year, month).

    Before 24.11 a plugin must be named. cgroup/v1 only asks that something be mounted on
    /sys/fs/cgroup, which holds on every machine, since each node mounts an empty tmpfs there.
    """
    if config.cgroups:
        return "CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\n"
    return f"CgroupPlugin={'disabled' if version >= _CGROUP_DISABLED_SINCE else 'cgroup/v1'}\n"


def slurmdbd_conf() -> str:
    """Return slurmdbd.conf. slurmdbd refuses it unless its mode is 0600."""
    settings = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={MUNGE_SOCKET}",
        "DbdHost": HEAD,
        "DbdPort": str(SLURMDBD_PORT),
        "SlurmUser": "root",
        "StorageType": "accounting_storage/mysql",
        # "localhost" makes the client library take the unix socket in MYSQL_UNIX_PORT.
        "StorageHost": "localhost",
        "StorageUser": "root",
        "StorageLoc": "slurm_acct_db",
        "PidFile": "/run/slurmdbd.pid",
        "LogFile": f"{INSIDE}/log/slurmdbd.log",
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def topology_conf(config: SandboxConfig) -> str:
    """Return topology.conf: one leaf switch, or block, per ``leaf_size`` nodes; empty without it."""
    if config.leaf_size is None:
        return ""
    names = config.node_names
    leaves = [names[i : i + config.leaf_size] for i in range(0, len(names), config.leaf_size)]
    if "TopologyPlugin=topology/block" in config.slurm_conf_lines:
        blocks = [f"BlockName=block{i} Nodes={','.join(leaf)}" for i, leaf in enumerate(leaves, start=1)]
        return "\n".join([*blocks, f"BlockSizes={config.leaf_size}"]) + "\n"
    lines = [f"SwitchName=leaf{i} Nodes={','.join(leaf)}" for i, leaf in enumerate(leaves, start=1)]
    lines.append(f"SwitchName=spine Switches={','.join(f'leaf{i + 1}' for i in range(len(leaves)))}")
    return "\n".join(lines) + "\n"


def node_range(config: SandboxConfig) -> str:
    """Return all compute nodes as a hostlist."""
    return "n1" if config.nodes == 1 else f"n[1-{config.nodes}]"


def _accounting(config: SandboxConfig) -> dict[str, str]:
    if not config.accounting:
        return {"AccountingStorageType": "accounting_storage/none"}
    settings = {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": HEAD,
        "AccountingStoragePort": str(SLURMDBD_PORT),
        # slurmdbd's clients do not look at AuthInfo.
        "AccountingStoragePass": MUNGE_SOCKET,
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": "5",
    }
    if config.gpus_per_node:
        settings["AccountingStorageTRES"] = "gres/gpu"
    return settings


def _node_line(config: SandboxConfig, node: str) -> str:
    # Two sockets like a GPU server, if the number of CPUs allows it.
    sockets = 2 if config.cpus % 2 == 0 else 1
    gres = f" Gres=gpu:h200:{config.gpus_per_node}" if config.gpus_per_node else ""
    return (
        f"NodeName={node} NodeAddr={config.address(node)} CPUs={config.cpus} Boards=1 "
        f"SocketsPerBoard={sockets} CoresPerSocket={config.cpus // sockets} ThreadsPerCore=1 "
        f"RealMemory={config.memory_mb}{gres} State=UNKNOWN"
    )


def _merge(settings: dict[str, str], lines: tuple[str, ...]) -> list[str]:
    """Put the user's lines into ``settings``; return those that name objects."""
    spelled = {key.lower(): key for key in settings}
    extra = []
    for line in lines:
        key, _, value = line.partition("=")
        key = key.strip()
        if key.lower() in _REPEATED:
            extra.append(line)
            continue
        own = spelled.setdefault(key.lower(), key)
        new, old = value.strip(), settings.get(own)
        if key.lower() in _LISTS and old:
            # An added item replaces an own one of the same key.
            items = {item.partition("=")[0]: item for item in (*old.split(","), *new.split(","))}
            new = ",".join(items.values())
        settings[own] = new
    return extra


# -- the machine's files -----------------------------------------------------------------------------


def passwd(config: SandboxConfig, machine: str) -> str:
    """Return the machine's /etc/passwd with the sandbox's users in place of their namesakes and uids."""
    # Not "x": without a line in /etc/shadow su would fail, which slurmd asks for a user's environment.
    own = [f"{user}:*:{config.uid(user)}:{config.uid(user)}::/home/{user}:/bin/bash" for user in config.users]
    return _join(_without(config, machine), own)


def group(config: SandboxConfig, machine: str) -> str:
    """Return the machine's /etc/group with one group per user."""
    own = [f"{user}:x:{config.uid(user)}:" for user in config.users]
    return _join(_without(config, machine), own)


def hosts(config: SandboxConfig) -> str:
    """Return /etc/hosts: every node of the sandbox, and nothing else."""
    return _join(["127.0.0.1 localhost"], [f"{config.address(node)} {node}" for node in config.all_names])


def nsswitch() -> str:
    """Return /etc/nsswitch.conf without DNS and directory services.

    torch's TCPStore looks every peer up backwards: an unreachable name server costs 20 s per start.
    """
    return "passwd: files\ngroup: files\nshadow: files\nhosts: files\nservices: files\nprotocols: files\n"


def profile(path: str) -> str:
    """Return ~/.profile and ~/.bashrc of a user: a login shell resets PATH, so it is set again."""
    return f"export PATH={path}\n"


def _without(config: SandboxConfig, machine: str) -> list[str]:
    uids = {str(config.uid(user)) for user in config.users}
    kept = []
    for line in machine.splitlines():
        fields = line.split(":")
        if len(fields) > 2 and (fields[0] in config.users or fields[2] in uids):
            continue
        kept.append(line)
    return kept


def _join(first: list[str], second: list[str]) -> str:
    return "\n".join([*first, *second]) + "\n"
