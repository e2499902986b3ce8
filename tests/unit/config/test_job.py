"""A job's configuration that cannot work is refused with the key and the fix."""

from __future__ import annotations

import msgspec
import pytest

from slurm_robust.config.errors import InvalidSettings
from slurm_robust.config.job import JobConfig, RendezvousConfig, Timings
from slurm_robust.config.reader import Layers


def refused(text: str) -> str:
    layers = Layers(JobConfig)
    layers.add_yaml(text.encode(), "job.yaml")
    with pytest.raises(InvalidSettings) as caught:
        layers.build()
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nodes: 0", "nodes must be an integer of 1 or more, or null, got the number 0"),
        ("spares: -1", "spares must be an integer of 0 or more, got the number -1"),
        ("nproc_per_node: 0", "nproc_per_node must be an integer of 1 or more"),
        ("job_dir: ''", "job_dir must be the name of a folder, without ~ and $"),
        (
            "preload: [not a module]",
            "preload has 'not a module', which is not a module name\n  fix: write names",
        ),
        ("preload: [a..b]", "preload has 'a..b'"),
        ("final_exit_codes: [0]", "final_exit_codes[0] must be an exit code from 1 to 255"),
        ("final_exit_codes: [256]", "final_exit_codes[0] must be an exit code from 1 to 255"),
        ("limits: {per_hour: -1}", "limits.per_hour must be an integer of 0 or more"),
        ("timings: {launch_s: 0}", "timings.launch_s must be a number of seconds above 0"),
        ("timings: {launch_s: .nan}", "timings.launch_s must be a number of seconds above 0"),
        ("timings: {launch_s: .inf}", "timings.launch_s must be a number of seconds above 0"),
        ("timings: {node_dead_s: 1.9}", "node_dead_s (1.9) is less than two heartbeats (of 1)"),
        ("timings: {stop_grace_s: 30}", "shutdown_s (10) is less than the"),
        ("checkpoint: {keep: 0}", "checkpoint.keep must be an integer of 1 or more"),
        ("checkpoint: {keep_every: 0}", "checkpoint.keep_every must be an integer of 1 or more, or null"),
        ("checkpoint: {every_steps: 0}", "checkpoint.every_steps must be an integer of 1 or more, or null"),
        ("checkpoint: {every_s: 0}", "checkpoint.every_s must be a number of seconds above 0"),
        ("checkpoint: {directory: ''}", "checkpoint.directory must be the name of a folder"),
        ("checkpoint: {local_directory: ''}", "checkpoint.local_directory must be the name of a folder"),
        ("checkpoint: {peer_network: ''}", "checkpoint.peer_network must be a string that is not empty"),
        ("checkpoint: {peer_network: 10.0.0.0/99}", "checkpoint.peer_network is '10.0.0.0/99': "),
        ("checkpoint: {peer_mb_s: 0}", "checkpoint.peer_mb_s must be a number above 0 or null"),
        ("detect: {hang_factor: 0.9}", "detect.hang_factor must be a number of 1 or more"),
        ("detect: {slow_factor: 0.9}", "detect.slow_factor must be a number of 1 or more"),
        ("detect: {spike_factor: 0.9}", "detect.spike_factor must be a number of 1 or more"),
        ("detect: {slow_samples: -1}", "detect.slow_samples must be an integer of 0 or more"),
        ("detect: {network_alerts: -1}", "detect.network_alerts must be an integer of 0 or more"),
        ("detect: {stacks_s: 0}", "detect.stacks_s must be a number of seconds above 0"),
        ("detect: {log_rules: ['']}", "detect.log_rules[0] must be a string that is not empty"),
        ("replay: {steps: 0}", "replay.steps must be an integer of 1 or more"),
        ("replay: {budget_s: 0}", "replay.budget_s must be a number of seconds above 0"),
        ("standby: {test_s: 5}", "test_s (5) is less than the 15 s that the start of a test takes"),
        ("standby: {replenish: always}", "standby.replenish must be"),
        ("standby: {replenish: partition}", "but companions may not use the partition"),
        ("parallel: {tp: 0}", "parallel.tp must be an integer of 1 or more"),
        ("parallel: {order: tp-tp-ep-dp-pp}", "parallel.order is 'tp-tp-ep-dp-pp'\n  fix: name each of tp"),
        ("slurm: {timeout_s: -1}", "slurm.timeout_s must be a number of seconds above 0"),
        ("wire: {port: 65536}", "wire.port must be an integer from 0 to 65535"),
        (
            "rendezvous: {port_range: '29500'}",
            "rendezvous.port_range is '29500'\n  fix: write the lower port",
        ),
        ("rendezvous: {port_range: 300-200}", "rendezvous.port_range is '300-200'"),
        ("rendezvous: {port_range: 0-70000}", "rendezvous.port_range is '0-70000'"),
        (
            "wire: {port: 29550}\nrendezvous: {port_range: 29500-29600}",
            "rendezvous.port_range (job.yaml, line 2)\n  fix: take the port out of the range",
        ),
        (
            "metrics: {listen: '9480'}",
            "metrics.listen must be an address HOST:PORT or null, got the string '9480'",
        ),
        ("metrics: {listen: 'http://n1:9480'}", "metrics.listen must be an address HOST:PORT"),
        ("metrics: {listen: '127.0.0.1:70000'}", "there is no port 70000"),
        (
            "metrics: {listen: '0.0.0.0:9480'}",
            "other hosts reach 0.0.0.0:9480, and without a token everybody on them reads the page",
        ),
        ("metrics: {listen: 'n1:9480'}", "fix: set token_file, or public to true if that is meant"),
        ("metrics: {token_file: token}", "metrics.token_file must be an absolute path or null"),
        (
            "metrics: {listen: 'localhost:9480'}\ntimings: {moment_s: 0}",
            "metrics.listen is set, but with timings.moment_s 0 there is nothing to show",
        ),
        (
            "metrics: {listen: '[::1]:9480'}\nwire: {port: 9480}",
            "metrics.listen and wire.port are the same port (9480)",
        ),
    ],
)
def test_values_that_cannot_work_are_refused(text: str, expected: str) -> None:
    assert expected in refused(text)


def test_a_port_range_has_both_ends() -> None:
    assert RendezvousConfig(port_range="29500-29501").ports == range(29500, 29502)
    assert RendezvousConfig().ports is None


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        ({}, None),
        ({"listen": "127.0.0.1:0"}, ("127.0.0.1", 0)),
        ({"listen": "[::1]:9480"}, ("::1", 9480)),
        ({"listen": "localhost:9480"}, ("localhost", 9480)),
        ({"listen": "0.0.0.0:9480", "public": True}, ("0.0.0.0", 9480)),
        ({"listen": "n1:9480", "token_file": "/home/me/token"}, ("n1", 9480)),
    ],
)
def test_the_address_of_the_metrics(settings: dict[str, object], address: tuple[str, int] | None) -> None:
    config = msgspec.convert({"metrics": settings}, JobConfig)
    assert config.metrics.address == address
    assert list(config.metrics.contradictions()) == []


def test_a_configuration_survives_the_job_directory() -> None:
    config = JobConfig(nodes=3, preload=("a",), timings=Timings(node_dead_s=9.0))
    assert msgspec.json.decode(msgspec.json.encode(config), type=JobConfig) == config
