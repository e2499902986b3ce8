"""The classifier against the labelled set. ``python -m tests.unit.analysis.logs.labelled_logs`` prints it."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import msgspec

from slurm_robust.analysis.logs import RuleSet, shipped
from slurm_robust.report.classification import Answer, LogRecord, answer

FILE = Path(__file__).parents[3] / "data" / "failure_logs.jsonl"


class Label(LogRecord, kw_only=True):
    """A record with what it should be taken for."""

    symptom: str
    symptoms: tuple[str, ...]
    blame: str
    recommended_action: str
    acceptable_actions: tuple[str, ...]
    root_ranks: tuple[str, ...] = ()


def labels() -> list[Label]:
    decoder = msgspec.json.Decoder(Label)
    return [decoder.decode(line) for line in FILE.read_bytes().splitlines()]


def right(label: Label, got: Answer) -> dict[str, bool]:
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
    return found


def score(rules: RuleSet) -> dict[str, Counter[str]]:
    """How many are right by symptom and in all; ``of NAME`` is how many there are."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for label in labels():
        for name, good in right(label, answer(label, rules)).items():
            for group in (label.symptom, "all"):
                counts[group][name] += good
                counts[group][f"of {name}"] += 1
    return counts


def main() -> None:
    names = ("symptom", "any symptom", "blame", "action", "acceptable", "root")
    print(f"| | n | {' | '.join(names)} |")
    print(f"| --- | {'--- | ' * (len(names) + 1)}")
    for group, found in sorted(score(shipped()).items(), key=lambda item: (item[0] == "all", item[0])):
        cells = [f"{found[name]}/{found[f'of {name}']}" if found[f"of {name}"] else "" for name in names]
        print(f"| {group} | {found['of symptom']} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
