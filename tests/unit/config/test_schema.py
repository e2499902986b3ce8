"""A configuration that cannot work is refused when it is built, with the fix."""

from __future__ import annotations

import math

import msgspec
import pytest

from slurm_robust.config.errors import InvalidValue
from slurm_robust.config.schema import (
    CheckpointConfig,
    JobConfig,
    Limits,
    RendezvousConfig,
    SlurmConfig,
    Timings,
    WireConfig,
)


@pytest.mark.parametrize(
    ("kind", "values", "key"),
    [
        (JobConfig, {"nodes": 0}, "nodes"),
        (JobConfig, {"spares": -1}, "spares"),
        (JobConfig, {"nproc_per_node": 0}, "nproc_per_node"),
        (JobConfig, {"job_dir": ""}, "job_dir"),
        (JobConfig, {"preload": ("not a module",)}, "preload"),
        (JobConfig, {"preload": ("a..b",)}, "preload"),
        (JobConfig, {"final_exit_codes": (0,)}, "final_exit_codes"),
        (JobConfig, {"final_exit_codes": (256,)}, "final_exit_codes"),
        (Limits, {"per_hour": -1}, "per_hour"),
        (Timings, {"launch_s": 0.0}, "launch_s"),
        (Timings, {"launch_s": math.nan}, "launch_s"),
        (Timings, {"launch_s": math.inf}, "launch_s"),
        (Timings, {"node_dead_s": 1.9}, "node_dead_s"),
        (Timings, {"stop_grace_s": 30.0}, "shutdown_s"),
        (CheckpointConfig, {"keep": 0}, "keep"),
        (CheckpointConfig, {"directory": ""}, "directory"),
        (SlurmConfig, {"timeout_s": -1.0}, "timeout_s"),
        (WireConfig, {"port": 65536}, "port"),
        (RendezvousConfig, {"port_range": "29500"}, "port_range"),
        (RendezvousConfig, {"port_range": "300-200"}, "port_range"),
        (RendezvousConfig, {"port_range": "0-70000"}, "port_range"),
    ],
)
def test_values_that_cannot_work_are_refused(kind: type, values: dict[str, object], key: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        kind(**values)
    assert caught.value.keys[0] == key
    assert caught.value.fix


def test_the_controllers_port_may_not_lie_where_ranks_meet() -> None:
    with pytest.raises(InvalidValue, match=r"wire\.port") as caught:
        JobConfig(wire=WireConfig(port=29550), rendezvous=RendezvousConfig(port_range="29500-29600"))
    assert "rendezvous.port_range" in caught.value.keys


def test_a_port_range_has_both_ends() -> None:
    assert RendezvousConfig(port_range="29500-29501").ports == range(29500, 29502)
    assert RendezvousConfig().ports is None


def test_a_configuration_survives_the_job_directory() -> None:
    config = JobConfig(nodes=3, preload=("a",), timings=Timings(node_dead_s=9.0))
    assert msgspec.json.decode(msgspec.json.encode(config), type=JobConfig) == config
