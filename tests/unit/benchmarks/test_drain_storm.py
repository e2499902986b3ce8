"""One fault on many nodes at once, whatever slurmctld does: the caps hold, and healthy nodes ask nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from benchmarks.drain_storm import Daemon, Fleet, fleet_cap, memory
from slurm_robust.testing.fake_slurmctld import Rpc

NODES, WELL = 200, 20


@pytest.mark.slow
@pytest.mark.parametrize("daemon", Daemon, ids=lambda daemon: daemon.value)
def test_no_more_nodes_are_drained_or_refused_than_the_caps_allow(daemon: Daemon) -> None:
    with tempfile.TemporaryDirectory(dir=memory()) as folder:
        fleet = Fleet(NODES, daemon, Path(folder), well=WELL)
        fleet.run(minutes=12)
    cap = fleet_cap(NODES)
    assert 1 <= fleet.cluster.most <= cap
    assert len(fleet.refused) <= cap
    assert fleet.cluster.drained == frozenset()  # the fault has gone, and all are back
    assert fleet.daemon.askers.keys().isdisjoint(fleet.well)
    # The bad ones ask for little: the table of all nodes is loaded about once a minute.
    kinds = {kind: sum(n for (_, k), n in fleet.daemon.asked.items() if k is kind) for kind in Rpc}
    assert kinds[Rpc.ALL_NODES] <= 12 + 2 * cap
    assert sum(kinds.values()) <= 12 * NODES
