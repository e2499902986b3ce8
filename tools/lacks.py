"""Say which packages this Python lacks: ``python -m tools.lacks torch msgspec``. Installs nothing."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable

# Where the module has another name than the package.
_MODULES = {"nvidia-ml-py": "pynvml", "pytest-timeout": "pytest_timeout", "pyyaml": "yaml", "pyzmq": "zmq"}

OURS = ("msgspec", "nvidia-ml-py", "pathspec", "psutil", "pyyaml", "pyzmq", "rich", "torch", "xxhash")
"""What slurm_robust and its benchmarks import."""


def lacks(packages: Iterable[str]) -> str:
    """Name those that are not installed and the way to install them; "" if none is missing."""
    missing = [name for name in packages if importlib.util.find_spec(_MODULES.get(name, name)) is None]
    if not missing:
        return ""
    return f"{sys.executable} lacks {', '.join(missing)}: {sys.executable} -m pip install {' '.join(missing)}"


if __name__ == "__main__":
    sys.exit(lacks([*OURS, *sys.argv[1:]]) or None)
