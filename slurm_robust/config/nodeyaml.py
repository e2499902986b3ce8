"""Reads the node's configuration from YAML: what is wrong is told with file, line, key and fix.

Only what the compiled copy of :mod:`slurm_robust.config.nodefile` does not know passes through here, so that
hooks import neither this module nor yaml.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
import yaml

from slurm_robust.config.node import NodeConfig
from slurm_robust.config.settings import in_kind, in_words, known_keys, sections

Path = tuple[str, ...]

MOST_VALUES = 10_000
"""In one file. Aliases of aliases make billions out of a few lines."""


@dataclass
class Layers:
    """Files merged in order: mappings merge, everything else replaces. ``places``: who said what."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Path, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, text: bytes, name: str) -> None:
        """One more file above the others. ``name`` is for messages. What is wrong adds to ``problems``."""
        loader: yaml.SafeLoader | None = None
        try:
            loader = yaml.SafeLoader(text)
            root = loader.get_single_node()
            if root is None:
                return  # only comments
            if not isinstance(root, yaml.MappingNode):
                self.problems.append(f"{name}: must be a mapping of sections; write lines like 'drain:'")
                return
            places = dict(islice(self._places(root, name, ()), MOST_VALUES + 1))
            if len(places) > MOST_VALUES:
                self.problems.append(
                    f"{name}: more than {MOST_VALUES} values: do not nest anchors (&) and aliases (*)"
                )
                return
            loader.flatten_mapping(root)
            values = loader.construct_document(root)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            line = f", line {mark.line + 1}" if mark else ""
            reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
            self.problems.append(
                f"{name}{line}: not valid YAML: {reason}; check indentation and quotes there"
            )
            return
        finally:
            if loader is not None:
                loader.dispose()
        self.places |= places
        # A section whose keys are all commented out says nothing.
        said = {str(key): value for key, value in values.items() if value is not None}
        self.problems += wrong_types(NodeConfig, said, (), places, name)
        self.values = merge(self.values, said)

    def _places(self, node: yaml.Node, name: str, path: Path) -> Iterator[tuple[Path, str]]:
        """Each key's place; keys that are there twice are problems, since YAML would drop the first."""
        if not isinstance(node, yaml.MappingNode):
            items = node.value if isinstance(node, yaml.SequenceNode) else []
            for index, item in enumerate(items):
                yield (*path, str(index)), f"{name}, line {item.start_mark.line + 1}"
                yield from self._places(item, name, (*path, str(index)))
            return
        seen: dict[str, str] = {}
        for key, value in node.value:
            inner = (*path, str(key.value))
            where = f"{name}, line {key.start_mark.line + 1}"
            if inner[-1] in seen:
                self.problems.append(
                    f"{where}: {dotted(inner)} is there twice; the other is at {seen[inner[-1]]}: keep one"
                )
            seen[inner[-1]] = where
            yield inner, where
            yield from self._places(value, name, inner)


def is_node_file(text: bytes) -> bool:
    """Whether a file is meant for nodes and not for jobs: more of its keys are known there."""
    try:
        root = yaml.safe_load(text)
    except yaml.YAMLError:
        return False
    said = set(root) if isinstance(root, dict) else set()
    job = {*sections(), *known_keys()}
    return len(said & set(NodeConfig.__struct_fields__)) > len(said & job)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` above ``base``: mappings merge, lists and single values replace."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, dict) and isinstance(value, dict)
        merged[key] = merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


def dotted(path: Path) -> str:
    """``("gpu", "count")`` as it is written in messages: ``gpu.count``."""
    return ".".join(path)


def wrong_types(kind: Any, value: object, path: Path, places: Mapping[Path, str], name: str) -> Iterator[str]:
    """One line for each key that does not exist and each value that is not of its key's type."""
    where = places.get(path, name)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if not isinstance(value, dict):
            yield f"{where}: {dotted(path)} must be a mapping, got {in_kind(value)}; write its keys below it"
            return
        inside = list(_wrong_keys(kind, value, path, places, name))
        yield from inside or _refused(kind, value, where)
    elif get_origin(kind) is dict and isinstance(value, dict):
        for key, inner in value.items():
            yield from wrong_types(get_args(kind)[1], inner, (*path, str(key)), places, name)
    elif get_origin(kind) is tuple and isinstance(value, list):
        for index, inner in enumerate(value):
            yield from wrong_types(get_args(kind)[0], inner, (*path, str(index)), places, name)
    else:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            yield f"{where}: {dotted(path)} must be {_expected(kind)}, got {in_kind(value)}"


def _wrong_keys(
    kind: type[msgspec.Struct],
    value: Mapping[str, object],
    path: Path,
    places: Mapping[Path, str],
    name: str,
) -> Iterator[str]:
    where = places.get(path, name)
    fields = {item.name: item for item in msgspec.structs.fields(kind)}
    for key, inner in value.items():
        if key in fields:
            yield from wrong_types(fields[key].type, inner, (*path, key), places, name)
        else:
            yield _unknown(str(key), path, list(fields), places.get((*path, str(key)), where))
    for item in fields.values():
        if item.required and item.name not in value:
            yield f"{where}: {dotted((*path, item.name))} is missing; add it"


def _refused(kind: type[msgspec.Struct], value: object, where: str) -> Iterator[str]:
    """What the record itself says about a combination of values."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        yield f"{where}: {str(error).rpartition(' - at ')[0] or error}"


def _expected(kind: Any) -> str:
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(dict.fromkeys(in_words(part) for part in get_args(kind)))
    return in_words(kind)


def _unknown(key: str, path: Path, known: Sequence[str], where: str) -> str:
    homes = [
        section.name
        for section in msgspec.structs.fields(NodeConfig)
        if isinstance(section.type, type)
        and issubclass(section.type, msgspec.Struct)
        and key in section.type.__struct_fields__
    ]
    close = difflib.get_close_matches(key, known, n=2)
    if close:
        hint = "did you mean " + " or ".join(dotted((*path, word)) for word in close) + "?"
    elif homes:
        hint = f"{key} belongs under {' or '.join(f'{home}:' for home in homes)}"
    else:
        hint = "known keys here: " + ", ".join(known)
    return f"{where}: {dotted((*path, key))} is no key; {hint}"


CONTEXTS = ("prolog", "epilog", "periodic", "deep", "person")
HEALTH_CHECK_LIMIT_S = 60.0
_SHARES = (("drain", "max_share"), ("memory", "max_missing_share"), ("memory", "min_free_share"))
_POSITIVE = ("prolog_s", "epilog_s", "periodic_s", "slurm_s", "answer_s", "timeout_s", "pass_runs", "confirm")
_ABSOLUTE = (("paths", "state"), ("paths", "log"), ("paths", "runtime"))
_HINT_WORDS = ("work_dir", "user", "uid", "home", "job_id")


def contradictions(config: NodeConfig) -> Iterator[tuple[Path, str]]:
    """Values of the right type that cannot be meant: the key, and what is wrong in words."""
    yield from _bounds(msgspec.to_builtins(config), ())
    hooks = config.hooks
    if hooks.periodic_s >= HEALTH_CHECK_LIMIT_S:
        yield ("hooks", "periodic_s"), "must be below 60: Slurm kills a HealthCheckProgram after 60 s"
    for name in ("prolog_s", "epilog_s", "periodic_s"):
        if hooks.slurm_s > getattr(hooks, name) > 0:
            yield ("hooks", "slurm_s"), f"must not be above hooks.{name}: one command would use it all up"
    if hooks.slurm_bin and not hooks.slurm_bin.startswith("/"):
        yield ("hooks", "slurm_bin"), "must be an absolute path: hooks have no PATH"
    for section, name in _ABSOLUTE:
        if not getattr(getattr(config, section), name).startswith("/"):
            yield (section, name), "must be an absolute path: hooks run in any folder"
    for index, folder in enumerate(config.hints.job_dirs):
        try:
            folder.format(**dict.fromkeys(_HINT_WORDS, ""))
        except (KeyError, IndexError, ValueError, AttributeError):
            known = ", ".join(f"{{{word}}}" for word in _HINT_WORDS)
            yield ("hints", "job_dirs", str(index)), f"can only be filled in with {known}, got {folder!r}"
    for name, rule in config.checks.items():
        yield from _contexts(("checks", name, "contexts"), rule.contexts or ())
    yield from _site_checks(config)


def _bounds(value: object, path: Path) -> Iterator[tuple[Path, str]]:
    """No number of this configuration has a meaning below zero, or without end."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _bounds(inner, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _bounds(inner, (*path, str(index)))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            yield path, f"must be a finite number, got {value}"
        elif value < 0 or (value == 0 and path[-1] in _POSITIVE):
            yield path, f"must be {'above' if path[-1] in _POSITIVE else 'at least'} 0, got {value:g}"
        elif value > 1 and path in _SHARES:
            yield path, f"is a share from 0 to 1, got {value:g}; write 0.1 for ten percent"


def _contexts(path: Path, contexts: Sequence[str]) -> Iterator[tuple[Path, str]]:
    for index, context in enumerate(contexts):
        if context not in CONTEXTS:
            yield (*path, str(index)), f"must be one of {', '.join(CONTEXTS)}, got {context!r}"


def _site_checks(config: NodeConfig) -> Iterator[tuple[Path, str]]:
    names = [check.name for check in config.site_checks]
    for index, check in enumerate(config.site_checks):
        path = ("site_checks", str(index))
        if check.name in names[:index]:
            yield (*path, "name"), f"must be a name of its own, got {check.name!r} twice"
        if check.command and not check.command[0].startswith("/"):
            yield (
                (*path, "command"),
                f"must be an absolute path: hooks have no PATH, got {check.command[0]!r}",
            )
        elif check.python and check.python.count(":") != 1:
            yield (*path, "python"), f"must be module:function, got {check.python!r}"
        yield from _contexts((*path, "contexts"), check.contexts)
