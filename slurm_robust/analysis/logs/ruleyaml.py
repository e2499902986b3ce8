"""Reads rules from YAML. What is wrong is told with file, line and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import yaml

from slurm_robust.analysis.logs.patterns import BadPattern, check
from slurm_robust.analysis.logs.rule import SYMPTOMS, Rule, RuleSet
from slurm_robust.config.errors import InvalidSettings
from slurm_robust.health.shapes import SHAPES

STREAMS = ("program", "kernel", "slurm", "nvidia-smi")
_FIX = "docs/log-rules.md shows how a rule is written"
# libyaml is ten times as fast, and a job waits for this once.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FIELDS = tuple(name for name in Rule.__struct_fields__ if name != "site")
_REQUIRED = ("name", "symptom", "blame", "action")


@cache
def shipped() -> RuleSet:
    """The rules of this package."""
    return RuleSet(_shipped())


@cache
def _shipped() -> tuple[Rule, ...]:
    folder = resources.files("slurm_robust.analysis.logs") / "rules"
    files = sorted(
        (file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name
    )
    return tuple(rule for file in files for rule in parse(file.read_bytes(), file.name, site=False))


def with_site_rules(paths: Iterable[Path]) -> RuleSet:
    """Our rules and above them those of files, or of all ``*.yaml`` in folders. Raises InvalidSettings."""
    paths = tuple(paths)
    if not paths:
        return shipped()
    site = [rule for path in paths for file in _files(path) for rule in _read(file)]
    return RuleSet((*_shipped(), *site))


def _files(path: Path) -> list[Path]:
    return sorted(path.glob("*.yaml")) if path.is_dir() else [path]


def _read(path: Path) -> list[Rule]:
    try:
        return parse(path.read_bytes(), str(path), site=True)
    except OSError as error:
        raise InvalidSettings(
            (f"{path}: the rules cannot be read: {error.strerror}",), "give a YAML file, or a folder of them"
        ) from error


def parse(text: bytes, name: str, *, site: bool) -> list[Rule]:
    """The rules of one file. ``name`` is for messages. Raises InvalidSettings with every problem."""
    rules, problems = {}, []
    for node, value in _items(text, name):
        # Ours are checked by the tests: compiling hundreds of patterns that are never tried takes too long.
        wrong = list(_problems(value)) if site else []
        if not wrong and value["name"] in rules:
            wrong = [f"name {value['name']} is there twice; give each rule a name of its own"]
        problems += [f"{_place(node, problem, name)}: {problem}" for problem in wrong]
        if not wrong:
            rules[value["name"]] = msgspec.convert(value | {"site": site}, Rule)
    if problems:
        raise InvalidSettings(tuple(problems), _FIX)
    return list(rules.values())


def _items(text: bytes, name: str) -> list[tuple[yaml.Node, Any]]:
    """Each rule as YAML's node, which knows the lines, and as a value."""
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return []
        if not isinstance(root, yaml.SequenceNode):
            problem = f"{name}, line 1: must be a list of rules; begin each with '- name:'"
            raise InvalidSettings((problem,), _FIX)
        return list(zip(root.value, loader.construct_document(root), strict=True))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
        fix = "check indentation, and put patterns in single quotes"
        raise InvalidSettings((f"{name}{line}: not valid YAML: {reason}",), fix) from error
    finally:
        loader.dispose()


def _place(rule: yaml.Node, problem: str, name: str) -> str:
    """The line of the key that a problem begins with, else that of the rule."""
    keys = [key for key, _ in rule.value] if isinstance(rule, yaml.MappingNode) else []
    node = next((key for key in keys if problem.startswith(f"{key.value} ")), rule)
    return f"{name}, line {node.start_mark.line + 1}"


def _problems(value: object) -> Iterator[str]:
    if not isinstance(value, dict):
        yield "a rule must be a mapping; begin it with '- name:'"
        return
    for key in value:
        if key not in _FIELDS:
            close = difflib.get_close_matches(str(key), _FIELDS, n=1)
            yield f"{key} is no key; " + (
                f"did you mean {close[0]}?" if close else "know: " + ", ".join(_FIELDS)
            )
    yield from (f"a rule needs {key}; add it" for key in _REQUIRED if key not in value)
    if not value.keys() & {"any", "xids", "shapes", "curve"}:
        yield "a rule needs any (patterns), xids, shapes or curve; add one"
    yield from _wrong_words(value)
    for key in ("any", "all", "unless", "without"):
        yield from _wrong_patterns(key, value.get(key, ()))
    if value.keys() <= set(_FIELDS):
        try:
            msgspec.convert(value, Rule)
        except msgspec.ValidationError as error:
            reason, _, path = str(error).partition(" - at `$.")
            yield f"{path.rstrip('`').partition('[')[0]} is wrong: {reason}".strip() if path else reason


def _wrong_words(value: dict[str, Any]) -> Iterator[str]:
    also, streams, names = (_listed(value.get(key)) for key in ("also", "streams", "shapes"))
    for key, said, known in (
        ("symptom", [value["symptom"]] if "symptom" in value else [], SYMPTOMS),
        ("also", also, SYMPTOMS),
        ("streams", streams, STREAMS),
        ("shapes", names, tuple(SHAPES)),
    ):
        yield from (
            f"{key} cannot be {word!r}; one of {', '.join(known)}" for word in said if word not in known
        )


def _wrong_patterns(key: str, patterns: object) -> Iterator[str]:
    if isinstance(patterns, str):
        yield f"{key} must be a list; write [{patterns!r}]"
        return
    for pattern in _listed(patterns):
        try:
            # What excludes a line is only tried on few lines, so it needs no word.
            if key != "unless" or not isinstance(pattern, str):
                check(pattern)
        except (BadPattern, TypeError) as error:
            yield f"{key} has {pattern!r}, which {error}"


def _listed(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
