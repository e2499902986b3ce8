"""Boots a sandbox: writes its folder, starts its PID 1, then its nodes and daemons in their order."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_robust.sandbox import etcfiles, procs
from slurm_robust.sandbox.config import ACCOUNT, CLUSTER, HEAD, INSIDE, SandboxConfig
from slurm_robust.sandbox.control import SOCKET
from slurm_robust.sandbox.database import cache_folder, prepare_database
from slurm_robust.sandbox.errors import AlreadyUp, BootFailed
from slurm_robust.sandbox.folder import MADE, StateFolder
from slurm_robust.sandbox.gpus import STATE_FILE, StandInGpus, library
from slurm_robust.sandbox.procs import INIT_MODULE, listens, wait_until
from slurm_robust.sandbox.services import SYSTEM_PATH, user_path
from slurm_robust.sandbox.teardown import is_held, take_down, undisturbed
from slurm_robust.sandbox.view import SandboxView

Progress = Callable[[str], None]

INIT_S = 15.0
DAEMON_S = 30.0
SACCTMGR_S = 30.0
COPY_S = 60.0
LDCONFIG_S = 30.0


@contextmanager
def claimed(folder: StateFolder) -> Iterator[None]:
    """Make the state folder and hold it locked in the block. Raises :class:`AlreadyUp`, :class:`NotOurs`.

    What a crash left there is removed first: a folder that is not locked and that no process runs in.
    """
    if folder.path.exists() and not procs.sandbox_processes(folder.path) and not is_held(folder.path):
        take_down(folder.name)
    if not folder.path.parent.exists():
        folder.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        (folder.path.parent / MADE).touch()
    try:
        folder.path.mkdir(mode=0o755)
    except FileExistsError:
        raise AlreadyUp(
            f"a sandbox {folder.name!r} exists in {folder.path}",
            fix=f"use it, end it with `srobust sandbox down --name {folder.name}`, or take another --name",
        ) from None
    descriptor = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        (folder.path / MADE).touch()
        yield
    finally:
        os.close(descriptor)


def fill_folder(folder: StateFolder, config: SandboxConfig) -> None:
    """Write everything that the sandbox reads."""
    for name in StateFolder.SUBFOLDERS:
        (folder.path / name).mkdir(mode=0o755)
    folder.database.chmod(0o700)
    for node in config.node_names:
        folder.spool(node).mkdir(mode=0o755)
    _write_etc(folder, config)
    _copy_etc(folder, config)
    if config.gpus_per_node:
        _make_gpus(folder, config)
    for user in config.users:
        home, uid = folder.home(user), config.uid(user)
        home.mkdir(mode=0o700)
        for name in (".profile", ".bashrc"):
            (home / name).write_text(etcfiles.profile(user_path(sys.prefix)))
            os.chown(home / name, uid, uid)
        os.chown(home, uid, uid)
    folder.config.write_text(config.to_json())


def _write_etc(folder: StateFolder, config: SandboxConfig) -> None:
    texts = {
        "slurm.conf": etcfiles.slurm_conf(config),
        "gres.conf": etcfiles.gres_conf(config),
        "cgroup.conf": etcfiles.cgroup_conf(config, slurm_version()),
        "topology.conf": etcfiles.topology_conf(config),
    }
    for name, text in texts.items():
        if text:
            (folder.etc / name).write_text(text)
    _write_secret(folder.etc / "slurmdbd.conf", etcfiles.slurmdbd_conf().encode())
    _write_secret(folder.etc / "munge.key", os.urandom(1024))


def _copy_etc(folder: StateFolder, config: SandboxConfig) -> None:
    """Copy the machine's /etc as it is now: what is installed there later does not reach the sandbox."""
    command = ["cp", "--archive", "--one-file-system", "/etc", str(folder.node_etc)]
    # A file that disappears meanwhile does no harm: what the sandbox needs is written below.
    subprocess.run(command, check=False, capture_output=True, timeout=COPY_S)
    texts = {
        "passwd": etcfiles.passwd(config, Path("/etc/passwd").read_text()),
        "group": etcfiles.group(config, Path("/etc/group").read_text()),
        "hosts": etcfiles.hosts(config),
        "nsswitch.conf": etcfiles.nsswitch(),
        "resolv.conf": "",
    }
    for name, text in texts.items():
        # Not through a link, which may lead out of the copy.
        (folder.node_etc / name).unlink(missing_ok=True)
        (folder.node_etc / name).write_text(text)
    slurm = folder.node_etc / "slurm"
    if slurm.is_symlink():
        slurm.unlink()
    slurm.mkdir(exist_ok=True)


def _make_gpus(folder: StateFolder, config: SandboxConfig) -> None:
    """Make device files for Slurm, and a stand-in of NVIDIA's library with a state for each node."""
    for index in range(config.gpus_per_node):
        device = folder.devices / f"gpu{index}"
        # The null device: it takes and forgets every write, and every machine allows it.
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        device.chmod(0o666)
    for node in config.node_names:
        folder.gpus(node).mkdir(mode=0o755, parents=True)
        StandInGpus(folder.gpus(node) / STATE_FILE, node, config.gpus_per_node).reset()
    folder.libraries.mkdir(mode=0o755)
    shutil.copy2(library(cache_folder()), folder.libraries)
    # -X: no link is changed anywhere; folders named here come before those of the machine.
    command = ["ldconfig", "-X", "-C", str(folder.etc / "ld.so.cache"), str(folder.libraries)]
    subprocess.run(command, check=True, capture_output=True, timeout=LDCONFIG_S, env={"PATH": SYSTEM_PATH})


def _write_secret(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


EXPEDITES = (25, 11)
"""The release of Slurm that brought ``--requeue=expedite``."""


def slurm_version() -> tuple[int, int]:
    """Release of the installed slurmd, as (year, month). Raises :class:`BootFailed`."""
    program = shutil.which("slurmd", path=SYSTEM_PATH) or "slurmd"
    done = subprocess.run([program, "-V"], capture_output=True, text=True, timeout=10, check=False)
    numbers = done.stdout.rpartition(" ")[2].split(".")
    try:
        return int(numbers[0]), int(numbers[1])
    except (ValueError, IndexError):
        raise BootFailed(
            f"slurmd -V prints no release: {done.stdout!r} {done.stderr!r}",
            fix="apt-get install --reinstall slurmd",
        ) from None


def launch_init(folder: StateFolder, view: SandboxView) -> None:
    """Start the sandbox's PID 1 and wait until it takes orders. Raises :class:`BootFailed`."""
    # The package may be run from a source tree that only the caller's sys.path knows.
    path = str(Path(__file__).resolve().parents[2])
    with folder.log("init").open("ab") as log:
        launcher = subprocess.Popen(
            [sys.executable, "-m", INIT_MODULE, str(folder.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "PYTHONPATH": path},
            # Ctrl-C in the terminal is for `up`, which then takes the sandbox down by itself.
            start_new_session=True,
        )
    try:
        code = launcher.wait(timeout=INIT_S)
    except subprocess.TimeoutExpired:
        launcher.kill()
        launcher.wait()
        code = -1
    control = folder.path / SOCKET
    if code == 0:
        wait_until(lambda: control.exists() or not procs.sandbox_processes(folder.path), INIT_S)
    if code != 0 or not control.exists():
        raise BootFailed(f"the sandbox's PID 1 did not start:\n{view.log_tail('init')}")


def boot(view: SandboxView, progress: Progress) -> None:
    """Boot from a filled folder to a cluster whose slurmds are started. Raises :class:`BootFailed`."""
    config, control = view.config, view.control
    progress("switch")
    launch_init(view.folder, view)
    control.boot(HEAD)
    head = view.node_pid(HEAD)
    control.start(HEAD, "munged")
    database = _Work(lambda: _start_database(view, head, progress))
    if config.accounting:
        database.start()
    try:
        progress(f"nodes {etcfiles.node_range(config)}")
        for node in config.node_names:
            control.boot(node)
        _need_munge(view)
        if config.accounting:
            database.join()
    except BaseException:
        # Also for Ctrl-C. The thread gives up once the sandbox is gone; it must not outlive this call.
        with undisturbed():
            take_down(view.folder.name, is_ours=True)
            if config.accounting:
                database.join(DAEMON_S)
        raise
    database.check()
    progress("slurmctld")
    control.start(HEAD, "slurmctld")
    _need(view, "slurmctld", lambda: listens(head, etcfiles.SLURMCTLD_PORT))
    progress("slurmd on every node")
    for node in config.node_names:
        control.start(node, "slurmd")


class _Work(threading.Thread):
    """A thread whose failure is raised by :meth:`check` in the thread that waits for it."""

    def __init__(self, task: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._task = task
        self._error: BaseException | None = None

    def run(self) -> None:
        """Run the task and keep whatever it raised."""
        try:
            self._task()
        except BaseException as error:  # noqa: BLE001  # raised again by check() in the waiting thread
            self._error = error

    def check(self) -> None:
        """Raise what the task raised."""
        if self._error is not None:
            raise self._error


def _start_database(view: SandboxView, head: int, progress: Progress) -> None:
    """Start MariaDB, slurmdbd, then add the cluster, its account and its users in one call of sacctmgr."""
    progress("MariaDB and slurmdbd")
    prepare_database(view.folder.database)
    view.control.start(HEAD, "mariadbd")
    _need(view, "mariadbd", lambda: _greets(Path(f"/proc/{head}/root{etcfiles.DATABASE_SOCKET}")))
    _need_munge(view)
    view.control.start(HEAD, "slurmdbd")
    _need(view, "slurmdbd", lambda: listens(head, etcfiles.SLURMDBD_PORT))
    dump = view.folder.etc / "accounts.cfg"
    dump.write_text(accounts(view.config))
    view.exec(
        ["sacctmgr", "--immediate", "load", f"file={INSIDE}/etc/{dump.name}"],
        user="root",
        timeout_s=SACCTMGR_S,
    )


def accounts(config: SandboxConfig) -> str:
    """Return the cluster and its users in the form that ``sacctmgr load`` reads."""
    lines = [
        f"Cluster - '{CLUSTER}':Fairshare=1:QOS='normal'",
        "Parent - 'root'",
        "User - 'root':DefaultAccount='root':AdminLevel='Administrator':Fairshare=1",
        f"Account - '{ACCOUNT}':Description='{ACCOUNT}':Organization='sandbox':Fairshare=1",
        f"Parent - '{ACCOUNT}'",
    ]
    lines += [f"User - '{user}':DefaultAccount='{ACCOUNT}':Fairshare=1" for user in config.users]
    return "\n".join(lines) + "\n"


def _greets(path: Path) -> bool:
    """Return whether the database server sends its greeting: its socket exists some time before."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(1.0)
        try:
            link.connect(str(path))
            return bool(link.recv(1))
        except OSError:
            return False


def _need_munge(view: SandboxView) -> None:
    _need(view, "munged", lambda: (view.folder.path / "munge" / "munge.socket.2").exists())


def _need(view: SandboxView, daemon: str, ready: Callable[[], bool]) -> None:
    def ready_or_over() -> bool:
        view.init_pid()  # Raises when the sandbox was ended meanwhile: nothing to wait for any more.
        return ready() or procs.daemon(head, daemon) is None

    head = view.node_pid(HEAD)
    if not wait_until(ready_or_over, DAEMON_S):
        raise BootFailed(f"{daemon} is not ready after {DAEMON_S:g} s:\n{view.log_tail(daemon)}")
    if not ready():
        raise BootFailed(f"{daemon} ended immediately:\n{view.log_tail(daemon)}")
