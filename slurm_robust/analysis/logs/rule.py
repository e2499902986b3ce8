"""Rules: which patterns in a log indicate which symptom, who is to blame and what to do.

They are YAML: those of this package, and those of a site.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
import yaml

from slurm_robust.analysis.logs.patterns import BadPattern, check, compiled, literals_of
from slurm_robust.config.errors import InvalidSettings
from slurm_robust.config.reader import MAX_BYTES, Layers
from slurm_robust.config.section import Contradiction, Section
from slurm_robust.home import page
from slurm_robust.kernel import catalog, shapes
from slurm_robust.model.incident import Cause, Remedy
from slurm_robust.util.files import read_regular

NOISE = "healthy_noise"
UNKNOWN_SYMPTOM = "unknown"  # of logs that no rule knows, so no rule has it

Symptom = Literal[
    "gpu_memory_error",
    "gpu_unavailable",
    "gpu_oom",
    "cuda_error",
    "driver_error",
    "nvlink_error",
    "nccl_timeout",
    "nccl_internal_or_remote_error",
    "infiniband_error",
    "network_error",
    "secondary",
    "cpu_oom",
    "cpu_overload",
    "disk_full",
    "filesystem_error",
    "os_kernel_panic_or_soft_lockup",
    "checkpoint_load_error",
    "checkpoint_save_error",
    "data_error",
    "external_service_error",
    "code_error",
    "config_error",
    "nan_loss",
    "loss_spike",
    "job_hang",
    "killed_signal",
    "preemption_or_time_limit",
    "healthy_noise",
]
Stream = Literal["program", "kernel", "slurm", "nvidia-smi"]


class EvidenceTier(str, Enum):
    """How much a line says about the cause, the most informative first."""

    CAUSE = "cause"
    """The line names what went wrong here."""

    FAILURE = "failure"
    """The line shows that something went wrong here, but not what: an exception of unknown kind."""

    EFFECT = "effect"
    """The line is a consequence of a failure elsewhere: a collective without its peer."""

    SUMMARY = "summary"
    """The line reports that a process has ended: an exit code, a signal."""

    NOISE = "noise"
    """The line resembles a failure but is harmless: rules of the same or lower weight may not use it."""

    RECOVERY = "recovery"
    """The line shows that something works again: it takes back failures in the lines before it."""

    @property
    def order(self) -> int:
        """Position among the tiers; 0 decides before all others."""
        return _TIERS.index(self)


_TIERS = tuple(EvidenceTier)


class Curve(str, Enum):
    """What the loss and gradient norm of progress lines show."""

    NON_FINITE = "non-finite"
    JUMP = "jump"


class LogRule(Section):
    """One rule. Patterns are regular expressions that ignore case and are searched in single lines.

    If several rules match a line, the one with the highest ``weight`` decides; in a log, the tier decides
    first, then the weight, then the position.
    """

    name: str
    symptom: Symptom
    blame: Cause
    action: Remedy

    any: tuple[str, ...] = ()
    """The deciding line matches one of these."""

    all: tuple[str, ...] = ()
    """Each of these matches some line of the log."""

    unless: tuple[str, ...] = ()
    """The deciding line matches none of these."""

    without: tuple[str, ...] = ()
    """No line of the log matches one of these."""

    xids: tuple[int, ...] = ()
    """NVIDIA's error codes, instead of ``any``: lines of the kernel that report one of them."""

    kinds: tuple[str, ...] = ()
    """Some of :data:`.nodes.kernel.catalog.KINDS`, instead of ``any``: NVIDIA's error codes by what they mean
    for a node, from the table of the node checks.
    """

    shapes: tuple[str, ...] = ()
    """Names of :data:`.nodes.kernel.shapes.SHAPES`, instead of ``any``: messages of the kernel."""

    curve: Curve | None = None
    """What the progress lines show, instead of ``any``."""

    streams: tuple[Stream, ...] = ()
    """The rule applies to these streams only; empty: to all."""

    times: int = 1
    """Number of lines that must match."""

    tier: EvidenceTier = EvidenceTier.CAUSE
    weight: int = 0

    takes_back: tuple[Symptom, ...] = ()
    """For the tier ``recovery``: failures with these symptoms in earlier lines, if they name the same device,
    address or report, or either line names none, count as noise.
    """

    brings: tuple[Symptom, ...] = ()
    """Failures with these symptoms in later lines follow from this one: they decide only if nothing else
    does."""

    also: tuple[Symptom, ...] = ()
    """Further symptoms."""

    advice: str = ""
    """A hint for people."""

    site: ClassVar[bool] = False
    """Whether it is a rule of the site, which overrides ours."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a rule that can match nothing, and patterns that are wrong or too slow."""
        if not (self.any or self.xids or self.kinds or self.shapes or self.curve):
            text = "a rule needs any (patterns), xids, kinds, shapes or curve"
            yield Contradiction(keys=("name",), text=text, fix="add one of them")
        for index, name in enumerate(self.kinds):
            if name not in catalog.KINDS:
                fix = f"use one of {', '.join(sorted(catalog.KINDS))}"
                yield Contradiction(keys=(f"kinds.{index}",), text=f"{name!r} is not a known kind", fix=fix)
        if bool(self.takes_back) != (self.tier is EvidenceTier.RECOVERY):
            text = "takes_back and the tier recovery belong together"
            yield Contradiction(keys=("name",), text=text, fix="give both or neither")
        for index, name in enumerate(self.shapes):
            if name not in shapes.SHAPES:
                fix = f"use one of {', '.join(shapes.SHAPES)}"
                yield Contradiction(keys=(f"shapes.{index}",), text=f"{name!r} is not a known shape", fix=fix)
        for key in ("any", "all", "unless", "without"):
            for index, pattern in enumerate(getattr(self, key)):
                try:
                    # ``unless`` is tried on few lines only, so its patterns need no literal.
                    (compiled if key == "unless" else check)(pattern)
                except BadPattern as error:
                    text = f"{pattern!r} {error}"
                    yield Contradiction(keys=(f"{key}.{index}",), text=text, fix=error.fix)

    @property
    def is_harmless(self) -> bool:
        """Whether its lines are no failures."""
        return self.tier in (EvidenceTier.NOISE, EvidenceTier.RECOVERY)

    @property
    def kernel_literals(self) -> Iterator[str]:
        """Literals, in lower case, of which every kernel line that this rule matches contains one."""
        if self.xids or self.kinds:
            yield from ("nvrm: ", "xid")
        for name in self.shapes:
            yield from (begin.lower() for begin in shapes.SHAPES[name].begins)


class SiteRule(LogRule):
    """A rule of the site."""

    site: ClassVar[bool] = True


class Trigger(NamedTuple):
    """What may match."""

    rule: LogRule
    pattern: str | None
    """The rule's; None: its codes or shapes."""


class RuleSet:
    """Rules by the literals that trigger them. A later rule of the same name replaces an earlier one."""

    def __init__(self, rules: Iterable[LogRule]) -> None:
        named = {rule.name: rule for rule in rules}
        self.rules = tuple(named.values())
        self.curves = [rule for rule in self.rules if rule.curve]
        self.triggers: dict[str, list[Trigger]] = defaultdict(list)
        for rule in self.rules:
            for pattern in rule.any:
                for literal in literals_of(pattern):
                    self.triggers[literal].append(Trigger(rule, pattern))
            for literal in set(rule.kernel_literals):
                self.triggers[literal].append(Trigger(rule, None))
        for triggers in self.triggers.values():
            triggers[:] = dict.fromkeys(triggers)


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
def _shipped() -> tuple[LogRule, ...]:
    folder = resources.files("slurm_robust.analysis.logs") / "rules"
    files = sorted(
        (file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name
    )
    # The tests check them: compiling hundreds of patterns that are never tried takes too long here.
    texts = (yaml.load(file.read_bytes(), _Loader) for file in files)
    return tuple(rule for text in texts for rule in msgspec.convert(text, tuple[LogRule, ...]))


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
        layers.add_yaml(read_regular(path, MAX_BYTES), str(path), root="rules")
        return layers.build().rules
    except OSError as error:
        reason = f"{path}: the rules cannot be read: {error.strerror}"
        raise InvalidSettings((reason,), fix="give a YAML file, or a folder of them") from error
    except InvalidSettings as error:
        raise InvalidSettings(
            error.problems, fix=f"{page('log-rules.md')} shows how a rule is written"
        ) from error
