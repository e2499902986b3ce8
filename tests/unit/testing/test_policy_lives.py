"""Specs that nobody would write, played by the policy alone: whatever goes wrong, the promises hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.simulator.spec import FaultOf, SimulatedJob, Spec, read
from slurm_robust.simulator.spread import seconds
from slurm_robust.testing.policy_lives.draw import drawn
from slurm_robust.testing.policy_lives.promises import broken_promises
from slurm_robust.testing.policy_lives.shrink import as_plain, as_yaml, shrunk


def test_the_same_seed_draws_the_same_spec() -> None:
    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_lives_of_drawn_specs_keep_all_promises(first: int) -> None:
    broken = {seed: found for seed in range(first, first + 20) if (found := broken_promises(drawn(seed), 0))}
    assert broken == {}


def test_times_that_are_rounded_differently_keep_their_order() -> None:
    assert broken_promises(drawn(5949), 0) == []


KEPT = sorted((Path(__file__).parents[2] / "data" / "simulator").glob("*.yaml"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_what_once_broke_a_promise_keeps_all(path: Path) -> None:
    spec = read(path)
    assert [found for seed in range(spec.seeds) for found in broken_promises(spec, seed)] == []


def has_a_hang(spec: Spec) -> bool:
    return any(source.kind is FaultOf.HANG and source.named > 0 for source in spec.faults)


def test_a_spec_that_fails_gets_as_small_as_what_makes_it_fail() -> None:
    wild = next(spec for seed in range(1000) if has_a_hang(spec := drawn(seed)) and len(spec.faults) > 2)
    small = as_plain(shrunk(wild, lambda spec: has_a_hang(spec) and spec.job.nodes >= 3))
    (source,) = small["faults"]
    assert small == {"faults": [source]}
    assert source.keys() == {"kind", "rate", "named"}


def test_numbers_get_smaller_as_long_as_it_fails() -> None:
    spec = Spec(job=SimulatedJob(nodes=1000), time="700 h")
    small = shrunk(
        spec, lambda spec: spec.job.nodes >= 37 and seconds(spec.time) >= 3600 and "h" in spec.time
    )
    assert (small.job.nodes, small.time) == (37, "1 h")


@pytest.mark.parametrize("seed", range(20))
def test_a_spec_is_read_again_as_it_was_written(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(as_yaml(drawn(seed)))
    assert read(path) == drawn(seed)
