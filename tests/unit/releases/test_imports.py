"""What a release imports beside its own files."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_robust.model.job import CommandKind
from slurm_robust.releases.compiles import compiled
from slurm_robust.releases.contents import ReleaseContents, stored, unpacked
from slurm_robust.releases.imports import Imported, imported
from slurm_robust.releases.store import ReleaseStore
from slurm_robust.releases.take import Taking, take
from slurm_robust.releases.unpack import unpack
from tests.unit.releases.conftest import Write


def contents(store: ReleaseStore, wish: Taking) -> ReleaseContents:
    return stored(store, take(store, wish).name)


def of(store: ReleaseStore, wish: Taking) -> Imported:
    return imported(contents(store, wish), wish.cwd)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("import torch", ("torch",)),
        ("import torch.nn as nn, numpy", ("numpy", "torch.nn")),
        ("from torch.distributed.fsdp import FSDP", ("torch.distributed.fsdp",)),
        ("import os, sys, json", ()),
        ("from __future__ import annotations", ()),
        ("with open('x') as f:\n    import torch", ("torch",)),
        ("class A:\n    import torch", ("torch",)),
        ("if __name__ == '__main__':\n    import torch", ("torch",)),
        ("try:\n    import torch\nfinally:\n    pass", ("torch",)),
        ("try:\n    import torch\nexcept KeyError:\n    pass", ("torch",)),
        # Whether these are needed does not show without running the script.
        ("try:\n    import flash_attn\nexcept ImportError:\n    flash_attn = None", ()),
        ("try:\n    import flash_attn\nexcept (ValueError, ModuleNotFoundError):\n    pass", ()),
        ("try:\n    import flash_attn\nexcept:\n    pass", ()),
        ("try:\n    import flash_attn\nexcept some.Thing:\n    pass", ()),
        ("if TYPE_CHECKING:\n    import torch", ()),
        ("if argv:\n    import torch", ()),
        ("def f():\n    import torch", ()),
        ("for i in x:\n    import torch", ()),
        ("__import__('torch')", ()),
    ],
)
def test_only_what_is_imported_in_any_case_is_asked_of_a_node(
    store: ReleaseStore, wish: Taking, write: Write, line: str, names: tuple[str, ...]
) -> None:
    write({"train.py": line})
    assert of(store, wish).modules == names


def test_imports_are_followed_through_the_copy(store: ReleaseStore, wish: Taking, write: Write) -> None:
    write(
        {
            "train.py": "import model\nfrom layers import mlp\nfrom layers.norm import rms",
            "model.py": "import torch",
            "layers/__init__.py": "import einops",
            "layers/mlp.py": "from .norm import rms\nfrom . import wide",
            "layers/norm.py": "import triton",
            "layers/wide.py": "import xformers",
            "unused.py": "import tensorflow",
        }
    )
    found = of(store, wish)
    assert found.modules == ("torch", "einops", "triton", "xformers")
    layers = [f"code/layers/{name}.py" for name in ("__init__", "mlp", "norm", "wide")]
    assert sorted(found.files) == [*layers, "code/model.py", "code/train.py"]


def test_a_folder_without_init_is_a_package(store: ReleaseStore, wish: Taking, write: Write) -> None:
    write(
        {
            "train.py": "from utils import io\nimport utils.log",
            "utils/io.py": "import h5py",
            "utils/log.py": "",
        }
    )
    assert of(store, wish).modules == ("h5py",)


def test_what_the_script_may_put_into_its_path_is_not_asked_of_a_node(
    store: ReleaseStore, wish: Taking, write: Write
) -> None:
    write(
        {
            "train.py": "import sys; sys.path.append('src')\nimport mylib",
            "src/mylib/__init__.py": "import yaml",
        }
    )
    assert of(store, wish).modules == ("yaml",)


def test_modules_that_import_each_other_end(store: ReleaseStore, wish: Taking, write: Write) -> None:
    write({"train.py": "import a", "a.py": "import b", "b.py": "import a, train, torch"})
    assert of(store, wish).modules == ("torch",)


def test_a_module_is_followed_from_its_package(store: ReleaseStore, wish: Taking, write: Write) -> None:
    write(
        {
            "mylib/__init__.py": "import yaml",
            "mylib/train.py": "import torch",
            "mylib/__main__.py": "import h5py",
        }
    )
    module = replace(wish, kind=CommandKind.MODULE, command=("mylib.train",))
    assert of(store, module).modules == ("yaml", "torch")
    assert of(store, replace(module, command=("mylib",))).modules == ("yaml", "h5py")


def test_a_package_that_is_a_folder_of_its_own_is_found(
    store: ReleaseStore, wish: Taking, write: Write, tmp_path: Path
) -> None:
    package = tmp_path / "src/mylib"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .ops import f")
    (package / "ops.py").write_text("import triton")
    write({"train.py": "import mylib"})
    assert of(store, replace(wish, roots=(*wish.roots, str(package)))).modules == ("triton",)


def test_an_unpacked_copy_tells_the_same(
    store: ReleaseStore, wish: Taking, write: Write, tmp_path: Path
) -> None:
    write({"train.py": "import model", "model.py": "import torch"})
    release = take(store, wish)
    unpack(store.archive(release.name), release, tmp_path / "copy")
    found = unpacked(store.archive(release.name), release, tmp_path / "copy")
    assert imported(found, wish.cwd) == of(store, wish)


def test_a_script_that_does_not_compile_is_an_error_and_an_unused_file_a_warning(
    store: ReleaseStore, wish: Taking, write: Write, code: Path
) -> None:
    write(
        {
            "train.py": "import model",
            "model.py": "x = 1\ndef f(:\n",
            "old.py": "print 'x'",
            "fine.py": "x = 1",
        }
    )
    found = compiled(contents(store, wish), wish.cwd)
    (error,) = found.errors
    (warning,) = found.warnings
    assert (error.path, error.line) == (f"{code}/model.py", 2)
    assert error.text.endswith("SyntaxError: invalid syntax")
    assert "def f(:" in error.text
    assert warning.path == f"{code}/old.py"


@pytest.mark.parametrize("text", ["x = 1\0", "# coding: klingon\n", "return", "x = " + "(" * 300 + ")" * 300])
def test_whatever_does_not_compile_is_said(
    store: ReleaseStore, wish: Taking, write: Write, text: str
) -> None:
    write({"train.py": text})
    assert len(compiled(contents(store, wish), wish.cwd).errors) == 1


def test_a_program_names_its_script(store: ReleaseStore, wish: Taking, write: Write) -> None:
    write({"train.py": "def f(:"})
    program = replace(wish, kind=CommandKind.EXEC, command=("python", "-u", "train.py", "--lr", "1"))
    assert len(compiled(contents(store, program), wish.cwd).errors) == 1
