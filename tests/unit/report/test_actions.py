"""Decisions in a few words."""

from __future__ import annotations

import pytest

from slurm_robust.model import incident as inc
from slurm_robust.report.incident_text import actions_text
from tests.unit.report import incident_journal as made_up


def test_many_nodes_are_folded_in_what_was_done() -> None:
    bad, good = [f"n{i}" for i in range(1, 9)], [f"n{i}" for i in range(11, 19)]
    swaps = [inc.Replace(node=b, standby=g) for b, g in zip(bad, good, strict=True)]
    actions = (*(inc.Evict(node=b, reason="") for b in bad), *swaps, inc.Restart())
    verdict = made_up.node("n1", 4, 1.0, "why")
    decided = made_up.decided(0, 1, verdict, "how", *actions)
    assert actions_text(decided) == "evict n[1-8], n[11-18] take their slots, restart"


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (inc.StartAgents(nodes=("n1", "n2")), "start agents again on n[1-2]"),
        (inc.RollBack(release="ab12"), "roll back to release ab12"),
        (inc.Replay(reason=""), "replay the training in small groups"),
        (inc.Diagnose(reason=""), "test the nodes"),
        (inc.Requeue(exclude=(), reason=""), "requeue"),
        (inc.Finish(code=0), "finish"),
    ],
)
def test_every_action_has_words(action: inc.Action, text: str) -> None:
    assert actions_text(made_up.decided(0, 1, made_up.node("n1", 1, 1.0, ""), "", action)) == text
