"""What the package asks for, and the versions of it that tools/setup.sh installs for the tests."""

from __future__ import annotations

import importlib.metadata as metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PINS = Path(__file__).resolve().parents[2] / "tools" / "constraints.txt"
# pyslurm is compiled for one release of Slurm, so a site chooses it; the other is this package itself.
NOT_PINNED = {"pyslurm", "slurm_robust"}

ASKED = [
    requirement
    for requirement in map(Requirement, metadata.requires("slurm_robust") or ())
    if requirement.name not in NOT_PINNED
]


def pinned() -> dict[str, str]:
    lines = [line for line in PINS.read_text().splitlines() if not line.startswith("#")]
    pins = {requirement.name: str(requirement.specifier) for requirement in map(Requirement, lines)}
    assert len(pins) == len(lines), "each package once"
    return {canonicalize_name(name): version.removeprefix("==") for name, version in pins.items()}


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_the_tests_pin_what_the_package_asks_for(asked: Requirement) -> None:
    assert asked.specifier.contains(pinned()[canonicalize_name(asked.name)])


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_the_package_keeps_nobody_from_a_newer_release(asked: Requirement) -> None:
    assert {part.operator for part in asked.specifier} <= {">="}
