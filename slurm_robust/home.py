"""Where the project, the pages of its documentation and this very program are."""

from __future__ import annotations

import re
from pathlib import Path

HOME = "https://github.com/slurm-robust/slurm_robust"
"""The address of the repository; ``[project.urls]`` of pyproject.toml has the same."""


PACKAGE_TREE = Path("/usr/lib/slurm-robust")
"""Where a .deb or .rpm has its modules."""


def is_packaged() -> bool:
    """Return whether this very program is of a .deb or .rpm: the node's side, without PyTorch."""
    return Path(__file__).resolve().is_relative_to(PACKAGE_TREE)


def page(name: str) -> str:
    """Return the address of a page of the documentation: ``containers.md``, ``detection.md#silence``.

    An installed package has no folder ``docs``.
    """
    return f"{HOME}/blob/main/docs/{name}"


def with_addresses(text: str) -> str:
    """Return ``text`` with the address of each page that it names as ``docs/containers.md``."""
    return re.sub(r"(?<![\w/])docs/([\w/-]+\.md)", lambda found: page(found[1]), text)
