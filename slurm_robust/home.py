"""Where the project and the pages of its documentation are: an installed package has no folder ``docs``."""

from __future__ import annotations

import re

HOME = "https://github.com/slurm-robust/slurm_robust"
"""The address of the repository; ``[project.urls]`` of pyproject.toml has the same."""


def page(name: str) -> str:
    """Return the address of a page of the documentation: ``containers.md``, ``detection.md#silence``."""
    return f"{HOME}/blob/main/docs/{name}"


def with_addresses(text: str) -> str:
    """Return ``text`` with the address of each page that it names as ``docs/containers.md``."""
    return re.sub(r"(?<![\w/])docs/([\w/-]+\.md)", lambda found: page(found[1]), text)
