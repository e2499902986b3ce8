"""From what parts of tests have said to whom to blame. Pure.

A node is blamed for what it fails alone, for a result unlike that of most nodes alike, for failing together
with both its neighbours, and for silence. What every node fails is no node's fault, nor is what nobody can
compare: then the reason says so and names nobody.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import median

from msgspec.structs import replace

from slurm_robust.diagnostics.part import Answer
from slurm_robust.diagnostics.plan import Round
from slurm_robust.model.diagnosis import Diagnosis, TestResult
from slurm_robust.model.findings import Outcome
from slurm_robust.model.record import Record

SLOWER = 4.0
"""So many times slower than most nodes of its kind is a failure: links degrade by halves, loss by more."""

_ENOUGH_NODES = 3
_MOST_NAMES = 8


def judge(rounds: Sequence[Round], answers: Iterable[Answer], left_out: Mapping[str, str]) -> Diagnosis:
    """The diagnosis. ``rounds`` were run and gave ``answers``; ``left_out`` is what was not even begun."""
    answers = list(answers)
    judging = _Judging()
    quiet = judging.silent(rounds, answers)
    found = judging.compared(far_below([a.result for a in answers if not a.left_out]))
    nodes = list(dict.fromkeys(n for r in rounds for n in r.nodes))
    for test in dict.fromkeys(result.test for result in found):
        results = [result for result in found if result.test == test]
        if any(len(result.peers) > 1 for result in results):
            judging.pairs(test, results, quiet.keys())
        else:
            judging.alone(test, results)
    found += (
        TestResult(test=test, node=node, outcome=Outcome.FAIL, text="no answer")
        for node, test in quiet.items()
    )
    suspects = tuple(node for node in nodes if node in judging.blamed)
    return Diagnosis(
        results=tuple(found),
        suspects=suspects,
        reason=_reason(judging, suspects, found, len(nodes)),
        left_out={**judging.left_out, **_not_here(answers), **left_out},
    )


def quiet_nodes(round_: Round, answers: Iterable[Answer]) -> dict[str, str]:
    """Nodes that have not answered for all programs of the round, with the first that lacks."""
    answered = {(a.result.test, a.result.node) for a in answers}
    lacking = {
        node: next((name for name in round_.programs if (name, node) not in answered), "")
        for node in round_.nodes
    }
    return {node: name for node, name in lacking.items() if name}


def far_below(results: Sequence[TestResult]) -> list[TestResult]:
    """The results, failed where the rate is far below that of others of the same test and kind."""
    best: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    together: dict[tuple[str, str, tuple[str, ...]], float] = {}
    for result in results:
        if result.rate:
            # As fast as a node's best pair: the worse one may be its neighbour's fault.
            nodes = best[result.test, result.kind]
            nodes[result.node] = max(result.rate, nodes.get(result.node, 0.0))
            # And of several looks at the same nodes the best: something else has slowed the others down.
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
    """How pairs got on in a test: ``failures`` with their texts, ``good`` nodes that passed with somebody."""

    failures: dict[tuple[str, ...], str]
    good: frozenset[str]

    @classmethod
    def of(cls, results: Iterable[TestResult], quiet: Iterable[str]) -> Meetings:
        """Without those of ``quiet`` nodes, which say nothing of the other one."""
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
        """Nodes that failed with all whom they met, who were more than one."""
        met = Counter(node for pair in self.failures for node in pair)
        return frozenset(node for node, count in met.items() if count > 1) - self.good


def only_slow(results: Sequence[TestResult]) -> list[TestResult]:
    """Those that fail for nothing but their rate."""
    pairs = zip(results, far_below(results), strict=True)
    return [judged for result, judged in pairs if judged.outcome is not result.outcome]


def second_looks(rounds: Sequence[Round], answers: Iterable[Answer]) -> tuple[Round, ...]:
    """Rounds that tell bad luck from a fault, where there is something to tell."""
    answers = list(answers)
    return tuple(filter(None, (_by_themselves(rounds, answers), _with_others(rounds, answers))))


def _by_themselves(rounds: Sequence[Round], answers: Sequence[Answer]) -> Round | None:
    """Who was only far slower than others in a test of its own has it again, with nobody else at work."""
    slow = only_slow([a.result for a in answers if len(a.result.peers) == 1 and not a.left_out])
    if not slow:
        return None
    tests, nodes = {result.test for result in slow}, {result.node for result in slow}
    alone = next(round_ for round_ in rounds if slow[0].test in round_.programs)
    return replace(
        alone,
        programs=tuple(name for name in alone.programs if name in tests),
        groups=tuple(group for group in alone.groups if nodes.issuperset(group)),
    )


def _with_others(rounds: Sequence[Round], answers: Sequence[Answer]) -> Round | None:
    """A round in which nodes that failed with both neighbours each meet a good one that they have not met.

    It clears a good node between two bad ones, and one that had bad luck twice. Who was only slow meets a
    neighbour again where there is nobody else; who finds no partner stays as he is. None where nobody is in
    doubt or good nodes are lacking.
    """
    pairs = [round_ for round_ in rounds if any(len(group) > 1 for group in round_.groups)]
    if not pairs:
        return None
    quiet = _Judging().silent(rounds, answers)
    results = [a.result for a in answers if len(a.result.peers) > 1 and not a.left_out]
    meetings = Meetings.of(far_below(results), quiet)
    slow = {result.peers for result in only_slow(results)}
    order = list(dict.fromkeys(node for round_ in pairs for node in round_.nodes))
    free = [node for node in order if node in meetings.good]
    groups: list[tuple[str, ...]] = []
    for node in order:
        if node in meetings.bad:
            known = {other for pair in meetings.failures if node in pair for other in pair}
            strangers = ((other, node) for other in free if other not in known)
            again = (pair for pair in slow if node in pair and not {*pair}.isdisjoint(free))
            group = next(chain(strangers, sorted(again)), None)
            if group is not None:
                free = [other for other in free if other not in group]
                groups.append(group)
    return replace(pairs[0], groups=tuple(groups)) if groups else None


class _Judging:
    """What is found out step by step: ``blamed`` with the reasons, and ``remarks`` that blame nobody."""

    def __init__(self) -> None:
        self.blamed: dict[str, list[str]] = defaultdict(list)
        self.remarks: list[str] = []
        self.left_out: dict[str, str] = {}

    def silent(self, rounds: Sequence[Round], answers: Sequence[Answer]) -> dict[str, str]:
        """Nodes that gave no answer, with the test; nobody of a round in which all were silent."""
        found: dict[str, str] = {}
        for round_ in rounds:
            # A node is in one group of a round, but a test may come again in the next round.
            groups = {node: group for group in round_.groups for node in group}
            here = [a for a in answers if groups.get(a.result.node) == a.result.peers]
            quiet = quiet_nodes(round_, here)
            if len(quiet) == len(round_.nodes):
                tests = dict.fromkeys(quiet.values())
                self.left_out |= dict.fromkeys(tests, "no node answered")
                self.remarks.append(f"no node answered in {', '.join(tests)}")
                continue
            for node, test in quiet.items():
                found.setdefault(node, test)
                self.blamed[node].append(f"no answer in {test}")
        return found

    def compared(self, results: Sequence[TestResult]) -> list[TestResult]:
        """The results, failed where the digest is not that of most nodes of the same kind."""
        classes: dict[tuple[str, str], list[TestResult]] = defaultdict(list)
        for result in results:
            if result.digest and result.outcome is Outcome.PASS:
                classes[result.test, result.kind].append(result)
        right = {key: self._majority(key[0], of) for key, of in classes.items()}

        def judged(result: TestResult) -> TestResult:
            digest = right.get((result.test, result.kind), "")
            if not digest or result.outcome is not Outcome.PASS or result.digest == digest:
                return result
            words = "another result than most nodes of its kind"
            return replace(result, outcome=Outcome.FAIL, text=words, limit=digest[:12])

        return [judged(result) for result in results]

    def _majority(self, test: str, results: Sequence[TestResult]) -> str:
        """The digest of more than half of them, "" for none."""
        if len(results) == 1:
            alone = f"{results[0].node} has none of its kind to be compared with"
            self.left_out[test] = "; ".join(filter(None, (self.left_out.get(test), alone)))
        (digest, count), *others = Counter(result.digest for result in results).most_common()
        if 2 * count > len(results):
            return digest
        names = _names(result.node for result in results)
        self.remarks.append(f"{names} have {1 + len(others)} results in {test}, none of them in the majority")
        return ""

    def alone(self, test: str, results: Sequence[TestResult]) -> None:
        """Blame who fails, unless all do."""
        known = [result for result in results if result.outcome is not Outcome.UNKNOWN]
        failures = [result for result in known if result.outcome is Outcome.FAIL]
        if len(failures) == len(known) > 1:
            words = f"all {len(known)} nodes fail {test} ({failures[0].text})"
            self.remarks.append(f"{words}, which is no fault of one of them")
            return
        for result in failures:
            self.blamed[result.node].append(f"{test}: {result.text}")

    def pairs(self, test: str, results: Sequence[TestResult], quiet: Iterable[str]) -> None:
        """Blame who fails with every neighbour; a pair that fails without such a node is only named.

        What a silent node took part in says nothing of the other one.
        """
        meetings = Meetings.of(results, quiet)
        texts, bad = meetings.failures, meetings.bad
        if len(texts) > 1 and not meetings.good:
            first = next(iter(texts.values()))
            self.remarks.append(f"no pair passes {test} ({first}), which is no fault of one node")
            return
        for pair, text in texts.items():
            if bad.isdisjoint(pair):
                self.remarks.append(f"{' and '.join(pair)} fail {test} only together ({text})")
            for node in bad.intersection(pair):
                other = next(name for name in pair if name != node)
                self.blamed[node].append(f"{test} with {other}: {text}")


def _not_here(answers: Iterable[Answer]) -> dict[str, str]:
    """Tests that nodes left out, with their reasons."""
    nodes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for answer in answers:
        if answer.left_out:
            nodes[answer.result.test, answer.result.text].append(answer.result.node)
    reasons: dict[str, list[str]] = defaultdict(list)
    for (test, text), names in nodes.items():
        reasons[test].append(f"{text} ({_names(names)})")
    return {test: "; ".join(words) for test, words in reasons.items()}


def _reason(judging: _Judging, suspects: Sequence[str], results: Sequence[TestResult], count: int) -> str:
    remarks = "; ".join(dict.fromkeys(judging.remarks))
    if suspects:
        blame = "; ".join(f"{node} ({', '.join(dict.fromkeys(judging.blamed[node]))})" for node in suspects)
        return f"{blame}; {remarks}" if remarks else blame
    if remarks:
        return f"nobody is to blame: {remarks}"
    doubts: dict[str, list[str]] = defaultdict(list)
    for result in results:
        if result.outcome is Outcome.UNKNOWN:
            doubts[f"{result.test} ({result.text})"].append(result.node)
    tests = {result.test for result in results if result.outcome is Outcome.UNKNOWN}
    passed = dict.fromkeys(result.test for result in results if result.test not in tests)
    everybody = f"all {count} nodes passed" if count > 1 else "passed"
    words = [f"{everybody} {', '.join(passed)}"] if passed else []
    words += [f"unknown on {_names(dict.fromkeys(nodes))}: {what}" for what, nodes in doubts.items()]
    return "; ".join(words) or "nothing could be tested"


def _names(nodes: Iterable[str]) -> str:
    names = list(nodes)
    rest = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")
