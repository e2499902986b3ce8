"""What tests of suspended nodes have shown."""

from __future__ import annotations

from slurm_robust.model.findings import Outcome
from slurm_robust.model.record import Record


class TestResult(Record):
    """One test on one node. ``text`` says in a few words what is wrong.

    ``peers`` are the nodes that took part, ``value`` was measured, ``limit`` allowed; ``digest`` is what must
    be equal on all nodes, for tests whose result is compared, and ``rate`` (in GB/s, 0 for none) what must
    not be far below that of others; both are compared among results of one ``kind`` only (the models of
    processors, the version of PyTorch). ``took_s`` in seconds.
    """

    __test__ = False  # pytest takes every class with this beginning for tests

    test: str
    node: str
    outcome: Outcome
    text: str = ""
    peers: tuple[str, ...] = ()
    value: str = ""
    limit: str = ""
    digest: str = ""
    rate: float = 0.0
    kind: str = ""
    took_s: float = 0.0


class Diagnosis(Record):
    """All results, and the nodes that failed by themselves (not only together with another one).

    ``reason`` is for people; ``left_out`` names tests that could not run, with the reason.
    """

    results: tuple[TestResult, ...] = ()
    suspects: tuple[str, ...] = ()
    reason: str = ""
    left_out: dict[str, str] = {}
