from __future__ import annotations

import pytest

from slurm_robust.testing.fake_replayer import FakeReplayer
from tests.contracts.replayer import Make, ReplayerContract


class TestFakeReplayer(ReplayerContract):
    @pytest.fixture
    def make(self) -> Make:
        return FakeReplayer
