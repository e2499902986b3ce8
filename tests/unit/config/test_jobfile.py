"""The settings of a job come from several places, in one order."""

from __future__ import annotations

from pathlib import Path
from typing import get_origin

import pytest

from slurm_robust.config.errors import InvalidSettings
from slurm_robust.config.job import JobConfig
from slurm_robust.config.jobfile import add_text, collect, environment_name, from_environment
from slurm_robust.config.reader import Layers, ValueOrigin, schema_keys, types_of
from slurm_robust.model.errors import ExitCode


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "site.yaml"
    monkeypatch.setattr("slurm_robust.config.jobfile.SITE_FILE", file)
    return file


def option(name: str, text: str) -> Layers[JobConfig]:
    options = Layers(JobConfig)
    add_text(options, name, text, ValueOrigin(f"option --set {name}={text}", ExitCode.USAGE))
    return options


def refused(layers: Layers[JobConfig]) -> InvalidSettings:
    with pytest.raises(InvalidSettings) as caught:
        layers.build()
    return caught.value


def test_the_precedence_is_site_file_file_environment_options(site: Path, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    site.write_text(
        "nodes: 1\nspares: 1\nnproc_per_node: 1\nmode: observe\nlimits: {total: 1, per_hour: 1}\n"
    )
    file.write_text("nodes: 2\nspares: 2\nnproc_per_node: 2\nlimits: {per_hour: 2}\n")
    environ = {"SROBUST_CONFIG_NODES": "3", "SROBUST_CONFIG_SPARES": "3", "HOME": "/"}

    config = collect(file, environ, option("nodes", "4")).build()

    assert (config.nodes, config.spares, config.nproc_per_node, config.mode) == (4, 3, 2, "observe")
    assert (config.limits.total, config.limits.per_hour) == (1, 2)


def test_problems_of_all_sources_are_reported_together(site: Path, tmp_path: Path) -> None:
    site.write_text("limits: [\n")
    file = tmp_path / "job.yaml"
    file.write_text("nodez: 1\n")
    error = refused(collect(file, {"SROBUST_CONFIG_LIMITS_TOTAL": "x"}, option("sparez", "1")))
    for expected in (
        "site.yaml, line 2, column 1: not valid YAML",
        "job.yaml, line 1: unknown key nodez",
        "environment variable SROBUST_CONFIG_LIMITS_TOTAL: limits.total must be",
        "option --set sparez=1: unknown key sparez; did you mean spares",
    ):
        assert expected in str(error)
    assert error.exit_code == ExitCode.CONFIG


def test_a_site_file_that_cannot_be_reached_is_an_error(site: Path) -> None:
    """One that is not there is none."""
    assert collect(None, {}, Layers(JobConfig)).build() == JobConfig()
    site.symlink_to(site)
    error = refused(collect(None, {}, Layers(JobConfig)))
    assert "site.yaml cannot be read: Too many levels of symbolic links" in str(error)


def test_a_value_that_a_higher_source_replaces_need_not_be_right(site: Path) -> None:
    """A user can run although the site's file has a wrong value."""
    site.write_text("nodes: many\nlimits: {total: x}\n")
    environ = {"SROBUST_CONFIG_LIMITS_TOTAL": "7"}
    assert collect(None, environ, option("nodes", "4")).build().limits.total == 7
    assert "site.yaml, line 1: nodes must be" in str(refused(collect(None, environ, Layers(JobConfig))))


def test_a_section_without_keys_leaves_what_a_lower_source_set(site: Path, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    site.write_text("limits: {total: 7}\n")
    file.write_text("limits:\n  # per_hour: 3\n")
    assert collect(file, {}, Layers(JobConfig)).build().limits.total == 7


def test_a_value_may_contradict_one_in_a_file_that_cannot_be_read(site: Path, tmp_path: Path) -> None:
    """The file could say how long a heartbeat is."""
    error = refused(collect(tmp_path / "no.yaml", {}, option("timings.node_dead_s", "1")))
    assert "no.yaml cannot be read" in str(error)
    assert "heartbeats" not in str(error)
    assert error.exit_code == ExitCode.NO_INPUT


def test_each_key_can_be_set_in_the_environment() -> None:
    said = {
        "nodes": ("null", None),
        "job_dir": ("2024", "2024"),
        "preload": ("a, b.c", ("a", "b.c")),
        "final_exit_codes": ("2,3", (2, 3)),
        "timings.node_dead_s": ("7.5", 7.5),
        "slurm.requeue": ("no", False),
        "mode": ("observe", "observe"),
        "checkpoint.local_directory": ("null", None),
        "replay.args": ("--layers,2", ("--layers", "2")),
        "rendezvous.port_range": ("29500-29600", "29500-29600"),
    }
    found = from_environment({environment_name(key): text for key, (text, _) in said.items()}).build()
    for name, (_, value) in said.items():
        section, _, leaf = name.rpartition(".")
        assert getattr(getattr(found, section) if section else found, leaf) == value


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("preload", "[a, b]", ("a", "b")),
        ("preload", "[]", ()),
        ("final_exit_codes", "[2, 3]", (2, 3)),
        ("replay.args", "[--sizes, '1,2', 3, no]", ("--sizes", "1,2", "3", "no")),
    ],
)
def test_a_list_in_brackets_is_that_of_yaml(key: str, text: str, value: tuple[object, ...]) -> None:
    found = option(key, text).build()
    section, _, leaf = key.rpartition(".")
    assert getattr(getattr(found, section) if section else found, leaf) == value


def test_each_key_with_a_list_takes_its_items_in_brackets_as_with_commas() -> None:
    for key in schema_keys(JobConfig).values():
        if any(get_origin(kind) is tuple for kind in types_of(key.kind)):
            text = "2,3" if key.name == "final_exit_codes" else "/a,/b"
            lists = (option(key.name, text), option(key.name, f"[{text}]"))
            assert lists[0].values == lists[1].values != {}


@pytest.mark.parametrize("text", ["[docker,run", "[docker],run", "[[docker]]", "[docker: run]"])
def test_brackets_that_are_no_list_of_words_are_refused(text: str) -> None:
    assert "option --set agents.wrapper" in str(refused(option("agents.wrapper", text)))


def test_names_in_the_environment_are_unique_and_none_is_a_worker_variable() -> None:
    names = [environment_name(key) for key in schema_keys(JobConfig)]
    assert len(set(names)) == len(names)
    assert from_environment({"SROBUST_JOB_DIR": "/x", "SROBUST_DEBUG": "1"}) == Layers(JobConfig)


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("SROBUST_CONFIG_NODEZ", "1", "variable SROBUST_CONFIG_NODEZ: unknown key nodez; did you mean nodes"),
        (
            "SROBUST_CONFIG_NODES",
            "[1",
            "variable SROBUST_CONFIG_NODES: nodes must be an integer of 1 or more",
        ),
        (
            "SROBUST_CONFIG_NODES",
            "2026-13-45",
            "nodes must be an integer of 1 or more, or null, got the string",
        ),
        ("SROBUST_TRANING", "gpt", "SROBUST_TRANING: unknown key traning; did you mean training"),
        ("SROBUST_TRAINING_NAME", "gpt", "SROBUST_TRAINING_NAME: unknown key training_name; did you mean tr"),
        (
            "SROBUST_CONFG_SPARES",
            "1",
            "variable SROBUST_CONFG_SPARES: unknown key confg_spares; did you mean s",
        ),
        ("srobust_training", "gpt", "variable srobust_training: unknown key"),
        ("SROBUST_CONFIG_FINAL_EXIT_CODES", "2,x", "final_exit_codes[1] must be an exit code from 1 to 255"),
    ],
)
def test_a_bad_variable_is_named(variable: str, text: str, expected: str) -> None:
    assert expected in str(refused(from_environment({variable: text})))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nodes.x", "option --set nodes.x=1: nodes must be an integer of 1 or more"),
        ("wire.x.y", "option --set wire.x.y=1: unknown key wire.x"),
        ("limits", "option --set limits=1: limits must be a mapping of keys to values, got the string '1'"),
        ("x.y", "option --set x.y=1: unknown key x"),
        ("notify.sendmail", "unknown key notify.sendmail; did you mean sendmail (in an item of notify.ch"),
    ],
)
def test_an_option_for_a_section_is_refused_with_its_name(name: str, expected: str) -> None:
    assert expected in str(refused(option(name, "1")))


def test_variables_that_srobust_sets_for_workers_misspell_nothing() -> None:
    """A job is submitted from within another one."""
    facts = ("JOB_DIR", "REPLAY", "REPLAY_STEPS", "COMPANION_NODES", "COMPANION_OF", "RESTORE_TIER", "TIERS")
    of_users = ("SROBUST_SANDBOX_DIR", "SROBUST_DEBUG", "MY_SROBUST_TRAINING", "SROBUST")
    environ = dict.fromkeys((*(f"SROBUST_{fact}" for fact in facts), *of_users), "x")
    assert from_environment(environ).build() == JobConfig()


def test_a_wrong_option_is_wrong_usage() -> None:
    assert refused(option("nodes", "0")).exit_code == ExitCode.USAGE
    assert refused(option("timings.node_dead_s", "1")).exit_code == ExitCode.USAGE


def test_a_training_has_a_variable_of_its_own(site: Path) -> None:
    own = {"SROBUST_TRAINING": "gpt"}
    assert collect(None, own, Layers(JobConfig)).build().training == "gpt"
    long = own | {"SROBUST_CONFIG_TRAINING": "bert"}
    assert collect(None, long, Layers(JobConfig)).build().training == "bert"
    assert collect(None, own, option("training", "t5")).build().training == "t5"
    assert collect(None, {"SROBUST_TRAINING": ""}, Layers(JobConfig)).build().training is None
    error = refused(collect(None, {"SROBUST_TRAINING": "../x"}, Layers(JobConfig)))
    assert "training is '../x', which cannot be a part of a folder's name" in str(error)
