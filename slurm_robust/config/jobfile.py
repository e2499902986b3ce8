"""The sources of a job's settings. The one precedence, lowest to highest:

1. the defaults of the schema (:mod:`slurm_robust.config.job`)
2. ``/etc/slurm-robust/job.yaml``, the site's file, if it is there
3. the file of ``--config``
4. environment variables ``SROBUST_CONFIG_<KEY>`` (``SROBUST_CONFIG_TIMINGS_NODE_DEAD_S=10``), and
   ``SROBUST_TRAINING``
5. options of the command line
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml

from slurm_robust.config.job import JobConfig
from slurm_robust.config.reader import Layers, S, ValueOrigin, schema_keys, types_of
from slurm_robust.util.files import is_there

SITE_FILE = Path("/etc/slurm-robust/job.yaml")

# Not just SROBUST_: workers have facts of that prefix in their environment.
_PREFIX = "SROBUST_CONFIG_"
_ALIKE = 0.86
"""Names of variables that are as alike as this (:mod:`difflib`) are one name misspelt."""

TRAINING = "SROBUST_TRAINING"
"""Short for ``SROBUST_CONFIG_TRAINING``, which wins if both are set: it is typed at each submission."""


def collect(file: Path | None, environ: Mapping[str, str], options: Layers[JobConfig]) -> Layers[JobConfig]:
    """Return what all sources set, in the order of the precedence."""
    merged = Layers(JobConfig)
    for path in filter(None, (_site_file(), file)):
        layer = Layers(JobConfig)
        layer.add_file(path)
        merged.overrule(layer)
    merged.overrule(from_environment(environ))
    merged.overrule(options)
    return merged


def _site_file() -> Path | None:
    """Return the site's file; None if absent. Its reader reports an unreadable one."""
    try:
        return SITE_FILE if is_there(SITE_FILE) else None
    except OSError:
        return SITE_FILE


def from_environment(environ: Mapping[str, str]) -> Layers[JobConfig]:
    """Return what ``SROBUST_CONFIG_*`` and ``SROBUST_TRAINING`` set, and variables that misspell these."""
    names = {environment_name(key): key for key in schema_keys(JobConfig)}
    found = Layers(JobConfig)
    if environ.get(TRAINING) and environment_name("training") not in environ:
        found.add("training", environ[TRAINING], ValueOrigin(f"environment variable {TRAINING}"))
    for variable in sorted(environ):
        if variable.startswith(_PREFIX) or _misspells(variable, (TRAINING, *names)):
            name = names.get(variable) or variable.removeprefix(_PREFIX).removeprefix("SROBUST_").lower()
            add_text(found, name, environ[variable], ValueOrigin(f"environment variable {variable}"))
    return found


def _misspells(variable: str, names: Collection[str]) -> bool:
    """Return whether the variable, which would be silently without effect, is nearly one of ``names``."""
    if not variable.upper().startswith("SROBUST_") or variable in names:
        return False
    return bool(difflib.get_close_matches(variable.upper(), names, 1, _ALIKE))


def environment_name(key: str) -> str:
    """Return ``SROBUST_CONFIG_TIMINGS_NODE_DEAD_S`` for ``timings.node_dead_s``."""
    return _PREFIX + key.replace(".", "_").upper()


def add_text(layers: Layers[S], name: str, text: str, place: ValueOrigin) -> None:
    """Set a key to the text of an option or variable.

    Commas separate the items of a list, or it is one of YAML: ``[a, "b,c"]``.
    """
    key = schema_keys(layers.schema).get(name)
    layers.add(name, text if key is None else _value(types_of(key.kind), text), place)


def _value(kinds: list[Any], text: str) -> object:
    if text == "null" and type(None) in kinds:
        return None
    if items := next((get_args(kind)[0] for kind in kinds if get_origin(kind) is tuple), None):
        kinds = types_of(items)
        if not text.lstrip().startswith("["):
            return [_value(kinds, item.strip()) for item in text.split(",") if item.strip()]
        try:
            # Of strings none is taken for a number.
            return yaml.load(text, yaml.BaseLoader if str in kinds else yaml.SafeLoader)
        except (yaml.YAMLError, ValueError):
            return text
    # A string is taken as it is: a folder named 2024 is not a number.
    return text if str in kinds else _scalar(text)


def _scalar(text: str) -> object:
    try:
        value: object = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return text  # of a type that no key wants: rejected with the text as it was written
    return value
