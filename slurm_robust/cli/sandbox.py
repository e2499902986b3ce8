"""``srobust sandbox``: boot, use, break and end a Slurm cluster on this machine."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

from rich.console import RenderableType

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import (
    Commands,
    Examples,
    Handler,
    UsageError,
    add_command,
    add_group,
    whole_number,
)
from slurm_robust.model.errors import ExitCode
from slurm_robust.sandbox import Sandbox
from slurm_robust.sandbox.config import SandboxConfig
from slurm_robust.sandbox.database import remove_cache
from slurm_robust.sandbox.heal import heal
from slurm_robust.sandbox.sandbox import check_root, sandbox_names
from slurm_robust.sandbox.status import SandboxStatus, read_status, sandbox_line
from slurm_robust.sandbox.teardown import take_down
from slurm_robust.terminal.console import Bar, plain_table, show
from slurm_robust.util.text import one_line

# Names on the command line, each a method of Faults with - for _, grouped by their target.
NODE_FAULTS = {
    "power-cut": "cut a node's power: everything on it dies immediately",
    "boot": "power on a node after power-cut; Slurm keeps it DOWN until it is resumed",
    "cut-network": "unplug a node's cable; its processes go on",
    "heal-network": "plug the cable in again",
    "kill-slurmd": "kill a node's slurmd; its jobs go on",
    "start-slurmd": "start a killed slurmd",
    "fill-disk": "fill a node's own /tmp or /dev/shm",
    "free-disk": "undo fill-disk",
}
HEAD_FAULTS = {
    "restart-slurmctld": "stop slurmctld and start it again",
    "kill-slurmctld": "kill slurmctld",
    "start-slurmctld": "start a killed slurmctld",
}
RANK_FAULTS = {
    "kill-rank": "kill the worker of a rank",
    "stop-rank": "stop the worker of a rank, so that it hangs",
    "continue-rank": "undo stop-rank",
}


def register(commands: Commands) -> None:
    """Add the command and its sub-commands."""
    own = add_group(commands, "sandbox", HELP["sandbox"])
    _register_up(own)
    _register_down(own)
    _register_views(own)
    _register_commands(own)
    _register_fault(own)


def _add(
    commands: Commands, name: str, handler: Handler, text: str, examples: Examples
) -> argparse.ArgumentParser:
    parser = add_command(commands, name, handler, text, examples=examples)
    parser.add_argument("--name", default="default", help="name of the sandbox (default: %(default)s)")
    return parser


def _attach(args: argparse.Namespace) -> Sandbox:
    return Sandbox.attach(args.name)


# -- up and down -----------------------------------------------------------------------------------


def _register_up(commands: Commands) -> None:
    default = SandboxConfig()
    up = _add(
        commands,
        "up",
        _up,
        "boot a cluster and wait until all its nodes are idle",
        (
            ("srobust sandbox up --nodes 6", f"6 nodes of {default.cpus} CPUs each"),
            (
                "srobust sandbox up --name gpus --nodes 4 --gpus-per-node 8",
                "another one, of nodes with fake GPUs",
            ),
        ),
    )
    numbers = (
        ("--nodes", default.nodes, "compute nodes n1..nN"),
        ("--cpus", default.cpus, "CPUs that each node claims to have"),
        ("--memory", default.memory_mb, "memory that each node claims to have, MiB"),
        ("--gpus-per-node", default.gpus_per_node, "fake GPUs per node"),
        ("--shm", default.shm_mb, "size of each node's /dev/shm, MiB"),
        ("--tmp", default.tmp_mb, "size of each node's /tmp, MiB"),
        ("--slurmd-timeout", default.slurmd_timeout_s, "SlurmdTimeout, seconds"),
    )
    for option, value, text in numbers:
        up.add_argument(option, type=int, default=value, metavar="N", help=f"{text} (default: {value})")
    up.add_argument("--cgroups", action="store_true", help="track and limit jobs by cgroups (version 1)")
    up.add_argument("--cred-expire", type=int, metavar="N", help="cred_expire, seconds (default: Slurm's)")
    up.add_argument("--leaf-size", type=int, metavar="N", help="topology/tree with N nodes per leaf switch")
    users = ",".join(default.users)
    up.add_argument("--users", default=users, metavar="A,B", help=f"ordinary users (default: {users})")
    up.add_argument("--no-accounting", action="store_true", help="without slurmdbd and MariaDB")
    for option, metavar, text in (
        ("--slurm-conf-line", "KEY=VALUE", "an additional line of slurm.conf; may be repeated"),
        ("--bind", "PATH", "a path of this machine that users inside may read and write; may be repeated"),
    ):
        up.add_argument(option, action="append", default=[], metavar=metavar, help=text)


def _up(args: argparse.Namespace) -> int:
    config = SandboxConfig(
        nodes=args.nodes,
        cpus=args.cpus,
        memory_mb=args.memory,
        gpus_per_node=args.gpus_per_node,
        accounting=not args.no_accounting,
        users=tuple(args.users.split(",")),
        shm_mb=args.shm,
        tmp_mb=args.tmp,
        slurmd_timeout_s=args.slurmd_timeout,
        cgroups=args.cgroups,
        cred_expire_s=args.cred_expire,
        leaf_size=args.leaf_size,
        slurm_conf_lines=tuple(args.slurm_conf_line),
        binds=tuple(os.path.abspath(path) for path in args.bind),
    )
    # `timeout 5 srobust sandbox up` and a closed terminal must clean up just as Ctrl-C does.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    shown, progress = _progress()
    with shown:
        Sandbox.up(config, name=args.name, progress=progress)
    print(f"sandbox {args.name!r} is up: {config.nodes} nodes idle")
    print(f"try: {exec_line(args.name, f'srun -N{config.nodes} hostname')}")
    return ExitCode.SUCCESS


def exec_line(name: str, command: str, options: str = "") -> str:
    """Return what to type to run ``command`` in a sandbox."""
    return f"srobust sandbox exec{'' if name == 'default' else f' --name {name}'}{options} -- {command}"


def _progress() -> tuple[AbstractContextManager[object], Callable[[str], None]]:
    """Return a progress: on a terminal the phase and how long all takes, elsewhere one line per phase."""
    if not sys.stderr.isatty():
        # Several threads report, and print() would write text and line end apart.
        return nullcontext(), lambda phase: print(f"starting {phase}\n", end="", file=sys.stderr, flush=True)
    bar = Bar("starting")
    return bar, lambda phase: bar.say(f"starting {phase}")


def _register_down(commands: Commands) -> None:
    down = _add(
        commands,
        "down",
        _down,
        "shut a cluster down and remove all of it; also succeeds when none is up",
        (
            ("srobust sandbox down", "the sandbox named default"),
            ("srobust sandbox down --all", "every sandbox of this machine"),
        ),
    )
    down.add_argument("--all", action="store_true", help="every sandbox of this machine")
    down.add_argument("--cache", action="store_true", help="also remove the cached empty database")


def _down(args: argparse.Namespace) -> int:
    check_root()
    known = sandbox_names()
    for name in known if args.all else (args.name,):
        with Bar(f"shutting {name} down"):
            ending = take_down(name)
        others = f"; there {'is' if len(known) == 1 else 'are'} {', '.join(known)}" if known else ""
        print(f"sandbox {name!r} is down" if name in known else f"no sandbox {name!r} was up{others}")
        if ending:
            left = ", ".join(map(str, ending))
            print(
                f"processes {left} of it hold nothing; they end when PID 1 of this machine reaps the "
                "processes that it adopted (start a container with --init)",
                file=sys.stderr,
            )
    if args.cache:
        remove_cache()
    return ExitCode.SUCCESS


# -- status, list, logs ------------------------------------------------------------------------------


def _register_views(commands: Commands) -> None:
    status = _add(
        commands,
        "status",
        _status,
        "show nodes and daemons; exit code 1 when one is missing",
        (
            ("srobust sandbox status", "nodes and daemons"),
            ("srobust sandbox status --name gpus --json", "of another sandbox, for a program"),
        ),
    )
    status.add_argument("--json", action="store_true", help="as one JSON object")
    add_command(
        commands,
        "list",
        _list,
        "show the sandboxes of this machine",
        json=True,
        examples=(
            ("srobust sandbox list", "one line each"),
            ("srobust sandbox list | grep gpus", "whether one is there"),
        ),
    )
    logs = _add(
        commands,
        "logs",
        _logs,
        "print a daemon's log",
        (
            ("srobust sandbox logs slurmctld -n 50", "the last 50 lines of Slurm's controller"),
            ("srobust sandbox logs slurmd-n3", "the log of a node's slurmd"),
        ),
    )
    logs.add_argument("daemon", metavar="DAEMON", help="slurmctld, slurmdbd, mariadbd, init, slurmd-n3 ...")
    logs.add_argument(
        "-n", "--lines", metavar="N", type=whole_number(), default=0, help="only the last N lines"
    )


def _status(args: argparse.Namespace) -> int:
    status = read_status(_attach(args))
    show(status.document(), lambda _: status_table(status), json=args.json)
    return ExitCode.SUCCESS if status.healthy else 1


def status_table(status: SandboxStatus) -> RenderableType:
    """Return a row for each node."""
    table = plain_table("node", "address", "power", "network", "Slurm", "daemons", "reason")
    for node in status.nodes:
        power, cable = ("on" if node.on else "off"), ("plugged" if node.connected else "cut")
        daemons = ", ".join(node.daemons) or "-"
        table.add_row(
            node.name, node.address, power, cable, node.state or "-", daemons, one_line(node.reason)
        )
    return table


def _list(args: argparse.Namespace) -> int:
    lines = [sandbox_line(name) for name in sandbox_names()]
    if lines or args.json:
        show(lines, lambda known: "\n".join(line.text for line in known), json=args.json)
    return ExitCode.SUCCESS


def _logs(args: argparse.Namespace) -> int:
    print(_attach(args).read_log(args.daemon, args.lines))
    return ExitCode.SUCCESS


# -- exec, submit, heal ----------------------------------------------------------------------------


def _register_commands(commands: Commands) -> None:
    run = _add(
        commands,
        "exec",
        _exec,
        "run a command inside",
        (
            ("srobust sandbox exec -- squeue", "as the first ordinary user, on the head node"),
            ("srobust sandbox exec --node n1 --user root -- ls /dev/shm", "as root on a compute node"),
            ("srobust sandbox exec", "a shell"),
        ),
    )
    run.add_argument("--node", default="head", help="head or n1..nN (default: %(default)s)")
    run.add_argument("--user", help="root or one of --users (default: the first of them)")
    run.add_argument(
        "argv", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command (default: a shell)"
    )
    text = "submit a batch script from the head node and print the job's id"
    submit = _add(
        commands,
        "submit",
        _submit,
        text,
        (
            ("srobust sandbox submit train.sbatch", "print the id of the new job"),
            (
                "srobust sandbox submit -- --nodes=4 train.sbatch --steps 100",
                "with an option of sbatch and arguments of the script",
            ),
        ),
    )
    submit.add_argument("--user", help="one of --users (default: the first of them)")
    submit.add_argument(
        "argv",
        nargs=argparse.REMAINDER,
        metavar="[-- --OPTION=VALUE ...] SCRIPT [ARG ...]",
        help="after --, sbatch's options, each as --OPTION=VALUE; then the script with its arguments",
    )
    _add(
        commands,
        "heal",
        _heal,
        "undo all faults, cancel all jobs, kill what they left, and wait until every node is idle",
        (
            ("srobust sandbox heal", "the sandbox named default"),
            ("srobust sandbox heal --name gpus", "another one"),
        ),
    )


def _exec(args: argparse.Namespace) -> int:
    argv = _without_dashes(args.argv) or ["bash", "-l"]
    command = [*_attach(args).enter_command(args.node, args.user), *argv]
    sys.stdout.flush()
    if sys.stdin.isatty():
        # In place of this process: signals, the terminal and the exit code are the command's own.
        os.execvp(command[0], command)
    return run_whole(command)


def run_whole(command: Sequence[str]) -> int:
    """Run a command without a terminal; its exit code. A signal ends it with all that it has started."""
    ended: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _: object = None) -> None:
        ended.append(number)
        if child is not None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, number)

    # First: the command may run before Popen has returned.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    child = subprocess.Popen(["setpriv", "--pdeathsig=KILL", "--", *command], process_group=0)
    for early in tuple(ended):
        pass_on(early)
    code = child.wait()
    if ended:
        # A shell starts what runs in the background deaf to SIGINT.
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    return code if code >= 0 else 128 - code


def _submit(args: argparse.Namespace) -> int:
    argv = _without_dashes(args.argv)
    first = next((i for i, arg in enumerate(argv) if not arg.startswith("-")), None)
    if first is None:
        raise UsageError("no batch script", fix="srobust sandbox submit train.sbatch")
    sandbox = _attach(args)
    print(sandbox.submit(argv[first], *argv[first + 1 :], options=argv[:first], user=args.user))
    return ExitCode.SUCCESS


def _heal(args: argparse.Namespace) -> int:
    heal(_attach(args))
    return ExitCode.SUCCESS


def _without_dashes(argv: Sequence[str]) -> list[str]:
    return list(argv[1:] if argv[:1] == ["--"] else argv)


# -- faults ----------------------------------------------------------------------------------------


def _register_fault(commands: Commands) -> None:
    text = "inject a fault, or undo one; prints it with its time as JSON"
    faults = add_group(commands, "fault", text, member="fault")
    for name, text in NODE_FAULTS.items():
        fault = _add(faults, name, _fault, text, _fault_examples(f"{name} n2"))
        fault.add_argument("node", metavar="NODE", help="n1..nN")
        if name == "fill-disk":
            fault.add_argument("--path", default="/tmp", help="/tmp or /dev/shm (default: %(default)s)")
            fault.add_argument(
                "--mb", type=whole_number(1), metavar="N", help="MiB to write (default: all that is left)"
            )
    for name, text in HEAD_FAULTS.items():
        _add(faults, name, _fault, text, _fault_examples(name))
    for name, text in RANK_FAULTS.items():
        fault = _add(faults, name, _fault, text, _fault_examples(f"{name} --job 1 --rank 2"))
        fault.add_argument(
            "--job", dest="job_id", metavar="JOB", type=whole_number(1), required=True, help="job id"
        )
        fault.add_argument(
            "--rank", metavar="R", type=whole_number(), required=True, help="global rank of the worker"
        )


def _fault_examples(fault: str) -> Examples:
    command = f"srobust sandbox fault {fault}"
    return ((command, "in the sandbox named default"), (f"{command} --name gpus", "in another one"))


def _fault(args: argparse.Namespace) -> int:
    given = vars(args)
    aims = {key: given[key] for key in ("node", "path", "mb", "job_id", "rank") if key in given}
    inject = getattr(_attach(args).fault, args.fault_name.replace("-", "_"))
    print(inject(**aims).to_json())
    if args.fault_name == "boot":
        print(
            "Slurm keeps a node that rebooted unexpectedly DOWN; this resumes it: "
            + resume_line(args.name, args.node),
            file=sys.stderr,
        )
    return ExitCode.SUCCESS


def resume_line(name: str, node: str) -> str:
    """Return what to type so that Slurm uses a booted node again: an order that it takes from root alone."""
    return exec_line(name, f"scontrol update NodeName={node} State=RESUME", " --user root")
