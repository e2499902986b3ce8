"""``srobust admin repair``: resets GPUs and reboots nodes that srobust drained, and proves that it helped.

A quarantine tests the node inside its reservation. What fails says what to do; that is done once, still
inside the reservation, and the node is tested again from the beginning: only a test that passed returns it.
Each step is in the node's journal on this host before it is ordered, so a run that was killed leaves a node
that no job gets (the reservation stands), and the next run says what is open and goes on.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Protocol

import msgspec

from slurm_robust.admin.deep_check import Examination
from slurm_robust.admin.quarantine import Quarantine, QuarantineResult, job_test, obstacle_of, report_text
from slurm_robust.admin.repair_hands import SlurmRepairActions
from slurm_robust.config.node import NodeConfig, Repair
from slurm_robust.config.nodefile import FILE, load
from slurm_robust.hooks.log import EventLog, Log
from slurm_robust.kernel.host import node_name
from slurm_robust.model.findings import Finding, Outcome, Suggestion
from slurm_robust.model.record import UNREADABLE, Record
from slurm_robust.nodes.reasons import has_ours, is_ours, of_others, parts
from slurm_robust.slurm.cli_client import CliSlurmClient
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import SlurmCommandError
from slurm_robust.slurm.records import SlurmNode
from slurm_robust.terminal.console import Bar, show
from slurm_robust.util.files import write_atomically
from slurm_robust.util.text import ascii_line, date_and_time, one_line

WEEK_S = 7 * 86400.0
POLL_S = 5.0
LEFT_S, LEFT_POLL_S = 60.0, 1.0
"""How long a test that has ended may hold its node before this is repaired, and how often Slurm is asked."""

MAX_STEPS = 200
"""In a node's journal; older ones are forgotten."""

BOOTED_S = 2.0
"""By how much the time of a boot differs from the one before; slurmd computes it anew from time to time."""

_OF_A_REBOOT = frozenset(
    {"reboot requested", "reboot issued", "reboot complete", "not responding", "node unexpectedly rebooted"}
)


class RepairKind(str, Enum):
    """What can be done with a node."""

    RESET = "reset"
    REBOOT = "reboot"


class RepairPlan(Record):
    """What to do, or why not."""

    kind: RepairKind | None
    why: str
    gpus: tuple[str, ...] = ()
    """To be reset (``gpu3``)."""


class RepairStep(Record):
    """One line of a node's journal."""

    t: float
    """Seconds since 1970."""

    step: str
    """``ordered``, ``done`` or ``failed``, ``returned`` or ``kept``; ``resumed`` after one that was open."""

    kind: RepairKind | None = None
    why: str = ""
    reason: str = ""
    """Reason of the drain."""

    boot: float | None = None
    """When the node had booted, by Slurm."""


class RepairActions(Protocol):
    """What is done to nodes. All raise SlurmCommandError types."""

    def boot_time(self, node: str) -> float | None:
        """Return when the node booted, in seconds since 1970, by its slurmd; None if Slurm does not say."""
        ...

    def reboot(self, node: str) -> None:
        """Have Slurm run its RebootProgram as soon as the node is idle. Its drain stays, if there is one."""
        ...

    def cancel_reboot(self, node: str) -> None:
        """Take back an order that Slurm has not carried out."""
        ...

    def reset_gpus(self, node: str, reservation: str, gpus: Sequence[str]) -> str:
        """Reset them; empty when each answers again and wants no recovery, else what is wrong."""
        ...


# -- pure -----------------------------------------------------------------------------------------------


def plan(causes: Sequence[Finding], journal: Sequence[RepairStep], config: Repair, now: float) -> RepairPlan:
    """Return what the node needs, by what failed and what was done to it already."""
    failed = [found for found in causes if found.outcome is Outcome.FAIL]
    if not failed:
        return RepairPlan(kind=None, why="nothing that failed has a remedy")
    worst = max(failed, key=lambda found: found.suggestion.weight)
    text = f"{worst.check} {worst.subject}".rstrip()
    if worst.suggestion is Suggestion.REPLACE:
        return RepairPlan(kind=None, why=f"{text} is for the repair desk")
    recent = _orders(journal, now)
    if len(recent) >= config.most_per_week:
        return RepairPlan(
            kind=None, why=f"{len(recent)} repairs within 7 days, no more (repair.most_per_week)"
        )
    if worst.suggestion is Suggestion.REBOOT:
        return RepairPlan(kind=RepairKind.REBOOT, why=text)
    if others := [found for found in failed if not is_of_a_gpu(found)]:
        return RepairPlan(
            kind=None, why=f"{others[0].check} {others[0].subject}: only GPUs are reset".replace(" :", ":")
        )
    if any(step.kind is RepairKind.RESET for step in recent):
        return RepairPlan(kind=RepairKind.REBOOT, why=f"{text}, which a reset has not mended")
    return RepairPlan(
        kind=RepairKind.RESET, why=text, gpus=tuple(dict.fromkeys(found.subject for found in failed))
    )


def _orders(journal: Sequence[RepairStep], now: float) -> list[RepairStep]:
    """Return what was done within a week. Times ahead of now count, too: they err on doing nothing."""
    return [step for step in journal if step.step == "ordered" and step.t > now - WEEK_S]


def is_of_a_gpu(found: Finding) -> bool:
    """Return whether it names one GPU."""
    return (
        found.check.startswith("gpu.") and found.subject.startswith("gpu") and found.subject[3:].isdecimal()
    )


def has_booted(before: float | None, node: SlurmNode, boot: float | None) -> bool:
    """Return whether the node has booted since and is there again."""
    came = before is not None and boot is not None and boot > before + BOOTED_S
    busy = node.states & {"DOWN", "REBOOT_ISSUED", "REBOOT_REQUESTED", "UNKNOWN"}
    return came and not busy and node.responding


def open_order(journal: Sequence[RepairStep]) -> RepairStep | None:
    """Return the order of which the journal does not say what came of it."""
    return journal[-1] if journal and journal[-1].step == "ordered" else None


def is_left_by_us(node: SlurmNode, order: RepairStep) -> bool:
    """Return whether the reason is the order's, and Slurm has added only what a reboot makes it add."""
    ours = [part for part in parts(node.reason) if is_ours(part)]
    others = {part.lower() for part in of_others(node.reason)}
    return ours == [order.reason] and bool(others) and others <= _OF_A_REBOOT


# -- the journal ----------------------------------------------------------------------------------------


class RepairJournal:
    """What was done to a node: a file in a folder of root's on this host."""

    def __init__(self, folder: Path, node: str) -> None:
        self._path = folder / f"{node}.json"
        self.steps = self._read()

    def _read(self) -> tuple[RepairStep, ...]:
        """Read the journal. Raises ``ValueError`` if damaged: without a count of repairs none is allowed."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=tuple[RepairStep, ...])
        except FileNotFoundError:
            return ()
        except UNREADABLE as error:
            raise ValueError(f"{self._path} is damaged ({error}): remove it to begin anew") from error

    def add(self, step: RepairStep) -> None:
        """Add a step. Raises ``OSError``; then nothing must be done."""
        self.steps = (*self.steps, step)[-MAX_STEPS:]
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self._path, msgspec.json.encode(self.steps) + b"\n", durable=True, mode=0o600)


# -- acting ---------------------------------------------------------------------------------------------


class Repairer:
    """The remedy of a quarantine."""

    def __init__(
        self,
        slurm: SlurmClient,
        hands: RepairActions,
        config: Repair,
        log: Log,
        folder: Path,
        *,
        clock: Callable[[], float] = time.time,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._slurm, self._hands, self._config = slurm, hands, config
        self._log, self._folder = log, folder
        self._clock, self._pause = clock, pause

    def __call__(self, node: SlurmNode, tested: Examination, reservation: str) -> str:
        """Do what the node needs, and wait until it is proven or its time is over."""
        try:
            journal = RepairJournal(self._folder, node.name)
            planned = plan(tested.report.causes, journal.steps, self._config, self._clock())
            if planned.kind is None:
                return f"not repaired: {planned.why}"
            seen = self._after_the_test(node.name)
            if seen.is_drained or seen.allocated_cpus or "COMPLETING" in seen.states:
                return f"not repaired: {seen.reason or 'a job is still on it'}"
            boot = self._hands.boot_time(node.name)
            self._write(journal, node, "ordered", planned.kind, planned.why, boot)
        except (OSError, ValueError) as error:
            return f"not repaired: {error}"
        try:
            if planned.kind is RepairKind.RESET:
                wrong = self._hands.reset_gpus(node.name, reservation, planned.gpus)
            else:
                wrong = self._reboot(node.name, boot)
        except SlurmCommandError as error:
            wrong = str(error)
        try:
            self._write(
                journal, node, "failed" if wrong else "done", planned.kind, wrong or planned.why, boot
            )
        except OSError as error:
            wrong = wrong or str(error)
        return f"{planned.kind.value} failed: {wrong}" if wrong else ""

    def _after_the_test(self, name: str) -> SlurmNode:
        """Return the node once its test has left it, perhaps later than its srun, or after ``LEFT_S``.

        Only root gets into its reservation, so what holds it now is most likely the test.
        """
        deadline = self._clock() + LEFT_S
        while (seen := self._slurm.node(name)).allocated_cpus or "COMPLETING" in seen.states:
            if seen.is_drained or self._clock() >= deadline:
                break
            self._pause(LEFT_POLL_S)
        return seen

    def _reboot(self, name: str, before: float | None) -> str:
        if before is None:
            return "Slurm does not say when the node booted, so a reboot could not be proven"
        self._hands.reboot(name)
        deadline = self._clock() + self._config.reboot_s
        while self._clock() < deadline:
            self._pause(POLL_S)
            try:
                if has_booted(before, self._slurm.node(name), self._hands.boot_time(name)):
                    return ""
            except SlurmCommandError:
                pass  # slurmctld is asked again
        try:
            self._hands.cancel_reboot(name)
        except SlurmCommandError:
            pass  # Slurm has carried it out, or does not answer.
        return f"it has not come back within {self._config.reboot_s:g} s (RebootProgram in slurm.conf?)"

    def _write(
        self,
        journal: RepairJournal,
        node: SlurmNode,
        step: str,
        kind: RepairKind,
        why: str,
        boot: float | None,
    ) -> None:
        why = ascii_line(why, 300)
        journal.add(RepairStep(t=self._clock(), step=step, kind=kind, why=why, reason=node.reason, boot=boot))
        self._log.write(f"repair_{step}", node=node.name, kind=kind.value, why=why, reason=node.reason)

    # -- before and after the tests ---------------------------------------------------------------------

    def go_on(self, nodes: Sequence[SlurmNode]) -> None:
        """Take up orders that a killed run has left open. Slurm has changed the reasons of these nodes; they
        are tested again when they are up.
        """
        for node in nodes:
            try:
                journal = RepairJournal(self._folder, node.name)
            except ValueError:
                continue  # said when it would be repaired
            order = open_order(journal.steps)
            if order is None or order.kind is None or not (node.is_drained and has_ours(node.reason)):
                continue
            booted = has_booted(order.boot, node, self._hands.boot_time(node.name))
            if order.kind is RepairKind.REBOOT and not booted:
                continue
            if is_left_by_us(node, order):
                self._slurm.drain([node.name], order.reason)
            self._write(
                journal, node, "resumed", order.kind, "the run that ordered it was cut off", order.boot
            )

    def finish(self, result: QuarantineResult) -> None:
        """Write down what became of a node to which something was done."""
        try:
            journal = RepairJournal(self._folder, result.node)
            if result.tests and journal.steps and journal.steps[-1].kind is not None:
                step = "returned" if result.returned else "kept"
                journal.add(RepairStep(t=self._clock(), step=step, why=ascii_line(result.why, 300)))
        except (OSError, ValueError):
            pass  # The event log has it.


class RepairPreview(Record):
    """What a run would do with a node."""

    node: str
    reason: str
    obstacle: str = ""
    """Why nothing would be done."""

    left: int = 0
    """Repairs that it may still get within 7 days."""

    open: str = ""
    """What a run that was cut off has ordered."""


def outlook(nodes: Sequence[SlurmNode], folder: Path, config: Repair, now: float) -> Iterator[RepairPreview]:
    """Yield what a run would do; nothing is touched."""
    for node in nodes:
        obstacle, left, begun = obstacle_of(node), 0, ""
        try:
            steps = RepairJournal(folder, node.name).steps
        except ValueError as error:
            obstacle = obstacle or str(error)
        else:
            left = max(0, config.most_per_week - len(_orders(steps, now)))
            if (order := open_order(steps)) is not None and order.kind is not None:
                begun = f"{order.kind.value} ordered at {date_and_time(order.t)} for {order.why}"
        yield RepairPreview(node=node.name, reason=node.reason, obstacle=obstacle, left=left, open=begun)


def main(nodes: Sequence[str], *, dry_run: bool, json: bool, config_file: Path | None) -> int:
    """Repair and print the report; 0 when every node was returned, 1 when some are kept or only looked at."""
    config = load(config_file or FILE)
    slurm = CliSlurmClient()
    folder = Path(config.paths.state) / "repair"
    if dry_run or config.repair.mode == "observe":
        chosen = [
            n for n in slurm.nodes(list(nodes) or None) if nodes or (n.is_drained and has_ours(n.reason))
        ]
        seen = list(outlook(chosen, folder, config.repair, time.time()))
        show(seen, _outlook_text, json=json)
        return int(bool(seen))
    # It must clean up, whatever ends it.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    log = EventLog(config.paths, node_name(os.environ))
    repairer = Repairer(
        slurm, SlurmRepairActions(slurm, config_file, config.repair), config.repair, log, folder
    )
    with Bar("repairing drained nodes", quiet=json):
        results = repair(nodes, slurm, repairer, config, config_file, log)
    show(results, report_text, json=json)
    return 0 if all(result.returned for result in results) else 1


def repair(
    names: Sequence[str],
    slurm: SlurmClient,
    repairer: Repairer,
    config: NodeConfig,
    config_file: Path | None,
    log: Log,
) -> list[QuarantineResult]:
    """Go on with what is open, then test and repair all nodes that can be, of ``names`` if there are any."""
    repairer.go_on(slurm.nodes(list(names) or None))
    quarantine = Quarantine(
        slurm,
        job_test(slurm, config_file),
        log,
        Path(config.paths.state) / "quarantine",
        runs=config.drain.pass_runs,
        remedy=repairer,
    )
    results = quarantine.run(names)
    for result in results:
        repairer.finish(result)
    return results


def _outlook_text(seen: Sequence[RepairPreview]) -> str:
    lines = []
    for one in seen:
        would = (
            f"would not be touched: {one.obstacle}"
            if one.obstacle
            else "would be tested and, if it fails, its GPUs reset or it rebooted, as the check suggests; "
            f"{one.left} more within 7 days"
        )
        reason = "" if one.reason in one.obstacle else f"{one.reason}: "
        lines.append(one_line(f"{one.node}: {reason}{would}"))
        if one.open:
            lines.append(one_line(f"  open: {one.open}"))
    return "\n".join(lines) or "no node is drained by srobust"
