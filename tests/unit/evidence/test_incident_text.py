"""Bytes of logs are data: nothing of them reaches a terminal as an order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.evidence import stacks
from slurm_robust.evidence.incident_text import actions_text, facts, result_rows, timeline
from slurm_robust.evidence.incidents import incident_reports
from slurm_robust.evidence.stacks import flight
from slurm_robust.model import events as ev
from slurm_robust.model import incident as inc
from slurm_robust.model.companion import CompanionPool
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import TestResult
from slurm_robust.model.stacks import Collective, Localisation, RankStacks
from slurm_robust.util.text import MAX_TEXT, clean_log, one_line
from tests.builders import incidents
from tests.unit.report import incident_journal


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mERROR\x1b[0m: no", "ERROR: no"),
        ("\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b", "ab"),
        ("a\x1b[2J\x1b[1;1Hb\x9b5mc", "abc"),
        ("\x1b]52;c;never ended\nnext line", "\nnext line"),  # must not swallow what follows
        ("\x1bP1$q\x1b\\ok\x1bcok\x1b", "okok"),
        ("10%\r20%\r30%\r\ndone\r\n", "30%\ndone\n"),
        ("a\tb\x00c\x7f\u202ed", "a    b?c??d"),
        ("\x1b[31", "31"),
        ("grün 漢字", "grün 漢字"),
    ],
)
def test_what_a_terminal_would_obey_is_taken_out(text: str, shown: str) -> None:
    assert clean_log(text) == shown


@given(st.text(alphabet=st.characters(max_codepoint=0x2FF)))
def test_no_text_keeps_a_control_character(text: str) -> None:
    assert all(char.isprintable() for char in clean_log(text) if char != "\n")


def test_a_long_text_is_cut_and_one_line_stays_one() -> None:
    assert one_line(" a\n\n b ") == "a b"
    assert len(one_line("x" * 5000)) == MAX_TEXT


def test_what_a_thousand_nodes_say_does_not_bury_the_timeline() -> None:
    t = incident_journal.BEGIN + 1001
    notes = [ev.Noted(t=t, text=f"no GPU {i}", node=f"n{i}") for i in range(1000)]
    killed = incident_journal.rank_killed()
    (report,) = incident_reports([*incident_journal.start(), *killed[:2], *notes, *killed[2:]])
    texts = [entry.text for entry in timeline(report) if entry.what == "note"][1:]
    assert texts == [*(f"n{i}: no GPU {i}" for i in range(8)), "and 992 more"]
    assert timeline(report)[-1].what == "over"


def test_the_timeline_says_who_lent_a_node_and_who_did_not() -> None:
    at, reserved = incident_journal.BEGIN + 1001, CompanionPool(reservation="spares")
    asked = ev.Decided(t=at, incident=1, actions=(inc.Borrow(nodes=1, reason="x"),), reason="x")
    told = [
        ev.CompanionSubmitted(t=at, job_id=12, source=reserved),
        ev.CompanionEnded(t=at, job_id=12, reason="it lends no node"),
        ev.NotLent(t=at, source=reserved, reason="0 of 2 nodes free (n[5-6])"),
        ev.CompanionSubmitted(t=at, job_id=13, source=CompanionPool()),
        ev.CompanionStarted(t=at, job_id=13, node="n7"),
    ]
    killed = incident_journal.rank_killed()
    (report,) = incident_reports([*incident_journal.start(), *killed[:2], *told, *killed[2:]])
    assert [entry.text for entry in timeline(report) if entry.what == "companion"] == [
        "companion 12 was submitted, to lend a node from reservation spares",
        "companion 12 ends: it lends no node",
        "no node from reservation spares: 0 of 2 nodes free (n[5-6])",
        "companion 13 was submitted, to lend a node from the partition",
        "companion 13 lends n7",
    ]
    assert actions_text(asked) == "ask for 1 node from outside the allocation"


def test_nodes_that_are_unreachable_are_not_said_to_stand_by_nor_to_have_alerts() -> None:
    """They may have lost their power. Where a hang moves ranks, the node stands by."""

    def decided(kind: inc.FaultKind) -> ev.Decided:
        verdict = incidents.verdict(
            rung=2, blame=inc.Blame.NOBODY, signature=inc.Signature(kind=kind), reason="x", confidence=0.7
        )
        moves = inc.Replace(node="n3", standby="n5"), inc.Replace(node="n4", standby="n6"), inc.Restart()
        return ev.Decided(
            t=incident_journal.BEGIN + 1001, incident=1, verdict=verdict, actions=moves, reason="x"
        )

    lost = decided(inc.FaultKind.UNREACHABLE)
    assert actions_text(lost) == "go on without n[3-4], n[5-6] take their slots, restart"
    assert actions_text(decided(inc.FaultKind.RANKS)) == "n[3-4] stand by, n[5-6] take their slots, restart"
    killed = incident_journal.rank_killed()
    (report,) = incident_reports([*incident_journal.start(), *killed[:3], lost])
    assert dict(facts(report))["blamed"] == "nobody (by what was observed, 70% sure)"


def test_a_stage_without_a_text_of_slurm_is_done() -> None:
    told = [
        ev.StageDone(t=incident_journal.BEGIN + 1001, what="requeue", ok=True, detail=""),
        ev.StageDone(t=incident_journal.BEGIN + 1001, what="release", ok=False, detail="no"),
    ]
    killed = incident_journal.rank_killed()
    (report,) = incident_reports([*incident_journal.start(), *killed[:3], *told])
    stages = [entry.text for entry in timeline(report) if entry.what == "stage"]
    assert stages == ["requeue: done", "release: failed: no"]


def test_the_timeline_says_which_standby_could_not_be_taken() -> None:
    aside = ev.SpareSetAside(
        t=incident_journal.BEGIN + 1001, node="n5", reason="no\x1b[31m python", usable=False
    )
    killed = incident_journal.rank_killed()
    (report,) = incident_reports([*incident_journal.start(), *killed[:2], aside, *killed[2:]])
    assert [e.text for e in timeline(report) if e.what == "set aside"] == ["standby n5: no python"]


def test_results_that_say_the_same_are_one_row_and_failures_come_first() -> None:
    def result(node: str, outcome: Outcome, value: str) -> TestResult:
        return TestResult(test="gpu", node=node, outcome=outcome, value=value, took_s=float(node[1:]))

    rows = result_rows(
        [
            result("n1", Outcome.PASS, "5"),
            result("n2", Outcome.FAIL, "9"),
            result("n3", Outcome.PASS, "6"),
            result("n4", Outcome.UNKNOWN, ""),
        ]
    )
    assert [(row.nodes, row.outcome.value, row.value, row.took_s) for row in rows] == [
        ("n2", "fail", "9", 2.0),
        ("n4", "unknown", "", 4.0),
        ("n[1,3]", "pass", "", 3.0),
    ]


def at(group: str, sequence: int, operation: str = "all_reduce", state: str = "started") -> Collective:
    return Collective(group=group, sequence=sequence, operation=operation, state=state, ranks=(0, 1, 2))


def described(*ranks: tuple[Collective, ...]) -> list[str]:
    return flight([RankStacks(rank=i, node="n1", collectives=c) for i, c in enumerate(ranks)])


def test_process_groups_whose_ranks_are_together_are_only_counted() -> None:
    idle, same = at("tp", 7, state="completed"), at("ep", 3)
    assert described((idle, same, at("dp", 5)), (idle, same, at("dp", 5)), (idle, same, at("dp", 4))) == [
        "dp (3 ranks): rank 2 in #4 all_reduce, started; ranks 0-1 in #5 all_reduce, started",
        "1 process group with all ranks in the same operation",
        "1 process group in which no rank waits",
    ]


def test_a_rank_that_never_came_is_listed_and_one_without_a_recorder_is_not() -> None:
    first = at("dp", 1)
    assert described((first,), (first,), (at("tp", 9, state="completed"),)) == [
        "dp (3 ranks): ranks 0-1 in #1 all_reduce, started; rank 2 in none so far",
        "1 process group in which no rank waits",
    ]
    assert described((first,), (first,), ()) == ["1 process group with all ranks in the same operation"]


def test_a_rank_with_nothing_open_is_listed_as_one_and_is_not_said_never_to_have_come() -> None:
    waits = at("dp", 9, "nccl2:all_reduce", "scheduled")
    stacks = [RankStacks(rank=i, node="n1", collectives=(waits,)) for i in range(2)]
    own = RankStacks(
        rank=2, node="n1", idle=("nccl2:dp",), collectives=(at("dp", 4, "gloo:barrier", "completed"),)
    )
    assert flight([*stacks, own]) == [
        "dp (3 ranks): ranks 0-1 in #9 nccl2:all_reduce, scheduled; rank 2 with nothing open",
        "1 process group in which no rank waits",
    ]


def test_sends_and_receives_are_listed_without_their_numbers() -> None:
    assert described((at("pp:p2p", 8, "recv 0<-1"),), (), (at("pp:p2p", 3, "recv 2<-1"),)) == [
        "pp:p2p (3 ranks): rank 0 in recv 0<-1, started; rank 2 in recv 2<-1, started"
    ]


def test_of_very_many_process_groups_some_are_listed() -> None:
    many = tuple(at(f"g{i:03}", 1) for i in range(300))
    lines = described(many, (at("x", 1, state="completed"),))
    assert (len(lines), lines[200]) == (202, "and 100 process groups more")


def test_members_of_a_blamed_group_that_do_what_most_do_are_not_called_unlike_most() -> None:
    groups = stacks.group(incident_journal.STACKS, incident_journal.PLACED)
    assert [(group.ranks, group.is_outlier) for group in groups] == [
        ((4,), True),
        ((0, 1, 2, 3, 5, 6, 7), False),
    ]
    assert not any(group.is_outlier for group in stacks.group(incident_journal.STACKS, Localisation()))


# -- actions ----------------------------------------------------------------------------------------


def test_many_nodes_are_folded_in_what_was_done() -> None:
    bad, good = [f"n{i}" for i in range(1, 9)], [f"n{i}" for i in range(11, 19)]
    swaps = [inc.Replace(node=b, standby=g) for b, g in zip(bad, good, strict=True)]
    actions = (*(inc.Evict(node=b) for b in bad), *swaps, inc.Restart())
    verdict = incident_journal.node("n1", 4, 1.0, "why")
    decided = incident_journal.decided(0, 1, verdict, "how", *actions)
    assert actions_text(decided) == "evict n[1-8], n[11-18] take their slots, restart"


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (inc.RestartAgents(nodes=("n1", "n2")), "start agents again on n[1-2]"),
        (inc.Replay(reason=""), "replay the training in small groups"),
        (inc.Diagnose(reason=""), "test the nodes"),
        (inc.Requeue(exclude=(), reason=""), "requeue"),
    ],
)
def test_every_action_has_a_text(action: inc.Action, text: str) -> None:
    assert (
        actions_text(incident_journal.decided(0, 1, incident_journal.node("n1", 1, 1.0, ""), "", action))
        == text
    )
