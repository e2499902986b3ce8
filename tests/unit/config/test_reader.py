"""A configuration file is either understood or refused with the line, the key and the fix."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_robust.config import reader, settings
from slurm_robust.config.errors import ConfigError
from slurm_robust.config.schema import CheckpointConfig, JobConfig, Limits, Timings
from slurm_robust.config.settings import Said, Setting


def understood(text: str) -> JobConfig:
    return settings.build(reader.parse(text.encode(), "job.yaml"))


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        understood(text)
    return f"{caught.value}\n{caught.value.fix}"


def test_a_file_that_says_nothing_leaves_the_defaults() -> None:
    assert understood("") == understood("# nothing yet\nlimits:\n") == JobConfig()


def test_every_kind_of_value_is_understood() -> None:
    text = """
nodes: 4
nproc_per_node: null
job_dir: /shared/jobs
preload: [transformers, my.data]
mode: observe
final_exit_codes: [2, 3]
limits: {per_hour: 3}
timings:
  heartbeat_s: 2
checkpoint:
  directory: "/shared/ckpt"
"""
    assert understood(text) == JobConfig(
        nodes=4,
        job_dir="/shared/jobs",
        preload=("transformers", "my.data"),
        mode="observe",
        final_exit_codes=(2, 3),
        limits=Limits(per_hour=3),
        timings=Timings(heartbeat_s=2.0),
        checkpoint=CheckpointConfig(directory="/shared/ckpt"),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# a\nnodez: 4", "job.yaml, line 2: nodez is no key; did you mean nodes"),
        ("limits:\n  per_our: 4", "line 2: limits.per_our is no key; did you mean limits.per_hour"),
        ("heartbeat_s: 4", "line 1: heartbeat_s is no key; heartbeat_s belongs under timings:"),
        ("timings: {spares: 1}", "timings.spares is no key; spares belongs to the top level"),
        ("wire:\n  zzz: 1", "line 2: wire.zzz is no key; known keys here: wire.port"),
        ("[1, 2]: 3", "line 1: [1, 2] is no key"),
    ],
)
def test_an_unknown_key_is_named_with_the_closest_ones(text: str, expected: str) -> None:
    assert expected in refused(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nodes: four", "nodes must be a whole number or null, got the text 'four'; write for example"),
        ("nodes: 2.5", "nodes must be a whole number or null, got the number 2.5"),
        ("spares: null", "spares must be a whole number, got null; write for example spares: 0"),
        ("spares: true", "spares must be a whole number, got the truth value True"),
        ("mode: off", "mode must be one of act, observe, got the truth value False"),
        ("preload: torch", "preload must be a list of texts, got the text 'torch'"),
        ("final_exit_codes: [a]", "final_exit_codes must be a list of whole numbers, got the list ['a']"),
        ("job_dir: 7", 'job_dir must be text or null, got the number 7; write for example job_dir: "/shared'),
        ("timings:\n  launch_s: soon", "line 2: timings.launch_s must be a number, got the text 'soon'"),
        ("slurm: {requeue: maybe}", "slurm.requeue must be true or false"),
        ("slurm: 3", "job.yaml, line 1: slurm must be a mapping; write for example\nslurm:\n  backend: "),
        ("nodes: 2026-01-01", "nodes must be a whole number or null, got date"),
    ],
)
def test_a_wrong_type_is_told_with_what_was_expected_and_an_example(text: str, expected: str) -> None:
    assert expected in refused(text)


def test_all_problems_of_a_file_are_told_at_once() -> None:
    message = refused("nodez: 1\nspares: x\nlimits:\n  total: y\n")
    assert [line.split(":")[0] for line in message.splitlines() if line] == [
        "job.yaml, line 1",
        "job.yaml, line 2",
        "job.yaml, line 4",
    ]


def test_problems_of_all_kinds_are_told_at_once() -> None:
    message = refused(
        "nodes: 1\nnodes: 2\nnodez: 1\nspares: x\nslurm: 3\n"
        "final_exit_codes: [0]\npreload: ['a b']\nlimits: {per_hour: -1, total: -2}\n"
    )
    for expected in (
        "job.yaml, line 2: nodes is there twice; the other is at job.yaml, line 1: keep one",
        "job.yaml, line 3: nodez is no key; did you mean nodes",
        "job.yaml, line 4: spares must be a whole number, got the text 'x'; write for example spares: 0",
        "job.yaml, line 5: slurm must be a mapping; write for example",
        "job.yaml, line 6: final_exit_codes has 0\n  fix: use codes from 1 to 255",
        "job.yaml, line 7: preload has 'a b', which is no module name\n  fix: write module names as in",
        "job.yaml, line 8: per_hour is -1\n  fix: use",
        "job.yaml, line 8: total is -2\n  fix: use",
    ):
        assert expected in message


def test_problems_of_all_layers_are_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("nodez: 1\n")
    options = Said()
    reader.take_text(options, "sparez", "1", "option --set sparez=1")

    with pytest.raises(ConfigError) as caught:
        reader.load(file, {"SROBUST_CONFIG_LIMITS_TOTAL": "x"}, options, site_file=Path(os.devnull))

    for expected in (
        "job.yaml, line 1: nodez",
        "variable SROBUST_CONFIG_LIMITS_TOTAL: limits",
        "sparez=1: sparez",
    ):
        assert expected in str(caught.value)


def test_a_key_of_the_wrong_type_contradicts_no_other() -> None:
    message = refused("timings:\n  heartbeat_s: 10\n  node_dead_s: long\n")
    assert "node_dead_s must be a number" in message
    assert "set by" not in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nodes: 1\nnodes: 2", "job.yaml, line 2: nodes is there twice; the other is at job.yaml, line 1"),
        ("limits: {total: 1}\nmode: act\nlimits: {per_hour: 1}", "line 3: limits is there twice"),
        ("wire: {port: 1, port: 2}", "wire.port is there twice"),
    ],
)
def test_duplicate_keys_are_refused(text: str, expected: str) -> None:
    assert expected in refused(text)


@pytest.mark.parametrize(
    "text",
    ["- 1", "just words", "nodes: [1", "\tnodes: 1", "a: &a [*a]", "nodes: 1\n---\nnodes: 2", "a: \x00", "&"],
)
def test_what_is_no_mapping_or_no_yaml_is_refused_with_the_file(text: str) -> None:
    assert refused(text).startswith("job.yaml")


def test_yaml_cannot_make_objects() -> None:
    assert "job.yaml, line 1" in refused("job_dir: !!python/object/apply:os.getcwd []")


def test_a_refused_value_is_told_with_the_place_where_it_was_said() -> None:
    assert refused("spares: -1").startswith("job.yaml, line 1: spares is -1\n  fix: use 0 or more")
    message = refused("timings:\n  heartbeat_s: 10")
    assert "set by: timings.node_dead_s (default), timings.heartbeat_s (job.yaml, line 2)" in message
    assert "set node_dead_s to 20 or more" in message


def test_a_missing_or_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        reader.read_file(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        reader.read_file(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"job_dir: caf\xe9")
    with pytest.raises(ConfigError, match="not valid YAML"):
        reader.read_file(tmp_path / "latin.yaml")


def test_the_precedence_is_site_file_file_environment_options(tmp_path: Path) -> None:
    site, file = tmp_path / "site.yaml", tmp_path / "job.yaml"
    site.write_text("nodes: 1\nspares: 1\nnproc_per_node: 1\nmode: observe\n")
    file.write_text("nodes: 2\nspares: 2\nnproc_per_node: 2\n")
    environ = {"SROBUST_CONFIG_NODES": "3", "SROBUST_CONFIG_SPARES": "3", "HOME": "/"}
    options = Said({"nodes": Setting(4, "option --nodes")})

    config = reader.load(file, environ, options, site_file=site)

    assert config == JobConfig(nodes=4, spares=3, nproc_per_node=2, mode="observe")


def test_each_key_can_be_said_in_the_environment() -> None:
    said = {
        "nodes": ("null", None),
        "job_dir": ("2024", "2024"),
        "preload": ("a, b.c", ["a", "b.c"]),
        "final_exit_codes": ("2,3", [2, 3]),
        "timings.node_dead_s": ("7.5", 7.5),
        "slurm.requeue": ("false", False),
        "rendezvous.port_range": ("29500-29600", "29500-29600"),
    }
    environ = {reader.environment_name(key): text for key, (text, _) in said.items()}
    found = reader.from_environment(environ)
    values = {key: setting.value for key, setting in found.settings.items()}
    assert values == {key: value for key, (_, value) in said.items()}
    settings.build(found)


def test_names_in_the_environment_are_unique_and_none_is_a_worker_variable() -> None:
    names = [reader.environment_name(key) for key in settings.known_keys()]
    assert len(set(names)) == len(names)
    assert reader.from_environment({"SROBUST_JOB_DIR": "/x", "SROBUST_DEBUG": "1"}) == Said()


def test_an_unknown_variable_of_our_prefix_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"SROBUST_CONFIG_NODEZ: nodez is no key; did you mean nodes"):
        settings.build(reader.from_environment({"SROBUST_CONFIG_NODEZ": "1"}))


def test_a_bad_value_in_the_environment_names_the_variable() -> None:
    with pytest.raises(ConfigError, match=r"variable SROBUST_CONFIG_NODES: nodes must be a whole number"):
        reader.load(None, {"SROBUST_CONFIG_NODES": "[1"}, Said(), site_file=Path(os.devnull))


def test_every_key_has_an_example_that_is_right() -> None:
    for key in settings.known_keys().values():
        section, _, _ = key.name.rpartition(".")
        understood(f"{section}:\n  {key.example}" if section else key.example)
