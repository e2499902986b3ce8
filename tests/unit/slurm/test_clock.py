from __future__ import annotations

import pytest

from slurm_robust.slurm.clock import clock_offset
from slurm_robust.slurm.errors import PermissionDenied
from slurm_robust.testing.fake_slurm import FakeSlurm


def test_the_clock_against_slurmctlds() -> None:
    slurm = FakeSlurm()
    then = slurm.now()
    assert clock_offset(slurm, lambda: then + 10.0) == pytest.approx(9.5)
    slowly = iter([then, then + 5.0])
    assert clock_offset(slurm, lambda: next(slowly)) is None


def test_a_slurmctld_that_does_not_tell_its_time() -> None:
    class Closed(FakeSlurm):
        def now(self) -> float:
            raise PermissionDenied("Access/permission denied")

    assert clock_offset(Closed()) is None
