"""The default client: Slurm's own commands. Works with every release and needs no library."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from slurm_robust.slurm import commands, jsonforms, text
from slurm_robust.slurm.client import StepHandle
from slurm_robust.slurm.errors import (
    GONE,
    CommandFailed,
    InvalidNode,
    JobFinished,
    JobNotFound,
    JobNotPending,
    PermissionDenied,
    SlurmCommandError,
    SlurmCommandMissing,
    SlurmTimeout,
    StepNotFound,
    UnparsableOutput,
    classify,
)
from slurm_robust.slurm.need import Size
from slurm_robust.slurm.process import (
    CommandRunner,
    CommandTimeout,
    CompletedCommand,
    run_command,
    spawn_detached,
)
from slurm_robust.slurm.records import (
    KNOWN_STATES,
    AccountingRow,
    Allocation,
    NodeEvent,
    Reservation,
    SlurmJob,
    SlurmNode,
    SlurmStep,
    SlurmVersion,
    Submission,
    Switch,
    Terms,
)
from slurm_robust.slurm.requests import ReservationRequest, StepRequest, SubmitRequest
from slurm_robust.slurm.values import parse_version
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import one_line

_log = logging.getLogger(__name__)
T = TypeVar("T")
_OWN_JOB = frozenset({"SLURM_JOB_ID", "SLURM_JOBID"})


class CliSlurmClient:
    """:class:`~slurm_robust.slurm.client.SlurmClient` over scontrol, squeue, sacct, sbatch and srun.

    ``timeout_s`` bounds each command. A dead slurmctld is reported after about 9 s by Slurm itself,
    so less than 10 s turns that into SlurmTimeout. ``prefix`` is put before every command (say, to
    enter another host or namespace); ``environ`` replaces this process's environment.
    """

    def __init__(
        self,
        timeout_s: float = 30.0,
        *,
        prefix: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        run: CommandRunner = run_command,
    ) -> None:
        if timeout_s <= 0:
            raise ValueError(f"timeout_s must be greater than 0, got {timeout_s}")
        self._timeout_s = timeout_s
        self._prefix = tuple(prefix)
        self._environ = environ
        self._run = run
        self._lock = threading.Lock()
        self._version: SlurmVersion | None = None
        self._json_refused = False
        self._warned: frozenset[str] = frozenset()

    # -- reads -------------------------------------------------------------------------------------

    def version(self) -> SlurmVersion:
        """See the protocol."""
        with self._lock:
            if self._version is None:
                self._version = parse_version(self._output(commands.version()))
            return self._version

    def now(self) -> float:
        """See the protocol."""
        return self._asked(commands.now(), text.parse_now)

    def nodes(self, names: Sequence[str] | None = None) -> tuple[SlurmNode, ...]:
        """See the protocol."""
        if names is not None and not names:
            return ()
        found = self._read(
            lambda parser: commands.show_nodes(names, parser=parser),
            of_text=text.parse_nodes,
            of_json=jsonforms.parse_nodes,
        )
        self._warn_of_unknown_states(found)
        if names is None:
            if not found:
                raise UnparsableOutput("Slurm shows no node, and no cluster is without one")
            return found
        by_name = {node.name: node for node in found}
        for name in names:
            if name not in by_name:
                raise InvalidNode(f"node {name} not found")
        return tuple(by_name[name] for name in names)

    def node(self, name: str) -> SlurmNode:
        """See the protocol."""
        found = self._asked(commands.show_node_state(name), text.parse_node_state)
        # sinfo shows only nodes of partitions, and says nothing of a name that it does not know.
        return found or self.nodes([name])[0]

    def job(self, job_id: int) -> SlurmJob:
        """See the protocol."""
        return self._read(
            lambda parser: commands.show_job(job_id, parser=parser),
            of_text=lambda output: text.parse_job(output, job_id),
            of_json=lambda document: self._first(jsonforms.parse_jobs(document), job_id),
        )

    def submission(self, job_id: int) -> Submission:
        """See the protocol."""
        self.job(job_id)
        line = self._output_or_nothing(commands.submit_line(job_id))
        return Submission(
            line=next(filter(None, line.splitlines()), ""),
            script=self._output_or_nothing(commands.batch_script(job_id)),
        )

    def jobs(self, user: str | None = None) -> tuple[SlurmJob, ...]:
        """See the protocol."""
        found = self._read(
            lambda parser: commands.show_jobs(user, parser=parser),
            of_text=lambda out: jsonforms.parse_jobs(jsonforms.load(out)),
            of_json=jsonforms.parse_jobs,
        )
        return tuple(
            job
            for job in found
            if not jsonforms.ended_for_good(job) and (user is None or job.user_name == user)
        )

    def steps(self, job_id: int) -> tuple[SlurmStep, ...]:
        """See the protocol."""
        try:
            found = self._read(
                lambda parser: commands.show_steps(job_id, parser=parser),
                of_text=text.parse_steps,
                of_json=jsonforms.parse_steps,
            )
        except StepNotFound:
            found = ()
        steps = tuple(step for step in found if step.job_id == job_id)
        if not steps:
            # Releases differ in whether no steps and no such job are told apart.
            self.job(job_id)
        return steps

    def allocation(self, job_id: int) -> Allocation:
        """See the protocol."""
        return self._read(
            lambda parser: commands.show_job(job_id, parser=parser),
            of_text=text.parse_allocation,
            of_json=lambda document: self._allocation(document, job_id),
        )

    def reservations(self) -> tuple[Reservation, ...]:
        """See the protocol."""
        return self._read(
            lambda parser: commands.show_reservations(parser=parser),
            of_text=text.parse_reservations,
            of_json=jsonforms.parse_reservations,
        )

    def accounting(self, job_id: int) -> tuple[AccountingRow, ...]:
        """See the protocol."""
        return text.parse_accounting(self._output(commands.accounting(job_id)))

    def runs(self, within_s: float) -> tuple[AccountingRow, ...]:
        """See the protocol."""
        return text.parse_accounting(self._output(commands.runs(within_s)))

    def node_events(self, within_s: float) -> tuple[NodeEvent, ...]:
        """See the protocol."""
        return text.parse_events(self._output(commands.node_events(within_s)))

    def topology(self) -> tuple[Switch, ...]:
        """See the protocol."""
        try:
            return text.parse_topology(self._output(commands.show_topology()))
        except CommandFailed as error:
            if "no topology information" in error.what.lower():
                return ()
            raise

    def config(self) -> dict[str, str]:
        """See the protocol."""
        found = text.parse_config(self._output(commands.show_config()))
        return {key: ", ".join(values) for key, values in found.items()}

    def partitions(self) -> tuple[Terms, ...]:
        """See the protocol."""
        return self._asked(commands.show_partitions(), text.parse_partitions)

    def qos(self) -> tuple[Terms, ...]:
        """See the protocol."""
        return self._asked(commands.show_qos(), text.parse_qos)

    def accounts(self) -> dict[str, frozenset[str]]:
        """See the protocol."""
        return self._asked(commands.show_associations(self.config()["ClusterName"]), text.parse_associations)

    # -- writes: jobs ------------------------------------------------------------------------------

    def requeue(self, job_id: int) -> None:
        """See the protocol."""
        try:
            self._output(commands.requeue(job_id))
        except CommandFailed as error:
            if "job is pending execution" not in error.what.lower():
                raise

    def forbid_requeue(self, job_id: int) -> None:
        """See the protocol."""
        self._output(commands.update_job(job_id, "Requeue", "0"))

    def release(self, job_id: int) -> None:
        """See the protocol."""
        self._output(commands.release(job_id))

    def start_now(self, job_id: int) -> None:
        """See the protocol."""
        self._output(commands.update_job(job_id, "StartTime", "now"))

    def set_excluded_nodes(self, job_id: int, nodes: Sequence[str]) -> None:
        """See the protocol."""
        self._output(commands.update_job(job_id, "ExcNodeList", fold(nodes)))

    def set_required_nodes(self, job_id: int, nodes: Sequence[str]) -> None:
        """See the protocol."""
        self._check_not_running(job_id, "its required nodes")
        self._output(commands.update_job(job_id, "ReqNodeList", fold(nodes)))

    def set_size(self, job_id: int, size: Size) -> None:
        """See the protocol."""
        self._check_not_running(job_id, "its size")
        self._output(commands.resize_job(job_id, size))

    def set_comment(self, job_id: int, text: str) -> None:
        """See the protocol."""
        self._output(commands.update_job(job_id, "Comment", one_line(text, None)))

    def shrink(self, job_id: int, keep: Sequence[str]) -> None:
        """See the protocol."""
        if not keep:
            raise ValueError("shrink to no node at all: use cancel")
        # Inside the job scontrol would leave two scripts in the working directory.
        environ = {k: v for k, v in self._base_environment().items() if k not in _OWN_JOB}
        command = commands.update_job(job_id, "NodeList", fold(keep))
        self._check(self._complete(command, environ=environ))

    def cancel(self, job_id: int, *, step_id: str | None = None, signal: str | None = None) -> None:
        """See the protocol."""
        try:
            self._output(commands.cancel(job_id, step_id, signal))
        except (JobNotFound, JobFinished, StepNotFound):
            pass  # It has ended, which is what was asked for.

    def submit(self, request: SubmitRequest) -> int:
        """See the protocol."""
        command = commands.sbatch(request)
        environ = {**self._base_environment(), **request.environment} if request.environment else None
        done = self._check(self._complete(command, environ=environ))
        # "7" or "7;cluster", after any line that a site's submit plugin prints.
        last = done.stdout.strip().splitlines()[-1:] or [""]
        job_id = last[0].partition(";")[0]
        if not job_id.isdecimal():
            raise UnparsableOutput("sbatch printed no job id", command=command, stdout=done.stdout)
        return int(job_id)

    def run(self, request: SubmitRequest, timeout_s: float) -> CompletedCommand:
        """See the protocol."""
        return self._complete(commands.srun_job(request), timeout_s=timeout_s)

    def launch_step(self, request: StepRequest, output: Path) -> StepHandle:
        """See the protocol."""
        command = [*self._prefix, *commands.srun(request)]
        environ = commands.step_environment(self._base_environment(), request)
        try:
            return spawn_detached(command, output=output, env=environ)
        except FileNotFoundError as error:
            raise self._missing(command) from error

    # -- writes: nodes and reservations -------------------------------------------------------------

    def drain(self, nodes: Sequence[str], reason: str) -> None:
        """See the protocol."""
        if not one_line(reason):
            raise ValueError("a drain needs a reason, so that an administrator can judge it")
        if nodes:
            self._output(commands.drain(nodes, reason))

    def resume(self, nodes: Sequence[str]) -> None:
        """See the protocol."""
        if nodes:
            self._output(commands.resume(nodes))

    def create_reservation(self, request: ReservationRequest) -> None:
        """See the protocol."""
        try:
            self._output(commands.create_reservation(request))
        except CommandFailed as error:
            # 26.05 says no more of a user whom slurmctld does not know; before it was "Invalid user id".
            if not (request.users and "unspecified error" in error.what.lower()):
                raise
            raise PermissionDenied(error.what, command=error.command, returncode=error.returncode) from error

    def delete_reservation(self, name: str) -> None:
        """See the protocol."""
        self._output(commands.delete_reservation(name))

    def _warn_of_unknown_states(self, nodes: Sequence[SlurmNode]) -> None:
        unknown = frozenset().union(*(node.states for node in nodes)) - KNOWN_STATES
        with self._lock:
            new, self._warned = unknown - self._warned, self._warned | unknown
        if new:
            _log.warning(
                "srobust does not know these states of nodes, and uses none in them: %s", sorted(new)
            )

    # -- running a command ---------------------------------------------------------------------------

    def _check_not_running(self, job_id: int, what: str) -> None:
        """Refuse a running job: for it the command that follows would mean to give nodes back."""
        if self.job(job_id).is_running:
            raise JobNotPending(f"job {job_id} is running; {what} can no longer be changed")

    def _read(
        self,
        command: Callable[[str], list[str]],
        *,
        of_text: Callable[[str], T],
        of_json: Callable[[jsonforms.Object], T],
    ) -> T:
        """Read in JSON if we know that of the release, else in text."""
        if parser := "" if self._json_refused else commands.data_parser(self.version()):
            try:
                return self._asked(command(parser), lambda out: of_json(jsonforms.load(out)))
            except CommandFailed as error:
                if "data_parser" not in error.stderr and "unrecognized option" not in error.stderr:
                    raise
                # A release later than those known has dropped it; text stays readable.
                self._json_refused = True
        return self._asked(command(""), of_text)

    def _asked(self, argv: list[str], parse: Callable[[str], T]) -> T:
        done = self._answer(argv)
        try:
            return parse(done.stdout)
        except UnparsableOutput as error:
            # "Job 4711 not found" may come with exit code 0. If there are more lines, some may be the user's.
            told = classify(done) if done.stdout.strip().count("\n") == 0 else None
            if isinstance(told, GONE):
                raise told from error
            raise UnparsableOutput(error.what, command=argv, returncode=0, stdout=done.stdout) from error
        except SlurmCommandError as error:
            raise type(error)(error.what, command=argv, returncode=0, stdout=done.stdout) from error

    def _allocation(self, document: jsonforms.Object, job_id: int) -> Allocation:
        self._first(jsonforms.parse_jobs(document), job_id)
        return jsonforms.parse_allocation(document)

    def _first(self, found: tuple[SlurmJob, ...], job_id: int) -> SlurmJob:
        if not found:
            raise JobNotFound(f"job {job_id} not found")
        return next((job for job in found if job.job_id == job_id), found[0])

    def _output(self, command: list[str]) -> str:
        return self._answer(command).stdout

    def _answer(self, command: list[str]) -> CompletedCommand:
        done = self._complete(command)
        if done.exit_code == -signal.SIGTERM:
            # When Slurm ends a run, it ends the commands of the run as well, also the one that asks it why.
            done = self._complete(command)
        return self._check(done)

    def _output_or_nothing(self, command: list[str]) -> str:
        try:
            return self._output(command)
        except SlurmCommandError:
            return ""

    def _check(self, done: CompletedCommand) -> CompletedCommand:
        if done.exit_code != 0:
            raise classify(done)
        return done

    def _complete(
        self, command: list[str], *, environ: Mapping[str, str] | None = None, timeout_s: float | None = None
    ) -> CompletedCommand:
        argv = command
        env = dict(environ) if environ is not None else self._base_environment()
        env.update(commands.QUERY_ENVIRONMENT)
        if self._prefix:
            # The prefix may start with a clean environment, so these are set after it.
            settings = [f"{name}={value}" for name, value in commands.QUERY_ENVIRONMENT.items()]
            argv = [*self._prefix, "env", *settings, *command]
        try:
            return self._run(argv, timeout_s=timeout_s or self._timeout_s, env=env)
        except CommandTimeout as error:
            late = f"{command[0]} gave no answer within {error.timeout_s:g} s"
            what = late if error.timeout_s else f"no time was left for {command[0]}"
            raise SlurmTimeout(what, command=argv) from error
        except (FileNotFoundError, PermissionError) as error:
            raise self._missing(argv) from error

    def _base_environment(self) -> dict[str, str]:
        return dict(os.environ if self._environ is None else self._environ)

    def _missing(self, argv: Sequence[str]) -> SlurmCommandError:
        path = self._base_environment().get("PATH", "")
        return SlurmCommandMissing(f"cannot start {argv[0]}; PATH is {path or 'empty'}", command=argv)
