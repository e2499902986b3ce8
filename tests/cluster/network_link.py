"""A network link of a node's own, and a configuration of the node's own that names it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from slurm_robust.sandbox import Sandbox

LINK, FAR = "rail0", "far0"

_ADD = f"""set -e
ip link add {LINK} type veth peer name {FAR}
ip link set {LINK} up
ip link set {FAR} up
"""
# Each node has its own /run, but all have one /etc: a copy in its place takes the configuration.
_CONFIGURE = f"""set -e
cp -a /etc /run/etc
mkdir -p /run/etc/slurm-robust
printf 'network: {{ethernet: [{LINK}]}}\\n' > /run/etc/slurm-robust/config.yaml
mount --bind /run/etc /etc
"""
_RESTORE = f"""set -e
ip link delete {LINK}
umount --lazy /etc
rm -r --one-file-system /run/etc
"""


@contextmanager
def rail(sandbox: Sandbox, node: str) -> Iterator[None]:
    """The link, and the configuration that names it."""
    add(sandbox, node)
    configure(sandbox, node)
    try:
        yield
    finally:
        _root(sandbox, node, _RESTORE)


def add(sandbox: Sandbox, node: str) -> None:
    """The link alone, with carrier; it goes with the node."""
    _root(sandbox, node, _ADD)


def configure(sandbox: Sandbox, node: str) -> None:
    """What the node does from now on sees the configuration; it goes with the node."""
    _root(sandbox, node, _CONFIGURE)


def far_end(sandbox: Sandbox, node: str, *states: str) -> None:
    """The link's other end goes ``up`` or ``down``, one state after the other: carrier comes or is lost."""
    _root(sandbox, node, " && ".join(f"ip link set {FAR} {state}" for state in states))


def _root(sandbox: Sandbox, node: str, script: str) -> None:
    sandbox.exec(["sh", "-c", script], node=node, user="root", timeout_s=30.0)
