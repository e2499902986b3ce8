"""Real Slurm clusters for tests: booted once per configuration, healed between tests.

``sandbox`` is the usual one; ``sandboxes(nodes=2, ...)`` gives one of any other ``SandboxConfig``.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from slurm_robust.sandbox import Sandbox, SandboxConfig

pytest_plugins = ["tests.flaky", "tests.longest_first", "tests.rewritten"]

# What nohup and a shell's & ignore, processes started by tests would ignore too: a handler ends with an exec.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# How wide output is must not depend on the terminal from which tests are started.
os.environ.pop("COLUMNS", None)

# Nearly all that is imported and collected stays: to look for garbage in it takes a third of the time.
gc.disable()


def pytest_pycollect_makeitem(obj: object) -> list[pytest.Item] | None:
    """Take no class of the package for tests, as pytest does with each whose name begins with Test."""
    return [] if isinstance(obj, type) and obj.__module__.startswith("slurm_robust.") else None


def pytest_collection_finish() -> None:
    """Look for garbage in what tests make only; a fork of this process then leaves the rest alone too."""
    gc.collect()
    gc.freeze()
    gc.enable()


# A busy machine makes an example slow, which is no defect of what it tests.
settings.register_profile("srobust", parent=settings(), deadline=None)
settings.load_profile("srobust")

# What most tests need: a lost node is noticed and a job comes back within seconds, not minutes.
USUAL = '{"nodes": 4, "slurmd_timeout_s": 20, "cred_expire_s": 5}'

# In one process. Each costs some 200 MB, and CPU for its daemons' timers.
MAX_AT_ONCE = 3


# Where the node's side writes by default.
NODE_FOLDERS = (Path("/var/lib/slurm-robust"), Path("/var/log/slurm-robust"))


class SandboxPool:
    """Shared sandboxes by configuration. One that a test has used is healed before the next test gets it."""

    def __init__(self) -> None:
        self._up: dict[SandboxConfig, Sandbox] = {}
        self._used: set[str] = set()
        self._count = 0

    def get(self, config: SandboxConfig) -> Sandbox:
        """A sandbox of that configuration with all nodes idle and no job."""
        from slurm_robust.sandbox import Sandbox, SandboxError
        from slurm_robust.sandbox.heal import heal

        known = self._up.pop(config, None)
        if known is not None and known.name in self._used:
            try:
                heal(known)
            except (SandboxError, OSError) as error:
                print(f"sandbox {known.name} cannot be healed, a new one is booted: {error}")
                known.down()
                known = None
        while known is None and len(self._up) >= MAX_AT_ONCE:
            self._up.pop(next(iter(self._up))).down()  # The one that was not asked for for longest.
        if known is None:
            self._count += 1
            known = Sandbox.up(config, name=f"pytest-{os.getpid()}-{self._count}")
        self._up[config] = known
        self._used.add(known.name)
        return known

    def down(self) -> None:
        """End all."""
        for sandbox in self._up.values():
            sandbox.down()
        self._up.clear()


def _end_orphans() -> None:
    """End sandboxes of test runs that were killed; those of runs beside this one go on."""
    from slurm_robust.sandbox.sandbox import sandbox_names
    from slurm_robust.sandbox.teardown import take_down

    for name in sandbox_names():
        owner = re.fullmatch(r"pytest-(\d+)-\d+", name)
        if owner and not Path(f"/proc/{owner.group(1)}").exists():
            take_down(name)


@pytest.fixture(scope="session", autouse=True)
def _no_folders_left() -> Iterator[None]:
    """Nodes of a sandbox share the machine's /var: a hook without its configuration writes there.

    That may be one that runs while a test takes its installation away. What was there before stays.
    """
    new = [folder for folder in NODE_FOLDERS if not folder.exists()]
    yield
    for folder in new:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def sandbox_pool(_no_folders_left: None) -> Iterator[SandboxPool]:
    """The session's sandboxes. Skips where none can run, or fails if SROBUST_REQUIRE_CLUSTER=1."""
    from slurm_robust.sandbox.errors import RequirementMissing
    from slurm_robust.sandbox.sandbox import check_machine

    try:
        check_machine(accounting=True)
    except RequirementMissing as error:
        if os.environ.get("SROBUST_REQUIRE_CLUSTER") == "1":
            pytest.fail(f"SROBUST_REQUIRE_CLUSTER=1, but {error}")
        pytest.skip(str(error))
    _end_orphans()
    pool = SandboxPool()
    try:
        yield pool
    finally:
        pool.down()


@pytest.fixture
def sandboxes(sandbox_pool: SandboxPool) -> Callable[..., Sandbox]:
    """Factory: ``sandboxes(nodes=3, gpus_per_node=2)`` is a cluster of that configuration, as good as new."""
    from slurm_robust.sandbox import SandboxConfig

    def make(**settings: object) -> Sandbox:
        return sandbox_pool.get(SandboxConfig(**settings))  # type: ignore[arg-type]  # checked at run time

    return make


@pytest.fixture(scope="module")
def shared_sandbox(sandbox_pool: SandboxPool) -> Sandbox:
    """The usual sandbox for fixtures that outlive a test. ``sandbox`` is the same one, healed."""
    from slurm_robust.sandbox import SandboxConfig

    return sandbox_pool.get(SandboxConfig.from_json(USUAL))


@pytest.fixture
def sandbox(shared_sandbox: Sandbox, sandbox_pool: SandboxPool) -> Sandbox:
    """The usual sandbox: four nodes, all idle, no job, whatever the test before did to it."""
    return sandbox_pool.get(shared_sandbox.config)
