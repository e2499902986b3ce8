"""The process that outlives the job's last run and sees it into the next one.

``python -m slurm_robust.slurm.watcher ORDER --log FILE [--detach]``; ORDER is the JSON of an
:class:`~slurm_robust.slurm.requeue.RequeueRequest`.

Started by a controller before it ends, in one of two ways (:func:`arrange_watcher` chooses):

* :func:`start_watcher`: a process that leaves the caller's process tree (new session, parent gone).
  It survives the job under proctrack/linuxproc and pgid; under proctrack/cgroup, which most sites
  have, Slurm kills it with the job.
* :func:`watcher_job`: a job of its own, one CPU for some seconds on a node that the other job did not
  have, which ends as soon as it has ordered the other to start. It works if there is such a node, and
  shows up in the user's job list.

Without either nothing is lost but the two minutes of Slurm's own begin time. Orders and outcome are
written to ``--log``, one JSON object a line.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.process import CompletedCommand, run_command
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.slurm.requeue import RequeueOutcome, RequeueRequest, StageOutcome, Until, carry_out
from slurm_robust.slurm.select import make_client


def survives_the_job(config: Mapping[str, str]) -> bool:
    """Return whether a detached process outlives the job on this site (``SlurmClient.config()``)."""
    return config.get("ProctrackType", "") in {"proctrack/linuxproc", "proctrack/pgid"}


def watcher_command(order: RequeueRequest, *, log: Path, timeout_s: float) -> list[str]:
    """Return the command line of a watcher."""
    order = msgspec.structs.replace(order, may_requeue=False)
    return [
        sys.executable,
        "-m",
        "slurm_robust.slurm.watcher",
        msgspec.json.encode(order).decode(),
        f"--log={log}",
        f"--timeout={timeout_s:g}",
    ]


def watcher_job(
    order: RequeueRequest, *, keep_off: Sequence[str] = (), log: Path, partition: str = ""
) -> SubmitRequest:
    """Return a small job that orders the other one to start. It keeps off the nodes ``keep_off`` and those
    that are left out. Slurm drops it if it cannot run within two minutes, because the begin time is over then
    anyway.
    """
    order = msgspec.structs.replace(order, until=Until.STARTED)
    return SubmitRequest(
        command=(shlex.join(watcher_command(order, log=log, timeout_s=150.0)),),
        wrap=True,
        name=f"srobust-watch-{order.job_id}",
        nodes=1,
        partition=partition,
        time_limit_s=180.0,
        output="/dev/null",
        excluded_nodes=tuple(dict.fromkeys((*order.exclude, *keep_off))),
        requeue=False,
        options=("--ntasks=1", "--mem=200M", "--deadline=now+300"),
    )


def start_watcher(order: RequeueRequest, *, log: Path, timeout_s: float = 900.0) -> CompletedCommand:
    """Start a watcher and return when it has left this process's tree (about 0.2 s)."""
    order = msgspec.structs.replace(order, until=Until.RUNNING)
    return run_command([*watcher_command(order, log=log, timeout_s=timeout_s), "--detach"], timeout_s=30.0)


def arrange_watcher(
    client: SlurmClient,
    order: RequeueRequest,
    *,
    keep_off: Sequence[str] = (),
    log: Path,
    partition: str = "",
) -> str:
    """Start the watcher that works on this site and say which one.

    ``keep_off``: the nodes that the job holds and may get again, so that a watcher job takes none of them;
    ``log`` must be on shared storage; ``partition`` is that for a watcher job. Raises SlurmCommandError
    types, CommandTimeout and ``OSError``; the job comes back without a watcher, only later.
    """
    if survives_the_job(client.config()):
        done = start_watcher(order, log=log)
        if done.exit_code:
            raise OSError(f"the watcher did not start: {done.stderr.strip()}")
        return f"a process on {socket.gethostname()} starts job {order.job_id} again early"
    request = watcher_job(order, keep_off=keep_off, log=log, partition=partition)
    return f"job {client.submit(request)} starts job {order.job_id} again early"


def main(argv: Sequence[str] | None = None) -> int:
    """Watch; 0 when the job runs again."""
    parser = argparse.ArgumentParser(prog="slurm_robust.slurm.watcher", description=__doc__.splitlines()[0])
    parser.add_argument("order", type=msgspec.json.Decoder(RequeueRequest).decode)
    parser.add_argument("--log", type=lambda text: Path(text).absolute(), required=True)
    parser.add_argument("--timeout", type=float, default=900.0)
    parser.add_argument("--detach", action="store_true")
    args = parser.parse_args(argv)
    if args.detach and not _detach():
        return 0

    def report(stage: StageOutcome) -> None:
        _write(args.log, stage)

    outcome = carry_out(make_client("cli"), args.order, timeout_s=args.timeout, report=report)
    _write(args.log, outcome)
    return 0 if outcome.ok else 1


def _detach() -> bool:
    """Return True in the process that goes on: its parent has ended, and it has no open stream of the job."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if os.fork():
        return False
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    return True


def _write(log: Path, record: StageOutcome | RequeueOutcome) -> None:
    line = msgspec.json.encode({"t": time.time(), **msgspec.to_builtins(record)})
    with log.open("ab") as sink:
        sink.write(line + b"\n")


if __name__ == "__main__":
    sys.exit(main())
