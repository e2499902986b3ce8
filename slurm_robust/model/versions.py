"""Versions of PyTorch as numbers that compare."""

from __future__ import annotations

import re


def numbers(version: str) -> tuple[int, ...]:
    """The release: (2, 13) of ``2.13.0+cpu``."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
