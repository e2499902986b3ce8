"""A library that is missing is named with what installs it, before anything else is asked."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from slurm_robust import home
from slurm_robust.cli.main import main
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.libraries import EXTRAS, need

PYPROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"


@pytest.mark.parametrize(("library", "extra"), EXTRAS.items())
def test_the_extra_brings_the_library(library: str, extra: str) -> None:
    (listed,) = re.findall(rf"^{extra} = \[(.*?)\]", PYPROJECT.read_text(), re.MULTILINE | re.DOTALL)
    assert f'"{library}' in listed


NEEDING = pytest.mark.parametrize(
    ("argv", "library"),
    [
        ("top 4711", "textual"),
        ("report 4711 --html a.html", "jinja2"),
        ("trace 4711 --otlp http://localhost:1", "opentelemetry"),
        ("checkpoint export 4711 latest --to a", "torch"),
        ("fleet", "sqlalchemy"),
        ("incidents --all", "sqlalchemy"),
        ("admin fleet collect", "sqlalchemy"),
        ("admin fleet forget --days 9", "sqlalchemy"),
    ],
)


@NEEDING
def test_a_missing_library_is_named_first(
    argv: str, library: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    assert main(argv.split()) == ExitCode.REFUSED
    said = capsys.readouterr().err
    assert f" needs {library}, which is not installed\n" in said
    assert f"fix: pip install 'slurm_robust[{EXTRAS[library]}]'" in said


@NEEDING
def test_the_node_package_sends_to_an_environment_of_its_own(
    argv: str, library: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It sees its own modules alone: a bare ``pip install`` would change nothing."""
    monkeypatch.setattr(home, "PACKAGE_TREE", Path(home.__file__).resolve().parent)
    monkeypatch.setitem(sys.modules, library, None)
    assert main(argv.split()) == ExitCode.REFUSED
    said = capsys.readouterr().err
    assert f" needs {library}, which is not installed\n" in said
    assert f"DIR/bin/pip install 'slurm_robust[{EXTRAS[library]}]'" in said
    assert "fix: pip install" not in said


def test_a_library_that_is_there_is_not_imported() -> None:
    before = {*sys.modules}
    need("jinja2", "a page")
    assert not {name for name in {*sys.modules} - before if name.startswith("jinja2")}
