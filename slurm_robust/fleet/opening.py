"""Which index a command uses, and opening it; SQLAlchemy is imported only then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from slurm_robust.config.node import NodeConfig
from slurm_robust.fleet.errors import NoIndex, NoLibrary

if TYPE_CHECKING:
    from slurm_robust.fleet.index import FleetIndex

ENVIRONMENT = "SROBUST_FLEET_INDEX"


def index_url(given: str | None, environ: Mapping[str, str], config: NodeConfig) -> str:
    """Return the option, else the environment, else the node's configuration; "" if none names an index."""
    return given or environ.get(ENVIRONMENT, "") or config.fleet.index


def open_index(url: str, *, create: bool = False, patience_s: float | None = None) -> FleetIndex:
    """Return the index at ``url``. Raises the errors of :mod:`slurm_robust.fleet.errors`."""
    if not url:
        raise NoIndex(
            "no fleet index is configured",
            fix=f"name one: --index URL, {ENVIRONMENT}, or fleet.index in /etc/slurm-robust/config.yaml",
        )
    try:
        from slurm_robust.fleet.index import PATIENCE_S, FleetIndex
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "sqlalchemy":
            raise
        raise NoLibrary("SQLAlchemy") from error
    try:
        return FleetIndex(url, create=create, patience_s=PATIENCE_S if patience_s is None else patience_s)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "psycopg":
            raise
        raise NoLibrary("psycopg") from error
