"""What answers each question of the engine: Slurm, storage, the kernels of nodes, tests, companions.

One function a question. It runs in a thread beside the loop, may block within bounds, and returns the answer.
If there are several, it passes the earlier ones to ``tell``. What it raises of Slurm, of its commands or of
files makes the answer :class:`~slurm_robust.engine.questions.NoAnswer`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from slurm_robust.checkpoint.tiers import SharedTiers
from slurm_robust.config.job import CheckpointConfig
from slurm_robust.controller.agent_steps import AgentSteps
from slurm_robust.controller.asking import Asking
from slurm_robust.controller.borrower import Borrower
from slurm_robust.controller.conclusion import save_summary
from slurm_robust.controller.journal import Journal
from slurm_robust.controller.requeue import Requeuer, without_term
from slurm_robust.controller.shrink import Shrinker
from slurm_robust.controller.tester import Tester
from slurm_robust.controller.turns import ClockWatch
from slurm_robust.engine import questions as qs
from slurm_robust.evidence import bundle
from slurm_robust.jobdir import owner
from slurm_robust.model.companion import CompanionPool
from slurm_robust.model.incident import Diagnosis
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.state import JobState
from slurm_robust.policy.restore import protected
from slurm_robust.releases.store import ReleaseStore
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.values import parse_number
from slurm_robust.wire.probes import probe
from slurm_robust.wire.sockets import probe_ports

Tell: TypeAlias = Callable[[object], None]
"""Takes an answer that is not the last one. From any thread."""

Answering: TypeAlias = Callable[[Any, Tell], object]
Table: TypeAlias = Mapping[type[qs.Question[Any]], Answering]


def kernel_answers() -> Table:
    """Return what asks the kernels of nodes."""
    return {
        qs.ProbePorts: lambda asked, tell: probe_ports(asked.places),
        qs.ProbeKernels: lambda asked, tell: probe(asked.places, asked.for_s, each_kind=asked.each_kind),
    }


def slurm_answers(slurm: SlurmClient, steps: AgentSteps, clock: ClockWatch, state: JobState) -> Table:
    """Return what asks Slurm, for the run that ``state`` is in."""

    def switches(asked: qs.FindSwitches, tell: Tell) -> dict[str, str]:
        # Higher switches list the nodes below them too.
        return {n: switch.name for switch in slurm.topology() if not switch.level for n in switch.nodes}

    def kill_wait(asked: qs.FindKillWait, tell: Tell) -> float | None:
        seconds = parse_number(slurm.config().get("KillWait", ""))
        return None if seconds is None else float(seconds)

    def run(asked: qs.AskAboutRun, tell: Tell) -> qs.NoMoreAnswers:
        asking = Asking(slurm, state.job_id, state.restart_count, steps.why_ended)
        with without_term():
            for said in asking.sentences(time.time() - clock.ahead_s):
                tell(said)
        return qs.NoMoreAnswers()

    return {
        qs.FindSwitches: switches,
        qs.FindKillWait: kill_wait,
        qs.AskAboutRun: run,
        qs.AskAboutNodes: lambda asked, tell: steps.witnesses(asked.nodes),
        qs.AskForDrains: lambda asked, tell: steps.drains(asked.nodes),
        qs.StartAgents: lambda asked, tell: steps.start(asked.nodes, state.epoch, asked.apart, asked.image),
        qs.LetGo: lambda asked, tell: steps.let_go(asked.node),
    }


def allocation_answers(requeuer: Requeuer, shrinker: Shrinker, borrower: Borrower | None) -> Table:
    """Return what changes which nodes the job has; ``borrower``: None if no companions are configured."""

    def report(tell: Tell, what: str, ok: bool, detail: str) -> None:
        tell(qs.StageOver(what=what, ok=ok, detail=detail))

    def requeue(asked: qs.BeginRequeue, tell: Tell) -> qs.NoMoreAnswers:
        shrinker.drop_dead(asked.silent, partial(report, tell))
        requeuer.ask(asked.exclude, partial(report, tell), tell, holders=asked.holders, pins=asked.pins)
        return qs.NoMoreAnswers()

    def borrow(asked: qs.BorrowNodes, tell: Tell) -> qs.StraysCancelled:
        assert borrower is not None  # there are sources

        def submitted(job_id: int, source: CompanionPool) -> None:
            tell(qs.SubmittedCompanion(job_id=job_id, source=source))

        tell(
            borrower.borrow(
                asked.sources, asked.missing, asked.exclude, submitted, some=asked.some, near=asked.near
            )
        )
        return qs.StraysCancelled(jobs=borrower.settle())

    def end(asked: qs.EndCompanions, tell: Tell) -> qs.NoMoreAnswers:
        for text in borrower.end(asked.jobs, tell) if borrower is not None else ():
            tell(text)
        return qs.NoMoreAnswers()

    return {
        qs.BeginRequeue: requeue,
        qs.ShrinkJob: lambda asked, tell: shrinker.drop_dead(asked.nodes, partial(report, tell)),
        qs.GiveBack: lambda asked, tell: shrinker.give_back(asked.node),
        qs.BorrowNodes: borrow,
        qs.EndCompanions: end,
        qs.SweepCompanions: lambda asked, tell: borrower.sweep(asked.known) if borrower is not None else (),
    }


def tester_answers(tester: Tester) -> Table:
    """Return what tests nodes."""

    def test(asked: qs.TestNodes, tell: Tell) -> Diagnosis:
        if asked.standby:
            return tester.test_standby(asked.standby, asked.nodes[0], asked.budget_s)
        if asked.quick:
            return tester.test_quickly(asked.nodes, asked.budget_s)
        return tester.test(asked.nodes, bitwise=asked.bitwise, budget_s=asked.budget_s)

    return {
        qs.TestNodes: test,
        qs.EndStandbyTest: lambda asked, tell: tester.end_standby_test(asked.number),
        qs.ReplayTraining: lambda asked, tell: tester.replay(asked.nodes, asked.layout, asked.release),
    }


def storage_answers(
    config: CheckpointConfig, directory: JobDirectory, journal: Journal, store: SharedTiers, own_node: str
) -> Table:
    """Return what reads and writes shared storage, which may be slow. ``own_node``: of this controller."""
    pruning = threading.Lock()

    def prune(asked: qs.Prune, tell: Tell) -> None:
        if not pruning.acquire(blocking=False):
            return  # storage is slow; the next one removes what this one would have
        try:
            protect = protected(
                asked.sealed, asked.generation, store.complete(), config.keep, asked.needed, asked.until
            )
            store.prune(config.keep, protect, asked.generation, config.keep_every)
        finally:
            pruning.release()

    def saved(tell: Tell, stage: str, what: str, save: Callable[[], object]) -> None:
        try:
            save()
        except OSError as error:
            tell(qs.StageOver(what=stage, ok=False, detail=f"{what} could not be saved: {error}"))

    def evidence(asked: qs.SaveEvidence, tell: Tell) -> None:
        events = list(journal.events)
        save = partial(bundle.save, directory, asked.number, events)
        saved(tell, "evidence", f"evidence of incident {asked.number}", save)
        saved(tell, "summary", "the job's summary", partial(save_summary, directory, events, own_node))

    def stacks(asked: qs.SaveStacks, tell: Tell) -> None:
        save = partial(bundle.save_stacks, directory, asked.number, asked.stacks, asked.localisation)
        saved(tell, "stacks", f"stacks of incident {asked.number}", save)

    def alerts(asked: qs.SaveAlerts, tell: Tell) -> None:
        save = partial(bundle.save_alerts, directory, asked.number, asked.alerts, asked.t)
        saved(tell, "alerts", f"alerts of incident {asked.number}", save)

    def suspect(asked: qs.SaveSuspect, tell: Tell) -> None:
        def save() -> None:
            # An epilog knows its job's id only: neither which job has borrowed the node nor a run's name.
            folder = directory.path.with_name(str(asked.suspect.job_id))
            if folder != directory.path:
                owner.make(folder)
            bundle.save_suspect(JobDirectory(folder), asked.suspect)

        saved(tell, "suspect", f"the suspect of {asked.suspect.node}", save)

    return {
        qs.ReadRelease: lambda asked, tell: ReleaseStore(directory.releases).read(asked.name),
        qs.FindCheckpoint: lambda asked, tell: store.complete(),
        qs.Prune: prune,
        qs.SaveEvidence: evidence,
        qs.SaveStacks: stacks,
        qs.SaveAlerts: alerts,
        qs.SaveSuspect: suspect,
    }
