"""The packages' copyright file against the distributions that are installed here, which they bundle."""

from __future__ import annotations

import importlib.metadata as metadata
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
# Only agents use it, in the environment of the training.
NOT_BUNDLED = {"py-spy"}


@pytest.fixture(scope="module")
def table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("copyright_file", ROOT / "packaging" / "copyright.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses looks
    spec.loader.exec_module(module)
    return module


def bundled(name: str, known: set[str]) -> Iterator[metadata.Distribution]:
    """The distribution and all that it needs."""
    if name.lower() in known | NOT_BUNDLED:
        return
    known.add(name.lower())
    found = metadata.distribution(name)
    yield found
    for requirement in map(Requirement, found.requires or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield from bundled(requirement.name, known)


@pytest.fixture
def lib(tmp_path: Path) -> Path:
    """The folder of modules as packaging/build.sh fills it, by links."""
    ours, *others = bundled("slurm_robust", set())
    for name, text in {
        "python": "",
        "slurm_robust/__init__.py": "",
        "slurm_robust/simulator/data/infinitehbd.csv": "",
        "slurm_robust-0.dist-info/METADATA": str(ours.metadata),
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for one in others:
        for file in one.files or ():
            name, source = str(file), Path(str(one.locate_file(file)))
            if name.startswith("..") or "__pycache__" in name or not source.exists():
                continue
            if name == "example.py" or (name.startswith("zmq/") and source.suffix in (".pxd", ".h", ".c")):
                continue
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).symlink_to(source)
    return tmp_path


def test_the_licence_table_tells_of_everything_that_is_bundled(table: ModuleType, lib: Path) -> None:
    text = table.text(lib)
    for holder in (
        "the authors of InfiniteHBD-Trace",
        "Robey Pointer",
        "the contributors of libzmq",
        "Frank Denis",
        "Yann Collet",
        "YaoYuan",
    ):
        assert re.search(rf"^(Copyright:)? .*{re.escape(holder)}", text, re.MULTILINE), holder
    for of_a_license in (
        "Mozilla Public License Version 2.0",
        "GNU LESSER GENERAL PUBLIC LICENSE",
        "Neither the name of the NVIDIA Corporation",
        "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION",
    ):
        assert of_a_license in text
    # A line begins a field, goes on with one, or is between two paragraphs.
    assert [line for line in text.splitlines() if not re.fullmatch(r"([A-Z][A-Za-z-]+: .+| .+|)", line)] == []


def test_the_licence_table_names_each_licence_once(table: ModuleType) -> None:
    assert (
        table.expression()
        == "Apache-2.0 AND BSD-2-Clause AND BSD-3-Clause AND ISC AND LGPL-2.1-or-later AND MIT AND MPL-2.0"
    )


def test_the_licence_table_misses_a_new_package_or_library(table: ModuleType, lib: Path) -> None:
    folder = lib / "other-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.4\nName: other\nVersion: 1.0\nLicense: GPL-3.0\n")
    (lib / "pyzmq.libs" / "libother-1234.so.1").touch()
    with pytest.raises(table.Incomplete) as told:
        table.text(lib)
    assert "other: its metadata says 'GPL-3.0'" in str(told.value)
    assert "pyzmq.libs/libother-1234.so.1: of no work" in str(told.value)


def test_the_licence_table_misses_a_package_that_changed_its_licence_or_is_gone(
    table: ModuleType, lib: Path
) -> None:
    (rich,) = lib.glob("rich-*.dist-info/METADATA")
    changed = rich.read_text().replace("\nLicense: MIT\n", "\nLicense: GPL-3.0\n")
    rich.unlink()
    rich.write_text(changed)
    (psutil,) = lib.glob("psutil-*.dist-info/METADATA")
    psutil.unlink()
    (libsodium,) = lib.glob("pyzmq.libs/libsodium-*")
    libsodium.unlink()
    with pytest.raises(table.Incomplete) as told:
        table.text(lib)
    assert "rich: its metadata says 'GPL-3.0', SAID 'MIT'" in str(told.value)
    assert "psutil: its metadata says 'nothing, it is not there'" in str(told.value)
    assert "pyzmq.libs/libsodium-*.so*: no such file" in str(told.value)
