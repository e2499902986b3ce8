"""Which files are code by their names: a list of what is known to be, since anything else may be written."""

from __future__ import annotations

_SOURCES = (
    *(".py", ".pyi", ".pyx", ".pxd", ".so", ".sh", ".bash"),
    *(".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hpp", ".hip", ".rs"),
)
_BESIDE_SOURCES = (
    *(".toml", ".yaml", ".yml", ".ini", ".cfg", ".jinja", ".jinja2", ".j2"),
    *(".proto", ".sql", ".cmake", ".ipynb"),
)
_NAMES = ("Makefile", "Dockerfile", ".gitignore", ".srobustignore")
_REQUIREMENTS = ("requirements", ".txt")


def is_source(name: str) -> bool:
    """Return whether a file is code wherever it lies. Scripts write no such files, or mean a copy of code."""
    return name.endswith(_SOURCES)


def is_code(name: str) -> bool:
    """Return whether a file is code in a folder with sources.

    In other folders it may be an output: programs write their configuration beside their checkpoints.
    """
    return (
        is_source(name)
        or name.endswith(_BESIDE_SOURCES)
        or name in _NAMES
        or (name.startswith(_REQUIREMENTS[0]) and name.endswith(_REQUIREMENTS[1]))
    )
