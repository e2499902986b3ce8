"""PyTorch without its compiler, which the trainings of the tests do not need, and which is nearly half of it.

Python imports this module by itself, from a folder in PYTHONPATH.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# The second one is the compiler's door to sympy, and DTensor's.
COMPILER = ("torch._dynamo", "torch.fx.experimental.symbolic_shapes")


class Hollow(ModuleType):
    """A module of whatever is asked for: called, it gives back what it got, a function not to be compiled."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, given: object = None, *_: object, **__: object) -> object:
        return given


class Finder(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in COMPILER else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Hollow(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is no more to it."""


sys.meta_path.insert(0, Finder())
