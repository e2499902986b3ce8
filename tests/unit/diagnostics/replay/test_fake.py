from __future__ import annotations

import pytest

from slurm_robust.testing.fake_replayer import FakeReplayer
from slurm_robust.testing.replayer_contract import Make, ReplayerContract


class TestFakeReplayer(ReplayerContract):
    @pytest.fixture
    def make(self) -> Make:
        return FakeReplayer
