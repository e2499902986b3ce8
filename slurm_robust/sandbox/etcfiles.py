"""The files in /etc that every node of a sandbox sees instead of the machine's. Pure text."""

from __future__ import annotations

from slurm_robust.sandbox.config import SandboxConfig


def passwd(config: SandboxConfig, machine: str) -> str:
    """The machine's /etc/passwd with the sandbox's users put in place of those of their names and uids."""
    # Not "x": without a line in /etc/shadow su would fail, which slurmd asks for a user's environment.
    own = [f"{user}:*:{config.uid(user)}:{config.uid(user)}::/home/{user}:/bin/bash" for user in config.users]
    return _join(_without(config, machine), own)


def group(config: SandboxConfig, machine: str) -> str:
    """The machine's /etc/group with one group per user."""
    own = [f"{user}:x:{config.uid(user)}:" for user in config.users]
    return _join(_without(config, machine), own)


def hosts(config: SandboxConfig) -> str:
    """/etc/hosts: every node of the sandbox, and nothing else."""
    return _join(["127.0.0.1 localhost"], [f"{config.address(node)} {node}" for node in config.all_names])


def nsswitch() -> str:
    """/etc/nsswitch.conf without DNS and directory services.

    torch's TCPStore looks every peer up backwards: an unreachable name server costs 20 s per start.
    """
    return "passwd: files\ngroup: files\nshadow: files\nhosts: files\nservices: files\nprotocols: files\n"


def profile(path: str) -> str:
    """~/.profile and ~/.bashrc of a user: a login shell resets PATH, so it is set again."""
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
