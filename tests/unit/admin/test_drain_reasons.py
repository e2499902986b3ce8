"""Reasons of others: what each part says, whose it is, and what of it counts against a node."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.admin.drain_reasons import evidence, read, shipped
from slurm_robust.admin.history import History, failures_of
from slurm_robust.config.node import DrainReason, NodeConfig
from slurm_robust.config.reader import Layers
from slurm_robust.model.findings import Finding, Outcome, Suggestion
from slurm_robust.nodes.reasons import has_ours, of_others, parts
from slurm_robust.nodes.verdict import reason
from slurm_robust.slurm.records import NodeEvent

TABLE = Path(__file__).parents[2] / "data" / "drain_reasons.tsv"
with TABLE.open(newline="") as lines:
    CASES = [tuple(row.values()) for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)]


@pytest.mark.parametrize(("text", "counts", "whose"), CASES)
def test_the_owner_of_a_drain_reason_and_what_of_it_counts(text: str, counts: str, whose: str) -> None:
    found = evidence(text)
    assert (found.means.value if found else "") == counts
    assert " ".join(f"{part.by}:{part.means.value}" for part in read(text)) == whose


def test_every_line_is_a_section_that_the_configuration_would_take() -> None:
    assert [list(line.contradictions()) for line in shipped()] == [[]] * len(shipped())
    assert all(line.by and line.says for line in shipped())


def test_lines_of_the_site_come_first() -> None:
    layers = Layers(NodeConfig)
    layers.add_yaml(
        "drain_reasons:\n"
        "- {pattern: 'acme-diag', means: fault, by: acme}\n"
        "- {pattern: 'nhc: canary', means: upgrade}\n",
        "here",
    )
    site = layers.build().drain_reasons
    (part,) = read("ACME-diag: 3 of 4 rails", site)
    assert (part.by, part.says) == ("acme", "fault by acme")
    assert evidence("NHC: canary of the day", site) is None
    assert evidence("ACME-diag: 3 of 4 rails") is None  # a person's, as far as anybody knows


@pytest.mark.parametrize("pattern", ["", ".*", "(", "x?"])
def test_a_line_that_says_something_of_every_reason_is_refused(pattern: str) -> None:
    assert list(DrainReason(pattern=pattern, means="fault").contradictions())


@given(
    st.lists(st.sampled_from([str(case[0]) for case in CASES]), min_size=1, max_size=4),
    st.sampled_from([";", " & ", " : ", "; "]),
)
def test_ours_is_found_in_every_combination(texts: list[str], between: str) -> None:
    alone = [text for text in texts if has_ours(text)]
    together = between.join(texts)
    assert has_ours(together) is bool(alone)
    assert bool(of_others(together)) is any(of_others(text) for text in texts)


@given(st.text(max_size=300))
def test_no_text_of_a_check_makes_a_second_part(text: str) -> None:
    finding = Finding(
        check="site.x", outcome=Outcome.FAIL, subject="x", text=text, suggestion=Suggestion.REBOOT
    )
    written = reason([finding])
    assert len(parts(written)) == 1
    assert len(written) <= 200


@given(st.text(max_size=200))
def test_any_text_can_be_read(text: str) -> None:
    assert len(read(text)) <= len(text)
    evidence(text)


# -- what counts for lemons ------------------------------------------------------------------------------


def events(*seen: tuple[str, float, str]) -> History:
    found = tuple(
        NodeEvent(node=node, state="DOWN", reason=reason, user="slurm", start_time=at, end_time=None)
        for node, at, reason in seen
    )
    return History(events=found, runs=(), logged=(), until=10_000.0)


def test_a_switch_of_thirty_nodes_is_no_fault_of_theirs() -> None:
    history = events(
        *((f"n{i}", 100.0 + i, "Not responding") for i in range(30)), ("n1", 5000.0, "Not responding")
    )
    assert [(failure.nodes, failure.t) for failure in failures_of(history)] == [(("n1",), 5000.0)]


@pytest.mark.parametrize(
    ("many", "apart", "text", "counted"),
    [
        (3, 1.0, "Not responding", 3),
        (4, 1.0, "Prolog error", 0),
        (4, 60.0, "Not responding", 4),
        (30, 1.0, "NHC: check_hw_gpu: 7 of 8 GPUs", 30),
        (30, 1.0, "Kill task failed", 0),
    ],
)
def test_only_what_slurm_says_of_many_at_once_is_shared(
    many: int, apart: float, text: str, counted: int
) -> None:
    history = events(*((f"n{i}", i * apart, text) for i in range(many)))
    assert len(failures_of(history)) == counted


def test_one_node_that_dies_again_and_again_is_not_many() -> None:
    assert len(failures_of(events(*(("n1", i * 1000.0, "Not responding") for i in range(9))))) == 9
