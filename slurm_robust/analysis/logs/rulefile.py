"""Reads log rules from YAML: those of this package, and those of a site."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from slurm_robust.analysis.logs.rule import Rule, RuleSet, SiteRule
from slurm_robust.config.errors import InvalidSettings
from slurm_robust.config.reader import MOST_BYTES, Layers
from slurm_robust.config.section import Contradiction, Section
from slurm_robust.util.files import read_regular

# libyaml is ten times as fast, and a job waits for this once.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class RuleFile(Section):
    """A file of rules, which is a list."""

    rules: Annotated[tuple[SiteRule, ...], msgspec.Meta(title="a list; begin each rule with '- name:'")] = ()

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield names that two rules share."""
        seen: set[str] = set()
        for index, rule in enumerate(self.rules):
            if rule.name in seen:
                fix = "give each rule a name of its own"
                yield Contradiction(
                    keys=(f"rules.{index}.name",), text=f"{rule.name} is there twice", fix=fix
                )
            seen.add(rule.name)


@cache
def shipped() -> RuleSet:
    """Return the rules of this package."""
    return RuleSet(_shipped())


@cache
def _shipped() -> tuple[Rule, ...]:
    folder = resources.files("slurm_robust.analysis.logs") / "rules"
    files = sorted(
        (file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name
    )
    # The tests check them: compiling hundreds of patterns that are never tried takes too long here.
    texts = (yaml.load(file.read_bytes(), _Loader) for file in files)
    return tuple(rule for text in texts for rule in msgspec.convert(text, tuple[Rule, ...]))


def with_site_rules(paths: Iterable[Path]) -> RuleSet:
    """Return our rules and above them those of files, or of all ``*.yaml`` in folders.

    Raises InvalidSettings with all problems of a file.
    """
    paths = tuple(paths)
    if not paths:
        return shipped()
    files = [file for path in paths for file in (sorted(path.glob("*.yaml")) if path.is_dir() else [path])]
    return RuleSet((*_shipped(), *(rule for file in files for rule in _read(file))))


def _read(path: Path) -> tuple[SiteRule, ...]:
    layers = Layers(RuleFile)
    try:
        layers.add_yaml(read_regular(path, MOST_BYTES), str(path), root="rules")
        return layers.build().rules
    except OSError as error:
        reason = f"{path}: the rules cannot be read: {error.strerror}"
        raise InvalidSettings((reason,), fix="give a YAML file, or a folder of them") from error
    except InvalidSettings as error:
        raise InvalidSettings(error.problems, fix="docs/log-rules.md shows how a rule is written") from error
