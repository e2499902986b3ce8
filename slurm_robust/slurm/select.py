"""Which client to use on this site."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from slurm_robust.slurm.cli_client import CliSlurmClient
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import BackendUnavailable
from slurm_robust.slurm.pyslurm_client import PyslurmClient, PyslurmHelper

BACKENDS = ("auto", "cli", "pyslurm")


def make_client(
    backend: str = "auto",
    timeout_s: float = 30.0,
    *,
    installed: Callable[[], bool] | None = None,
    helper: PyslurmHelper | None = None,
) -> SlurmClient:
    """Return the client for ``backend``: ``cli``, ``pyslurm`` or ``auto``.

    ``auto`` takes pyslurm when it imports (in a process of its own) and was built for the site's
    series of Slurm, else the command line. ``pyslurm`` raises :class:`BackendUnavailable` with the
    reason when that is not so. ``installed`` and ``helper`` replace the check of this interpreter.
    """
    if backend not in BACKENDS:
        raise ValueError(f"slurm.backend is {backend!r}; choose one of {', '.join(BACKENDS)}")
    cli = CliSlurmClient(timeout_s)
    if backend == "cli":
        return cli
    # find_spec does not run the module, whose import may end the interpreter.
    present = installed or (lambda: importlib.util.find_spec("pyslurm") is not None)
    if backend == "auto" and not present():
        return cli
    helper = helper or PyslurmHelper(timeout_s)
    try:
        _check(helper, cli)
    except BackendUnavailable:
        helper.close()
        if backend == "pyslurm":
            raise
        return cli
    return PyslurmClient(helper, timeout_s)


def _check(helper: PyslurmHelper, cli: CliSlurmClient) -> None:
    built_for = helper.release()
    site = cli.version()
    if not built_for.same_series(site):
        raise BackendUnavailable(
            f"pyslurm {built_for} was built for Slurm {built_for.major}.{built_for.minor:02d}, "
            f"this site runs {site}; they must match"
        )
