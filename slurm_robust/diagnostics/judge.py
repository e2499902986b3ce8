"""The nodes to blame, by what parts of tests have said. Pure.

A node is blamed for what it fails alone, for a result unlike that of most nodes alike, and for failing
together with both its neighbours. What every node fails is no node's fault, nor is what cannot be compared:
then the reason says so and names no node. A node that was late or silent, or whose test died, has measured
nothing. It is measured once more while no other node works; if that brings nothing either, it is only named.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from statistics import median

from msgspec.structs import replace

from slurm_robust.diagnostics.part import PartAnswer
from slurm_robust.diagnostics.plan import DiagnosticRound
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import Diagnosis, TestResult
from slurm_robust.model.record import Record
from slurm_robust.util.text import some_of

SLOWER = 4.0
"""This many times slower than most nodes of its kind is a failure: links degrade by halves, loss by more."""

_ENOUGH_NODES = 3


def judge(
    rounds: Sequence[DiagnosticRound], answers: Iterable[PartAnswer], left_out: Mapping[str, str]
) -> Diagnosis:
    """Return the diagnosis. ``rounds`` were run and gave ``answers``; ``left_out`` was not even begun."""
    answers = list(answers)
    judging = _Judging()
    quiet = judging.silent(rounds, answers)
    found = judging.compared(far_below(settled(answers)))
    nodes = list(dict.fromkeys(n for r in rounds for n in r.nodes))
    for test in dict.fromkeys(result.test for result in found):
        results = [result for result in found if result.test == test]
        if any(len(result.peers) > 1 for result in results):
            judging.pairs(test, results, quiet.keys())
        else:
            judging.alone(test, results)
    found += (
        TestResult(test=test, node=node, outcome=Outcome.UNKNOWN, text="no answer")
        for node, test in quiet.items()
    )
    suspects = tuple(node for node in nodes if node in judging.blamed)
    return Diagnosis(
        results=tuple(found),
        suspects=suspects,
        reason=_reason(judging, suspects, found, len(nodes)),
        left_out={**judging.left_out, **_not_here(answers), **left_out},
    )


def quiet_nodes(round_: DiagnosticRound, answers: Iterable[PartAnswer]) -> dict[str, str]:
    """Return the nodes that have not answered for all programs of the round, with the first that lacks."""
    answered = {(a.result.test, a.result.node) for a in answers}
    lacking = {
        node: next((name for name in round_.programs if (name, node) not in answered), "")
        for node in round_.nodes
    }
    return {node: name for node, name in lacking.items() if name}


def settled(answers: Iterable[PartAnswer]) -> list[TestResult]:
    """Settle the results. What measured nothing is unknown, and gone if another attempt has measured.

    A failure beside a partner that measured nothing does not count either. A program that died twice has
    failed.
    """
    attempts = [*_attempts(answer for answer in answers if not answer.left_out)]
    deaths = Counter((a.result.test, a.result.node) for a, _ in attempts if _is_dead(a))

    def says_something(answer: PartAnswer) -> bool:
        return answer.measured or (_is_dead(answer) and deaths[answer.result.test, answer.result.node] > 1)

    empty = {attempt for answer, attempt in attempts if not says_something(answer)}
    sure = [
        answer
        for answer, attempt in attempts
        if says_something(answer) and (answer.result.outcome is not Outcome.FAIL or attempt not in empty)
    ]
    known = {_place(answer) for answer in sure}
    unsure = {_place(answer): answer for answer, _ in attempts if _place(answer) not in known}
    doubts = (replace(answer.result, outcome=Outcome.UNKNOWN) for answer in unsure.values())
    return [*(answer.result for answer in sure), *doubts]


def _attempts(answers: Iterable[PartAnswer]) -> Iterator[tuple[PartAnswer, tuple[str, tuple[str, ...], int]]]:
    """Yield the answers, each with its attempt: test, nodes, and the number of the attempt at these."""
    count: Counter[tuple[str, str, tuple[str, ...]]] = Counter()
    for answer in answers:
        yield answer, (answer.result.test, answer.result.peers, count[_place(answer)])
        count[_place(answer)] += 1


def _place(answer: PartAnswer) -> tuple[str, str, tuple[str, ...]]:
    return answer.result.test, answer.result.node, answer.result.peers


def _is_dead(answer: PartAnswer) -> bool:
    return not answer.measured and answer.result.outcome is Outcome.FAIL


def far_below(results: Sequence[TestResult]) -> list[TestResult]:
    """Return the results, failed if the rate is far below that of others of the same test and kind."""
    best: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    together: dict[tuple[str, str, tuple[str, ...]], float] = {}
    for result in results:
        if result.rate:
            # As fast as a node's best pair: the worse one may be its neighbour's fault.
            nodes = best[result.test, result.kind]
            nodes[result.node] = max(result.rate, nodes.get(result.node, 0.0))
            # And of several attempts at the same nodes the best: something else has slowed the others down.
            same = (result.test, result.node, result.peers)
            together[same] = max(result.rate, together.get(same, 0.0))
    limits = {key: median(of.values()) / SLOWER for key, of in best.items() if len(of) >= _ENOUGH_NODES}

    def judged(result: TestResult) -> TestResult:
        limit = limits.get((result.test, result.kind), 0.0)
        if result.outcome is not Outcome.PASS or not result.rate:
            return result
        if together[result.test, result.node, result.peers] >= limit:
            return result
        return replace(
            result,
            outcome=Outcome.FAIL,
            text=f"{result.rate:.2g} GB/s, and others {limit * SLOWER:.2g}",
            limit=f"{limit:.2g} GB/s",
        )

    return [judged(result) for result in results]


class Meetings(Record):
    """How pairs got on in a test."""

    failures: dict[tuple[str, ...], str]  # pairs that failed, with the text
    good: frozenset[str]  # nodes that passed with another one

    @classmethod
    def of(cls, results: Iterable[TestResult], quiet: Iterable[str]) -> Meetings:
        """Return the meetings without those of ``quiet`` nodes, which say nothing of the other one."""
        silent = set(quiet)
        spoken = [result for result in results if silent.isdisjoint(result.peers)]
        failures: dict[tuple[str, ...], str] = {}
        for result in spoken:
            if result.outcome is Outcome.FAIL:
                failures.setdefault(result.peers, result.text)
        passed = (result for result in spoken if result.outcome is Outcome.PASS)
        return cls(failures=failures, good=frozenset(r.node for r in passed if r.peers not in failures))

    @property
    def bad(self) -> frozenset[str]:
        """Nodes that failed with all that they met, which were more than one."""
        met = Counter(node for pair in self.failures for node in pair)
        return frozenset(node for node, count in met.items() if count > 1) - self.good


def only_slow(results: Sequence[TestResult]) -> list[TestResult]:
    """Return those that fail for nothing but their rate."""
    pairs = zip(results, far_below(results), strict=True)
    return [judged for result, judged in pairs if judged.outcome is not result.outcome]


def retry_rounds(
    rounds: Sequence[DiagnosticRound], answers: Iterable[PartAnswer]
) -> tuple[DiagnosticRound, ...]:
    """Return rounds that distinguish bad luck from a fault, if that is open."""
    answers = list(answers)
    quiet = _Judging().silent(rounds, answers)
    alone = [round_ for round_ in rounds if all(len(group) == 1 for group in round_.groups)]
    pairs = [round_ for round_ in rounds if round_ not in alone]
    retries = (
        _by_themselves(alone[0], answers, quiet) if alone else None,
        _with_others(pairs, answers, quiet) if pairs else None,
    )
    return tuple(filter(None, retries))


def _by_themselves(
    alone: DiagnosticRound, answers: Sequence[PartAnswer], quiet: Mapping[str, str]
) -> DiagnosticRound | None:
    """Return a round in which nodes that were only far slower, or measured nothing, measure again alone."""
    results = [a for a in answers if a.result.test in alone.programs and not a.left_out]
    again = [(slow.test, slow.node) for slow in only_slow([a.result for a in results])]
    again += [(a.result.test, a.result.node) for a in results if not a.measured]
    answered = {(a.result.test, a.result.node) for a in answers}
    again += [(test, node) for node in quiet for test in alone.programs if (test, node) not in answered]
    tests, nodes = {test for test, _ in again}, {node for _, node in again}
    programs = tuple(name for name in alone.programs if name in tests)
    groups = tuple(group for group in alone.groups if nodes.issuperset(group))
    return replace(alone, programs=programs, groups=groups) if programs and groups else None


def _with_others(
    pairs: Sequence[DiagnosticRound], answers: Sequence[PartAnswer], quiet: Mapping[str, str]
) -> DiagnosticRound | None:
    """Return a round in which nodes that failed with both neighbours each meet another, good node.

    It clears a good node between two bad ones, and one that had bad luck twice. A node that was only slow,
    or has measured nothing, meets a neighbour again if there is no other node; one that finds no partner
    stays in doubt. None if no node is in doubt or good nodes are lacking.
    """
    here = [a for a in answers if len(a.result.peers) > 1 and not a.left_out]
    results = [a.result if a.measured else replace(a.result, outcome=Outcome.FAIL) for a in here]
    meetings = Meetings.of(far_below(results), quiet)
    slow = {result.peers for result in only_slow(results)}
    late = {a.result.peers for a in here if not a.measured and quiet.keys().isdisjoint(a.result.peers)}
    order = list(dict.fromkeys(node for round_ in pairs for node in round_.nodes))
    free = [node for node in order if node in meetings.good]
    groups: list[tuple[str, ...]] = []
    for node in order:
        if node in meetings.bad:
            known = {other for pair in meetings.failures if node in pair for other in pair}
            strangers = ((other, node) for other in free if other not in known)
            again = (pair for pair in slow | late if node in pair and not {*pair}.isdisjoint(free))
            group = next(chain(strangers, sorted(again)), None)
            if group is not None:
                free = [other for other in free if other not in group]
                groups.append(group)
    for pair in sorted(late):
        if not any(node in group for group in groups for node in pair):
            groups.append(pair)
    return replace(pairs[0], groups=tuple(groups)) if groups else None


class _Judging:
    """What is found out step by step."""

    def __init__(self) -> None:
        self.blamed: dict[str, list[str]] = defaultdict(list)  # nodes, with the reasons
        self.remarks: list[str] = []  # that blame no node
        self.left_out: dict[str, str] = {}

    def silent(self, rounds: Sequence[DiagnosticRound], answers: Sequence[PartAnswer]) -> dict[str, str]:
        """Return the nodes that gave no answer, with the test; none of a round in which all were silent."""
        found: dict[str, str] = {}
        asked: set[tuple[str, tuple[str, ...]]] = set()
        for round_ in rounds:
            new = {(name, group) for name in round_.programs for group in round_.groups} - asked
            if not new:
                continue  # a second attempt, whose answers are taken for those that lacked
            asked |= new
            # A node is in one group of a round, but a test may come again in the next round.
            groups = {node: group for group in round_.groups for node in group}
            here = [a for a in answers if groups.get(a.result.node) == a.result.peers]
            quiet = quiet_nodes(round_, here)
            if len(quiet) == len(round_.nodes):
                tests = dict.fromkeys(quiet.values())
                self.left_out |= dict.fromkeys(tests, "no node answered")
                self.remarks.append(f"no node answered in {', '.join(tests)}")
                continue
            found = {**quiet, **found}
        return found

    def compared(self, results: Sequence[TestResult]) -> list[TestResult]:
        """Return the results, failed if the digest is not that of most nodes of the same kind."""
        classes: dict[tuple[str, str], list[TestResult]] = defaultdict(list)
        for result in results:
            if result.digest and result.outcome is Outcome.PASS:
                classes[result.test, result.kind].append(result)
        right = {key: self._majority(key[0], of) for key, of in classes.items()}

        def judged(result: TestResult) -> TestResult:
            digest = right.get((result.test, result.kind), "")
            if not digest or result.outcome is not Outcome.PASS or result.digest == digest:
                return result
            text = "another result than most nodes of its kind"
            return replace(result, outcome=Outcome.FAIL, text=text, limit=digest[:12])

        return [judged(result) for result in results]

    def _majority(self, test: str, results: Sequence[TestResult]) -> str:
        """Return the digest of more than half of them, "" for none."""
        if len(results) == 1:
            alone = f"{results[0].node} has none of its kind to be compared with"
            self.left_out[test] = "; ".join(filter(None, (self.left_out.get(test), alone)))
        (digest, count), *others = Counter(result.digest for result in results).most_common()
        if 2 * count > len(results):
            return digest
        names = some_of([result.node for result in results])
        self.remarks.append(f"{names} have {1 + len(others)} results in {test}, none of them in the majority")
        return ""

    def alone(self, test: str, results: Sequence[TestResult]) -> None:
        """Blame those that fail, unless all do."""
        failures = [result for result in results if result.outcome is Outcome.FAIL]
        known = {result.node for result in results if result.outcome is not Outcome.UNKNOWN}
        if known == {result.node for result in failures} and len(known) > 1:
            text = f"all {len(known)} nodes fail {test} ({failures[0].text})"
            self.remarks.append(f"{text}, which is not the fault of one of them")
            return
        for result in failures:
            self.blamed[result.node].append(f"{test}: {result.text}")

    def pairs(self, test: str, results: Sequence[TestResult], quiet: Iterable[str]) -> None:
        """Blame nodes that fail with every neighbour; a pair that fails without such a node is only named.

        What a silent node took part in says nothing of the other one.
        """
        meetings = Meetings.of(results, quiet)
        texts, bad = meetings.failures, meetings.bad
        if len(texts) > 1 and not meetings.good:
            first = next(iter(texts.values()))
            self.remarks.append(f"no pair passes {test} ({first}), which is not the fault of one node")
            return
        for pair, text in texts.items():
            if bad.isdisjoint(pair):
                self.remarks.append(f"{' and '.join(pair)} fail {test} only together ({text})")
            for node in bad.intersection(pair):
                other = next(name for name in pair if name != node)
                self.blamed[node].append(f"{test} with {other}: {text}")


def _not_here(answers: Iterable[PartAnswer]) -> dict[str, str]:
    """Return the tests that nodes left out, with their reasons."""
    nodes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for answer in answers:
        if answer.left_out:
            nodes[answer.result.test, answer.result.text].append(answer.result.node)
    reasons: dict[str, list[str]] = defaultdict(list)
    for (test, text), names in nodes.items():
        reasons[test].append(f"{text} ({some_of(names)})")
    return {test: "; ".join(texts) for test, texts in reasons.items()}


def _reason(judging: _Judging, suspects: Sequence[str], results: Sequence[TestResult], count: int) -> str:
    remarks = "; ".join(dict.fromkeys(judging.remarks))
    doubts = [*_doubts(results)]
    if suspects:
        blame = (f"{node} ({', '.join(dict.fromkeys(judging.blamed[node]))})" for node in suspects)
        return "; ".join(filter(None, (*blame, remarks, *doubts)))
    if remarks:
        return "; ".join((f"no node is to blame: {remarks}", *doubts))
    tests = {result.test for result in results if result.outcome is Outcome.UNKNOWN}
    passed = dict.fromkeys(result.test for result in results if result.test not in tests)
    everybody = f"all {count} nodes passed" if count > 1 else "passed"
    texts = [f"{everybody} {', '.join(passed)}"] if passed else []
    return "; ".join((*texts, *doubts)) or "nothing could be tested"


def _doubts(results: Iterable[TestResult]) -> Iterator[str]:
    """Yield what is unknown, and of which nodes."""
    doubts: dict[str, list[str]] = defaultdict(list)
    for result in results:
        if result.outcome is Outcome.UNKNOWN:
            doubts[f"{result.test} ({result.text})"].append(result.node)
    for what, nodes in doubts.items():
        yield f"unknown on {some_of(dict.fromkeys(nodes))}: {what}"
