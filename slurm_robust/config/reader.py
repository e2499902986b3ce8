"""Where settings come from. The one precedence, lowest to highest:

1. the defaults of the records in :mod:`slurm_robust.config.schema`
2. ``/etc/slurm-robust/job.yaml``, the site's file, if it is there
3. the file of ``--config``
4. environment variables ``SROBUST_CONFIG_<KEY>`` (``SROBUST_CONFIG_TIMINGS_NODE_DEAD_S=10``)
5. options of the command line
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import get_args, get_origin

import yaml

from slurm_robust.config.errors import ConfigError, FileUnreadable, Problem
from slurm_robust.config.schema import JobConfig
from slurm_robust.config.settings import Key, Said, Setting, build, known_keys, sections

SITE_FILE = Path("/etc/slurm-robust/job.yaml")

# Not just SROBUST_: workers find variables of that prefix in their environment that are no settings.
ENVIRONMENT_PREFIX = "SROBUST_CONFIG_"


def collect(
    file: Path | None,
    environ: Mapping[str, str],
    options: Said,
    site_file: Path = SITE_FILE,
) -> Said:
    """What all layers say, the highest one's where several have the same key.

    That a file cannot be read, or is no YAML, is one of the problems.
    """
    merged = Said()
    for layer in ((site_file,) if site_file.exists() else ()) + ((file,) if file is not None else ()):
        try:
            merged.overrule(read_file(layer))
        except ConfigError as error:
            merged.overrule(Said(problems=[Problem(error.in_full(), error.exit_code)], whole=False))
    merged.overrule(from_environment(environ))
    merged.overrule(options)
    return merged


def load(
    file: Path | None,
    environ: Mapping[str, str],
    options: Said,
    site_file: Path = SITE_FILE,
) -> JobConfig:
    """The configuration of a job from all layers. Raises ConfigError."""
    return build(collect(file, environ, options, site_file))


def read_file(path: Path) -> Said:
    """What one file says. Raises ConfigError if it cannot be read or is no mapping."""
    try:
        return parse(path.read_bytes(), str(path))
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileUnreadable(
            f"configuration file {path} cannot be read: {reason}", "name a YAML file that you may read"
        ) from error


def parse(text: bytes, name: str) -> Said:
    """What a YAML text says. ``name`` is the file's name for messages. Raises ConfigError."""
    loader: yaml.SafeLoader | None = None
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return Said()  # only comments: a file that says nothing is a right one
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(
                f"{name}, line {_line(root)}: the file must be a mapping of keys to values",
                "write lines like 'nodes: 4'",
            )
        return _flatten(loader, root, name)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"{_place(error, name)}: not valid YAML: {_reason(error)}",
            f"check indentation and quotes there; a check without running: srobust config check {name}",
        ) from error
    finally:
        if loader is not None:
            loader.dispose()


def from_environment(environ: Mapping[str, str]) -> Said:
    """What ``SROBUST_CONFIG_*`` say. Lists are separated by commas."""
    names = {environment_name(key): key for key in known_keys()}
    found = Said()
    for variable in sorted(environ):
        if variable.startswith(ENVIRONMENT_PREFIX):
            name = names.get(variable) or variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            take_text(found, name, environ[variable], f"environment variable {variable}")
    return found


def environment_name(key: str) -> str:
    """``timings.node_dead_s`` -> ``SROBUST_CONFIG_TIMINGS_NODE_DEAD_S``."""
    return ENVIRONMENT_PREFIX + key.replace(".", "_").upper()


def take_text(said: Said, name: str, text: str, where: str, *, is_option: bool = False) -> None:
    """Add the words of an option or variable to ``said``, as the type of key ``name`` wants them."""
    key = known_keys().get(name)
    said.settings[name] = Setting(text if key is None else _from_text(key, text), where, is_option)


def _from_text(key: Key, text: str) -> object:
    if text == "null" and type(None) in get_args(key.kind):
        return None
    if get_origin(key.kind) is tuple:
        words = [word.strip() for word in text.split(",") if word.strip()]
        return words if get_args(key.kind)[0] is str else [_scalar(word) for word in words]
    return text if _is_text(key) else _scalar(text)


def _is_text(key: Key) -> bool:
    """Texts are taken as they are: a folder named ``2024`` is no number."""
    return key.kind is str or str in get_args(key.kind)


def _scalar(text: str) -> object:
    try:
        value: object = yaml.safe_load(text)
    except yaml.YAMLError:
        return text  # of no type that a key could want: refused with the text as it was said
    return value


def _flatten(loader: yaml.SafeLoader, root: yaml.MappingNode, name: str) -> Said:
    """Full names and values of a file of two levels."""
    said = Said()

    def add(key: str, node: yaml.Node, value_node: yaml.Node) -> None:
        where = f"{name}, line {_line(node)}"
        if (other := said.settings.get(key)) is not None:
            text = f"{where}: {key} is there twice; the other is at {other.where}: keep one"
            said.problems.append(Problem(text))
        else:
            said.settings[key] = Setting(loader.construct_object(value_node, deep=True), where)

    opened: dict[str, int] = {}
    for key_node, value_node in root.value:
        section = _key(loader, key_node)
        where = f"{name}, line {_line(key_node)}"
        if section not in sections():
            add(section, key_node, value_node)
            continue
        if section in opened:
            other = opened[section]
            text = f"{where}: {section} is there twice; the other is at line {other}: join them"
            said.problems.append(Problem(text))
        opened.setdefault(section, _line(key_node))
        if isinstance(value_node, yaml.MappingNode):
            for inner, inner_value in value_node.value:
                add(f"{section}.{_key(loader, inner)}", inner, inner_value)
        elif value_node.tag != "tag:yaml.org,2002:null":  # a section whose keys are all commented out
            first = next(key for key in known_keys().values() if key.name.startswith(f"{section}."))
            example = f"{section}:\n  {first.example}"
            text = f"{where}: {section} must be a mapping; write for example\n{example}"
            said.problems.append(Problem(text))
    return said


def _key(loader: yaml.SafeLoader, node: yaml.Node) -> str:
    value: Hashable = loader.construct_object(node, deep=True)
    return str(value)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _place(error: yaml.YAMLError, name: str) -> str:
    mark = getattr(error, "problem_mark", None)
    return name if mark is None else f"{name}, line {mark.line + 1}, column {mark.column + 1}"


def _reason(error: yaml.YAMLError) -> str:
    """The parser's reason without its own copy of the place."""
    names = ("context", "problem", "reason")
    parts = [getattr(error, name, None) for name in names]
    return ": ".join(str(part) for part in parts if part) or str(error)
