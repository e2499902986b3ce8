"""What the administrator's commands find on a machine: slurm.conf, our own commands, Slurm's live word."""

from __future__ import annotations

import os
import sys
import sysconfig
from glob import escape, glob
from pathlib import Path

from slurm_robust.admin import items, slurmconf
from slurm_robust.admin.files import InstallError, Tree, write_whole
from slurm_robust.config import nodefile
from slurm_robust.config.node import NodeConfig
from slurm_robust.home import PACKAGE_TREE, is_packaged
from slurm_robust.hooks.environment import slurm_environment
from slurm_robust.kernel import mountinfo
from slurm_robust.kernel.host import Host
from slurm_robust.slurm.cli_client import CliSlurmClient
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.configuration import ConfigurationRefused, LiveConfiguration
from slurm_robust.util.trust import distrust, distrust_folder

_USUAL = ("/etc/slurm/slurm.conf", "/usr/local/etc/slurm.conf", "/opt/slurm/etc/slurm.conf")
CONFIGLESS = "/run/slurm/conf/slurm.conf"


class Site:
    """This machine. ``config``: in place of what the files say, without which they must be right.

    ``tree``, ``live``, ``slurm`` and ``node_command`` are others in tests only.
    """

    def __init__(
        self,
        slurm_conf: str = "",
        *,
        config: NodeConfig | None = None,
        tree: Tree | None = None,
        live: LiveConfiguration | None = None,
        slurm: SlurmClient | None = None,
        node_command: str = "",
    ) -> None:
        self.tree = tree or Tree()
        command = node_command or find_node_command()
        # A link that is turned later changes nothing of what the hooks run.
        self.node_command = os.path.realpath(command)
        # All that a hook runs: a user who can write there is root in the end.
        self.program: tuple[str, ...] = (command,)
        self.modules: tuple[str, ...] = ()
        if not node_command:
            self.program += (sys.executable,)
            self.modules = module_folders()
        file = self.tree.path(items.CONFIG)
        self.config = config or (nodefile.load(file) if nodefile.files(file) else NodeConfig())
        environ = slurm_environment(self.config, os.environ.get)
        self.main = slurm_conf or environ.get("SLURM_CONF", "") or self._usual()
        environ |= {"SLURM_CONF": self.main} if self.main else {}
        self.live = live or LiveConfiguration(environ)
        self.slurm = slurm or CliSlurmClient(self.config.hooks.slurm_s, environ=environ)

    def distrusted(self) -> dict[str, str]:
        """Return all that a hook runs, and why others than root could change it; "" for what they cannot."""
        return {path: distrust(path) for path in self.program} | {
            folder: distrust_folder(folder) for folder in self.modules
        }

    def network_kind(self, name: str) -> str:
        """Return the kind of network file system, seen by other nodes, in which a folder lies; else ""."""
        try:
            mounts = mountinfo.mounted(Host(self.tree.root))
        except OSError:
            return ""
        mount = mountinfo.holding(os.path.realpath(self.tree.path(name)), mounts)
        return mount.kind if mount is not None and mount.is_network else ""

    def _usual(self) -> str:
        paths = (*_USUAL, CONFIGLESS)
        return next((path for path in paths if self.tree.path(path).exists()), "")

    @property
    def is_configless(self) -> bool:
        """Whether slurm.conf is a copy that slurmd fetched: the one to change is the controller's."""
        return os.path.realpath(self.tree.path(self.main)).startswith("/run/slurm")

    @property
    def has_timer(self) -> bool:
        """Whether systemd runs the periodic checks here, now and after each boot."""
        return self.tree.find(f"{items.UNITS}/timers.target.wants/{items.TIMER}") is not None

    def slurm_files(self) -> dict[str, str]:
        """Return slurm.conf and what it includes; nothing if there is none. Raises :class:`InstallError`."""
        if not self.main or not self.tree.path(self.main).exists():
            return {}
        try:
            return slurmconf.read_all(self.main, self._read)
        except OSError as error:
            raise InstallError(
                f"{error.filename} cannot be read: {error.strerror}", "name another file with --slurm-conf"
            ) from error

    def _read(self, name: str) -> str:
        # Bytes that are no UTF-8 pass through; line ends stay as they are.
        return self.tree.path(name).read_bytes().decode(errors="surrogateescape")

    def wish(self, *, timer: bool) -> slurmconf.HookSettings:
        """Return what slurm.conf must say here."""
        hooks = self.config.hooks
        return slurmconf.HookSettings(
            prolog=items.PROLOG,
            epilog=items.EPILOG,
            health_check="" if timer else items.HEALTH_CHECK,
            budget_s=max(hooks.prolog_s, hooks.epilog_s),
        )

    def apply(self, plan: slurmconf.SlurmConfChange, stamp: str) -> list[str]:
        """Change slurm.conf and have Slurm read it; returns the backups' names.

        A file that Slurm cannot parse never becomes the real one. What slurmctld refuses is undone. Raises
        :class:`InstallError`.
        """
        changed = {name: text for name, text in plan.after.items() if text != plan.before[name]}
        try:
            if self.main in changed:
                self._try(changed[self.main])
            backups = [self._backup(name, stamp) for name in changed]
        except (ConfigurationRefused, OSError) as error:
            raise InstallError(f"nothing was changed: {error}", "fix that first") from error
        try:
            for name, text in changed.items():
                self._write(name, text)
            self.live.reconfigure()
            self.live.read()
        except BaseException as error:
            # Also for Ctrl-C: a file that slurmctld has not taken would surprise it at its next start.
            for name in changed:
                self._write(name, plan.before[name])
            undone = self._told_again()
            if not isinstance(error, ConfigurationRefused | OSError):
                raise
            raise InstallError(
                f"slurm.conf is as it was: {error}{undone}", "see the log of slurmctld, then try again"
            ) from error
        return backups

    def backups(self) -> list[Path]:
        """Return what :meth:`apply` has left beside slurm.conf and the files that it includes."""
        real = [os.path.realpath(self.tree.path(name)) for name in self.slurm_files()]
        stamp = "[0-9]" * 8 + "T" + "[0-9]" * 6
        return [Path(path) for name in real for path in sorted(glob(f"{escape(name)}.slurm-robust-{stamp}"))]

    def _told_again(self) -> str:
        try:
            self.live.reconfigure()
        except ConfigurationRefused as error:
            return f"; slurmctld does not take that one either: {error}"
        return ""

    def _try(self, text: str) -> None:
        """Let Slurm parse the text from beside the real file, so that it finds includes."""
        real = Path(os.path.realpath(self.tree.path(self.main)))
        trial = real.with_name(f"{real.name}.slurm-robust-trial")
        try:
            write_whole(trial, text.encode(errors="surrogateescape"), real.stat().st_mode & 0o7777, 0, 0)
            self.live.try_file(str(trial))
        finally:
            trial.unlink(missing_ok=True)

    def _backup(self, name: str, stamp: str) -> str:
        real = os.path.realpath(self.tree.path(name))
        backup = f"{real}.slurm-robust-{stamp}"
        found = os.stat(real)
        write_whole(Path(backup), Path(real).read_bytes(), found.st_mode & 0o7777, found.st_uid, found.st_gid)
        return backup

    def _write(self, name: str, text: str) -> None:
        real = Path(os.path.realpath(self.tree.path(name)))
        found = real.stat()
        content = text.encode(errors="surrogateescape")
        write_whole(real, content, found.st_mode & 0o7777, found.st_uid, found.st_gid)


def find_node_command() -> str:
    """Return the ``srobust-node`` that belongs to this program. Raises :class:`InstallError`."""
    beside = [Path(sys.argv[0]).absolute().parent, Path(sys.executable).parent]
    found = next((folder / "srobust-node" for folder in beside if (folder / "srobust-node").exists()), None)
    if found is None:
        raise InstallError("srobust-node is not beside srobust", "install the package again")
    return str(found)


def module_folders() -> tuple[str, ...]:
    """Return the folders from which this program imports modules."""
    if is_packaged():
        return (str(PACKAGE_TREE),)
    own = str(items.DATA.parents[1])
    others = (sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib"))
    return tuple(dict.fromkeys((own, *others)))


def must_be_root(what: str) -> None:
    """Raise :class:`InstallError` for any other user."""
    if os.geteuid() != 0:
        raise InstallError(f"{what} writes to /etc and /usr, which only root may", "run it with sudo")
