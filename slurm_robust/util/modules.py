"""Names of Python modules that processes tell each other: which are well formed, which are installed."""

from __future__ import annotations

import keyword
import os
import site
import sys
import sysconfig
from collections.abc import Iterable
from functools import cache
from importlib.machinery import ModuleSpec

MAX_MODULES = 256
MAX_CHARS = 8192
"""The length of all names together."""
_MAX_NAME = 120


def clean_names(names: Iterable[object]) -> tuple[str, ...]:
    """Keep the ``names`` that an import statement could name, in their order, each once, bounded.

    Names of packages come before those of their modules, and stay if there are too many.
    """
    valid = dict.fromkeys(name for name in names if isinstance(name, str) and _is_name(name))
    found: list[str] = []
    chars = 0
    for name in sorted(valid, key=lambda name: name.count(".")):
        chars += len(name)
        if len(found) == MAX_MODULES or chars > MAX_CHARS:
            break
        found.append(name)
    return tuple(found)


def _is_name(name: str) -> bool:
    parts = name.split(".")
    return (
        len(name) <= _MAX_NAME
        and name.isascii()
        and all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)
        and parts[0] not in ("__main__", "__mp_main__")
    )


def is_installed(spec: ModuleSpec | None) -> bool:
    """Tell a module of the standard library or of an installed package from one of the user's own folders.

    A package that is installed in place (``pip install -e``) is the user's own.
    """
    return spec is not None and bool(spec.origin) and is_installed_file(str(spec.origin))


def is_installed_file(path: str) -> bool:
    """Return the same by the file that a module comes from."""
    return os.path.isabs(path) and path.startswith(_folders())


@cache
def _folders() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    places = {sysconfig.get_path(name) for name in names}
    places |= {*site.getsitepackages(), site.getusersitepackages()}
    places |= {path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")}
    both = places | {os.path.realpath(place) for place in places}
    return tuple(sorted(place.rstrip("/") + "/" for place in both))
