"""The classifier against labelled sets; ``python -m tests.unit.analysis.logs.labelled_logs`` prints it.

With ``--wrong`` it also prints what is wrong.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from math import sqrt
from pathlib import Path

import msgspec

from slurm_robust.analysis.logs import RuleSet, shipped
from slurm_robust.analysis.logs.command import ClassifiedLog, LogRecord, answer

DATA = Path(__file__).parents[3] / "data"
FILES = {
    "excerpts": DATA / "failure_logs.jsonl",
    "public reports": DATA / "reports" / "given.jsonl",
    "own": DATA / "reports" / "own.jsonl",
    "own, later": DATA / "reports" / "later.jsonl",
    "an examiner's": DATA / "reports" / "exam.jsonl",
    "own, wide": DATA / "reports" / "wide.jsonl",
}
NAMES = ("symptom", "any symptom", "blame", "action", "acceptable", "root")


class Label(LogRecord, kw_only=True):
    """A record with what it should be taken for."""

    symptom: str
    symptoms: tuple[str, ...]
    blame: str
    recommended_action: str
    acceptable_actions: tuple[str, ...]
    root_ranks: tuple[str, ...] = ()


def labels(name: str = "excerpts") -> list[Label]:
    decoder = msgspec.json.Decoder(Label)
    return [decoder.decode(line) for line in FILES[name].read_bytes().splitlines()]


def sets() -> dict[str, list[Label]]:
    """All sets by name; that of our own in two halves, of which one is not looked at while rules change."""
    found = {name: labels(name) for name in FILES}
    own = found.pop("own")
    return {**found, "own, seen": own[::2], "own, held out": own[1::2]}


def right(label: Label, got: ClassifiedLog) -> dict[str, bool]:
    """What is right of an answer; roots only where there are several ranks."""
    found = {
        "symptom": got.symptom == label.symptom,
        "any symptom": got.symptom in label.symptoms,
        "blame": got.blame.value == label.blame,
        "action": got.action.value == label.recommended_action,
        "acceptable": got.action.value in label.acceptable_actions,
    }
    if label.ranks:
        found["root"] = sorted(map(str, got.root_ranks)) == sorted(label.root_ranks)
    if label.symptom == "healthy_noise":
        found["left alone"] = got.action.value == "none"
    return found


def score(rules: RuleSet, of: list[Label] | None = None) -> dict[str, Counter[str]]:
    """How many are right by symptom and in all; ``of NAME`` is how many there are."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for label in labels() if of is None else of:
        for name, good in right(label, answer(label, rules)).items():
            for group in (label.symptom, "all"):
                counts[group][name] += good
                counts[group][f"of {name}"] += 1
    return counts


def wilson(good: int, of: int) -> tuple[float, float]:
    """The 95 % confidence interval of a share (E. B. Wilson, JASA 22, 1927)."""
    z = 1.959964
    middle, width = good + z * z / 2, z * sqrt(good * (of - good) / of + z * z / 4)
    return (middle - width) / (of + z * z), (middle + width) / (of + z * z)


def _cell(found: Counter[str], name: str, *, with_interval: bool) -> str:
    good, of = found[name], found[f"of {name}"]
    if not of:
        return ""
    low, high = wilson(good, of)
    return f"{good}/{of}" + (f" ({100 * low:.0f}-{100 * high:.0f})" if with_interval else "")


def _table(groups: dict[str, Counter[str]], names: tuple[str, ...], *, with_interval: bool) -> None:
    print(f"| | n | {' | '.join(names)} |")
    print(f"| --- | {'--- | ' * (len(names) + 1)}".rstrip())
    for group, found in groups.items():
        cells = [_cell(found, name, with_interval=with_interval) for name in names]
        print(f"| {group} | {found['of symptom']} | {' | '.join(cells)} |")
    print()


def _wrong(label: Label) -> str:
    got = answer(label, shipped())
    found = right(label, got)
    if all(found.get(name, True) for name in ("symptom", "blame", "action", "root", "left alone")):
        return ""
    wanted = f"{label.symptom}/{label.blame}/{label.recommended_action}/{','.join(label.root_ranks)}"
    roots = ",".join(map(str, got.root_ranks))
    return f"{label.id}: {got.symptom}/{got.blame.value}/{got.action.value}/{roots} {got.rule} != {wanted}"


def main() -> None:
    """Print the tables."""
    per_set = {name: score(shipped(), of)["all"] for name, of in sets().items()}
    _table(per_set, (*NAMES, "left alone"), with_interval=True)
    by_symptom = sorted(score(shipped()).items(), key=lambda item: (item[0] == "all", item[0]))
    _table(dict(by_symptom), NAMES, with_interval=False)
    if "--wrong" in sys.argv:
        for of in sets().values():
            print("\n".join(filter(None, map(_wrong, of))))


if __name__ == "__main__":
    main()
