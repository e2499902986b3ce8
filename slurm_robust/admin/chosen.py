"""The nodes that a command line names."""

from __future__ import annotations

from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.util.hostlist import InvalidHostlist, expand


class NotNodes(SrobustError):
    """The argument is no hostlist."""

    exit_code = ExitCode.USAGE
    fix = "name nodes as Slurm does, for example gpu[001-004,007]"


def chosen(hostlist: str) -> tuple[str, ...]:
    """The names, none for no argument. Raises :class:`NotNodes`."""
    try:
        return expand(hostlist)
    except InvalidHostlist as error:
        raise NotNodes(str(error)) from error
