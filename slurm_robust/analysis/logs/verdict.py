"""The verdict on one log, or on the end of one worker. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from slurm_robust.analysis.logs import frames
from slurm_robust.analysis.logs.match import MAX_TROUBLE, sightings
from slurm_robust.analysis.logs.named import enqueued, hosts_gone, hosts_in, own_host, ranks_of, told_of
from slurm_robust.analysis.logs.rule import NOISE, UNKNOWN_SYMPTOM, EvidenceTier, RuleSet, shipped
from slurm_robust.analysis.logs.survival import Sighting
from slurm_robust.analysis.logs.text import Line, lines_of
from slurm_robust.model.exits import WorkerExit, signal_name
from slurm_robust.model.incident import Cause, Classification, Remedy
from slurm_robust.model.record import Record


class Reading(Record):
    """A verdict and what it stands on."""

    verdict: Classification
    number: int = 0
    """Number of the deciding line, from 1; 0 if none decided."""
    context: tuple[tuple[int, str], ...] = ()
    """The lines around it with their numbers; of an unknown log the last lines that look like failures."""
    tier: EvidenceTier | None = None
    """The rule's, as are the next two; None if none matched."""
    weight: int = 0
    advice: str = ""
    named: tuple[int, ...] = ()
    """The ranks among the suspects."""
    told_of: tuple[int, ...] = ()
    """The ranks whose error the deciding line tells, if it says so."""
    gone: tuple[str, ...] = ()
    """The hosts of which it says that they have failed."""
    host: str = ""
    """The host that wrote the log, if it says so."""
    enqueued: Mapping[str, int] = {}
    """The number of the last collective that the rank has begun, by process group, if it says so."""


HEALTHY = Classification(symptom=NOISE, blame=Cause.NONE, action=Remedy.NONE, symptoms=(NOISE,))
"""Nothing looks like a failure, and something tells that training goes on or ended well."""

UNKNOWN = Classification(
    symptom=UNKNOWN_SYMPTOM, blame=Cause.UNKNOWN, action=Remedy.NONE, symptoms=(UNKNOWN_SYMPTOM,)
)
"""No rule knows the log: what is not understood is not acted on, and not called healthy either."""

_SURVIVED = "survived: what follows these lines takes them back"

_AROUND = 2
_MAX_NAMING = 200
_BELOW = 8
"""A list of ranks has at most this many lines, with the one that begins it."""


def classify(text: str, stream: str = "program", rules: RuleSet | None = None) -> Classification:
    """Return the verdict on the log of one rank, node or job.

    ``stream``: what wrote it: ``program``, ``kernel``, ``slurm`` or ``nvidia-smi``. ``rules``: without them
    those of this package.
    """
    return read(text, stream, rules).verdict


def read(text: str, stream: str = "program", rules: RuleSet | None = None) -> Reading:
    """Classify as :func:`classify`, together with what decided."""
    lines = lines_of(text)
    evidence = frames.without_source(lines)
    found = sightings(evidence, rules or shipped(), stream)
    if not found.decided:
        survived = found.taken_back[-MAX_TROUBLE:]
        if found.is_well:
            return Reading(
                verdict=HEALTHY,
                context=survived,
                advice=_SURVIVED if survived else "",
                host=own_host(text),
            )
        return Reading(verdict=UNKNOWN, context=found.trouble, host=own_host(text))
    first = found.decided[0]
    rule = first.rule
    named = _named(lines, found.decided)
    return Reading(
        verdict=Classification(
            symptom=rule.symptom,
            blame=rule.blame,
            action=rule.action,
            symptoms=_symptoms(found.decided),
            line=lines[first.at].text.strip(),
            rule=rule.name,
            place=frames.place(evidence, first.at) if stream == "program" else "",
            suspects=(*(f"rank {rank}" for rank in named), *hosts_in(lines[first.at].text)),
        ),
        number=first.line.number,
        context=tuple(lines[max(0, first.at - _AROUND) : first.at + _AROUND + 1]),
        tier=rule.tier,
        weight=rule.weight,
        advice=rule.advice,
        named=named,
        told_of=told_of(lines, first.at),
        gone=hosts_gone(lines[first.at].text),
        host=own_host(text),
        enqueued=enqueued(evidence) if rule.tier is EvidenceTier.EFFECT else {},
    )


def _named(lines: Sequence[Line], seen: Sequence[Sighting]) -> tuple[int, ...]:
    """Return the ranks that the deciding line names, or a list below it, or other lines if it only waits."""
    first = seen[0]
    is_list = lines[first.at].text.rstrip().endswith(":")
    own = lines[first.at : first.at + (_BELOW if is_list else 1)]
    if named := ranks_of(line.text for line in own):
        return named
    if first.rule.tier is not EvidenceTier.EFFECT:
        return ()
    return ranks_of(lines[at].text for at in dict.fromkeys(each.at for each in seen[:_MAX_NAMING]))


def _symptoms(seen: Sequence[Sighting]) -> tuple[str, ...]:
    """Return the main one, and those of other lines that name a cause."""
    first, *others = (sighting.rule for sighting in seen)
    own = [rule for rule in others if rule.tier is EvidenceTier.CAUSE]
    return tuple(dict.fromkeys((first.symptom, *first.also, *(rule.symptom for rule in own))))


def classify_exit(exit: WorkerExit, rules: RuleSet | None = None) -> Classification:
    """Return the verdict on the end of a worker, by its exception, else by its last output and exit code."""
    found = read_exit(exit, rules)
    return (found if found.verdict.suspects else without_conviction(found)).verdict


def without_conviction(reading: Reading) -> Reading:
    """Return the reading as it holds for one rank of several: a lost peer tells nothing about any node."""
    if reading.tier is not EvidenceTier.EFFECT or reading.verdict.action is not Remedy.EVICT:
        return reading
    verdict = replace(reading.verdict, blame=Cause.UNKNOWN, action=Remedy.RESTART)
    return replace(reading, verdict=verdict)


def read_exit(exit: WorkerExit, rules: RuleSet | None) -> Reading:
    """Return what the end of a worker says, together with what decided."""
    found = read(_text(exit), rules=rules)
    if found.tier is None and not exit.failed:
        return Reading(verdict=HEALTHY)  # its exit code says so
    error = exit.error
    if error is not None and error.file and found.tier is not None:
        place = f"{error.file.rpartition('/')[2]}:{error.line}"
        return replace(found, verdict=replace(found.verdict, place=place))
    return found


def _text(exit: WorkerExit) -> str:
    if exit.error is not None:
        error = exit.error
        # The traceback is cut in its middle if it is long; the exception itself never is.
        return f"{error.traceback}\n{error.type}: {error.message}"
    return "\n".join((*exit.tail, _ending(exit)))


def _ending(exit: WorkerExit) -> str:
    """Return the line that torchrun would write, so that one set of rules holds for both."""
    if exit.signal is not None:
        return f"exitcode: -{exit.signal} ({signal_name(exit.signal)})"
    return f"exitcode: {exit.code}" if exit.failed else ""
