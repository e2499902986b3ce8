"""Rules: which words of a log stand for which symptom, whose fault it is and what to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from slurm_robust.analysis.logs.patterns import words_of
from slurm_robust.health import shapes
from slurm_robust.model.classification import Cause, Remedy
from slurm_robust.model.record import Record

NOISE = "healthy_noise"
UNKNOWN_SYMPTOM = "unknown"  # of logs that no rule knows, so no rule has it

SYMPTOMS = (
    *("gpu_memory_error", "gpu_unavailable", "gpu_oom", "cuda_error", "driver_error", "nvlink_error"),
    *("nccl_timeout", "nccl_internal_or_remote_error", "infiniband_error", "network_error", "secondary"),
    *("cpu_oom", "cpu_overload", "disk_full", "filesystem_error", "os_kernel_panic_or_soft_lockup"),
    *("checkpoint_load_error", "checkpoint_save_error", "data_error", "external_service_error"),
    *("code_error", "config_error", "nan_loss", "loss_spike", "job_hang", "killed_signal"),
    *("preemption_or_time_limit", NOISE),
)


class Tier(str, Enum):
    """How much a line says about the cause, most first."""

    CAUSE = "cause"
    """It names what went wrong here."""

    FAILURE = "failure"
    """Something went wrong here, but the line does not say what: an exception of unknown kind."""

    EFFECT = "effect"
    """It follows from a failure elsewhere: a collective without its peer."""

    SUMMARY = "summary"
    """Somebody tells that a process has ended: an exit code, a signal."""

    NOISE = "noise"
    """It looks like a failure and is none: rules of the same weight or less may not use the line."""

    @property
    def order(self) -> int:
        """0 for the tier that decides before all others."""
        return _TIERS.index(self)


_TIERS = tuple(Tier)


class Curve(str, Enum):
    """What losses and gradient norms do."""

    NO_NUMBER = "no number"
    JUMP = "jump"


class Rule(Record):
    """One rule. Patterns are regular expressions without regard to case, searched in single lines.

    The line that decides matches one of ``any`` and none of ``unless``; each of ``all`` matches some line of
    the log and none of ``without`` does. Lines of the kernel can be named by ``xids`` (NVIDIA's codes) and
    ``shapes`` (names of :data:`slurm_robust.health.shapes.SHAPES`), progress lines by ``curve`` instead.
    ``streams``: only there. ``times``: so many lines of the log must match.

    On one line the greatest ``weight`` decides, in a log the tier, then the weight, then who comes first.
    ``also`` are symptoms besides the main one. ``advice`` is for people; ``site``: a site's own rule.
    """

    name: str
    symptom: str
    blame: Cause
    action: Remedy
    any: tuple[str, ...] = ()
    all: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    xids: tuple[int, ...] = ()
    shapes: tuple[str, ...] = ()
    curve: Curve | None = None
    streams: tuple[str, ...] = ()
    times: int = 1
    tier: Tier = Tier.CAUSE
    weight: int = 0
    also: tuple[str, ...] = ()
    advice: str = ""
    site: bool = False

    @property
    def kernel_words(self) -> Iterator[str]:
        """The lines of the kernel that this rule names hold one of these, in lower case."""
        if self.xids:
            yield from ("nvrm: ", "xid")
        for name in self.shapes:
            yield from (begin.lower() for begin in shapes.SHAPES[name].begins)


class Trigger(NamedTuple):
    """``pattern`` of ``rule`` is worth a try; None: its codes or shapes are."""

    rule: Rule
    pattern: str | None


class RuleSet:
    """Rules by the words that make them worth a look. A later rule of the same name replaces an earlier."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        named = {rule.name: rule for rule in rules}
        self.rules = tuple(named.values())
        self.curves = [rule for rule in self.rules if rule.curve]
        self.triggers: dict[str, list[Trigger]] = defaultdict(list)
        for rule in self.rules:
            for pattern in rule.any:
                for word in words_of(pattern):
                    self.triggers[word].append(Trigger(rule, pattern))
            for word in set(rule.kernel_words):
                self.triggers[word].append(Trigger(rule, None))
        for triggers in self.triggers.values():
            triggers[:] = dict.fromkeys(triggers)
