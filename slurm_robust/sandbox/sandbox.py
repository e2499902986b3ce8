"""``Sandbox``: a real Slurm cluster on this machine, to try things on and to break."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from slurm_robust.sandbox import cgroups
from slurm_robust.sandbox.boot import boot, claimed, fill_folder
from slurm_robust.sandbox.config import SandboxConfig
from slurm_robust.sandbox.errors import BootFailed, NotThere, NotUp, RequirementMissing, SandboxError
from slurm_robust.sandbox.faults import Faults
from slurm_robust.sandbox.folder import MADE, StateFolder, state_root
from slurm_robust.sandbox.gpus import STATE_FILE, StandInGpus
from slurm_robust.sandbox.procs import wait_until
from slurm_robust.sandbox.services import SYSTEM_PATH
from slurm_robust.sandbox.teardown import take_down, undisturbed
from slurm_robust.sandbox.view import SandboxView

IDLE_S = 60.0
_IDLE = ("idle", "reserved")

# Program -> Debian package. The second part only with accounting.
_ALWAYS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sinfo": "slurm-client",
    "munged": "munge",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
}
_ACCOUNTING = {
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
    "mariadb-install-db": "mariadb-server-core",
    "my_print_defaults": "mariadb-client-core",
}


class Sandbox(SandboxView):
    """A sandbox that is up. Use :meth:`up` (as a context manager, it ends with the block) or :meth:`attach`.

    Everything runs as root of this machine inside namespaces of its own; see the package's docstring.
    """

    def __init__(self, folder: StateFolder, config: SandboxConfig) -> None:
        super().__init__(folder, config)
        self.fault = Faults(self)

    @property
    def name(self) -> str:
        """Its name, which is also that of its folder."""
        return self.folder.name

    @classmethod
    def up(
        cls,
        config: SandboxConfig | None = None,
        *,
        name: str = "default",
        progress: Callable[[str], None] = lambda phase: None,
    ) -> Sandbox:
        """Boot a cluster and return when all nodes are idle. ``progress`` gets each phase.

        Raises :class:`RequirementMissing`, :class:`AlreadyUp`, or :class:`BootFailed` with the log of what
        did not come up. Whatever interrupts it, nothing is left behind.
        """
        config = config or SandboxConfig()
        folder = StateFolder(name)
        check_machine(config.accounting)
        if config.cgroups:
            cgroups.check_kernel()
        sandbox = cls(folder, config)
        with claimed(folder):
            try:
                fill_folder(folder, config)
                boot(sandbox, progress)
                progress("nodes idle")
                sandbox.wait_idle()
            except BaseException:
                # Also for Ctrl-C: a sandbox that is half up is of no use.
                with undisturbed():
                    take_down(name, is_ours=True)
                raise
        return sandbox

    @classmethod
    def attach(cls, name: str = "default") -> Sandbox:
        """Return the running sandbox of that name. Raises :class:`NotUp`, or :class:`RequirementMissing`."""
        folder = StateFolder(name)
        try:
            config = SandboxConfig.from_json(folder.config.read_text())
        except FileNotFoundError:
            raise NotUp(
                f"no sandbox {name!r} is up", fix=f"start it with: srobust sandbox up --name {name}"
            ) from None
        check_root()
        sandbox = cls(folder, config)
        sandbox.init_pid()
        return sandbox

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def gpus(self, node: str) -> StandInGpus:
        """Return the stand-in GPUs of a compute node. Raises :class:`SandboxError` for a node without any."""
        self.check_node(node)
        if not self.config.gpus_per_node:
            raise SandboxError(f"{self.name} has no GPUs", fix="up with --gpus-per-node 8")
        return StandInGpus(self.folder.gpus(node) / STATE_FILE, node, self.config.gpus_per_node)

    def home(self, user: str) -> Path:
        """Return the user's home folder on this machine; inside it is /home/<user>."""
        self.config.uid(user)
        return self.folder.home(user)

    def submit(
        self, script: str | Path, *args: str, options: Sequence[str] = (), user: str | None = None
    ) -> int:
        """Run ``sbatch options script args`` on the head node, in the user's home; returns the job id.

        A script of this machine is copied into the user's home first, unless it is there already; one
        that this machine does not have is a path inside. Raises :class:`ExecFailed`.
        """
        user = user or self.config.users[0]
        command = ["sbatch", "--parsable", *options, self._script_inside(Path(script), user), *args]
        done = self.exec(command, user=user)
        return int(done.stdout.strip().partition(";")[0])

    def _script_inside(self, script: Path, user: str) -> str:
        if not script.is_file():
            return str(script)
        home = self.home(user)
        if script.resolve().is_relative_to(home.resolve()):
            return f"/home/{user}/{script.resolve().relative_to(home.resolve())}"
        copy = home / script.name
        shutil.copyfile(script, copy)
        os.chown(copy, self.config.uid(user), self.config.uid(user))
        return f"/home/{user}/{script.name}"

    def node_states(self) -> dict[str, str]:
        """Return Slurm's state of every node in sinfo's long form (``idle``, ``down*``, ``drained`` ...)."""
        done = self.exec(["sinfo", "--noheader", "--Node", "--format=%N %T"], user="root", timeout_s=30)
        return dict(line.split(None, 1) for line in done.stdout.splitlines() if line.strip())

    def wait_idle(self, timeout_s: float = IDLE_S) -> None:
        """Wait until every node is idle, also in a reservation.

        Raises :class:`BootFailed` with the states of those that are not.
        """
        states: dict[str, str] = {}

        def idle() -> bool:
            states.clear()
            try:
                states.update({name: state.strip() for name, state in self.node_states().items()})
            except SandboxError:
                return False  # slurmctld is starting, or down; the deadline bounds it.
            return bool(states) and all(state in _IDLE for state in states.values())

        if not wait_until(idle, timeout_s, poll_s=0.1):
            late = ", ".join(f"{name} {state}" for name, state in states.items() if state not in _IDLE)
            raise BootFailed(
                f"after {timeout_s:g} s not all nodes are idle: {late or 'slurmctld does not answer'}\n"
                f"{self.log_tail('slurmctld')}"
            )

    def read_log(self, daemon: str, lines: int = 0) -> str:
        """Return a daemon's log, the last ``lines`` of it if that is not 0. Raises :class:`SandboxError`."""
        known = sorted(path.stem for path in self.folder.logs.glob("*.log"))
        if daemon not in known:
            raise NotThere(f"no log of {daemon!r}", fix=f"name one of {', '.join(known)}")
        text = self.folder.log(daemon).read_text(errors="replace").splitlines()
        return "\n".join(text[-lines:] if lines > 0 else text)

    def down(self) -> None:
        """End it and remove its folder; fine when it is down already."""
        take_down(self.name)


def sandbox_names() -> tuple[str, ...]:
    """Return names of all sandboxes with a state folder, also of broken ones, but no folders of others."""
    try:
        return tuple(sorted(entry.name for entry in state_root().iterdir() if (entry / MADE).exists()))
    except FileNotFoundError:
        return ()


# -- what a machine needs ----------------------------------------------------------------------------


def missing_packages(accounting: bool, has: Callable[[str], bool]) -> tuple[str, ...]:
    """Return Debian packages of the programs that ``has`` does not find, sorted. Pure."""
    programs = _ALWAYS | (_ACCOUNTING if accounting else {})
    return tuple(sorted({package for program, package in programs.items() if not has(program)}))


def check_machine(accounting: bool) -> None:
    """Raise :class:`RequirementMissing` when this process is not root or a program is not installed."""
    check_root()
    packages = missing_packages(
        accounting, lambda program: shutil.which(program, path=SYSTEM_PATH) is not None
    )
    if packages:
        raise RequirementMissing(
            f"programs of these Debian packages are not installed: {', '.join(packages)}",
            fix=f"apt-get install {' '.join(packages)}",
        )


def check_root() -> None:
    """Raise :class:`RequirementMissing` when this process is not root's."""
    if os.geteuid() != 0:
        raise RequirementMissing(
            "a sandbox makes namespaces and mounts, which only root may", fix="run it as root, with sudo"
        )
