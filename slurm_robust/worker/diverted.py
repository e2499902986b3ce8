"""Files that a script must not write in their place are written elsewhere: only the script finds them there.

This holds for Python's own ``open``, ``os.rename`` and ``os.replace``: logs and reports, mostly. The kernel
refuses what libraries in C write (:mod:`slurm_robust.util.confine`).
"""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Iterable
from typing import Any

_CHANGING = frozenset("wax+")


class Diversion:
    """Everything outside of the folders ``allowed`` is written below ``beside`` instead."""

    def __init__(self, allowed: Iterable[str], beside: str) -> None:
        self._allowed = tuple(os.path.realpath(folder).rstrip("/") + "/" for folder in allowed)
        self._beside = beside

    def begin(self) -> None:
        """Begin, in this process and its forks."""
        open_, rename, replace = io.open, os.rename, os.replace

        def divert_open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            place = self._place(file)
            if place is not None and _CHANGING & set(mode) and not ("x" in mode and os.path.exists(file)):
                os.makedirs(os.path.dirname(place), exist_ok=True)
                if "r" in mode and not os.path.exists(place):  # r+: it is changed in part
                    with open_(file, "rb") as old, open_(place, "wb") as new:
                        new.write(old.read())
                return open_(place, mode, *args, **kwargs)
            if place is not None and os.path.exists(place):
                return open_(place, mode, *args, **kwargs)
            return open_(file, mode, *args, **kwargs)

        def divert_move(move: Any) -> Any:
            def moved(source: Any, target: Any, **kwargs: Any) -> None:
                old, new = self._place(source), self._place(target)
                if old is None or new is None or not os.path.exists(old):
                    move(source, target, **kwargs)
                    return
                os.makedirs(os.path.dirname(new), exist_ok=True)
                move(old, new)

            return moved

        builtins.open = io.open = divert_open
        os.rename, os.replace = divert_move(rename), divert_move(replace)

    def _place(self, file: Any) -> str | None:
        """Return the path to which ``file`` is written instead; None if it may be written itself."""
        if not isinstance(file, (str, bytes, os.PathLike)):
            return None  # a descriptor
        path = os.path.realpath(os.fsdecode(file))
        return None if f"{path}/".startswith(self._allowed) else self._beside + path
