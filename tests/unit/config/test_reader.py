"""A configuration file is either understood or refused with the line, the key and the fix."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_robust.analysis.logs.rule import RuleFile, SiteRule
from slurm_robust.config.errors import InvalidSettings
from slurm_robust.config.job import CheckpointConfig, JobConfig, Limits, Timings
from slurm_robust.config.node import CheckRule, NodeConfig, SiteCheck
from slurm_robust.config.reader import Layers, as_yaml, contradictions, schema_keys
from slurm_robust.config.section import Section

SCHEMAS = (JobConfig, NodeConfig, RuleFile)


def layers(text: str) -> Layers[JobConfig]:
    found = Layers(JobConfig)
    found.add_yaml(text.encode(), "job.yaml")
    return found


def understood(text: str) -> JobConfig:
    return layers(text).build()


def refused(text: str) -> str:
    with pytest.raises(InvalidSettings) as caught:
        understood(text)
    return str(caught.value)


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
        ("# a\nnodez: 4", "job.yaml, line 2: unknown key nodez; did you mean nodes"),
        ("limits:\n  per_our: 4", "line 2: unknown key limits.per_our; did you mean limits.per_hour"),
        ("heartbeat_s: 4", "line 1: unknown key heartbeat_s; did you mean heartbeat_s (under timings:)?"),
        ("limits.total: 4", "line 1: unknown key limits.total; did you mean total (under limits:)?"),
        ("timings: {spares: 1}", "unknown key timings.spares; did you mean spares (top level)?"),
        ("wire:\n  zzz: 1", "line 2: unknown key wire.zzz; known keys here: port"),
        ("yes: 3", "line 1: unknown key yes; known keys here: nodes"),
        ("[1, 2]: 3", "line 1, column 1: not valid YAML: a key must be a single word"),
    ],
)
def test_an_unknown_key_is_named_with_the_closest_ones(text: str, expected: str) -> None:
    assert expected in refused(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "nodes: four",
            "nodes must be an integer of 1 or more, or null, got the string 'four'\n  fix: write for",
        ),
        ("nodes: 2.5", "nodes must be an integer of 1 or more, or null, got the number 2.5"),
        (
            "spares: null",
            "spares must be an integer of 0 or more, got null\n  fix: write for example spares: 0",
        ),
        ("spares: true", "spares must be an integer of 0 or more, got true"),
        ("mode: off", "mode must be one of act, observe, got false"),
        ("preload: torch", "preload must be a list of strings, got the string 'torch'"),
        (
            "final_exit_codes: [2,\n  a]",
            "line 2: final_exit_codes[1] must be an exit code from 1 to 255, got the",
        ),
        (
            "job_dir: 7",
            "job_dir must be the name of a folder, without ~ and $, or null, got the number 7\n  fix: ",
        ),
        (
            "job_dir: {a: b}",
            "job_dir must be the name of a folder, without ~ and $, or null, got the mapping {'a': 'b'}",
        ),
        (
            "timings:\n  launch_s: soon",
            "line 2: timings.launch_s must be a number of seconds above 0, got the",
        ),
        ("slurm: {requeue: maybe}", "slurm.requeue must be true or false"),
        (
            "slurm: 3",
            "job.yaml, line 1: slurm must be a mapping of keys to values, got the number 3\n  fix: ",
        ),
        ("nodes: 2026-01-01", "nodes must be an integer of 1 or more, or null, got the date 2026-01-01"),
    ],
)
def test_a_wrong_type_is_reported_with_the_expected_type_and_an_example(text: str, expected: str) -> None:
    assert expected in refused(text)


def test_a_long_value_is_cut() -> None:
    assert len(refused(f"nodes: {'x' * 1000}")) < 300


def test_problems_of_all_kinds_are_reported_together() -> None:
    message = refused(
        "nodes: 1\nnodes: 2\nnodez: 1\nspares: x\nslurm: 3\n"
        "final_exit_codes: [0]\npreload: ['a b']\nlimits: {per_hour: -1, total: -2}\n"
        "timings: {heartbeat_s: 9}\n"
    )
    for expected in (
        "job.yaml, line 2: nodes is set twice; the other is at job.yaml, line 1\n  fix: keep one",
        "job.yaml, line 3: unknown key nodez; did you mean nodes",
        "job.yaml, line 4: spares must be an integer of 0 or more, got the string 'x'",
        "job.yaml, line 5: slurm must be a mapping",
        "job.yaml, line 6: final_exit_codes[0] must be an exit code from 1 to 255",
        "job.yaml, line 7: preload has 'a b', which is not a module name\n  fix: write names as in",
        "job.yaml, line 8: limits.per_hour must be",
        "job.yaml, line 8: limits.total must be",
        "timings.node_dead_s (default), timings.heartbeat_s (job.yaml, line 9)\n  fix: set node_dead_s to 18",
    ):
        assert expected in message


def test_a_key_of_the_wrong_type_contradicts_no_other() -> None:
    message = refused("timings:\n  heartbeat_s: 10\n  node_dead_s: long\n")
    assert "timings.node_dead_s must be a number" in message
    assert "set by" not in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nodes: 1\nnodes: 2", "job.yaml, line 2: nodes is set twice; the other is at job.yaml, line 1"),
        ("limits: {total: 1}\nmode: act\nlimits: {per_hour: 1}", "line 3: limits is set twice"),
        ("wire: {port: 1, port: 2}", "wire.port is set twice"),
    ],
)
def test_duplicate_keys_are_refused(text: str, expected: str) -> None:
    assert expected in refused(text)


@pytest.mark.parametrize(
    "text",
    [
        *("- 1", "just words", "nodes: [1", "\tnodes: 1", "a: &a [*a]", "nodes: 1\n---\nnodes: 2", "a: \x00"),
        *("&", "[" * 1500, "nodes: !!python/name:os.system", "a: &a {<<: *a}", "nodes: 2026-13-45"),
        *(
            "nodes: !!bool maybe",
            "nodes: !!timestamp x",
            "nodes: !!int x",
            "nodes: !!binary x",
            "nodes: !!set {a}",
        ),
        *("<<: 3", "a: {<<: [1]}", "? [a]\n: b", "nodes: 9" + "9" * 5000),
    ],
)
def test_a_file_without_a_mapping_or_without_yaml_is_refused_by_name(text: str) -> None:
    assert refused(text).startswith("job.yaml")


def test_text_of_another_encoding_is_refused() -> None:
    found = Layers(JobConfig)
    found.add_yaml(b"job_dir: caf\xe9", "latin.yaml")
    with pytest.raises(InvalidSettings, match=r"latin\.yaml: not valid YAML"):
        found.build()


def test_yaml_cannot_make_objects() -> None:
    assert "job.yaml, line 1" in refused("job_dir: !!python/object/apply:os.getcwd []")


def test_a_refused_value_is_reported_with_the_place_where_it_was_set() -> None:
    message = refused("timings:\n  heartbeat_s: 10")
    assert "set by: timings.node_dead_s (default), timings.heartbeat_s (job.yaml, line 2)" in message
    assert "set node_dead_s to 20 or more" in message


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.__name__)
def test_the_defaults_are_valid(schema: type[Section]) -> None:
    assert msgspec.convert(msgspec.to_builtins(schema()), schema) == schema()
    assert list(contradictions(schema())) == []


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.__name__)
def test_every_example_is_right(schema: type[Section]) -> None:
    for key in schema_keys(schema).values():
        section, _, _ = key.name.rpartition(".")
        found = Layers(schema)
        found.add_yaml((f"{section}:\n  {key.example}" if section else key.example).encode(), "example")
        found.build()


def test_every_key_of_a_job_has_an_example() -> None:
    assert [key.name for key in schema_keys(JobConfig).values() if not key.example] == []


def test_what_is_shown_is_a_file_that_says_the_same() -> None:
    text = "spares: 3\nlimits: {total: 7}\npreload: [a, b]\n"
    assert understood(as_yaml(layers(text), understood(text))) == understood(text)


NAMES = sorted(
    {name for schema in SCHEMAS for key in schema_keys(schema) for name in key.split(".")}.union(
        {"zzz"}, *(record.__struct_fields__ for record in (CheckRule, SiteCheck, SiteRule))
    )
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 70000)
    | st.floats()
    | st.sampled_from(["", "/a", "act", "x", "a:b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(said=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5))
@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.__name__)
def test_any_file_is_understood_or_refused(schema: type[Section], said: dict[str, object]) -> None:
    found = Layers(schema)
    if schema is RuleFile:
        found.add_yaml(yaml.safe_dump([said]).encode(), "any.yaml", root="rules")
    else:
        found.add_yaml(yaml.safe_dump(said).encode(), "any.yaml")
    try:
        config = found.build()
    except InvalidSettings as error:
        unplaced = [problem for problem in error.problems if "any.yaml" not in problem]
    else:
        unplaced = list(contradictions(config))
    assert unplaced == []


@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet="ab01-:#&*!<>|{}[],'\"%@?~. \n\t\\x", max_size=60))
def test_any_text_is_understood_or_refused(text: str) -> None:
    found = Layers(JobConfig)
    found.add_yaml(text.encode(), "any.yaml")
    try:
        problems: tuple[str, ...] = ("",) * (found.build() != JobConfig())
    except InvalidSettings as error:
        problems = error.problems
    assert all(problem.startswith("any.yaml") for problem in problems)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for name, reason in (("none.yaml", "No such file"), ("", "Is a directory")):
        found = Layers(JobConfig)
        found.add_file(tmp_path / name)
        with pytest.raises(InvalidSettings, match=reason) as caught:
            found.build()
        assert caught.value.exit_code == 66
