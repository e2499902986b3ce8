"""What a Python runs first that is the user's program or was started by it: ``PYTHONPATH`` has a link to it.

What such a Python creates below the copy of its release gets to its real place. Then it goes on with the
``sitecustomize`` that it would have run otherwise.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def _begin(folder: str) -> None:
    try:
        from slurm_robust.worker.copied import content_of
        from slurm_robust.worker.creations import Creations
    except ImportError:
        return  # another environment
    if (content := content_of(os.path.dirname(folder))) is not None:
        Creations(content.copy).begin()


def _go_on(folder: str) -> None:
    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if entry != folder])
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    _begin(os.path.dirname(__file__))
    _go_on(os.path.dirname(__file__))
