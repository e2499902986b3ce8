"""The contract of SlurmClient through a real pyslurm, where one is installed that fits this machine's Slurm.

On others the stand-in of test_slurm_contract tells the same of all but pyslurm itself.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from slurm_robust.slurm.pyslurm_client import HELPER_COMMAND, PyslurmClient, PyslurmHelper
from tests.cluster.test_slurm_contract import SETTINGS, RealWorld
from tests.contracts.slurm import SlurmContract

if TYPE_CHECKING:
    from slurm_robust.sandbox import Sandbox

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    # Not imported here: that ends the interpreter where there is no slurm.conf.
    pytest.mark.skipif(importlib.util.find_spec("pyslurm") is None, reason="pyslurm is not installed"),
]


def inside(sandbox: Sandbox, user: str) -> PyslurmClient:
    """A client whose helper runs on the head node, where pyslurm finds slurm.conf and munge."""
    prefix = sandbox.enter_command(user=user)
    helper = PyslurmHelper(30.0, command=(*prefix, *HELPER_COMMAND))
    client = PyslurmClient(helper, prefix=prefix)
    built_for, slurm = helper.release(), client.version()
    if not built_for.same_series(slurm):
        client.close()
        pytest.skip(f"pyslurm was built for {built_for}, this is Slurm {slurm}")
    return client


class TestRealPyslurm(SlurmContract):
    @pytest.fixture
    def world(self, sandboxes: Callable[..., Sandbox], tmp_path: Path) -> Iterator[RealWorld]:
        sandbox = sandboxes(**SETTINGS)
        world = RealWorld(sandbox, tmp_path)
        clients = inside(sandbox, world.user), inside(sandbox, "root")
        world.client, world.operator = clients
        yield world
        for client in clients:
            client.close()
