from __future__ import annotations

from slurm_robust.model.startup import MAX_NODES, SLOWEST, phase_times


def test_phases_come_in_their_order_and_the_slowest_node_first() -> None:
    found = phase_times(
        {
            "n1": {"first step": 0.2, "imports": 1.0, "model": 0.5},
            "n2": {"imports": 9.00049, "first step": 0.1},
            "n3": {"imports": 2.0},
        }
    )
    assert [times.phase for times in found] == ["imports", "model", "first step"]
    imports = found[0]
    assert list(imports.nodes.items()) == [("n2", 9.0), ("n3", 2.0), ("n1", 1.0)]
    assert (imports.median_s, imports.measured) == (2.0, 3)
    assert phase_times({"n1": {}}) == ()


def test_of_many_nodes_only_the_slowest_are_kept() -> None:
    nodes = {f"n{i}": {"model": float(i)} for i in range(MAX_NODES + 1)}
    (times,) = phase_times(nodes)
    assert times.measured == MAX_NODES + 1
    assert len(times.nodes) == SLOWEST
    assert next(iter(times.nodes)) == f"n{MAX_NODES}"
