"""pyslurm behind the same protocol: fewer processes, and answers in 0.5 to 5 ms.

pyslurm lives in a helper process (see :mod:`slurm_robust.slurm.pyslurm_helper` for why). What it
cannot do, or does wrongly, goes over the command line: clearing excluded nodes (silently nothing
happens), the size of a job, ``StartTime``, steps (``srun``), reservations (their API changed with each
release), accounting, submission (needs an environment made by hand from 24.11 on).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from slurm_robust.slurm.cli_client import CliSlurmClient
from slurm_robust.slurm.errors import BackendUnavailable, CommandFailed, SlurmTimeout, classify
from slurm_robust.slurm.process import CompletedCommand
from slurm_robust.slurm.records import SlurmJob, SlurmNode, SlurmVersion
from slurm_robust.slurm.values import parse_version
from slurm_robust.util.child import LineProcess
from slurm_robust.util.text import one_line

T = TypeVar("T")

HELPER_COMMAND = (sys.executable, "-m", "slurm_robust.slurm.pyslurm_helper")


class Unsupported(Exception):
    """This pyslurm cannot do it; the command line can. Never leaves this module."""


class PyslurmHelper:
    """The helper process: started when needed, killed when it does not answer, started again.

    Safe for use from several threads; calls are made one after the other.
    """

    def __init__(
        self,
        timeout_s: float,
        *,
        command: Sequence[str] = HELPER_COMMAND,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._command = tuple(command)
        self._environ = environ
        self._lock = threading.Lock()
        self._process: LineProcess | None = None
        self._release = ""

    def release(self) -> SlurmVersion:
        """Release of pyslurm, which is that of the Slurm it was built for. BackendUnavailable."""
        with self._lock:
            self._started()
            return parse_version(self._release)

    def call(self, method: str, **params: object) -> object:
        """Make one call. Raises SlurmCommandError types, Unsupported and BackendUnavailable."""
        command = ("pyslurm", method, *(f"{k}={v}" for k, v in params.items()))
        with self._lock:
            reply = self._ask(self._started(), {"method": method, "params": params}, command)
        if "missing" in reply:
            raise Unsupported(reply["missing"])
        if "error" in reply:
            done = CompletedCommand(
                command=command, exit_code=int(reply.get("errno") or 1), stdout="", stderr=str(reply["error"])
            )
            raise classify(done)
        return reply.get("value")

    def close(self) -> None:
        """End the helper; the next call starts a new one."""
        with self._lock:
            self._drop()

    def _started(self) -> LineProcess:
        if self._process is not None and self._process.alive:
            return self._process
        self._drop()
        try:
            process = LineProcess(self._command, env=self._environ)
        except OSError as error:
            raise BackendUnavailable(f"cannot start the pyslurm helper: {error}") from error
        try:
            hello = msgspec.json.decode(process.receive(self._timeout_s))
        except TimeoutError as error:
            process.close()
            raise BackendUnavailable(f"import pyslurm: {error}") from error
        except EOFError as error:
            process.close()
            last = str(error).splitlines()[-1:] or ["the interpreter ended without a message"]
            raise BackendUnavailable(f"import pyslurm: {last[0]}") from error
        self._process = process
        self._release = str(hello["pyslurm"])
        return process

    def _ask(self, process: LineProcess, request: object, command: tuple[str, ...]) -> dict[str, Any]:
        try:
            process.send(msgspec.json.encode(request).decode())
            reply = msgspec.json.decode(process.receive(self._timeout_s))
        except TimeoutError as error:
            self._drop()
            raise SlurmTimeout(
                f"pyslurm gave no answer within {self._timeout_s:g} s", command=command
            ) from error
        except (EOFError, BrokenPipeError) as error:
            self._drop()
            raise CommandFailed("the pyslurm helper died", command=command, stderr=str(error)) from error
        if not isinstance(reply, dict):
            raise CommandFailed(f"the pyslurm helper said {reply!r}", command=command)
        return reply

    def _drop(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None


class PyslurmClient(CliSlurmClient):
    """:class:`~slurm_robust.slurm.client.SlurmClient` over pyslurm, the rest over the command line."""

    def __init__(self, helper: PyslurmHelper, timeout_s: float = 30.0, **cli: Any) -> None:
        super().__init__(timeout_s, **cli)
        self._helper = helper

    def close(self) -> None:
        """End the helper process."""
        self._helper.close()

    def nodes(self, names: Sequence[str] | None = None) -> tuple[SlurmNode, ...]:
        """See the protocol."""
        try:
            found = self._helper.call("nodes", names=None if names is None else list(names))
        except Unsupported:
            return super().nodes(names)
        return msgspec.convert(found, tuple[SlurmNode, ...])

    def job(self, job_id: int) -> SlurmJob:
        """See the protocol."""
        try:
            return msgspec.convert(self._helper.call("job", job_id=job_id), SlurmJob)
        except Unsupported:
            return super().job(job_id)

    def requeue(self, job_id: int) -> None:
        """See the protocol."""
        try:
            self._helper.call("requeue", job_id=job_id)
        except Unsupported:
            super().requeue(job_id)
        except CommandFailed as error:
            # The command line knows how a pending job answers and makes that harmless.
            if "job is pending execution" not in error.what.lower():
                raise
            super().requeue(job_id)

    def release(self, job_id: int) -> None:
        """See the protocol."""
        try:
            self._helper.call("release", job_id=job_id)
        except Unsupported:
            super().release(job_id)

    def set_excluded_nodes(self, job_id: int, nodes: Sequence[str]) -> None:
        """See the protocol."""
        if not nodes:
            super().set_excluded_nodes(job_id, nodes)
            return
        try:
            self._helper.call("exclude", job_id=job_id, nodes=list(nodes))
        except Unsupported:
            super().set_excluded_nodes(job_id, nodes)

    def drain(self, nodes: Sequence[str], reason: str) -> None:
        """See the protocol."""
        # slurmctld accepts a drain without a reason from the library, unlike from scontrol.
        if not nodes or not one_line(reason):
            super().drain(nodes, reason)
            return
        try:
            self._helper.call("drain", nodes=list(nodes), reason=one_line(reason, None))
        except Unsupported:
            super().drain(nodes, reason)

    def resume(self, nodes: Sequence[str]) -> None:
        """See the protocol."""
        try:
            if nodes:
                self._helper.call("resume", nodes=list(nodes))
        except Unsupported:
            super().resume(nodes)
