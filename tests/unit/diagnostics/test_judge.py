from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_robust.diagnostics.judge import far_below, judge, retry_rounds
from slurm_robust.diagnostics.part import Measurement, PartAnswer, died, failed, late
from slurm_robust.diagnostics.plan import DiagnosticRound, neighbours
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import Diagnosis, TestResult

SIZES = st.integers(min_value=2, max_value=40)


def names(count: int) -> list[str]:
    return [f"n{index}" for index in range(count)]


def result(node: str, test: str = "gemm", outcome: Outcome = Outcome.PASS, **fields: object) -> TestResult:
    fields.setdefault("peers", (node,))
    return TestResult(test=test, node=node, outcome=outcome, **fields)  # type: ignore[arg-type]


def failure(node: str, text: str, test: str = "gemm") -> TestResult:
    return result(node, test, Outcome.FAIL, text=text)


def alone(results: Iterable[TestResult], nodes: Sequence[str] = ()) -> Diagnosis:
    """Judge one round of single nodes; ``nodes``: who took part, if others than have results."""
    results = list(results)
    tests = tuple(dict.fromkeys(r.test for r in results)) or ("gemm",)
    took_part = nodes or tuple(dict.fromkeys(r.node for r in results))
    round_ = DiagnosticRound(programs=tests, groups=tuple((node,) for node in took_part))
    return judge([round_], [PartAnswer(result=r) for r in results], {})


def pairs(
    nodes: Sequence[str], bad: set[str], broken: frozenset[str] = frozenset(), *, slow: float = 0.0
) -> Diagnosis:
    """Judge the rounds of neighbours: ``bad`` nodes fail with everybody, the two ``broken`` together.

    With ``slow`` they do not fail, but have that rate and not 40 GB/s.
    """
    rounds = [DiagnosticRound(programs=("all_gather",), groups=groups) for groups in neighbours(nodes)]
    answers = [answer for round_ in rounds for answer in played(round_, bad, broken, slow)]
    for retry in retry_rounds(rounds, answers):
        rounds.append(retry)
        answers += played(retry, bad, broken, slow)
    return judge(rounds, answers, {})


def played(
    round_: DiagnosticRound, bad: set[str], broken: frozenset[str], slow: float
) -> Iterator[PartAnswer]:
    for group in round_.groups:
        fails = bool(bad & set(group)) or frozenset(group) == broken
        for node in group:
            outcome = Outcome.FAIL if fails and not slow else Outcome.PASS
            text = "timed out" if fails and not slow else ""
            rate = slow if fails and slow else 40.0
            yield PartAnswer(
                result=result(node, "all_gather", outcome, peers=group, text=text, rate=rate, kind="x")
            )


@given(SIZES.filter(lambda n: n > 2), st.data())
def test_one_bad_or_slow_node_is_found_by_its_neighbours_and_no_other_is_blamed(
    count: int, data: st.DataObject
) -> None:
    nodes = names(count)
    bad = data.draw(st.sampled_from(nodes))
    found, slow = pairs(nodes, {bad}), pairs(nodes, {bad}, slow=2.0)
    assert found.suspects == slow.suspects == (bad,)
    assert found.reason.count("timed out") == (3 if count > 3 else 2)
    assert "2 GB/s, and others 40" in slow.reason


@given(SIZES, st.data())
def test_one_broken_cable_blames_nobody_and_names_both_ends(count: int, data: st.DataObject) -> None:
    nodes = names(count)
    index = data.draw(st.integers(0, count - 1))
    ends = frozenset((nodes[index], nodes[(index + 1) % count]))
    found = pairs(nodes, set(), ends)
    assert found.suspects == ()
    assert all(end in found.reason for end in ends)


@given(st.integers(5, 40), st.data())
def test_of_several_bad_nodes_all_are_found_and_good_ones_between_them_are_cleared(
    count: int, data: st.DataObject
) -> None:
    nodes = names(count)
    bad = data.draw(st.sets(st.sampled_from(nodes), min_size=1, max_size=count // 4))
    assert set(pairs(nodes, bad).suspects) == bad


@given(SIZES)
def test_when_no_pair_works_no_node_is_blamed(count: int) -> None:
    found = pairs(names(count), set(names(count)))
    assert found.suspects == ()
    assert "no node is to blame" in found.reason


@given(SIZES)
def test_good_nodes_pass(count: int) -> None:
    found = pairs(names(count), set())
    assert found.suspects == ()
    assert found.reason == f"all {count} nodes passed all_gather"


def test_who_fails_alone_is_to_blame_unless_all_do() -> None:
    found = alone([result("n1"), failure("n2", "gpu3: wrong"), result("n3")])
    assert found.suspects == ("n2",)
    assert found.reason == "n2 (gemm: gpu3: wrong)"
    everybody = alone([failure("n1", "no driver"), failure("n2", "no driver")])
    assert everybody.suspects == ()
    assert "all 2 nodes fail gemm (no driver)" in everybody.reason
    assert alone([failure("n1", "wrong")]).suspects == ("n1",)


def test_what_is_unknown_blames_nobody() -> None:
    found = alone([result("n1"), result("n2", outcome=Outcome.UNKNOWN, text="no time was left")])
    assert found.suspects == ()
    assert found.reason == "unknown on n2: gemm (no time was left)"


def test_who_is_silent_is_named_and_blamed_for_nothing() -> None:
    spoken = [result("n1", "gemm"), result("n2", "gemm"), result("n1", "memory")]
    found = alone(spoken, ("n1", "n2"))
    assert found.suspects == ()
    assert found.reason == "all 2 nodes passed gemm; unknown on n2: memory (no answer)"
    (silence,) = [r for r in found.results if r.outcome is Outcome.UNKNOWN]
    assert (silence.node, silence.test, silence.text) == ("n2", "memory", "no answer")
    nobody = alone([], ("n1", "n2"))
    assert (nobody.suspects, nobody.results) == ((), ())
    assert nobody.left_out == {"gemm": "no node answered"}


LATE = late(26.0)
DEAD = died("ended without an answer")
PASSED = Measurement()
WRONG = failed("3 words changed")


def said(node: str, found: Measurement, *peers: str, test: str = "memory") -> PartAnswer:
    one = result(node, test, found.outcome, text=found.text, peers=peers or (node,))
    return PartAnswer(result=one, measured=found.measured)


@pytest.mark.parametrize("nodes", [1, 4], ids=["one node", "four nodes"])
@pytest.mark.parametrize(
    ("first", "again", "suspects", "reason"),
    [
        (LATE, None, (), "no result within 26 s (load "),
        (LATE, LATE, (), "unknown on n0: memory (no result within 26 s (load "),
        (LATE, PASSED, (), "passed gemm, memory"),
        (LATE, WRONG, ("n0",), "n0 (memory: 3 words changed)"),
        (LATE, DEAD, (), "unknown on n0: memory (ended without an answer)"),
        (DEAD, None, (), "unknown on n0: memory (ended without an answer)"),
        (DEAD, PASSED, (), "passed gemm, memory"),
        (DEAD, LATE, (), "unknown on n0: memory (no result within 26 s"),
        (DEAD, DEAD, ("n0",), "n0 (memory: ended without an answer)"),
        (WRONG, None, ("n0",), "n0 (memory: 3 words changed)"),
    ],
)
def test_who_has_measured_nothing_is_measured_again_and_convicted_only_by_that(
    first: Measurement, again: Measurement | None, suspects: tuple[str, ...], reason: str, nodes: int
) -> None:
    rounds = [DiagnosticRound(programs=("gemm", "memory"), groups=tuple((node,) for node in names(nodes)))]
    answers = [said(node, PASSED, test=test) for node in names(nodes)[1:] for test in ("gemm", "memory")]
    answers += [said("n0", PASSED, test="gemm"), said("n0", first)]
    retries = retry_rounds(rounds, answers)
    if first is WRONG:
        assert retries == ()
    else:
        assert [(retry.programs, retry.groups) for retry in retries] == [(("memory",), (("n0",),))]
    if again is not None:
        rounds += retries
        answers.append(said("n0", again))
    found = judge(rounds, answers, {})
    assert found.suspects == suspects
    assert reason in found.reason


def test_who_was_silent_is_asked_again_and_an_answer_counts() -> None:
    rounds = [DiagnosticRound(programs=("gemm", "memory"), groups=(("n0",), ("n1",)))]
    answers = [
        *(said("n0", PASSED, test=test) for test in ("gemm", "memory")),
        said("n1", PASSED, test="gemm"),
    ]
    (retry,) = retry_rounds(rounds, answers)
    assert (retry.programs, retry.groups) == (("memory",), (("n1",),))
    rounds.append(retry)
    silent = judge(rounds, answers, {})
    assert (silent.suspects, silent.left_out) == ((), {})
    assert "unknown on n1: memory (no answer)" in silent.reason
    assert judge(rounds, [*answers, said("n1", PASSED)], {}).reason == "all 2 nodes passed gemm, memory"


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_pairs_that_were_late_convict_nobody_and_one_of_them_meets_again(count: int) -> None:
    nodes = names(count)
    rounds = [DiagnosticRound(programs=("all_gather",), groups=groups) for groups in neighbours(nodes)]
    groups = [group for round_ in rounds for group in round_.groups]
    answers = [
        said(node, LATE if "n0" in group else PASSED, *group, test="all_gather")
        for group in groups
        for node in group
    ]
    (retry,) = retry_rounds(rounds, answers)
    (pair,) = retry.groups
    assert "n0" in pair
    found = judge(rounds, answers, {})
    assert found.suspects == ()
    assert "n0" in found.reason.partition("unknown on ")[2]
    again = [said(node, PASSED, *pair, test="all_gather") for node in pair]
    assert judge([*rounds, retry], [*answers, *again], {}).suspects == ()
    # Who dies of that is not alone with it: the others' failures beside it are no measurements.
    broken = [
        replace(answer, measured=True, result=replace(answer.result, outcome=Outcome.FAIL))
        if not answer.measured and answer.result.node != "n0"
        else answer
        for answer in answers
    ]
    assert judge(rounds, broken, {}).suspects == ()


def test_what_was_done_with_a_silent_node_says_nothing_of_the_other_one() -> None:
    rounds = [DiagnosticRound(programs=("all_gather",), groups=groups) for groups in neighbours(names(3))]
    outcomes = {("n0", "n1"): Outcome.FAIL, ("n1", "n2"): Outcome.FAIL, ("n2", "n0"): Outcome.PASS}
    answers = [
        PartAnswer(result=result(node, "all_gather", outcomes[group], peers=group))
        for round_ in rounds
        for group in round_.groups
        for node in group
        if node != "n1"
    ]
    found = judge(rounds, answers, {})
    assert found.suspects == ()
    assert found.reason == "unknown on n1: all_gather (no answer)"


def reference(node: str, digest: str, kind: str = "h200") -> TestResult:
    return result(node, "reference", digest=digest, kind=kind)


@given(st.integers(3, 30), st.data())
def test_the_majority_of_results_is_right(count: int, data: st.DataObject) -> None:
    nodes = names(count)
    bad = data.draw(st.sets(st.sampled_from(nodes), min_size=1, max_size=(count - 1) // 2))
    found = alone([reference(node, f"bad {node}" if node in bad else "good") for node in nodes])
    assert set(found.suspects) == bad
    failures = {r.node for r in found.results if r.outcome is Outcome.FAIL}
    assert failures == bad


@pytest.mark.parametrize("digests", ["ab", "aabb", "aabbc", "abc"])
def test_without_a_majority_nobody_is_to_blame(digests: str) -> None:
    found = alone([reference(f"n{index}", digest) for index, digest in enumerate(digests)])
    assert found.suspects == ()
    assert "none of them in the majority" in found.reason


def test_only_nodes_of_one_kind_are_compared() -> None:
    two_kinds = [reference("n1", "a"), reference("n2", "a"), reference("n3", "b", "a100")]
    found = alone([*two_kinds, reference("n4", "c", "mi300"), reference("n5", "c", "mi300")])
    assert found.suspects == ()
    assert found.left_out == {"reference": "n3 has none of its kind to be compared with"}
    assert found.reason == "all 5 nodes passed reference"


def test_a_rate_far_below_that_of_others_is_a_failure() -> None:
    rates = {"n1": 40.0, "n2": 42.0, "n3": 8.0, "n4": 39.0}
    of_one_kind = [result(node, rate=rate, kind="x") for node, rate in rates.items()]
    slow = [r.node for r in far_below(of_one_kind) if r.outcome is Outcome.FAIL]
    assert slow == ["n3"]
    # A half may have other reasons, a few are no crowd, and other hardware is no measure.
    half = [*of_one_kind[:2], result("n3", rate=20.0, kind="x"), of_one_kind[3]]
    for results in (half, of_one_kind[2:], [*of_one_kind[:2], result("n3", rate=1.0, kind="y")]):
        assert far_below(results) == list(results)


@pytest.mark.parametrize(("again", "suspects"), [(39.0, ()), (8.0, ("n3",))])
def test_who_was_only_slow_is_measured_again_with_nobody_else_at_work(
    again: float, suspects: tuple[str, ...]
) -> None:
    nodes = names(5)
    first = DiagnosticRound(programs=("gemm", "all_to_all"), groups=tuple((node,) for node in nodes))
    rates = {**dict.fromkeys(nodes, 40.0), "n3": 8.0}
    answers = [PartAnswer(result=result(node)) for node in nodes]
    answers += [PartAnswer(result=result(n, "all_to_all", rate=rate, kind="x")) for n, rate in rates.items()]
    (retry,) = retry_rounds([first], answers)
    assert (retry.programs, retry.groups) == (("all_to_all",), (("n3",),))
    answers.append(PartAnswer(result=result("n3", "all_to_all", rate=again, kind="x")))
    assert judge([first, retry], answers, {}).suspects == suspects


@pytest.mark.parametrize(("again", "suspects"), [(39.0, ()), (2.0, ("n1",))])
def test_who_was_slow_with_both_of_two_others_meets_one_of_them_again(
    again: float, suspects: tuple[str, ...]
) -> None:
    nodes = names(3)
    rounds = [DiagnosticRound(programs=("all_gather",), groups=groups) for groups in neighbours(nodes)]
    answers = [answer for round_ in rounds for answer in played(round_, {"n1"}, frozenset(), 2.0)]
    (retry,) = retry_rounds(rounds, answers)
    assert retry.groups == (("n0", "n1"),)
    answers += [
        PartAnswer(result=result(n, "all_gather", peers=("n0", "n1"), rate=again, kind="x"))
        for n in ("n0", "n1")
    ]
    found = judge([*rounds, retry], answers, {})
    assert found.suspects == suspects
    assert "n1" in found.reason  # its other pair is still told


def test_who_was_wrong_is_not_asked_again() -> None:
    nodes = names(3)
    first = DiagnosticRound(programs=("all_to_all",), groups=tuple((node,) for node in nodes))
    answers = [PartAnswer(result=result(n, "all_to_all", rate=40.0, kind="x")) for n in nodes[:2]]
    answers.append(PartAnswer(result=result("n2", "all_to_all", Outcome.FAIL, text="3 words are wrong")))
    assert retry_rounds([first], answers) == ()
    assert judge([first], answers, {}).suspects == ("n2",)


def test_tests_that_nodes_left_out_are_told_and_nobody_is_silent_in_them() -> None:
    round_ = DiagnosticRound(programs=("dcgm", "gemm"), groups=(("n1",), ("n2",)))
    absent = [
        PartAnswer(result=result(n, "dcgm", Outcome.UNKNOWN, text="not installed"), left_out=True)
        for n in ("n1", "n2")
    ]
    found = judge(
        [round_], [*absent, *(PartAnswer(result=result(n)) for n in ("n1", "n2"))], {"storage": "no"}
    )
    assert found.left_out == {"dcgm": "not installed (n1, n2)", "storage": "no"}
    assert [r.test for r in found.results] == ["gemm", "gemm"]
    assert found.reason == "all 2 nodes passed gemm"
