"""``srobust config``: check configuration files, show the values a run would use and their sources."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from slurm_robust.analysis.logs.site_rules import check_log_rules
from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, add_command, add_group
from slurm_robust.cli.settings import add_config_options, settings_of
from slurm_robust.config import nodefile
from slurm_robust.config.errors import ConfigError, InvalidSettings, Problem
from slurm_robust.config.job import JobConfig
from slurm_robust.config.jobfile import collect
from slurm_robust.config.node import NodeConfig
from slurm_robust.config.reader import Layers, as_yaml, parse, read_file, schema_keys, values_and_origins
from slurm_robust.model.errors import SrobustError
from slurm_robust.terminal.console import show
from slurm_robust.util.text import count


def register(commands: Commands) -> None:
    """Add the command and its two sub-commands."""
    parts = add_group(commands, "config", HELP["config"])

    text = (
        "check configuration files of jobs or nodes: unknown keys, types, values that contradict each other"
    )
    check = add_command(
        parts,
        "check",
        _check,
        text,
        json=True,
        examples=(
            ("srobust config check job.yaml", "a job's configuration"),
            ("srobust config check /etc/slurm-robust/node.yaml", "the configuration of nodes"),
        ),
    )
    check.add_argument("files", metavar="FILE", nargs="+", type=Path, help="a YAML file")

    add_config_options(
        add_command(
            parts,
            "show",
            _show,
            "print every key with its value and its source",
            json=True,
            examples=(
                ("srobust config show", "what a run here would use"),
                ("srobust config show --config job.yaml --set spares=2", "with a file and an option"),
            ),
        )
    )


def _check(args: argparse.Namespace) -> int:
    """Check each file by itself, and the files it names. All problems are reported together."""
    problems: list[Problem] = []
    good: dict[str, str] = {}
    for path in args.files:
        try:
            good[str(path)] = _check_file(path)
            if not args.json:
                print(f"{path}: good, {good[str(path)]}")
        except SrobustError as error:
            problems.append(Problem.of(error))
    refusal = InvalidSettings.of(problems) if problems else None
    if args.json:
        show({"good": good, "problems": [problem.text for problem in problems]}, str, json=True)
        return refusal.exit_code if refusal is not None else 0
    if refusal is not None:
        raise refusal
    return 0


def _check_file(path: Path) -> str:
    """Return how much the file sets. Raises InvalidSettings, PreflightError."""
    content = read_file(path)
    if is_node_file(content):
        node = Layers(NodeConfig)
        node.add_yaml(content, str(path))
        refusal = nodefile.refusal(path.absolute())
        if refusal and nodefile.is_usual(path.absolute()):
            node.problems.append(Problem(refusal))
        node.build()
        text = f"{count(len(node.values), 'section')} of a node's configuration"
        return f"{text}, but hooks would refuse the file as it is here: {refusal}" if refusal else text
    job = Layers(JobConfig)
    job.add_yaml(content, str(path))
    check_log_rules(job.build(), Path.cwd())
    found = sum(tuple(name.split(".")) in job.places for name in schema_keys(JobConfig))
    return count(found, "key")


def is_node_file(text: bytes) -> bool:
    """Return whether a file belongs to nodes rather than jobs: more of its keys exist there."""
    try:
        found = parse(text, "").value
    except ConfigError:
        return False
    names = set(found) if isinstance(found, dict) else set()
    node, job = (names.intersection(schema.__struct_fields__) for schema in (NodeConfig, JobConfig))
    return len(node) > len(job)


def _show(args: argparse.Namespace) -> int:
    """Print YAML that can be used as a file, with the source of each value as a comment."""
    layers = collect(args.config, os.environ, settings_of(args))
    built = layers.build()
    shown = values_and_origins(layers, built) if args.json else as_yaml(layers, built)
    show(shown, str, json=args.json)
    return 0
