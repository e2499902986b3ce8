"""What a test run left on this machine: processes, namespaces, mounts, network links, shared memory.

    leftovers.py snapshot               print the state of the machine as JSON
    leftovers.py compare BEFORE FOLDER [SECONDS]
                                        print what is new since BEFORE and stays for SECONDS (5 by default);
                                        exit code 1 if anything is
    leftovers.py kill FOLDER            end the processes that belong to the run

A process belongs to the run if FOLDER (the run's state folder) is in its environment, which every child
of the run inherits, or in its command line, or among its mounts: Slurm gives a job's processes another
environment, but they see the sandbox's folder mounted. So several runs, and sandboxes of other people, can
share a machine. Standard library only: it runs before the set-up.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

# A helper that ends when its parent has ended, such as multiprocessing's fork server, needs a moment for it.
GRACE_S = 5.0


def read(path: Path) -> str:
    """The text of a file under /proc; empty when its process has gone or is not ours to see."""
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def processes() -> Iterator[Path]:
    """Folders under /proc of all living processes but this one; a zombie holds nothing any more."""
    for folder in Path("/proc").glob("[0-9]*"):
        state = read(folder / "stat").rpartition(")")[2].split()
        if state and state[0] not in "ZX" and int(folder.name) != os.getpid():
            yield folder


def belongs(folder: Path, state_folder: str) -> bool:
    """Whether the process carries the run's mark."""
    return any(state_folder in read(folder / name) for name in ("environ", "cmdline", "mountinfo"))


def namespaces(folders: Iterable[Path]) -> dict[str, str]:
    """Namespaces of these processes by name (``net:[4026531840]``), each with one that is in it."""
    found: dict[str, str] = {}
    for folder in folders:
        for link in ("net", "mnt", "pid", "uts", "ipc"):
            with contextlib.suppress(OSError):
                found.setdefault(os.readlink(folder / "ns" / link), f"{folder.name} {read(folder / 'comm')}")
    return found


def snapshot() -> dict[str, list[str]]:
    """Everything that a run must not leave, as sorted names by kind."""
    return {
        "namespace": sorted(namespaces(processes())),
        "mount": sorted(line.split()[1] for line in read(Path("/proc/self/mounts")).splitlines()),
        "link": sorted(os.listdir("/sys/class/net")),
        "shared memory": sorted(name for name in os.listdir("/dev/shm") if name.startswith("srobust")),
    }


def left(before: dict[str, list[str]], state_folder: str) -> list[str]:
    """One line for each thing that is there now and was not before."""
    now = snapshot()
    lines = [
        f"{kind} {name}"
        for kind in ("mount", "link", "shared memory")
        for name in now[kind]
        if name not in before[kind]
    ]
    spared = ancestors()
    ours = [p for p in processes() if int(p.name) not in spared and belongs(p, state_folder)]
    lines += [f"process {p.name}: {read(p / 'cmdline')[:200] or read(p / 'comm')}" for p in ours]
    lines += [
        f"namespace {name} of {holder}"
        for name, holder in namespaces(ours).items()
        if name not in before["namespace"]
    ]
    return lines


def ancestors() -> set[int]:
    """This process and those above it: the run itself, which is still there."""
    found: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        fields = read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0
    return found


def kill(state_folder: str) -> None:
    """SIGKILL for every process of the run but those above this one."""
    spared = ancestors()
    for folder in processes():
        if belongs(folder, state_folder) and int(folder.name) not in spared:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(folder.name), signal.SIGKILL)


def main(words: list[str]) -> int:
    """Run one of the three commands."""
    if words == ["snapshot"]:
        json.dump(snapshot(), sys.stdout)
        return 0
    if len(words) in (3, 4) and words[0] == "compare":
        before = json.loads(Path(words[1]).read_text())
        end = time.monotonic() + (float(words[3]) if words[3:] else GRACE_S)
        while (lines := left(before, words[2])) and time.monotonic() < end:
            time.sleep(0.2)
        for line in lines:
            print(f"left over: {line}", file=sys.stderr)
        return 1 if lines else 0
    if len(words) == 2 and words[0] == "kill":
        kill(words[1])
        return 0
    print(__doc__, file=sys.stderr)
    return 64


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
