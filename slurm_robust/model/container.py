"""How the steps of a job get into its container."""

from __future__ import annotations

from slurm_robust.home import page
from slurm_robust.model.record import Record


class Container(Record):
    """What puts a step of the job into the image that the job names; by default nothing does."""

    srun_options: tuple[str, ...] = ()
    """Options of srun, each ``--name`` or ``--name=value``."""

    python: tuple[str, ...] = ()
    """The words that start the Python inside; () for that of this process."""

    key: str = ""
    """The key of the configuration that starts a container: ``agents.wrapper`` or ``agents.srun_options``."""

    def inside(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """Return ``command``, which begins with this process's Python, as it runs in the container."""
        return (*self.python, *command[1:]) if self.python else command

    def mount(self, path: str) -> str:
        """Return what lets the container see ``path``; "" without a container."""
        if not self.key:
            return ""
        how = (
            f"--container-mounts={path}:{path}" if self.srun_options else f"--bind {path} (docker: --volume)"
        )
        return f"have the container mount {path}: {how} in {self.key}, see {page('containers.md')}"


OUTSIDE = Container()
