"""Brings a broken sandbox back to the state after ``up``, without the price of a new boot."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from datetime import datetime

from slurm_robust.sandbox import procs
from slurm_robust.sandbox.config import HEAD
from slurm_robust.sandbox.errors import BootFailed, SandboxError
from slurm_robust.sandbox.faults import FILLABLE
from slurm_robust.sandbox.procs import wait_until
from slurm_robust.sandbox.sandbox import Sandbox

EMPTY_S = 30.0
SETTLE_S = 2.0
HEAL_S = 90.0
POLL_S = 0.2
# More than a test submits within the seconds that slurmctld's saved state is old.
LOST_IDS = 10
PASS_OVER = f"""
id=0 count=0
while [ $count -lt {LOST_IDS} ] || [ $id -lt $1 ]; do
    id=$(sbatch --parsable --hold --output=/dev/null --wrap=true) || exit
    count=$((count + 1))
done
echo $id
"""

# sinfo's states of a node that only an administrator's order brings back.
_RESUMABLE = ("down", "drain", "fail", "error")


def heal(sandbox: Sandbox, timeout_s: float = HEAL_S) -> None:
    """Undo faults and remove jobs until every node is idle.

    Boots nodes that are off, plugs cables in, mends GPUs, starts daemons, cancels all jobs, deletes
    reservations, kills what users left running (open shells stay), empties every node's /tmp and /dev/shm,
    has slurmctld reconfigure, and resumes nodes. Homes stay. Raises :class:`BootFailed` when it does not get
    there in time.
    """
    deadline = time.monotonic() + timeout_s
    forgotten = sandbox.folder.forgotten
    if sandbox.fault.daemon_pid(HEAD, "slurmctld") is None:
        forgotten.touch()
    _mend_machines(sandbox)
    left = max(0.0, deadline - time.monotonic())
    if forgotten.exists() and not wait_until(lambda: _pass_over_lost_ids(sandbox), left):
        raise BootFailed(
            f"slurmctld takes no job\n{sandbox.read_log('slurmctld', lines=15)}", fix=_anew(sandbox)
        )
    forgotten.unlink(missing_ok=True)
    _cancel_jobs(sandbox, deadline)
    _delete_reservations(sandbox)
    _sweep(sandbox)
    _settle(sandbox)
    _count_anew(sandbox)
    if not wait_until(lambda: _resume(sandbox), max(0.0, deadline - time.monotonic()), POLL_S):
        sandbox.wait_idle(timeout_s=1.0)  # Says which nodes are late.


def _mend_machines(sandbox: Sandbox) -> None:
    known = sandbox.control.nodes()
    if sandbox.fault.daemon_pid(HEAD, "slurmctld") is None:
        sandbox.fault.start_slurmctld()
    for node in sandbox.config.node_names:
        if sandbox.config.gpus_per_node:
            sandbox.gpus(node).reset()
        state = known.get(node)
        if state is None or not state.on:
            sandbox.fault.boot(node)
            continue
        if not state.connected:
            sandbox.fault.heal_network(node)
        if sandbox.fault.daemon_pid(node, "slurmd") is None:
            sandbox.fault.start_slurmd(node)


def _pass_over_lost_ids(sandbox: Sandbox) -> bool:
    """Use up the ids of jobs that a killed slurmctld forgot; False while it does not answer yet.

    It saves its state seconds late and gives the ids after the last saved one again. The nodes still end the
    forgotten jobs then, and with them whatever has got their ids ("Job credential revoked", seen on 22.05).
    The held jobs go with the others. It may have forgotten those of the last time as well: then the ids begin
    before theirs.
    """
    passed = sandbox.folder.passed
    last = int(passed.read_text()) if passed.exists() else 0
    command = ["sh", "-c", PASS_OVER, "sh", str(last + LOST_IDS)]
    done = sandbox.exec(command, user="root", timeout_s=30, check=False)
    if done.returncode == 0:
        passed.write_text(done.stdout)
    return done.returncode == 0


def _settle(sandbox: Sandbox) -> None:
    """Let two seconds pass since the end of the last job.

    A job that starts on a node in the second in which another one ended there fails with "Job credential
    revoked" (seen on 22.05).
    """
    ends = _root(sandbox, ["squeue", "--noheader", "--states=all", "--format=%e"]).split()
    now = time.time()
    times = [datetime.fromisoformat(end).timestamp() for end in ends if end[0].isdigit()]
    last = max((t for t in times if t <= now), default=0.0)
    time.sleep(max(0.0, last + SETTLE_S - now))


def _count_anew(sandbox: Sandbox) -> None:
    """Have slurmctld count anew which nodes are held by exclusive jobs.

    One that such a job gave back, or lost while it ran, stays counted. After the end of a later exclusive job
    slurmctld may then give it to no other until slurmd answers a ping (up to 193 s on 22.05, shown as IDLE).
    """
    _root(sandbox, ["scontrol", "reconfigure"])


def _cancel_jobs(sandbox: Sandbox, deadline: float) -> None:
    def none_left() -> bool:
        jobs = _root(sandbox, ["squeue", "--noheader", "--format=%A"]).split()
        if jobs:
            # Again in each round: a requeued job may have started anew in between.
            _root(sandbox, ["scancel", "--signal=KILL", "--full", *jobs])
            _root(sandbox, ["scancel", *jobs])
            _resume(sandbox)
        return not jobs

    if not wait_until(none_left, max(0.0, deadline - time.monotonic()), POLL_S):
        jobs = _root(sandbox, ["squeue", "--noheader", "--format=%A %T %R"])
        raise BootFailed(f"jobs that do not end:\n{jobs}", fix=_anew(sandbox))


def _anew(sandbox: Sandbox) -> str:
    return f"boot a new one: srobust sandbox down --name {sandbox.name}, then up"


def _delete_reservations(sandbox: Sandbox) -> None:
    listing = _root(sandbox, ["scontrol", "--oneliner", "show", "reservations"])
    for line in listing.splitlines():
        if line.startswith("ReservationName="):
            name = line.split()[0].partition("=")[2]
            _root(sandbox, ["scontrol", "delete", f"reservationname={name}"])


def _sweep(sandbox: Sandbox) -> None:
    """Kill users' processes and empty the nodes' own disks: both would leak into the next trial.

    Shells in which somebody works stay open.
    """
    users = {sandbox.config.uid(user) for user in sandbox.config.users}
    for node in sandbox.config.all_names:
        left = {pid for pid in sandbox.host_pids(node) if _owner(pid) in users}
        left -= procs.open_shells(filter(None, map(procs.read_process, left)))
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # It ended by itself.
        procs.wait_gone(left, 5.0)
        for path in FILLABLE:
            # Not what is mounted below: that is bound from the machine, and belongs to a user.
            folder = f"/proc/{sandbox.node_pid(node)}/root{path}"
            command = ["find", folder, "-xdev", "-mindepth", "1", "-depth", "-delete"]
            subprocess.run(command, stderr=subprocess.DEVNULL, check=False, timeout=EMPTY_S)


def _owner(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except FileNotFoundError:
        return None


def _resume(sandbox: Sandbox) -> bool:
    """Resume what is down or drained; whether everything is idle."""
    try:
        states = {name: state.strip() for name, state in sandbox.node_states().items()}
    except SandboxError:
        return False  # slurmctld is starting; the caller's deadline bounds it.
    for name, state in states.items():
        if state.startswith(_RESUMABLE):
            _root(sandbox, ["scontrol", "update", f"nodename={name}", "state=resume"])
    return bool(states) and all(state == "idle" for state in states.values())


def _root(sandbox: Sandbox, argv: list[str]) -> str:
    """Output of a Slurm command as root; refusals are left to the caller's next round."""
    return sandbox.exec(argv, user="root", timeout_s=30, check=False).stdout
