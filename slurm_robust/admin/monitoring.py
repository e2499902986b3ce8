"""``srobust admin monitoring``: writes what Grafana and Prometheus read."""

from __future__ import annotations

from pathlib import Path

from slurm_robust.admin.files import InstallError
from slurm_robust.admin.items import DATA
from slurm_robust.model.record import Record
from slurm_robust.terminal.console import show
from slurm_robust.util.files import write_atomically


class MonitoringFiles(Record):
    """What was written."""

    folder: str
    files: tuple[str, ...]


def main(folder: Path, *, force: bool, json: bool) -> int:
    """Write the files into ``folder``. Raises :class:`InstallError` if one is there, unless ``force``."""
    texts = {path.name: path.read_bytes() for path in sorted((DATA / "monitoring").iterdir())}
    there = [str(folder / name) for name in texts if (folder / name).is_symlink() or (folder / name).exists()]
    if there and not force:
        raise InstallError(
            f"nothing was written, since files are there already: {', '.join(there)}",
            "--force writes them anew, --dir DIR writes them elsewhere",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_atomically(folder / name, text, durable=False)
    except OSError as error:
        raise InstallError(
            f"{folder} cannot be written: {error.strerror}", "--dir names another folder"
        ) from error
    written = MonitoringFiles(folder=str(folder), files=tuple(texts))
    show(written, lambda _: "\n".join(f"written: {folder / name}" for name in texts), json=json)
    return 0
