"""The archive on one incident that people send with a report on a fault: no secrets, on request no names."""

from __future__ import annotations

import io
import os
import platform
import pwd
import re
import socket
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import msgspec

from slurm_robust.config.plan import load_plan
from slurm_robust.doctor.gather import DoctorRequest
from slurm_robust.doctor.main import examine
from slurm_robust.evidence.bundle import folder_of
from slurm_robust.evidence.incidents import IncidentReport, find_report, incident_reports
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.job import JobDirectory
from slurm_robust.sharing.neutral import Names, Neutral, without_secrets
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import JobNotFound, SlurmError
from slurm_robust.terminal.console import Bar
from slurm_robust.trainings.find import find, load_events
from slurm_robust.trainings.slurmview import make_slurm
from slurm_robust.util.files import write_atomically
from slurm_robust.util.hostlist import expand_if_valid
from slurm_robust.util.text import size_text
from slurm_robust.version import __version__

MIB = 1024 * 1024
MAX_FILE = MIB
"""Bytes of one file of the archive; of a log its end, of all else its beginning."""

MAX_ALL = 24 * MIB
"""Bytes of all files together, before they are compressed."""

MAX_EVENTS = 5000
"""Events of the journal: of more, the oldest are left out."""

_HOME = re.compile(r"/(?:home\d*|users|Users|u)/(?:[a-z]/)?([^/]+)")
_ACCOUNT = re.compile(r"(?:--account[= ]|\s-A\s?)([\w.-]+)")
_CONTEXT = (ev.RunStarted, ev.ControllerStarted, ev.AllocationTaken, ev.GenerationLaunched)
_NODES = frozenset(
    [
        "node",
        "nodes",
        "slots",
        "spares",
        "standby",
        "suspects",
        "exclude",
        "master",
        "first",
        "second",
        "peers",
    ]
)
_HOSTS = frozenset({"host", "taken_from", "cluster"})
_WORKS = frozenset({"training", "array_task", "command"})
_FOLDERS = frozenset({"cwd", "path", "folder"})


class NoArchive(SrobustError):
    """The archive cannot be written."""

    exit_code = ExitCode.JOB_DIR
    fix = "name a file in a folder where you may write"


def main(name: str, number: int, target: Path, *, anonymous: bool, job_dir: str | None) -> int:
    """Write the archive on one incident of a job. Raises ``NoSuchJob``, ``NoSuchIncident``."""
    slurm = make_slurm()
    directory = find(name, job_dir, slurm)
    events = load_events(directory)
    report = find_report(directory, incident_reports(events), number, name)
    with Bar("gathering evidence"):
        nbytes = write_archive(directory, report, events, target, slurm, anonymous=anonymous)
    more = "neither secrets nor names" if anonymous else "no secrets, but names (--anonymous replaces them)"
    print(f"{target}: {size_text(nbytes)}, {more}; look at it before you send it")
    return 0


def write_archive(
    directory: JobDirectory,
    report: IncidentReport,
    events: Sequence[ev.AnyEvent],
    target: Path,
    slurm: SlurmClient,
    *,
    anonymous: bool,
) -> int:
    """Write what is known of one incident to ``target``; returns its bytes. Raises :class:`NoArchive`."""
    clean = cleaner(directory, events, slurm, anonymous=anonymous)
    top = clean(f"incident of job {report.job_id} {report.number}").replace(" ", "-")
    packed, left = io.BytesIO(), MAX_ALL
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in _files(directory, report, events, slurm):
            data = clean(text).encode(errors="replace")
            data = data[-MAX_FILE:] if name.startswith("logs/") else data[:MAX_FILE]
            if len(data) > left:
                data = b"(left out: the archive is full)\n"
            left -= len(data)
            about = tarfile.TarInfo(f"{top}/{name}")  # no owner, no time of this machine
            about.size, about.mode = len(data), 0o644
            archive.addfile(about, io.BytesIO(data))
    try:
        write_atomically(target, packed.getvalue(), durable=False)
    except OSError as error:
        raise NoArchive(f"{target}: {error.strerror}") from error
    return len(packed.getvalue())


def cleaner(
    directory: JobDirectory | None, events: Iterable[ev.AnyEvent], slurm: SlurmClient, *, anonymous: bool
) -> Callable[[str], str]:
    """Return what rewrites a text that leaves the site: no secrets, and no names if ``anonymous``."""
    keys = tuple(_keys(directory)) if directory is not None else ()
    neutral = Neutral(names_of(directory, events, slurm)) if anonymous else None

    def clean(text: str) -> str:
        text = without_secrets(text, os.environ, keys)
        return text if neutral is None else neutral.text(text)

    return clean


def names_of(directory: JobDirectory | None, events: Iterable[ev.AnyEvent], slurm: SlurmClient) -> Names:
    """Return the names that a job's journal, Slurm and this machine know."""
    found: dict[str, set[str]] = {kind: set() for kind in Names.__struct_fields__}
    for event in events:
        _walk(msgspec.to_builtins(event), found)
    hostname = socket.gethostname()
    found["hosts"] |= {hostname, hostname.partition(".")[0]}
    found["folders"] |= {os.getcwd(), os.path.expanduser("~")}
    owners = {os.getuid()}
    if directory is not None:
        found["folders"] |= {str(directory.path), str(directory.path.parent)}
        owners.add(directory.path.stat().st_uid)
    for owner in owners:
        try:
            entry = pwd.getpwuid(owner)
        except KeyError:
            continue
        found["users"].add(entry.pw_name)
        found["folders"].add(entry.pw_dir)
        found["works"] |= {word for word in entry.pw_gecos.split(",") if word}
    try:
        found["nodes"] |= {node.name for node in slurm.nodes()}
        for job_id in tuple(found["jobs"]):
            job = slurm.job(int(job_id))
            found["users"].add(job.user_name)
            found["works"].add(job.name)
            given = slurm.submission(int(job_id))
            found["accounts"].update(_ACCOUNT.findall(f"{given.line}\n{given.script}"))
    except (SlurmError, ValueError, OSError):
        pass  # the journal has what counts
    found["users"].update(match[1] for folder in found["folders"] if (match := _HOME.match(folder)))
    found["accounts"].add(os.environ.get("SLURM_JOB_ACCOUNT", ""))
    found["hosts"] -= found["nodes"]
    return Names(**{kind: tuple(sorted(each - {""})) for kind, each in found.items()})


def _walk(value: Any, found: dict[str, set[str]], key: str = "") -> None:
    if isinstance(value, dict):
        for name, below in value.items():
            _walk(below, found, name)
    elif isinstance(value, list | tuple):
        for below in value:
            _walk(below, found, key)
    elif key == "job_id" and value:
        found["jobs"].add(str(value))
    elif isinstance(value, str) and value:
        if key in _NODES:
            found["nodes"].update(node.partition(":")[0] for node in expand_if_valid(value) or (value,))
        elif key in _HOSTS:
            found["hosts"].add(value)
        elif key == "user":
            found["users"].add(value)
        elif key == "account":
            found["accounts"].add(value)
        elif key in _WORKS:
            found["works"].update(_words(value))
        elif key in _FOLDERS:
            found["folders"].add(value)


def _words(text: str) -> Iterator[str]:
    """Yield what a word of a command names: a file's name without its ending, the value of an option."""
    for word in text.replace("=", " ").split():
        if not word.startswith("-"):
            yield from (os.path.splitext(part)[0] for part in word.split("/") if part.strip("."))


def _files(
    directory: JobDirectory, report: IncidentReport, events: Sequence[ev.AnyEvent], slurm: SlurmClient
) -> Iterator[tuple[str, str]]:
    yield "versions.txt", "\n".join(_versions(events, slurm)) + "\n"
    yield (
        "journal.jsonl",
        "".join(ev.encode_event(event).decode(errors="replace") + "\n" for event in _part(report, events)),
    )
    yield "doctor.json", _doctor(directory, report.job_id, slurm)
    if directory.spec.exists():
        yield "job.json", directory.spec.read_text(errors="replace")
    if (log := _own_log(directory)) is not None:
        yield "logs/job.log", log
    folder = folder_of(directory, report.number)
    for path in sorted(folder.rglob("[!.]*")):
        if path.is_file() and not path.is_symlink():
            yield str(path.relative_to(folder)), path.read_text(errors="replace")


def _part(report: IncidentReport, events: Sequence[ev.AnyEvent]) -> Sequence[ev.AnyEvent]:
    """Return what the journal says of the incident, and of the run in which it began."""
    ends = report.events[-1].t
    begins = report.events[0].t
    part = [e for e in events if (e.t < begins and isinstance(e, _CONTEXT)) or begins <= e.t <= ends]
    return part[-MAX_EVENTS:]


def _versions(events: Sequence[ev.AnyEvent], slurm: SlurmClient) -> Iterator[str]:
    yield f"srobust {__version__}"
    started = next((event for event in events if isinstance(event, ev.RunStarted)), None)
    if started is not None:
        yield f"srobust of the job {started.version}"
    yield f"python {platform.python_version()}"
    for package in ("torch", "rich", "msgspec", "pyzmq"):
        try:
            yield f"{package} {installed(package)}"
        except PackageNotFoundError:
            yield f"{package} not installed"
    yield f"kernel {platform.system()} {platform.release()} {platform.machine()}"
    try:
        yield f"slurm {slurm.version()}"
    except (SlurmError, OSError) as error:
        yield f"slurm unknown: {error}"


def _doctor(directory: JobDirectory, job_id: int, slurm: SlurmClient) -> str:
    try:
        config = load_plan(directory).config
        try:
            found = examine(DoctorRequest(job_id=job_id), config, slurm)
        except JobNotFound:  # Slurm forgets a job soon after its end
            found = examine(DoctorRequest(), config, slurm)
        return msgspec.json.format(msgspec.json.encode(found), indent=1).decode()
    except (SrobustError, OSError) as error:
        return msgspec.json.encode({"failed": str(error)}).decode()


def _own_log(directory: JobDirectory) -> str | None:
    try:
        output = load_plan(directory).output
        return Path(output).read_text(errors="replace")[-MAX_FILE:] if output else None
    except (SrobustError, OSError):
        return None


def _keys(directory: JobDirectory) -> Iterator[str]:
    """Yield the contents of the job's key files: they are nowhere, but must not be."""
    for path in sorted(directory.keys.rglob("*")) if directory.keys.is_dir() else ():
        try:
            yield from (line.strip().strip('"') for line in path.read_text(errors="replace").splitlines())
        except OSError:
            continue
