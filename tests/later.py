"""Frameworks that tests need in the process of pytest: imported when one of them runs, not for collection."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import pytest


class Later:
    """A module, imported when something of it is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(("__", "_mock")):
            raise AttributeError(attribute)  # pytest asks each name in a module what it is
        return getattr(importlib.import_module(self._name), attribute)


def skip_without(framework: str) -> None:
    """Skip the test, or all of the module, that calls this where ``framework`` is not installed."""
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed", allow_module_level=True)
