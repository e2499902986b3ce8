"""How the steps of a job get into its container."""

from __future__ import annotations

from slurm_robust.model.record import Record


class Container(Record):
    """What puts a step of the job into the image that the job names; by default nothing does."""

    srun_options: tuple[str, ...] = ()
    """Options of srun, each ``--name`` or ``--name=value``."""

    python: tuple[str, ...] = ()
    """The words that start the Python inside; () for that of this process."""

    def inside(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """Return ``command``, which begins with this process's Python, as it runs in the container."""
        return (*self.python, *command[1:]) if self.python else command


OUTSIDE = Container()
