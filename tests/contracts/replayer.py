"""The contract of Replayer as tests: the fake and the one that runs job steps must both pass it.

Derive a class from :class:`ReplayerContract` in a pytest module and give it a fixture ``make``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slurm_robust.analysis.replay import ReplayVerdict
from slurm_robust.diagnostics.replay.steps import ReplayCommand, Replayer
from slurm_robust.model.findings import Outcome
from slurm_robust.model.job import CommandKind
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.testing.fake_replayer import NodeDefect

Make = Callable[[Mapping[str, NodeDefect]], Replayer]
NODES = tuple(f"n{i}" for i in range(1, 9))
SCRIPT = ReplayCommand(kind=CommandKind.SCRIPT, command=("train.py", "--layers", "1"), cwd="/")


def one_rank_each(count: int) -> ParallelLayout:
    """Data parallelism only."""
    return ParallelLayout(nproc_per_node=1, sizes=(("tp", 1), ("dp", count), ("pp", 1)))


def run(replayer: Replayer, nodes: tuple[str, ...] = NODES, command: ReplayCommand = SCRIPT) -> ReplayVerdict:
    """A replay of four steps."""
    return replayer.replay(nodes, one_rank_each(len(nodes)), command, steps=4, budget_s=0.5)


def check_found(make: Make, fault: NodeDefect) -> None:
    """A node with this fault is named, with the groups in which it showed."""
    verdict = run(make({"n5": fault}))
    assert verdict.suspects == ("n5",), verdict.reason
    assert (verdict.a, verdict.b, verdict.is_ambiguous) == ((2,), (0,), False)
    assert verdict.horizontal[2].nodes == ("n5", "n6")
    assert verdict.vertical[0].nodes == ("n1", "n5")
    assert verdict.reason.startswith("n5: ")


class ReplayerContract:
    """``make`` gives a replayer for whose nodes n1 to n8 these faults hold."""

    def test_sound_nodes_are_not_named(self, make: Make) -> None:
        """And the second phase is spared."""
        verdict = run(make({}))
        assert verdict.suspects == ()
        assert [seen.outcome for seen in verdict.horizontal] == [Outcome.PASS] * 4
        assert verdict.vertical == ()

    def test_a_corrupting_node_is_found_exactly(self, make: Make) -> None:
        """By bits that the majority does not have."""
        check_found(make, NodeDefect.CORRUPTS)

    def test_a_node_that_makes_nan_is_found_exactly(self, make: Make) -> None:
        """By gradients that are not finite."""
        check_found(make, NodeDefect.NAN)

    def test_a_crashing_node_is_found_exactly(self, make: Make) -> None:
        """By its end."""
        check_found(make, NodeDefect.CRASHES)

    def test_a_hanging_node_is_found_exactly(self, make: Make) -> None:
        """By its silence."""
        check_found(make, NodeDefect.HANGS)

    def test_nodes_beyond_whole_groups_are_found_too(self, make: Make) -> None:
        """Seven nodes are three groups of two and one of one, which has nobody to be compared with."""
        assert run(make({"n7": NodeDefect.CORRUPTS}), NODES[:7]).suspects == ("n7",)
        assert run(make({"n1": NodeDefect.CORRUPTS}), NODES[:7]).suspects == ("n1",)

    def test_what_fails_everywhere_is_nobodys_fault(self, make: Make) -> None:
        """A bug of the script."""
        verdict = run(make(dict.fromkeys(NODES, NodeDefect.CRASHES)))
        assert verdict.suspects == ()
        assert "against no node" in verdict.reason

    def test_a_single_node_is_not_replayed(self, make: Make) -> None:
        """One has nobody to be compared with."""
        verdict = run(make({}), NODES[:1])
        assert (verdict.suspects, verdict.horizontal) == ((), ())
        assert verdict.reason.startswith("no replay: ")

    def test_a_replay_that_was_stopped_has_no_verdict(self, make: Make) -> None:
        """Also where that came before its beginning."""
        replayer = make({"n5": NodeDefect.CRASHES})
        replayer.stop()
        verdict = run(replayer)
        assert (verdict.suspects, verdict.horizontal) == ((), ())
        assert verdict.reason == "no replay: it was stopped"

    def test_only_python_can_be_replayed(self, make: Make) -> None:
        """Steps of other programs cannot be seen."""
        command = ReplayCommand(kind=CommandKind.EXEC, command=("true",), cwd="/")
        assert run(make({}), command=command).reason.startswith("no replay: ")
