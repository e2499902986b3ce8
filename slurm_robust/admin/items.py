"""What an installation consists of: names, modes and texts. Reads only this package's own files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from slurm_robust.admin.files import Item
from slurm_robust.config import reference
from slurm_robust.config.node import NodeConfig
from slurm_robust.model.record import Record
from slurm_robust.terminal import completion

DATA = Path(__file__).parent / "data"
ETC = "/etc/slurm-robust"
CONFIG = f"{ETC}/config.yaml"
ACT = f"{ETC}/conf.d/50-act.yaml"
HOOKS = f"{ETC}/slurm.d"
"""What slurm.conf names: the same on all nodes, however this package came there."""

PROLOG = f"{HOOKS}/prolog/*"
EPILOG = f"{HOOKS}/epilog/*"
HEALTH_CHECK = f"{HOOKS}/healthcheck"
UNITS = "/etc/systemd/system"
TIMER = "slurm-robust.timer"
WATCH = "slurm-robust-watch.service"
UNIT_FILES = ("slurm-robust.service", TIMER, WATCH)
DROP_INS = tuple(f"{ETC}/{name}.d" for name in ("conf", "checks", "prolog", "epilog", "periodic"))

_PROGRAM = re.compile("@[A-Z_]+@")
_SETTING = re.compile(r"^(SROBUST_NODE|here)=.*$", re.MULTILINE)


class Layout(Record):
    """The places of things."""

    node_command: str
    """Absolute path of ``srobust-node``."""

    prefix: str = "/usr/local"
    packaged: bool = False
    """A .deb or .rpm has brought all that is below ``prefix`` and in /etc."""

    timer: bool = False
    act: bool = False

    @property
    def libexec(self) -> str:
        """Folder of the scripts."""
        return f"{self.prefix}/libexec/slurm-robust"


def items(layout: Layout, links: Mapping[str, str]) -> list[Item]:
    """Return everything, folders before what is in them. ``links``: as a plan for slurm.conf has them."""
    wanted = [
        Item(path="/var/lib/slurm-robust", kind="folder", mode=0o700),
        # Others pass: SlurmUser to the folder of the hooks beside slurmctld.
        Item(path="/var/log/slurm-robust", kind="folder", mode=0o751),
        Item(path=HOOKS, kind="folder", mode=0o755),
        *(Item(path=f"{HOOKS}/{name}", kind="folder", mode=0o755) for name in ("prolog", "epilog")),
    ]
    # A site's script is linked by its full path, one of ours by its name.
    wanted += [
        Item(path=path, kind="link", target=str(PurePosixPath(layout.libexec, target)))
        for path, target in links.items()
    ]
    wanted.append(Item(path=HEALTH_CHECK, kind="link", target=f"{layout.libexec}/healthcheck.sh"))
    if layout.act:
        wanted.append(Item(path=ACT, text="# Remove this file to observe only.\ndrain:\n  mode: act\n"))
    return wanted if layout.packaged else [*package_items(layout), *wanted]


def package_items(layout: Layout) -> list[Item]:
    """Return what a package brings, and an installation by pip writes."""
    units = UNIT_FILES if layout.timer else ()
    return [
        *(Item(path=path, kind="folder", mode=0o755) for path in (ETC, *DROP_INS)),
        Item(path=CONFIG, text=reference.as_yaml(NodeConfig, (DATA / "config-header.txt").read_text())),
        Item(path="/etc/logrotate.d/slurm-robust", text=(DATA / "logrotate").read_text()),
        Item(path=layout.libexec, kind="folder", mode=0o755),
        *(
            Item(path=f"{layout.libexec}/{name}", text=text, mode=0o755)
            for name, text in scripts(layout).items()
        ),
        *(
            Item(path=f"{layout.prefix}/share/man/man{name[-1]}/{name}", text=text)
            for name, text in man_pages().items()
        ),
        *(
            Item(path=f"{layout.prefix}/{place}", text=completion.SCRIPTS[shell])
            for shell, place in completion.PLACES.items()
        ),
        *(Item(path=f"{UNITS}/{name}", text=unit(name, layout)) for name in units),
    ]


def scripts(layout: Layout) -> dict[str, str]:
    """Return the hooks by name; each calls this very ``srobust-node`` and finds the others in this folder."""
    known = {"SROBUST_NODE": shlex.quote(layout.node_command), "here": shlex.quote(layout.libexec)}
    return {
        path.name: _SETTING.sub(lambda found: f"{found[1]}={known[found[1]]}", path.read_text())
        for path in sorted((DATA / "scripts").glob("*.sh"))
    }


def unit(name: str, layout: Layout) -> str:
    """Return a systemd unit."""
    text = (DATA / name).read_text()
    programs = {"@NODE@": layout.node_command, "@HEALTH_CHECK@": f"{layout.libexec}/healthcheck.sh"}
    return _PROGRAM.sub(lambda found: _for_systemd(programs[found[0]]), text)


def _for_systemd(path: str) -> str:
    """Return how ExecStart= has it. systemd takes no program with a quote in its name, but any argument."""
    if re.fullmatch(r"[\w/.+@:,-]+", path):
        return path
    escaped = path.replace("\\", r"\\").replace('"', r"\"").replace("%", "%%").replace("$", "$$")
    return f"""/bin/sh -c 'exec "$$0" "$$@"' "{escaped}\""""


def man_pages() -> dict[str, str]:
    """Return manual pages by file name; the one of the configuration lists the keys that there are."""
    pages = sorted((DATA / "man").glob("*.[1-9]"))
    return {path.name: path.read_text().replace("@KEYS@\n", reference.as_roff(NodeConfig)) for path in pages}
