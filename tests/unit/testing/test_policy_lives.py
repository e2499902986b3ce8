"""Specs that nobody would write, played by the policy alone: whatever goes wrong, the promises hold."""

from __future__ import annotations

import pytest

from slurm_robust.testing.policy_lives.draw import drawn
from slurm_robust.testing.policy_lives.promises import broken_promises


def test_the_same_seed_draws_the_same_spec() -> None:
    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_lives_of_drawn_specs_keep_all_promises(first: int) -> None:
    broken = {seed: found for seed in range(first, first + 20) if (found := broken_promises(drawn(seed), 0))}
    assert broken == {}
