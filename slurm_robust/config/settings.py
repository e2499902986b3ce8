"""Settings: single values with the place where each was said, and how they become a configuration.

Everything is keyed by full names (``timings.heartbeat_s``), so the layers of the precedence are plain
mappings and merging is a union of them. Nothing here touches a file.
"""

from __future__ import annotations

import difflib
import functools
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Any, get_args, get_origin

import msgspec

from slurm_robust.config.errors import InvalidSettings, InvalidValue, Problem
from slurm_robust.config.schema import JobConfig
from slurm_robust.model.exitcodes import ExitCode
from slurm_robust.util.text import one_line


@dataclass(frozen=True)
class Setting:
    """One value as it was said. ``where`` is for people: ``job.yaml, line 3``, ``option --nodes``.

    ``is_option``: it was said on the command line, so that a wrong one is wrong usage.
    """

    value: object
    where: str
    is_option: bool = False

    @property
    def code(self) -> ExitCode:
        """With what srobust ends where the value is wrong."""
        return ExitCode.USAGE if self.is_option else ExitCode.CONFIG


@dataclass
class Said:
    """All that was said, by full names, and in ``problems`` what cannot be understood, with its place.

    Problems travel along instead of being raised where they are found, so that all are told at once.
    ``whole``: every file could be read.
    """

    settings: dict[str, Setting] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    whole: bool = True

    def overrule(self, higher: Said) -> None:
        """Take in what ``higher`` says; where both say something, it counts."""
        self.settings |= higher.settings
        self.problems += higher.problems
        self.whole = self.whole and higher.whole


@dataclass(frozen=True)
class Key:
    """A key that exists. ``kind`` is its type and ``default`` its value when nobody says anything."""

    name: str
    kind: Any  # a type expression such as ``int | None``; typing has no name for those
    default: object

    @property
    def expected(self) -> str:
        """The type in words: ``a whole number or null``."""
        return in_words(self.kind)

    @property
    def example(self) -> str:
        """A line of YAML that is right for this key."""
        default = self.default
        if default is None or default == ():
            default = _EXAMPLES[self.name]
        leaf = self.name.rpartition(".")[2]
        return f"{leaf}: {msgspec.json.encode(default).decode()}"


# Only for keys whose default shows no value.
_EXAMPLES: dict[str, object] = {
    "nodes": 4,
    "nproc_per_node": 8,
    "job_dir": "/shared/me/jobs",
    "preload": ["transformers"],
    "detect.log_rules": ["/etc/slurm-robust/log-rules"],
    "checkpoint.directory": "/shared/me/checkpoints",
    "checkpoint.keep_every": 10000,
    "checkpoint.peer_network": "10.20.0.0/16",
    "checkpoint.peer_mb_s": 2000,
    "checkpoint.every_steps": 500,
    "checkpoint.local_directory": "/scratch/me",
    "replay.args": ["--layers", "2"],
    "rendezvous.port_range": "29500-29600",
}

_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "null",
}

_KINDS: dict[type, str] = {
    bool: "the truth value",
    int: "the number",
    float: "the number",
    str: "the text",
    list: "the list",
    dict: "the mapping",
}


def in_words(kind: Any) -> str:
    """A type for people: ``a whole number or null``, ``a list of texts``."""
    if kind in _WORDS:
        return _WORDS[kind]
    if get_origin(kind) is typing.Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        return {int: "a list of whole numbers", str: "a list of texts"}.get(get_args(kind)[0], "a list")
    if get_origin(kind) is dict:
        return "a mapping"
    return " or ".join(in_words(part) for part in get_args(kind)) or "a mapping"


@functools.cache
def known_keys(record: type = JobConfig) -> dict[str, Key]:
    """All keys by full name, in the order of the records."""
    found: dict[str, Key] = {}
    hints = typing.get_type_hints(record)
    for item in fields(record):
        kind = hints[item.name]
        if is_dataclass(kind):
            assert isinstance(kind, type)
            for inner in known_keys(kind).values():
                name = f"{item.name}.{inner.name}"
                found[name] = replace(inner, name=name)
        else:
            assert item.default is not MISSING, f"{record.__name__}.{item.name} needs a default"
            found[item.name] = Key(item.name, kind, item.default)
    return found


def sections() -> tuple[str, ...]:
    """Names of the mappings inside the file."""
    return tuple(dict.fromkeys(name.partition(".")[0] for name in known_keys() if "." in name))


def unknown_key(name: str, where: str) -> str:
    """The message for a key that does not exist, with the closest ones that do."""
    section, _, leaf = name.rpartition(".")
    elsewhere = [key for key in known_keys() if key.rpartition(".")[2] == leaf]
    if elsewhere:
        home = elsewhere[0].rpartition(".")[0]
        return f"{where}: {name} is no key; {leaf} belongs {f'under {home}:' if home else 'to the top level'}"
    prefix = f"{section}." if section in sections() else ""
    known = [key.removeprefix(prefix) for key in known_keys() if key.rpartition(".")[0] == prefix[:-1]]
    if not prefix:
        known += sections()
    close = difflib.get_close_matches(leaf, known, n=2)
    hint = "did you mean " + " or ".join(prefix + word for word in close) + "?"
    if not close:
        hint = "known keys here: " + ", ".join(prefix + word for word in known)
    return f"{where}: {name} is no key; {hint}"


def build(said: Said) -> JobConfig:
    """The configuration of what was said, defaults for the rest. Raises InvalidSettings with all problems."""
    problems = list(said.problems)
    values: dict[str, object] = {}
    for name, setting in said.settings.items():
        key = known_keys().get(name)
        if key is None:
            problems.append(Problem(unknown_key(name, setting.where), setting.code))
            continue
        try:
            values[name] = msgspec.convert(setting.value, key.kind)
        except msgspec.ValidationError:
            problems.append(Problem(_wrong_type(key, setting), setting.code))
    config = _make(JobConfig, values, "", said, problems)
    if problems:
        raise InvalidSettings.of(problems)
    assert isinstance(config, JobConfig)
    return config


def _wrong_type(key: Key, setting: Setting) -> str:
    must = f"{setting.where}: {key.name} must be {key.expected}, got {in_kind(setting.value)}"
    return f"{must}; write for example {key.example}"


def in_kind(value: object) -> str:
    """A value that was said, with its kind: ``the number 3``."""
    return "null" if value is None else f"{_KINDS.get(type(value), type(value).__name__)} {value!r}"


def _make(
    record: type,
    values: Mapping[str, object],
    prefix: str,
    said: Said,
    problems: list[Problem],
) -> object:
    """Build ``record`` from the values below ``prefix``.

    What it refuses goes to ``problems`` with the places it is about, and is left out for the next try.
    """
    hints = typing.get_type_hints(record)
    arguments: dict[str, object] = {}
    for item in fields(record):
        name = prefix + item.name
        if is_dataclass(hints[item.name]):
            arguments[item.name] = _make(hints[item.name], values, f"{name}.", said, problems)
        elif name in values:
            arguments[item.name] = values[name]
    while True:
        try:
            return record(**arguments)
        except InvalidValue as error:
            names = [prefix + key for key in error.keys]
            # A default instead of a value that is of the wrong type, or in a file that cannot be read, may
            # contradict another key wrongly.
            alone = said.whole or len(names) == 1
            if all(name in values or (alone and name not in said.settings) for name in names):
                problems.append(_refused(error, names, said.settings))
            given = {key.partition(".")[0] for key in error.keys} & arguments.keys()
            if not given:
                raise  # the defaults contradict each other, which is nothing that was said
            for key in given:
                del arguments[key]


def _refused(error: InvalidValue, names: list[str], settings: Mapping[str, Setting]) -> Problem:
    said_by = [settings[name] for name in names if name in settings]
    code = ExitCode.USAGE if all(setting.is_option for setting in said_by) else ExitCode.CONFIG
    return Problem(_refusal(error, names, settings), code)


def _refusal(error: InvalidValue, names: list[str], settings: Mapping[str, Setting]) -> str:
    places = [settings[name].where if name in settings else "default" for name in names]
    if len(names) == 1:
        return f"{places[0]}: {error}\n  fix: {error.fix}"
    said = [f"{name} ({place})" for name, place in zip(names, places, strict=True)]
    return f"{error}\nset by: {', '.join(said)}\n  fix: {error.fix}"


def show(config: JobConfig, settings: Mapping[str, Setting]) -> str:
    """The configuration as YAML, each value with its origin as a comment."""
    lines: list[str] = []
    opened = ""
    for name in sorted(known_keys(), key=lambda name: "." in name):
        section, _, leaf = name.rpartition(".")
        if section != opened:
            lines.append(f"{section}:")
            opened = section
        owner = getattr(config, section) if section else config
        text = msgspec.json.encode(getattr(owner, leaf)).decode()
        origin = settings[name].where if name in settings else "default"
        lines.append(f"{'  ' if section else ''}{leaf}: {text}".ljust(40) + f"  # {one_line(origin)}")
    return "\n".join(lines)
