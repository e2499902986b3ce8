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

from slurm_robust.config.errors import ConfigError, InvalidSettings
from slurm_robust.config.schema import JobConfig
from slurm_robust.config.settings import Key, Setting, build, known_keys, sections, unknown_key

SITE_FILE = Path("/etc/slurm-robust/job.yaml")

# Not just SROBUST_: workers find variables of that prefix in their environment that are no settings.
ENVIRONMENT_PREFIX = "SROBUST_CONFIG_"


def collect(
    file: Path | None,
    environ: Mapping[str, str],
    options: Mapping[str, Setting],
    site_file: Path = SITE_FILE,
) -> dict[str, Setting]:
    """The settings of all layers, the highest one's where several have the same key. Raises ConfigError."""
    merged: dict[str, Setting] = {}
    if site_file.exists():
        merged |= read_file(site_file)
    if file is not None:
        merged |= read_file(file)
    merged |= from_environment(environ)
    merged |= options
    return merged


def load(
    file: Path | None,
    environ: Mapping[str, str],
    options: Mapping[str, Setting],
    site_file: Path = SITE_FILE,
) -> JobConfig:
    """The configuration of a job from all layers. Raises ConfigError."""
    return build(collect(file, environ, options, site_file))


def read_file(path: Path) -> dict[str, Setting]:
    """The settings of one file. Raises ConfigError if it cannot be read or is no mapping."""
    try:
        return parse(path.read_bytes(), str(path))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"configuration file {path} cannot be read: {reason}",
            "give the path of a readable YAML file with --config",
        ) from error


def parse(text: bytes, name: str) -> dict[str, Setting]:
    """The settings of a YAML text. ``name`` is the file's name for messages. Raises ConfigError."""
    loader: yaml.SafeLoader | None = None
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return {}  # only comments: a file that says nothing is a right one
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


def from_environment(environ: Mapping[str, str]) -> dict[str, Setting]:
    """The settings of ``SROBUST_CONFIG_*``. Lists are separated by commas. Raises InvalidSettings."""
    names = {environment_name(key): key for key in known_keys()}
    found: dict[str, Setting] = {}
    problems: list[str] = []
    for variable in sorted(environ):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        where = f"environment variable {variable}"
        if variable in names:
            found[names[variable]] = from_text(names[variable], environ[variable], where)
        else:
            problems.append(unknown_key(variable.removeprefix(ENVIRONMENT_PREFIX).lower(), where))
    if problems:
        raise InvalidSettings(tuple(problems), "rename or unset what is said above")
    return found


def environment_name(key: str) -> str:
    """``timings.node_dead_s`` -> ``SROBUST_CONFIG_TIMINGS_NODE_DEAD_S``."""
    return ENVIRONMENT_PREFIX + key.replace(".", "_").upper()


def from_text(name: str, text: str, where: str) -> Setting:
    """A setting from the words of an option or variable, as the type of its key wants them."""
    key = known_keys().get(name)
    if key is None:
        raise InvalidSettings((unknown_key(name, where),))
    if text == "null" and type(None) in get_args(key.kind):
        return Setting(None, where)
    if get_origin(key.kind) is tuple:
        words = [word.strip() for word in text.split(",") if word.strip()]
        values = words if get_args(key.kind)[0] is str else [_scalar(word) for word in words]
        return Setting(values, where)
    if _is_text(key):
        return Setting(text, where)
    return Setting(_scalar(text), where)


def _is_text(key: Key) -> bool:
    """Texts are taken as they are: a folder named ``2024`` is no number."""
    return key.kind is str or str in get_args(key.kind)


def _scalar(text: str) -> object:
    try:
        value: object = yaml.safe_load(text)
    except yaml.YAMLError:
        return text  # of no type that a key could want: refused with the text as it was said
    return value


def _flatten(loader: yaml.SafeLoader, root: yaml.MappingNode, name: str) -> dict[str, Setting]:
    """Full names and values of a file of two levels. Raises InvalidSettings for duplicate keys."""
    found: dict[str, Setting] = {}
    problems: list[str] = []

    def add(key: str, node: yaml.Node, value_node: yaml.Node) -> None:
        where = f"{name}, line {_line(node)}"
        if key in found:
            problems.append(f"{where}: {key} is there twice; the other is at {found[key].where}: keep one")
            return
        found[key] = Setting(loader.construct_object(value_node, deep=True), where)

    opened: dict[str, int] = {}
    for key_node, value_node in root.value:
        section = _key(loader, key_node)
        if section in opened:
            where, other = f"{name}, line {_line(key_node)}", opened[section]
            problems.append(f"{where}: {section} is there twice; the other is at line {other}: join them")
        elif section in sections():
            opened[section] = _line(key_node)
        if section not in sections():
            add(section, key_node, value_node)
        elif isinstance(value_node, yaml.MappingNode):
            for inner, inner_value in value_node.value:
                add(f"{section}.{_key(loader, inner)}", inner, inner_value)
        elif value_node.tag != "tag:yaml.org,2002:null":  # a section whose keys are all commented out
            first = next(key for key in known_keys().values() if key.name.startswith(f"{section}."))
            where, example = f"{name}, line {_line(value_node)}", f"{section}:\n  {first.example}"
            problems.append(f"{where}: {section} must be a mapping; write for example\n{example}")
    if problems:
        raise InvalidSettings(tuple(problems))
    return found


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
