"""The evidence for a repair desk about a node that was given up."""

from __future__ import annotations

from slurm_robust.model.exits import WorkerExit
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import Diagnosis, Fault, NodeExit, TestResult
from slurm_robust.policy.ladder import against


def result(node: str, outcome: Outcome, **more: str) -> TestResult:
    return TestResult(test="gemm", node=node, outcome=outcome, **more)


def test_the_evidence_has_all_about_a_node_and_nothing_of_others() -> None:
    bad = result("n1", Outcome.FAIL, text="sums differ", value="3 of 64", limit="0")
    others = (result("n1", Outcome.PASS), result("n2", Outcome.FAIL, text="slow"))
    failed = Fault(
        generation=1,
        named={"n1": "gpu3: XID 79", "n2": "link down"},
        unable={"n1": "no memory"},
        lost=("n1", "n3"),
        diagnosis=Diagnosis(results=(bad, *others)),
        replayed=Diagnosis(results=(result("n1", Outcome.FAIL, text="other bits"),)),
        exits=tuple(
            NodeExit(node=node, exit=WorkerExit(rank=rank, code=1, tail=tuple("abcdefg")))
            for rank, node in enumerate(("n1", "n2"))
        ),
    )
    first, *rest = against(failed, "n1")
    assert first == "gpu3: XID 79"
    assert rest[:4] == [
        "unable: no memory",
        "does not respond",
        "test gemm: sums differ (3 of 64, limit 0)",
        "test gemm: other bits",
    ]
    assert rest[4].startswith("rank 0")
    assert rest[5:] == list("cdefg")
    assert against(failed, "n4") == ()
