"""Reads YAML against a schema of sections.

Each error names file, line and key, the expected type or range, and the fix. All errors are reported
together. :func:`parse` knows YAML and places, :class:`Layers` the schema and the order of several sources.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec
import yaml

from slurm_robust.config.errors import ConfigError, InvalidSettings, Problem
from slurm_robust.config.section import CHECK, SECRET, Contradiction, Section
from slurm_robust.model.errors import ExitCode
from slurm_robust.util.files import read_regular
from slurm_robust.util.text import did_you_mean, near, one_line, without_urls

Key = tuple[str, ...]

MAX_BYTES = 128 << 10
"""Bytes allowed in one file: a hook, which waits for 4 s, reads as many in less."""

MAX_LEVELS = 30
"""Mappings and lists allowed in each other. Brackets that are not closed make PyYAML slow."""

MAX_VALUES = 10_000
"""Values allowed in one file. Aliases of aliases turn a few lines into billions."""

HIDDEN = "(hidden)"
"""Shown in place of a secret."""

S = TypeVar("S", bound=Section)
_REJECTED = object()
_SHOWN = 80
_ALIKE = 0.6
"""How much keys resemble each other of which one is taken for the other: also if a part is missing."""


# -- YAML -------------------------------------------------------------------------------------------------


class ValueOrigin(NamedTuple):
    """The place in which a value was set: ``job.yaml, line 3``, ``option --nodes``."""

    text: str
    code: ExitCode = ExitCode.CONFIG
    """The exit code of srobust if the value is wrong: a wrong option is wrong usage."""


@dataclass
class Document:
    """One YAML file: plain values, the place of each, and keys that are set twice."""

    name: str
    value: Any = None
    places: dict[Key, ValueOrigin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add(self, loader: yaml.SafeLoader, node: yaml.Node, key: Key) -> Any:
        """Return the value of a node. Keys are taken as they are written: ``on`` is not a boolean there."""
        if len(self.places) > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES} values; do not nest anchors (&) and aliases (*)")
        if len(key) > MAX_LEVELS:  # an alias within what it stands for
            raise ValueError("it is nested too deeply")
        self.places.setdefault(key, self._place(node))
        if isinstance(node, yaml.ScalarNode):
            try:
                return loader.construct_object(node)
            except (ValueError, ArithmeticError, LookupError, AttributeError) as error:
                # PyYAML's own for a month 13, or for a tag (!!bool) that the text does not fit.
                problem = f"{node.value!r} is not a {node.tag.rpartition(':')[2]}: {error}"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error
        if node.tag not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
            problem = f"unknown tag {node.tag}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        if not isinstance(node, yaml.MappingNode):
            return [self.add(loader, item, (*key, str(index))) for index, item in enumerate(node.value)]
        self._check_keys(node, key)
        loader.flatten_mapping(node)
        return {name.value: self.add(loader, inner, (*key, name.value)) for name, inner in node.value}

    def _check_keys(self, node: yaml.Node, key: Key) -> None:
        """Note the places of keys, and those that are set twice, of which YAML would drop the first."""
        seen: dict[str, ValueOrigin] = {}
        for name, _ in node.value:
            if not isinstance(name, yaml.ScalarNode):
                problem = "a key must be a single word, not a list or a mapping"
                raise yaml.constructor.ConstructorError(None, None, problem, name.start_mark)
            inner, place = (*key, name.value), self._place(name)
            if name.value in seen:
                text = f"{place.text}: {dotted(inner)} is set twice; the other is at {seen[name.value].text}"
                self.problems.append(Problem(f"{text}\n  fix: keep one"))
            self.places[inner] = seen[name.value] = place

    def _place(self, node: yaml.Node) -> ValueOrigin:
        return ValueOrigin(f"{self.name}, line {node.start_mark.line + 1}")


class _Loader(yaml.SafeLoader):
    """Not libyaml's loader: deep nesting overflows its stack."""

    levels = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node, unless there are too many around it."""
        self.levels += 1
        if self.levels > MAX_LEVELS:
            raise ValueError("it is nested too deeply")
        node = super().compose_node(parent, index)
        self.levels -= 1
        return node


def read_file(path: Path) -> bytes:
    """Return the content of a YAML file. Raises ConfigError."""
    try:
        return read_regular(path, MAX_BYTES)
    except OSError as error:
        text = f"configuration file {path} cannot be read: {error.strerror or error}"
        raise ConfigError(text, fix="name a YAML file that you may read", code=ExitCode.NO_INPUT) from error


def parse(text: bytes, name: str, key: Key = ()) -> Document:
    """Read one YAML document. Raises ConfigError if it is not valid YAML.

    ``name`` is the file's name for messages, ``key`` that of the whole document.
    """
    document = Document(name)
    loader: yaml.SafeLoader | None = None
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is not None:  # only comments
            document.value = document.add(loader, root, key)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = name if mark is None else f"{name}, line {mark.line + 1}, column {mark.column + 1}"
        parts = [getattr(error, part, None) for part in ("context", "problem", "reason")]
        reason = without_urls(": ".join(str(part) for part in parts if part) or str(error))
        fix = "check indentation and quotes there, and that the file is UTF-8"
        raise ConfigError(f"{place}: not valid YAML: {reason}", fix=fix) from error
    finally:
        if loader is not None:
            loader.dispose()
    return document


def dotted(key: Key) -> str:
    """Return ``("site_checks", "0", "name")`` as messages show it: ``site_checks[0].name``."""
    return "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in key).removeprefix(".")


# -- the schema -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SchemaKey:
    """A key that exists, outside of lists and mappings. ``kind`` is its type expression."""

    name: str
    kind: Any
    default: Any

    @property
    def example(self) -> str:
        """A line of YAML with a valid value; empty if none is known."""
        shown = [self.default, *(example for meta in _metas(self.kind) for example in meta.examples or ())]
        value = next((value for value in shown if value not in (None, "", (), {})), None)
        return "" if value is None else f"{self.name.rpartition('.')[2]}: {as_json(value)}"


def as_json(value: object) -> str:
    """Return a value as JSON in one line, which is YAML too."""
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


@functools.cache
def schema_keys(schema: type[Section]) -> dict[str, SchemaKey]:
    """Return all keys by their full names (``timings.heartbeat_s``), in the order of the schema."""
    found: dict[str, SchemaKey] = {}
    for item in msgspec.structs.fields(schema):
        if is_section(item.type):
            for inner in schema_keys(item.type).values():
                name = f"{item.name}.{inner.name}"
                found[name] = SchemaKey(name, inner.kind, inner.default)
        else:
            found[item.name] = SchemaKey(item.name, item.type, default_of(item))
    return found


def default_of(item: msgspec.structs.FieldInfo) -> Any:
    """Return the value of a field that is not set, None for one that must be."""
    if item.required:
        return None
    return item.default if item.default_factory is msgspec.NODEFAULT else item.default_factory()


def is_section(kind: Any) -> bool:
    """Return whether a type expression is that of a nested section."""
    return isinstance(kind, type) and issubclass(kind, Section)


def expected(kind: Any) -> str:
    """Return a type in words: ``an integer of 1 or more, or null``."""
    if get_origin(kind) is Annotated:
        titles = (meta.title for meta in kind.__metadata__ if meta.title)
        return next(titles, None) or expected(kind.__origin__)
    if get_origin(kind) in (Union, UnionType):
        parts = [expected(part) for part in get_args(kind)]
        return (", or " if " or " in parts[0] or "," in parts[0] else " or ").join(parts)
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        plural = {str: "a list of strings", int: "a list of integers"}
        return plural.get(item) or f"a list, each item {expected(item)}"
    return _NAMES.get(kind, "a mapping")


_NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    type(None): "null",
}


def shown(value: object) -> str:
    """Return a value that was set, for messages: ``the string 'four'``, ``null``."""
    if value is None or isinstance(value, bool):
        return as_json(value)
    kinds = {int: "number", float: "number", str: "string", list: "list", dict: "mapping"}
    if type(value) not in kinds:
        return f"the {type(value).__name__} {value}"
    return f"the {kinds[type(value)]} {one_line(without_urls(repr(value)), _SHOWN)}"


def types_of(kind: Any) -> list[Any]:
    """Return the types of a union, without annotations."""
    if get_origin(kind) is Annotated:
        return types_of(kind.__origin__)
    if get_origin(kind) in (Union, UnionType):
        return [member for part in get_args(kind) for member in types_of(part)]
    return [kind]


def _item_keys(kind: Any) -> frozenset[str]:
    """Return the keys of each item of a list of mappings; none of another type."""
    lists = (member for member in types_of(kind) if get_origin(member) is tuple)
    sections = (section for member in lists if is_section(section := get_args(member)[0]))
    return frozenset(field.name for section in sections for field in msgspec.structs.fields(section))


def _is_secret(kind: Any) -> bool:
    return any((meta.extra or {}).get(SECRET) for meta in _metas(kind))


def _checks(kind: Any) -> Iterator[Callable[[object], object]]:
    """Yield what reads a text of this type; null needs no reading."""
    for meta in _metas(kind):
        if check := (meta.extra or {}).get(CHECK):
            yield lambda value: value is None or check(value)
    if get_origin(kind) in (Union, UnionType):
        for member in get_args(kind):
            yield from _checks(member)


def _metas(kind: Any) -> tuple[Any, ...]:
    return kind.__metadata__ if get_origin(kind) is Annotated else ()


class Checker:
    """Checks the values of one source against a schema. ``problems`` collects what is wrong."""

    def __init__(self, schema: type[Section], places: Mapping[Key, ValueOrigin]) -> None:
        self.problems: list[Problem] = []
        self._schema = schema
        self._places = places

    def section(self, kind: type[Section], value: object, key: Key) -> Any:
        """Return what can be used of a mapping; :data:`_REJECTED` if nothing can be."""
        if not isinstance(value, dict):
            name = _in_schema(key)
            known = (item for item in schema_keys(self._schema).values() if item.name.startswith(name))
            example = next((item.example for item in known if item.example), "")
            fix = "write its keys below it" if key else "write lines"
            fix += f", for example {example}" if example else ""
            self._reject(key, f"must be a mapping of keys to values, got {shown(value)}", fix, final=True)
            return _REJECTED
        fields = {item.name: item for item in msgspec.structs.fields(kind)}
        good: dict[str, Any] = {}
        for name, inner in value.items():
            if name in fields:
                checked = self.value(fields[name].type, inner, (*key, name))
                good |= {} if checked is _REJECTED else {name: checked}
            else:
                self._unknown((*key, name), tuple(fields))
        needed = [item.name for item in fields.values() if item.required and item.name not in good]
        for name in needed:
            if name not in value:
                self._reject(key, f"needs the key {name}", f"add {name}: {expected(fields[name].type)}")
        return _REJECTED if needed else good

    def value(self, kind: Any, value: object, key: Key) -> Any:
        """Return what can be used of a value."""
        members = types_of(kind)
        holder = next((m for m in members if is_section(m) or get_origin(m) in (dict, tuple)), None)
        if holder is None or (value is None and type(None) in members):
            return self._single(kind, value, key)
        if value is None:
            return _REJECTED  # all that it holds is commented out
        if is_section(holder):
            return self.section(holder, value, key)
        if get_origin(holder) is dict and isinstance(value, dict):
            return self._mapping(holder, value, key)
        if get_origin(holder) is tuple and isinstance(value, list | tuple):
            inner = [self.value(get_args(holder)[0], item, (*key, str(i))) for i, item in enumerate(value)]
            return _REJECTED if any(item is _REJECTED for item in inner) else inner
        self._wrong(kind, value, key)
        return _REJECTED

    def _mapping(self, kinds: Any, value: Mapping[str, object], key: Key) -> dict[str, Any]:
        name_kind, kind = get_args(kinds)
        checked = {
            name: self.value(kind, inner, (*key, name))
            for name, inner in value.items()
            if self._single(name_kind, name, (*key, name)) is not _REJECTED
        }
        return {name: inner for name, inner in checked.items() if inner is not _REJECTED}

    def _single(self, kind: Any, value: object, key: Key) -> Any:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            self._wrong(kind, value, key)
            return _REJECTED
        for check in _checks(kind):
            try:
                check(value)
            except ValueError as error:
                text, _, fix = str(error).partition("; ")
                self._reject(key, f"is wrong: {text}", fix or f"write {expected(kind)}")
                return _REJECTED
        return value

    def _wrong(self, kind: Any, value: object, key: Key) -> None:
        item = schema_keys(self._schema).get(_in_schema(key))
        example = item.example if item is not None else ""
        fix = f"write for example {example}" if example else f"write {expected(kind)}"
        self._reject(key, f"must be {expected(kind)}, got {shown(value)}", fix)

    def _unknown(self, key: Key, here: Sequence[str]) -> None:
        *section, leaf = key
        name = leaf.rpartition(".")[2]
        known = (full.rpartition(".") for full in schema_keys(self._schema))
        homes = [f"under {home}:" if home else "top level" for home, _, last in known if last == name]
        items = schema_keys(self._schema).values()
        homes = homes or [f"in an item of {item.name}:" for item in items if name in _item_keys(item.kind)]
        likely = [f"{name} ({home})" for home in homes]
        likely = likely or [dotted((*section, word)) for word in near(leaf, here, alike=_ALIKE)]
        hint = did_you_mean(likely) or f"known keys here: {', '.join(here)}"
        place = place_of(self._places, key)
        name = dotted(key)
        self.problems.append(Problem(f"{place.text}: unknown key {name}; {hint}", place.code, key))

    def _reject(self, key: Key, text: str, fix: str, *, final: bool = False) -> None:
        place, name = place_of(self._places, key), dotted(key)
        said = f"{place.text}: {f'{name} {text}' if name else text}\n  fix: {fix}"
        self.problems.append(Problem(said, place.code, None if final else key))


def place_of(places: Mapping[Key, ValueOrigin], key: Key) -> ValueOrigin:
    """Return the place of a key, or of the nearest mapping or list around it that has one."""
    known = (key[:end] for end in range(len(key), -1, -1) if key[:end] in places)
    return places[found] if (found := next(known, None)) is not None else ValueOrigin("default")


def contradictions(value: object, key: Key = ()) -> Iterator[tuple[list[Key], Contradiction]]:
    """Yield what all sections in ``value`` find wrong, with the full keys."""
    if isinstance(value, Section):
        for found in value.contradictions():
            yield [(*key, *name.split(".")) for name in found.keys], found
        inner: Mapping[str, object] = msgspec.structs.asdict(value)
    elif isinstance(value, tuple):
        inner = {str(index): item for index, item in enumerate(value)}
    else:
        inner = value if isinstance(value, dict) else {}
    for name, item in inner.items():
        yield from contradictions(item, (*key, name))


# -- layers -----------------------------------------------------------------------------------------------


@dataclass
class Layers(Generic[S]):
    """What several sources set, a higher one over a lower: mappings merge, everything else is replaced.

    Errors are collected instead of raised when they are found, so that all are reported together.
    ``values`` holds only what the schema accepts. ``whole``: every file could be read.
    """

    schema: type[S]
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Key, ValueOrigin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    whole: bool = True

    def add_file(self, path: Path) -> None:
        """Add a YAML file above what is there."""
        try:
            content = read_file(path)
        except ConfigError as error:
            self.problems.append(Problem.of(error))
            self.whole = False
        else:
            self.add_yaml(content, str(path))

    def add_yaml(self, content: bytes, name: str, root: str = "") -> None:
        """Add the text of a YAML file above what is there, as the value of the key ``root`` if given."""
        try:
            document = parse(content, name, (root,) if root else ())
        except ConfigError as error:
            self.problems.append(Problem.of(error))
            self.whole = False
            return
        self.problems += document.problems
        value = {} if document.value is None else document.value
        self._add({root: document.value} if root else value, document.places)

    def add(self, name: str, value: object, place: ValueOrigin) -> None:
        """Set a single key above what is there; ``name`` is a full name (``timings.heartbeat_s``)."""
        key = tuple(name.split("."))
        for part in reversed(key):
            value = {part: value}
        self._add(value, {key[: end + 1]: place for end in range(len(key))})

    def _add(self, value: object, places: dict[Key, ValueOrigin]) -> None:
        checker = Checker(self.schema, places)
        good = checker.section(self.schema, value, ())
        self.problems += checker.problems
        self.values = _merged(self.values, {} if good is _REJECTED else good)
        self.places |= places

    def overrule(self, higher: Layers[S]) -> None:
        """Add all of ``higher`` above what is there. Values that it replaces need not be right."""
        self.problems = [problem for problem in self.problems if problem.key not in higher.places]
        self.problems += higher.problems
        self.values = _merged(self.values, higher.values)
        self.places |= higher.places
        self.whole = self.whole and higher.whole

    def build(self) -> S:
        """Return the configuration, defaults for all other keys. Raises InvalidSettings with all problems."""
        config = msgspec.convert(self.values, self.schema)
        rejected = {problem.key for problem in self.problems}
        for keys, found in contradictions(config):
            # A default instead of a value that was rejected, or that stands in a file that cannot be read,
            # may contradict another key wrongly.
            unsure = not self.whole and len(keys) > 1 and not all(key in self.places for key in keys)
            if not unsure and not rejected.intersection(keys):
                self.problems.append(self._contradiction(keys, found))
        if self.problems:
            raise InvalidSettings.of(self.problems)
        return config

    def _contradiction(self, keys: Sequence[Key], found: Contradiction) -> Problem:
        places = [self.places.get(key, ValueOrigin("default")) for key in keys]
        codes = {place.code for place, key in zip(places, keys, strict=True) if key in self.places}
        code = ExitCode.USAGE if codes == {ExitCode.USAGE} else ExitCode.CONFIG
        if len(keys) == 1:
            leaf, space, rest = found.text.partition(" ")
            text = f"{space}{rest}" if leaf == keys[0][-1] else f": {found.text}"
            return Problem(f"{places[0].text}: {dotted(keys[0])}{text}\n  fix: {found.fix}", code)
        said = ", ".join(f"{dotted(key)} ({place.text})" for key, place in zip(keys, places, strict=True))
        return Problem(f"{found.text}\n  set by: {said}\n  fix: {found.fix}", code)


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in over.items():
        below = merged.get(name)
        if isinstance(below, dict) and isinstance(value, dict):
            value = _merged(below, value)
        merged[name] = value
    return merged


def as_yaml(layers: Layers[S], config: S) -> str:
    """Return the configuration as YAML, each value with its origin as a comment."""
    lines: list[str] = []
    opened, known = "", values_and_origins(layers, config)
    for name in sorted(schema_keys(layers.schema), key=lambda name: "." in name):
        section, _, leaf = name.rpartition(".")
        if section != opened:
            lines.append(f"{section}:")
            opened = section
        text, origin = as_json(known[name]["value"]), str(known[name]["origin"])
        lines.append(f"{'  ' if section else ''}{leaf}: {text}".ljust(40) + f"  # {one_line(origin)}")
    return "\n".join(lines)


def values_and_origins(layers: Layers[S], config: S) -> dict[str, dict[str, object]]:
    """Return each key with its ``value``, secrets hidden, and its ``origin``."""
    found: dict[str, dict[str, object]] = {}
    for name in schema_keys(layers.schema):
        section, _, leaf = name.rpartition(".")
        value = _without_secrets(getattr(getattr(config, section) if section else config, leaf))
        origin = layers.places.get(tuple(name.split(".")), ValueOrigin("default")).text
        found[name] = {"value": value, "origin": origin}
    return found


def _without_secrets(value: object) -> object:
    """Return a value for people: secret fields say only that they are set."""
    if isinstance(value, tuple):
        return [_without_secrets(item) for item in value]
    if not isinstance(value, Section):
        return value
    return {
        item.name: HIDDEN if set_ is not None and _is_secret(item.type) else _without_secrets(set_)
        for item in msgspec.structs.fields(value)
        for set_ in [getattr(value, item.name)]
    }


def _in_schema(key: Key) -> str:
    """Return the name that the schema has for ``key``: one of several has the name of them all."""
    return ".".join(part for part in key if not part.isdecimal())
