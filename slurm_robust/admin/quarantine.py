"""``srobust admin quarantine``: tests the nodes that srobust drained, and returns or keeps each.

A drained node accepts no job, so Slurm cannot run a test there. A maintenance reservation keeps all users but
root away instead; only inside it is the drain undone, the test run as a job, and the node drained again or,
when it passed, left in service, before the reservation goes. Measured on 22.05.8: with MAINT a drain that is
resumed shows MAINTENANCE, root's job starts within 4 s, and other users' jobs wait.

The reservation has no end: if this program dies in the middle, the node stays out of service, and the next
run finds the reservation and finishes.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from slurm_robust.admin.deep_check import Examination
from slurm_robust.admin.reservations import end_reservation
from slurm_robust.config.nodefile import FILE, load
from slurm_robust.hooks.drain import untouchable
from slurm_robust.hooks.log import EventLog, Log
from slurm_robust.hooks.record import DrainCause, causes_of, has_passed
from slurm_robust.kernel.host import node_name
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.findings import Finding
from slurm_robust.model.record import Record
from slurm_robust.nodes.reasons import TAG, has_ours, of_others
from slurm_robust.slurm.cli_client import CliSlurmClient
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import ReservationExists, SlurmCommandError
from slurm_robust.slurm.records import SlurmNode
from slurm_robust.slurm.requests import ReservationRequest, SubmitRequest
from slurm_robust.terminal.console import Bar, show
from slurm_robust.util.text import ascii_line, one_line

PREFIX = "srobust-quarantine-"
FLAGS = ("MAINT", "IGNORE_JOBS")
ABANDONED_S = 3600.0
"""A reservation of ours that is older is abandoned, also if another host made it."""

JOB_S = 300.0
START_S = 120.0
"""How long Slurm may take to start the test on a node that was just resumed."""

CUT_OFF = f"{TAG}the test in quarantine was cut off"
"""The reason of a node whose own reason is not known here any more."""

_ELSEWHERE = "it is being tested from another host"
# Hooks run as root; without accounts in common slurmctld knows only the number.
_OURS = frozenset({"root", "0", "slurm"})


class QuarantineRuns(SrobustError):
    """Another quarantine runs on this host."""

    fix = "wait for it, or end it; its nodes are then found and finished by the next one"


class NoNotes(SrobustError):
    """The folder of the tests that are under way cannot be used."""

    exit_code = ExitCode.JOB_DIR
    fix = "run it as root, who drains nodes and tests them (sudo srobust admin quarantine)"


class QuarantineResult(Record):
    """One node for the repair desk."""

    node: str
    returned: bool
    """It is in service."""

    why: str
    """Why it is not in service; "passed" for one that is."""

    reason: str = ""
    """Reason of the drain that stood at first."""

    drained: str = ""
    """Reason of the drain that stands now, if it is another."""

    tests: int = 0
    """How often the node was tested."""

    evidence: tuple[Finding, ...] = ()
    """What failed now."""

    checks: tuple[str, ...] = ()
    """Names of the checks that ran."""

    serials: dict[str, str] = {}
    """Serial numbers of its parts."""


Examine = Callable[[str, str], Examination]
"""Tests a node inside a reservation. Raises SlurmCommandError types and ``ValueError`` for no answer."""


Remedy = Callable[[SlurmNode, Examination, str], str]
"""Does something about a node that failed the test, inside the reservation of that name. Why it did nothing,
or what was in vain; empty when the node is worth another test. Raises SlurmCommandError types."""


class Quarantine:
    """Tests nodes one after the other. ``notes``: a folder of this host that tells which are under way.

    ``remedy``: tried once on a node that fails, before it is tested again.
    """

    def __init__(
        self,
        slurm: SlurmClient,
        examine: Examine,
        log: Log,
        notes: Path,
        *,
        runs: int,
        remedy: Remedy | None = None,
        clock: Callable[[], float] = time.time,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._slurm, self._examine, self._log = slurm, examine, log
        self._notes, self._runs, self._remedy = notes, runs, remedy
        self._clock, self._pause = clock, pause

    def run(self, names: Sequence[str] = ()) -> list[QuarantineResult]:
        """Finish what a dead run left, then test all nodes that can be tested, of ``names`` if there are any.

        Raises :class:`QuarantineRuns`, :class:`NoNotes` and SlurmCommandError types.
        """
        with self._alone():
            self._finish_abandoned()
            elsewhere = {n for r in self._slurm.reservations() if r.name.startswith(PREFIX) for n in r.nodes}
            results = []
            for node in self._slurm.nodes(list(names) or None):
                if not names and not (node.is_drained and has_ours(node.reason)):
                    continue
                busy = _ELSEWHERE if node.name in elsewhere else ""
                if obstacle := busy or obstacle_of(node):
                    results.append(_kept(node, obstacle))
                else:
                    results.append(self._one(node, named=bool(names)))
            return results

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            self._notes.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self._notes / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise NoNotes(f"{self._notes} cannot be written: {error.strerror}") from error
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise QuarantineRuns("another quarantine runs on this host") from None
            yield
        finally:
            os.close(fd)

    def _finish_abandoned(self) -> None:
        for reservation in self._slurm.reservations():
            mine = (self._notes / reservation.name).exists()
            age = self._clock() - (reservation.start_time or 0.0)
            if not reservation.name.startswith(PREFIX) or not (mine or age > ABANDONED_S):
                continue
            note = self._notes / reservation.name
            reason = note.read_text().strip() if mine else ""
            for node in self._slurm.nodes(reservation.nodes):
                if not node.is_drained:
                    self._slurm.drain([node.name], reason or CUT_OFF)
            self._drop(reservation.name)
            self._log.write("quarantine_finished", nodes=reservation.nodes, reservation=reservation.name)

    def _one(self, node: SlurmNode, *, named: bool) -> QuarantineResult:
        name = PREFIX + node.name
        # With the reason, which Slurm forgets when the drain is undone.
        (self._notes / name).write_text(node.reason + "\n")
        request = ReservationRequest(name=name, nodes=(node.name,), users=("root",), flags=FLAGS)
        try:
            self._slurm.create_reservation(request)
        except ReservationExists:
            (self._notes / name).unlink()
            return _kept(node, _ELSEWHERE)
        result = _kept(node, "the test was cut off")
        try:
            self._slurm.resume([node.name])
            result = self._tested(node, name, named=named)
        finally:
            # Also for Ctrl-C: in service only after a test that passed, and never left in the reservation.
            whose = self._drained_meanwhile(node.name)
            if not result.returned and not whose:
                self._slurm.drain([node.name], result.drained or node.reason)
            self._drop(name)
        if whose:
            result = msgspec.structs.replace(
                result, returned=False, why=f"drained by others during the test: {whose}", drained=whose
            )
        event = "quarantine_returned" if result.returned else "quarantine_kept"
        self._log.write(event, node=node.name, why=result.why, reason=node.reason)
        return result

    def _drained_meanwhile(self, name: str) -> str:
        """Return the reason with which another person has drained the node, who then owns it; else ""."""
        try:
            node = self._slurm.node(name)
        except SlurmCommandError:
            return ""
        return node.reason if node.is_drained and of_others(node.reason) else ""

    def _tested(self, node: SlurmNode, reservation: str, *, named: bool) -> QuarantineResult:
        result, failed = self._test(node, reservation, named=named)
        if failed is None or self._remedy is None:
            return result
        try:
            why = self._remedy(node, failed, reservation)
        except SlurmCommandError as error:
            why = f"it could not be repaired: {error}"
        if why:
            return msgspec.structs.replace(result, why=f"{result.why}; {why}")
        # The owner of the drain has been found out. A node without a disk knows nothing of it after a reboot.
        known = tuple(dict.fromkeys((*causes_of(failed.report), *failed.open)))
        return self._test(node, reservation, known=known)[0]

    def _test(
        self, node: SlurmNode, reservation: str, *, named: bool = False, known: tuple[DrainCause, ...] = ()
    ) -> tuple[QuarantineResult, Examination | None]:
        """Return the result, and what was found on a node that failed.

        ``known``: the drain is known to be ours, and this must be seen to pass, if the node has forgotten it.
        """
        result = _kept(node, "not tested")
        for number in range(1, self._runs + 1):
            try:
                tested = self._examine(node.name, reservation)
            except (SlurmCommandError, ValueError) as error:
                return _kept(node, f"it could not be tested: {error}"), None
            if not known and (whose := claim(node, tested.reasons, named=named)):
                return _kept(node, whose), None
            if known and not tested.remembered:
                left = tuple(cause for cause in known if not has_passed(cause, tested.report.findings))
                tested = msgspec.structs.replace(tested, remembered=True, open=left)
            result = QuarantineResult(
                node=node.name,
                returned=not tested.fault,
                why=tested.fault or "passed",
                reason=node.reason,
                drained=tested.reason if tested.fault else "",
                tests=number,
                evidence=(*tested.report.causes, *tested.report.warnings),
                checks=tuple(dict.fromkeys(finding.check for finding in tested.report.findings)),
                serials=tested.serials,
            )
            if not result.returned:
                return result, tested
        return result, None

    def _drop(self, name: str) -> None:
        """Delete the reservation, and end the test that may still run in it."""
        end_reservation(self._slurm, name, clock=self._clock, pause=self._pause)
        (self._notes / name).unlink(missing_ok=True)


# -- pure -------------------------------------------------------------------------------------------------


def obstacle_of(node: SlurmNode) -> str:
    """Return why the node cannot be tested; empty when it can. A person's drain is left alone."""
    if not (node.is_drained and has_ours(node.reason)):
        return f"not drained by srobust: {node.reason or 'in service'}"
    if others := of_others(node.reason):
        return (
            f"others have a part in its drain: {'; '.join(others)}; if the node is well, return it: "
            f"scontrol update nodename={node.name} state=resume"
        )
    if node.reason_user not in _OURS:
        return f"{node.reason_user} has taken it over: {node.reason}"
    if state := untouchable(node):
        return f"it is {state}"
    if node.allocated_cpus or node.states & {"ALLOCATED", "MIXED", "COMPLETING"}:
        return "a job is still on it"
    return "" if node.responding else "Slurm has not heard of it lately"


def _kept(node: SlurmNode, why: str) -> QuarantineResult:
    return QuarantineResult(node=node.name, returned=False, why=why, reason=node.reason)


def claim(node: SlurmNode, reasons: Sequence[str], *, named: bool) -> str:
    """Return why the drain may be a person's; empty if not. ``reasons``: those that the node knows as ours.

    ``named``: a person has named this node to be tested and returned.
    """
    if node.reason in (*reasons, CUT_OFF):
        return ""
    if reasons:
        return (
            f"its reason is not what srobust wrote ({reasons[0]}), so a person keeps it; to return it: "
            f"scontrol update nodename={node.name} state=resume"
        )
    if named:
        return ""
    return (
        "the node does not remember this drain, so its reason may be a person's: if no user keeps the "
        f"node, name it: srobust admin quarantine {node.name}"
    )


# -- the command ------------------------------------------------------------------------------------------


def job_test(slurm: SlurmClient, config_file: Path | None) -> Examine:
    """Return the test as a job in the reservation, with the interpreter of this installation."""
    command = [sys.executable, "-m", "slurm_robust.admin.deep_check"]
    command += [f"--config={config_file}"] if config_file else []

    def examine(node: str, reservation: str) -> Examination:
        request = SubmitRequest(
            command=tuple(command),
            name="srobust-quarantine",
            nodes=1,
            required_nodes=(node,),
            reservation=reservation,
            time_limit_s=JOB_S,
            work_dir="/",
            exclusive=True,
            # A pending job whose srun was killed could wait for ever.
            options=(f"--immediate={START_S:g}",),
        )
        done = slurm.run(request, JOB_S + START_S + 30.0)
        try:
            return msgspec.json.decode(done.stdout.encode(), type=Examination)
        except msgspec.MsgspecError:
            message = ascii_line(done.stderr or done.stdout, 300)
            raise ValueError(f"exit code {done.exit_code}: {message}") from None

    return examine


def main(nodes: Sequence[str], *, once: bool, json: bool, config_file: Path | None) -> int:
    """Test and print the report; 0 when every node was returned, 1 when some are kept."""
    # It must clean up, whatever ends it.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    config = load(config_file or FILE)
    slurm = CliSlurmClient()
    quarantine = Quarantine(
        slurm,
        job_test(slurm, config_file),
        EventLog(config.paths, node_name(os.environ)),
        Path(config.paths.state) / "quarantine",
        runs=1 if once else config.drain.pass_runs,
    )
    with Bar("testing drained nodes", quiet=json):
        results = quarantine.run(nodes)
    show(results, report_text, json=json)
    return 0 if all(result.returned for result in results) else 1


def report_text(results: Sequence[QuarantineResult]) -> str:
    """Return a paragraph on each node."""
    return "\n".join(map(paragraph, results)) or "no node is drained by srobust"


def paragraph(result: QuarantineResult) -> str:
    """Return a paragraph on one node, for the repair desk."""
    lines = [f"{result.node}: {'returned to service' if result.returned else 'kept'}: {result.why}"]
    lines += [f"  drained for: {result.reason}"] if result.reason else []
    for found in result.evidence:
        measured = f" ({found.value}, limit {found.limit})" if found.value else ""
        lines.append(f"  {found.check} {found.subject}: {found.text}{measured}; {found.suggestion.value}")
    lines += [f"  {name}: {value}" for name, value in result.serials.items()]
    lines += [f"  tested {result.tests} times: {', '.join(result.checks)}"] if result.tests else []
    head, *rest = map(one_line, lines)
    return "\n  ".join((head, *rest))
