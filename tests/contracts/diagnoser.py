"""The contract of Diagnoser as tests: the fake and the one that starts processes must both pass it.

Derive a class from :class:`DiagnoserContract` in a pytest module and give it a fixture ``world``.
"""

from __future__ import annotations

import threading
from typing import Protocol

from slurm_robust.diagnostics.runner import Diagnoser
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import Diagnosis

NODES = ("n1", "n2", "n3")
_BUDGET_S = 120.0


class DiagnoserWorld(Protocol):
    """Makes diagnosers of :data:`NODES`, of which some are bad."""

    def diagnoser(self, *, wrong: tuple[str, ...] = (), silent: tuple[str, ...] = ()) -> Diagnoser:
        """``wrong`` nodes compute something else in the reference model, ``silent`` ones never answer."""
        ...


class DiagnoserContract:
    """What every diagnoser does."""

    def test_good_nodes_pass(self, world: DiagnoserWorld) -> None:
        """Every node has a result, and nobody is to blame."""
        found = _diagnose(world.diagnoser())
        assert found.suspects == ()
        assert {r.node for r in found.results if r.outcome is Outcome.PASS} == set(NODES)
        assert {r.test for r in found.results} >= {"reference"}
        assert "passed" in found.reason

    def test_the_node_that_computes_something_else_is_the_suspect(self, world: DiagnoserWorld) -> None:
        """The majority is right."""
        found = _diagnose(world.diagnoser(wrong=("n2",)))
        assert found.suspects == ("n2",)
        assert "n2 (" in found.reason
        assert "reference" in found.reason
        (failure,) = [r for r in found.results if r.outcome is Outcome.FAIL]
        assert (failure.node, failure.test) == ("n2", "reference")

    def test_without_the_reference_model_nobody_sees_it(self, world: DiagnoserWorld) -> None:
        """It is run only where it is asked for."""
        found = world.diagnoser(wrong=("n2",)).diagnose(NODES, bitwise=False, storage="", budget_s=_BUDGET_S)
        assert "reference" not in {r.test for r in found.results}
        assert found.suspects == ()

    def test_a_silent_node_is_named_and_nobody_is_the_suspect(self, world: DiagnoserWorld) -> None:
        """Its tests are unknown; the others are tested to the end."""
        found = world.diagnoser(silent=("n3",)).diagnose(NODES, bitwise=True, storage="", budget_s=25.0)
        assert found.suspects == ()
        assert "unknown on n3: " in found.reason
        assert "(no answer)" in found.reason
        assert {r.node for r in found.results if r.outcome is Outcome.PASS} == {"n1", "n2"}

    def test_when_all_are_silent_nobody_is_to_blame(self, world: DiagnoserWorld) -> None:
        """Something else must be wrong."""
        found = world.diagnoser(silent=NODES).diagnose(NODES, bitwise=True, storage="", budget_s=16.0)
        assert found.suspects == ()
        assert found.results == ()
        assert "reference" in found.left_out

    def test_without_time_nothing_is_tested(self, world: DiagnoserWorld) -> None:
        """And nothing is raised."""
        found = world.diagnoser().diagnose(NODES, bitwise=True, storage="", budget_s=0.0)
        assert (found.suspects, found.results) == ((), ())
        assert found.left_out["reference"] == "no time was left"

    def test_without_nodes_the_diagnoser_tests_nothing(self, world: DiagnoserWorld) -> None:
        """Nothing is tested."""
        found = world.diagnoser().diagnose((), bitwise=True, storage="", budget_s=_BUDGET_S)
        assert (found.suspects, found.results) == ((), ())

    def test_a_diagnosis_is_stopped_from_another_thread(self, world: DiagnoserWorld) -> None:
        """It returns soon and blames nobody who had no time to answer."""
        diagnoser = world.diagnoser(silent=NODES)
        done: list[Diagnosis] = []
        thread = threading.Thread(target=lambda: done.append(_diagnose(diagnoser)))
        thread.start()
        diagnoser.stop()
        thread.join(timeout=60)
        assert [found.suspects for found in done] == [()]


def _diagnose(diagnoser: Diagnoser) -> Diagnosis:
    return diagnoser.diagnose(NODES, bitwise=True, storage="", budget_s=_BUDGET_S)
