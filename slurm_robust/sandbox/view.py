"""A sandbox seen from the machine: its nodes' processes, and commands run inside."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from slurm_robust.sandbox import procs
from slurm_robust.sandbox.config import HEAD, SandboxConfig
from slurm_robust.sandbox.control import Control
from slurm_robust.sandbox.errors import ExecFailed, ExecTimedOut, NotThere, NotUp, SandboxError
from slurm_robust.sandbox.folder import StateFolder
from slurm_robust.sandbox.services import SLURM_CONF, user_path
from slurm_robust.util.program import kill_group

EXEC_TIMEOUT_S = 60.0


class SandboxView:
    """Finds and enters the nodes of one sandbox. Holds no resource; nothing in it ends the sandbox."""

    def __init__(self, folder: StateFolder, config: SandboxConfig) -> None:
        self.folder = folder
        self.config = config
        self.control = Control(folder.path, folder.name)
        self._init_pid: int | None = None

    def init_pid(self) -> int:
        """Return the machine's pid of the sandbox's PID 1. Raises :class:`NotUp`."""
        known = self._init_pid
        if known is None or not procs.runs_init(known, self.folder.path):
            known = self._init_pid = procs.sandbox_init(self.folder.path)
        if known is None:
            raise NotUp(
                f"no sandbox {self.folder.name!r} is up",
                fix=f"start it with: srobust sandbox up --name {self.folder.name}",
            )
        return known

    def node_pid(self, node: str) -> int:
        """Return the machine's pid of the node's PID 1. Raises :class:`SandboxError` if off or unknown."""
        self.check_node(node, head=True)
        state = self.control.nodes().get(node)
        if state is None or not state.on:
            raise SandboxError(
                f"{node} is off", fix=f"boot it: srobust sandbox fault boot {node} --name {self.folder.name}"
            )
        inner = state.pid
        found = procs.find_child(self.init_pid(), lambda process: process.nspids[-2:] == (inner, 1))
        if found is None:
            raise SandboxError(
                f"{node} died just now", fix=f"see {self.folder.log('init')}, and boot it again"
            )
        return found.pid

    def check_node(self, node: str, *, head: bool = False) -> None:
        """Raise :class:`SandboxError` for a node that this sandbox does not have."""
        names = self.config.all_names if head else self.config.node_names
        if node not in names:
            raise NotThere(f"no node {node!r} in {self.folder.name!r}", fix=f"name one of {', '.join(names)}")

    def host_pids(self, node: str) -> tuple[int, ...]:
        """Return the machine's pids of everything that runs on the node, its PID 1 included."""
        return procs.members(self.node_pid(node))

    def enter_command(
        self, node: str = HEAD, user: str | None = None, env: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        """Return the begin of a command line that runs the rest on the node as the user, in that one's home.

        The command gets a fresh environment plus ``env`` and dies with the process that this
        starts. Good until the node's next boot. ``user`` None is the first user.
        """
        user = user or self.config.users[0]
        uid = self.config.uid(user)
        home = "/root" if user == "root" else f"/home/{user}"
        variables = {
            "HOME": home,
            "USER": user,
            "LOGNAME": user,
            "SHELL": "/bin/bash",
            "PATH": user_path(sys.prefix),
            "LANG": "C.UTF-8",
            "TERM": os.environ.get("TERM", "dumb"),
            "SLURM_CONF": SLURM_CONF,
            "VIRTUAL_ENV": sys.prefix,
            **(env or {}),
        }
        target = str(self.node_pid(node))
        # Its root, too: where this process is in a chroot, that of its mount namespace is another one.
        enter = ("nsenter", "--target", target, "--mount", "--root", "--uts", "--ipc", "--net", "--pid", "--")
        become = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--init-groups", "--pdeathsig=KILL", "--")
        assignments = (f"{key}={value}" for key, value in variables.items())
        return (*enter, *become, "env", "--ignore-environment", f"--chdir={home}", *assignments)

    def popen(
        self,
        argv: Sequence[str],
        *,
        node: str = HEAD,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[str] | None = subprocess.DEVNULL,
        stdout: int | IO[str] | None = subprocess.PIPE,
        stderr: int | IO[str] | None = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a command inside; killing the returned process kills it. Its process group is its own."""
        return subprocess.Popen(
            [*self.enter_command(node, user, env), *argv],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def exec(
        self,
        argv: Sequence[str],
        *,
        node: str = HEAD,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        input: str | None = None,
        timeout_s: float = EXEC_TIMEOUT_S,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside to its end.

        Raises :class:`ExecFailed` for an exit code other than 0 (unless ``check`` is off) and
        :class:`ExecTimedOut` after killing it and its children.
        """
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        process = self.popen(argv, node=node, user=user, env=env, stdin=stdin)
        try:
            out, err = process.communicate(input, timeout=timeout_s)
        except BaseException as error:
            # Also on Ctrl-C: nothing that was started inside may go on unseen.
            kill_group(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise ExecTimedOut(argv, timeout_s, error.stderr or error.stdout or b"") from None
            raise
        if check and process.returncode != 0:
            raise ExecFailed(argv, process.returncode, out, err)
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def log_tail(self, daemon: str) -> str:
        """Return the end of a daemon's log and of its output, for messages."""
        paths = (self.folder.log(daemon), self.folder.logs / f"{daemon}.out")
        text = "\n".join(filter(None, (_tail(path, 15) for path in paths)))
        return text or f"(no log in {self.folder.logs})"


def _tail(path: Path, lines: int) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
