"""However logs are cut, mixed, labelled or spelt: no crash, and nobody is evicted by noise."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_robust.analysis.logs import classify, first_causes, of_all, read
from slurm_robust.model.incident import Cause, Remedy
from tests.unit.analysis.logs.labelled_logs import sets

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
LABELS = (
    "",
    "[rank3]: ",
    "7: ",
    "[2026-11-03 04:12:09] ",
    "(WorkerDict pid=7) ",
    "node3: ",
    "\t",
    "\x1b[36m",
)


@cache
def noise() -> list[str]:
    """Harmless logs of programs."""
    samples = [yaml.safe_load(file.read_text()) for file in HERE.glob("samples/*.yaml")]
    texts = [text for file in samples for text in file.get("healthy_noise", {"texts": []})["texts"]]
    labels = [label for of in sets().values() for label in of]
    return texts + [
        label.text or "" for label in labels if label.blame == "none" and label.stream == "program"
    ]


@cache
def everything() -> list[str]:
    """Lines of all labelled logs."""
    texts = [log.text for of in sets().values() for label in of for log in label.ranks or ()]
    texts += [label.text or "" for of in sets().values() for label in of]
    return sorted({line for text in texts for line in text.splitlines()})


def is_harmless(text: str) -> bool:
    return classify(text).action is Remedy.NONE


@cache
def harmless_lines() -> list[str]:
    """Those of the noise that are harmless on their own, too."""
    return [line for text in noise() for line in text.splitlines() if is_harmless(line)]


@st.composite
def mixed(draw: st.DrawFn, lines: list[str]) -> str:
    """Lines in any order, with labels, some of them cut at either end."""
    chosen = draw(st.lists(st.sampled_from(lines), max_size=12))
    parts = []
    for line in chosen:
        begin = draw(st.integers(0, max(0, len(line) // 4)))
        end = draw(st.integers(max(0, len(line) - 40), len(line)))
        cut = draw(
            st.sampled_from([line, line, line[begin:], line[:end], line.upper(), line.replace(" ", "  ")])
        )
        parts.append(draw(st.sampled_from(LABELS)) + cut)
    return draw(st.sampled_from(["\n", "\r\n", "\n\n"])).join(parts)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_noise_in_any_order_evicts_nobody(data: st.DataObject) -> None:
    lines = data.draw(st.lists(st.sampled_from(harmless_lines()), max_size=12))
    labels = data.draw(st.lists(st.sampled_from(LABELS), min_size=len(lines), max_size=len(lines)))
    text = "\n".join(label + line for label, line in zip(labels, lines, strict=True))
    found = classify(text)
    assert found.action is not Remedy.EVICT, (found.rule, text)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_mixture_has_a_verdict_that_its_lines_hold(data: st.DataObject) -> None:
    texts = {rank: data.draw(mixed(everything())) for rank in range(data.draw(st.integers(1, 4)))}
    readings = {rank: read(text) for rank, text in texts.items()}
    roots = first_causes(readings)
    assert set(roots) <= set(readings)
    whole = of_all(readings, roots)
    assert whole.verdict.line in "\n".join(texts.values()).replace("\x1b", "") or whole.tier is not None
    assert (whole.tier is None) == (whole.verdict.rule == "")
    assert whole.verdict.blame is not Cause.NONE or whole.verdict.action in (Remedy.NONE, Remedy.RESTART)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=300), st.sampled_from(["program", "kernel", "slurm", "nvidia-smi"]))
def test_any_text_has_a_verdict(text: str, stream: str) -> None:
    classify(text, stream)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_order_of_ranks_does_not_change_whose_failure_it_is(data: st.DataObject) -> None:
    labels = [label for name, of in sets().items() if name != "excerpts" for label in of if label.ranks]
    label = data.draw(st.sampled_from(labels))
    readings = {log.rank: read(log.text, label.stream) for log in label.ranks or ()}
    shuffled = data.draw(st.permutations(list(readings.items())))
    assert set(first_causes(readings)) == set(first_causes(dict(shuffled)))
