"""A client that changes nothing in Slurm once another controller has the job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import NotFenced

CHANGES = frozenset(
    {
        "requeue",
        "forbid_requeue",
        "release",
        "start_now",
        "set_excluded_nodes",
        "set_required_nodes",
        "set_size",
        "set_comment",
        "shrink",
        "cancel",
        "submit",
        "launch_step",
    }
)
"""What may harm a job that another controller runs."""


def fenced(client: SlurmClient, is_ours: Callable[[], bool]) -> SlurmClient:
    """Return ``client``, whose :data:`CHANGES` raise ``NotFenced`` unless ``is_ours``.

    ``is_ours`` is asked before each of them, and may raise ``OSError``.
    """
    return cast(SlurmClient, _Fenced(client, is_ours))


class _Fenced:
    def __init__(self, client: SlurmClient, is_ours: Callable[[], bool]) -> None:
        self._client = client
        self._is_ours = is_ours

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name not in CHANGES:
            return found

        def change(*args: Any, **kwargs: Any) -> Any:
            try:
                is_ours = self._is_ours()
            except OSError as error:
                raise NotFenced(
                    f"storage does not say whether another controller has the job: {error}"
                ) from error
            if not is_ours:
                raise NotFenced("another controller has taken over")
            return found(*args, **kwargs)

        return change
