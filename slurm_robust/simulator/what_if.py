"""What would have been with other settings: the specs of ``--what-if``. Pure.

``spares=0..8`` has nine values, ``checkpoint.every_s=60,600`` two. Keys of one text are crossed: each value
of the one with each of the other. Several texts are several series, one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product

import msgspec
from msgspec import structs

from slurm_robust.config.errors import ConfigError, InvalidSettings, Problem
from slurm_robust.config.jobfile import add_text
from slurm_robust.config.reader import Layers, SchemaKey, ValueOrigin, expected, schema_keys, types_of
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.record import Record
from slurm_robust.simulator.spec import FaultOf, FaultSource, Spec
from slurm_robust.simulator.spread import parse, seconds
from slurm_robust.util.text import count, did_you_mean, near

MAX_VALUES = 100
"""Values of one key."""

MAX_SPECS = 200
"""Specs of all keys together."""

_POLICY = "policy."
_RANGE = re.compile(r"(.+?)\.\.(.+)")
_UNFIT = {
    "faults": "they are a list",
    "name": "it changes nothing",
    "seeds": "it changes nothing; --seeds says how many lives are played",
    "policy.nodes": "the simulated job has nodes of its own",
    "policy.spares": "the simulated job has spares of its own",
}
_FIXED = {
    "job.nodes": "a job of another size would have had other faults",
    "time": "the job's own time is played",
    "steps": "the job's own steps are played",
}
_VERDICT_S = 0.8  # what timings.verdict_s: null stands for


class Variation(Record):
    """A spec with other settings."""

    settings: dict[str, str]
    """By the names that a person types."""
    spec: Spec

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())


def variations(base: Spec, texts: Sequence[str]) -> list[Variation]:
    """Return the specs that ``texts`` ask for. Raises ``InvalidSettings`` with all that is wrong."""
    problems: list[Problem] = []
    found: dict[str, Variation] = {}
    for text in texts:
        axes = _axes(text, base, problems)
        for name, values in axes.items():
            for value in values:
                _varied(base, {name: value}, problems)
        if problems:
            continue
        for chosen in product(*axes.values()):
            settings = dict(zip(axes, chosen, strict=True))
            if len(found) > MAX_SPECS:
                break
            if (made := _varied(base, settings, problems)) is not None:
                found.setdefault(str(made), made)
    if len(found) > MAX_SPECS:
        said = f"--what-if: more than {MAX_SPECS} combinations"
        problems.append(Problem(f"{said}\n  fix: give fewer values, or several --what-if", ExitCode.USAGE))
    if problems:
        raise InvalidSettings.of(list({problem.text: problem for problem in problems}.values()))
    return list(found.values())


def _axes(text: str, base: Spec, problems: list[Problem]) -> dict[str, list[str]]:
    """Return the values of each key of one text, by its whole name."""
    parts: list[tuple[str, list[str]]] = []
    for piece in text.split(","):
        name, equals, value = piece.partition("=")
        if equals:
            parts.append((name.strip(), [value.strip()]))
        elif parts:
            parts[-1][1].append(piece.strip())
        else:
            problems.append(_wrong(text, "no value", f"write {piece.strip() or 'KEY'}=VALUE"))
    axes: dict[str, list[str]] = {}
    for name, values in parts:
        key = _key(name, base, problems)
        if key is None:
            continue
        known = _values(name, key, values, problems)
        if key.name in axes:
            problems.append(_wrong(name, "given twice", "give all of its values at once, name=1,2,4"))
        axes[key.name] = known
    return axes


def _wrong(name: str, what: str, fix: str) -> Problem:
    return Problem(f"--what-if {name}: {what}\n  fix: {fix}", ExitCode.USAGE)


def _key(name: str, base: Spec, problems: list[Problem]) -> SchemaKey | None:
    """Return the key that a person means: its whole name, that in job.yaml, or its last word if no other
    has it.
    """
    known = schema_keys(Spec)
    ends = [full for full in known if full.rpartition(".")[2] == name]
    own = [full for full in ends if not full.startswith(_POLICY)]
    choices = ([name], own, [_POLICY + name], ends)  # spares is that of the job, not what job.yaml asks for
    likely = next((few for few in choices if len(few) == 1 and few[0] in known), ends)
    if len(likely) == 1:
        key = known[likely[0]]
        is_replay = any(source.after is not None for source in base.faults)
        why = _UNFIT.get(key.name) or (_FIXED.get(key.name) if is_replay else None)
        if why:
            problems.append(_wrong(name, f"cannot be varied: {why}", "leave it out"))
        return None if why else key
    leaf = name.rpartition(".")[2]
    alike = likely or [full for full in known if full.rpartition(".")[2] == leaf]
    alike = alike or near(name, [*map(short, known), *known])
    hint = did_you_mean([short(full) for full in alike])
    fix = hint or "name a key of job.yaml, as 'srobust config show' lists them, or of a spec"
    what = "several keys end so" if likely else "unknown key"
    problems.append(_wrong(name, what, fix))
    return None


def short(name: str) -> str:
    """Return how a person writes the key ``name`` of a spec: ``spares``, ``checkpoint.every_s``."""
    if name.startswith(_POLICY):
        return name.removeprefix(_POLICY)
    leaf = name.rpartition(".")[2]
    own = [full for full in schema_keys(Spec) if full.rpartition(".")[2] == leaf]
    return leaf if [full for full in own if not full.startswith(_POLICY)] == [name] else name


def _values(name: str, key: SchemaKey, texts: list[str], problems: list[Problem]) -> list[str]:
    """Return the values that are meant: a time with a comma in it is one."""
    whole = ", ".join(texts)
    if len(texts) > 1 and str in types_of(key.kind) and _is_time(whole):
        return [whole]
    found: list[str] = []
    for text in texts:
        limits = _RANGE.fullmatch(text)
        if limits is None:
            found.append(text)
            continue
        try:
            low, high = int(limits[1]), int(limits[2])
        except ValueError:
            problems.append(_wrong(name, f"{text} is no range", "write whole numbers, as in 0..8, or a list"))
            continue
        if not {int, float}.intersection(types_of(key.kind)):
            what = f"{text} is a range of numbers, and it must be {expected(key.kind)}"
            problems.append(_wrong(name, what, "list the values, with commas"))
        elif not low <= high:
            problems.append(_wrong(name, f"{text} ends before it begins", f"write {high}..{low}"))
        elif high - low >= MAX_VALUES:
            what = f"{text} has more than {MAX_VALUES} values"
            problems.append(_wrong(name, what, "list those that matter, as in 1,2,4,8"))
        else:
            found += map(str, range(low, high + 1))
    return found


def _is_time(text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def _varied(base: Spec, settings: Mapping[str, str], problems: list[Problem]) -> Variation | None:
    layers = Layers(Spec)
    layers.values = msgspec.to_builtins(base)
    for name, value in settings.items():
        text = f"--what-if {short(name)}={value}"
        add_text(layers, name, value, ValueOrigin(text, ExitCode.USAGE))
    try:
        spec = layers.build()
    except ConfigError as error:
        said = error.problems if isinstance(error, InvalidSettings) else (error.in_full(),)
        problems += [Problem(one, ExitCode.USAGE) for one in said]
        return None
    return Variation(
        settings={short(key): value for key, value in settings.items()}, spec=_fitted(base, spec)
    )


def _fitted(base: Spec, spec: Spec) -> Spec:
    """Return ``spec`` with what follows from its settings."""
    companions = spec.policy.companions
    if spec.cluster.shared_spares > base.cluster.shared_spares and not companions.reservation:
        companions = structs.replace(companions, reservation="spares")
        spec = structs.replace(spec, policy=structs.replace(spec.policy, companions=companions))
    faults = tuple(_detected(base, spec, source) for source in spec.faults)
    return structs.replace(spec, faults=faults)


def _detected(base: Spec, spec: Spec, source: FaultSource) -> FaultSource:
    """Return a fault that has happened with the time in which it is detected under other settings."""
    if source.after is None:
        return source
    took_s = seconds(source.detect)
    before, after = (_bound_s(one, source.kind, took_s, base) for one in (base, spec))
    if before == after:
        return source
    return structs.replace(source, detect=f"{max(0.0, took_s + after - before):.3f} s")


def _bound_s(spec: Spec, kind: FaultOf, took_s: float, base: Spec) -> float:
    """Return the limit of the settings which the detection of such a fault waits for."""
    timings, detect = spec.policy.timings, spec.policy.detect
    if kind is FaultOf.NODE:
        verdict_s = _VERDICT_S if timings.verdict_s is None else timings.verdict_s
        by_beacons = verdict_s and took_s < base.policy.timings.node_dead_s
        return verdict_s if by_beacons else timings.node_dead_s
    if kind is FaultOf.HANG:
        return max(detect.hang_floor_s, detect.hang_factor * seconds(spec.job.step))
    return 0.0


def described(settings: Mapping[str, str]) -> str:
    """Return settings in words: ``2 standbys and timings.node_dead_s=2``."""
    words = [
        count(int(value), "standby") if name == "spares" else f"{name}={value}"
        for name, value in settings.items()
    ]
    return " and ".join(words)
