"""``python -m slurm_robust.agent --job-dir DIR``, started by one task of srun on each node."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path

import msgspec

from slurm_robust.agent.code import ON_DISK, remove_dead_code
from slurm_robust.agent.copies.service import CopyService
from slurm_robust.agent.folders import RuntimeFolder
from slurm_robust.agent.launcher import ZygoteLauncher
from slurm_robust.agent.liveness import LivenessPorts
from slurm_robust.agent.loop import Agent, Setup
from slurm_robust.agent.stacks.taker import StackTaker
from slurm_robust.inspector.inspection import Inspection
from slurm_robust.inspector.inspector import Inspector
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.job import CommandKind, JobDirectory, JobSpec
from slurm_robust.model.nodefolders import SHARED_MEMORY
from slurm_robust.model.record import decoded
from slurm_robust.util.ours import NotOurs, check_own_folder, read_ours
from slurm_robust.util.process import raise_file_limit
from slurm_robust.wire.keys import load_client
from slurm_robust.wire.network import NoAddress, PortHolder, address_in
from slurm_robust.worker.lookup import missing
from slurm_robust.worker.spawning import Prepare
from slurm_robust.worker.torchrun import prepare_inherited, torch_release

CANNOT_BEGIN = 3


class CannotBegin(SrobustError):
    """This node cannot serve the job; a line of the step's output reports it to the controller."""

    exit_code = CANNOT_BEGIN

    def __init__(self, message: str, fix: str, job_code: int = ExitCode.JOB_DIR, unseen: str = "") -> None:
        """``job_code``: the exit code of the job if too many nodes are like this one; ``unseen``: the folder
        that is not there, or lacks something, as one does that a container does not mount.
        """
        super().__init__(message)
        self.unseen = unseen
        self.fix = fix
        self.job_code = job_code


def main() -> int:
    """Run the agent; exit code 0 after an order to end, 3 when it cannot begin."""
    raise_file_limit()
    arguments = _arguments()
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    job = JobDirectory(Path(arguments.job_dir).absolute())
    try:
        agent = _make(node, job, arguments)
    except SrobustError as error:
        code, unseen = ExitCode.JOB_DIR, ""
        if isinstance(error, CannotBegin):
            code, unseen = ExitCode(error.job_code), error.unseen
        report = {
            "srobust_agent_error": str(error),
            "node": node,
            "fix": error.fix,
            "job_code": int(code),
            "unseen": unseen,
        }
        print(msgspec.json.encode(report).decode(), flush=True)
        return CANNOT_BEGIN
    agent.run()
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m slurm_robust.agent", description=__doc__)
    parser.add_argument("--job-dir", required=True, help="the job directory, on storage of all nodes")
    parser.add_argument("--run-id", default="", help="the run that is in the job directory")
    parser.add_argument(
        "--address", default="", help="how other nodes reach this one (default: as it reaches the controller)"
    )
    parser.add_argument(
        "--ports", type=_port_range, default=(0,), metavar="LOW-HIGH", help="rendezvous ports to use"
    )
    parser.add_argument("--image", default="", help="the release's container image, in which it was started")
    return parser.parse_args()


def _port_range(text: str) -> tuple[int, ...]:
    low, _, high = text.partition("-")
    try:
        ports = tuple(range(int(low), int(high or low) + 1))
    except ValueError:
        ports = ()
    # Two, because one is in use while the next is held.
    if len(ports) < 2 or not 0 < ports[0] < 65536 or ports[-1] > 65535:
        raise argparse.ArgumentTypeError(f"'{text}' is not a range of at least two ports like 29500-29600")
    return ports


def spare_ports(ports: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ports to use that copies may have: the rendezvous needs two, the last and the next."""
    return ports if ports == (0,) else ports[2:]


def _make(node: str, job: JobDirectory, arguments: argparse.Namespace) -> Agent:
    address: str = arguments.address
    ports: tuple[int, ...] = arguments.ports
    spec = read_spec(job, arguments.run_id)
    # A release has the script, whatever became of the one in its place.
    is_looked_up = not spec.code or spec.kind is CommandKind.EXEC
    if is_looked_up and (lacking := missing(spec.kind, spec.command, spec.cwd)) is not None:
        raise CannotBegin(lacking.text, lacking.fix, ExitCode.NO_INPUT, lacking.folder)
    try:
        keys = load_client(job.keys)
    except SrobustError as error:
        raise CannotBegin(str(error), error.fix or _SHARED) from error
    for text in remove_dead_code(SHARED_MEMORY, node) + remove_dead_code(ON_DISK, node):
        print(text, flush=True)
    try:
        runtime = RuntimeFolder(spec.run_id)
    except OSError as error:
        raise CannotBegin(
            f"no folder in {SHARED_MEMORY}: {error}", f"{SHARED_MEMORY} must be writable and not full"
        ) from error
    try:
        torch = torch_release()
        holder = PortHolder(ports, hand_over=torch is not None and spec.kind is not CommandKind.EXEC)
    except OSError as error:
        runtime.close()
        raise CannotBegin(str(error), "configure more rendezvous ports, or none to use any") from error
    try:
        data_address = address_in(spec.copies.network) if spec.copies.network else ""
    except NoAddress as error:
        raise CannotBegin(str(error), error.fix, ExitCode.CONFIG) from error
    copies = CopyService(spec, job, keys, spare_ports(ports))
    copies.pace_by(data_address or address)
    prepare_inherited(os.environ, torch)
    prepare = Prepare(
        command_kind=spec.kind,
        command=spec.command,
        cwd=spec.cwd,
        nproc_per_node=spec.nproc_per_node,
        preload=spec.preload,
    )
    identity = f"{node}-{os.getpid()}-{os.urandom(4).hex()}"
    setup = Setup(
        spec=spec,
        job=job,
        keys=keys,
        node=node,
        agent=identity,
        address=address,
        data_address=data_address,
        image=arguments.image,
    )
    inspection = Inspection(Inspector(spec.inspection) if spec.inspection else None)
    # One more port than the copies have.
    liveness = LivenessPorts(keys.client.public, identity, spec.beacon_s, spare_ports(ports))
    stacks = StackTaker(runtime.path)
    return Agent(setup, ZygoteLauncher(prepare), runtime, holder, copies, stacks, inspection, liveness)


_SHARED = "put the job directory on storage that every node of the job mounts at the same path"


_EXCHANGED = "the folder was replaced, or this node's NFS maps users differently; check its owner"
_OTHER_VERSION = (
    "use the same slurm_robust on all nodes, in an image too, and a new job directory for each job"
)


def read_spec(job: JobDirectory, run_id: str = "") -> JobSpec:
    """Return the job's description, of this run unless ``run_id`` is "". Raises :class:`CannotBegin`.

    What it says is run as this user, so no other user may have put it there.
    """
    try:
        check_own_folder(job.path)
        content = read_ours(job.spec)
    except NotOurs as error:
        raise CannotBegin(f"cannot trust {job.spec}: {error}", _EXCHANGED) from error
    except OSError as error:
        raise CannotBegin(
            f"cannot read {job.spec}: {error.strerror}", _SHARED, unseen=str(job.path.parent)
        ) from error
    spec = decoded(
        msgspec.json.Decoder(JobSpec),
        content,
        lambda why: CannotBegin(f"{job.spec} is not the job's description: {why}", _OTHER_VERSION),
    )
    if run_id not in ("", spec.run_id):
        raise CannotBegin(f"{job.spec} is of run {spec.run_id}, this is run {run_id}", _EXCHANGED)
    return spec


if __name__ == "__main__":
    sys.exit(main())
