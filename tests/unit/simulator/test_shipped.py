"""The specs that the package brings."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.simulator.shipped import NoSuchSpec, located, names
from slurm_robust.simulator.spec import read


@pytest.mark.parametrize("name", names())
def test_each_shipped_spec_can_be_read_and_says_what_it_is(name: str) -> None:
    path = located(Path(name))
    assert read(path).name
    assert path.read_text().startswith("# ")


def test_a_file_comes_before_a_shipped_spec_and_a_yaml_file_is_always_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("llama3").write_text("time: 1 day")
    assert read(located(Path("llama3"))).time == "1 day"
    assert located(Path("llama3.yaml")) == Path("llama3.yaml")


def test_an_unknown_name_is_answered_by_the_names_that_there_are() -> None:
    with pytest.raises(NoSuchSpec) as like:
        located(Path("lama3"))
    assert like.value.fix == "did you mean llama3?"
    with pytest.raises(NoSuchSpec) as unlike:
        located(Path("x"))
    assert "byterobust-dense" in unlike.value.fix
