"""Prolog and epilog remove the copies that no job will use again: real owners, a stand-in for Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.config.node import Hooks, NodeConfig
from slurm_robust.hooks import sweep
from tests.users import as_root

USER, OTHER = 65534, 65533
THIS = 900
pytestmark = as_root

# Answers as squeue does for one job with -t all: -o "%A %T %N" from the file of jobs, -O from another.
SQUEUE = """#!/bin/bash
here=$(dirname "$0")
echo "$@" >> $here/calls
[ -e $here/hang ] && exec sleep 1000
[ -e $here/down ] && { echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; }
while [ $# -gt 0 ]; do
    case $1 in
        -j) wanted=$2; shift ;;
        -O) printf '%-20s%-20s\\n' "$wanted" "$(cat $here/restarts)"; exit 0 ;;
    esac
    shift
done
case $wanted in *[!0-9]*) exit 1 ;; esac
[ "$wanted" -lt 2147483648 ] || { echo "squeue: error: Invalid job id: $wanted" >&2; exit 1; }
known=1
while read -r id state nodes; do
    [ "$id" = "$wanted" ] && { echo "$id $state $nodes"; known=0; }
done < $here/jobs
[ $known = 0 ] || echo "slurm_load_jobs error: Invalid job id specified" >&2
exit $known
"""
SCONTROL = """#!/bin/bash
[ "$1 $2" = "show hostnames" ] || exit 1
tr ',' '\\n' <<< "$3"
"""


class Node:
    """A node's shared memory and the Slurm that its hooks ask."""

    def __init__(self, folder: Path) -> None:
        self.shm, self.slurm = folder / "shm", folder / "slurm"
        self.shm.mkdir()
        self.slurm.mkdir()
        self.shm.chmod(0o1777)
        for name, text in (("squeue", SQUEUE), ("scontrol", SCONTROL)):
            (self.slurm / name).write_text(text)
            (self.slurm / name).chmod(0o755)
        self.jobs((THIS, "CONFIGURING", "n1"))

        self.swept = sweep.Swept()

    def jobs(self, *alive: tuple[int, str, str]) -> None:
        lines = (f"{job} {state} {nodes}\n" for job, state, nodes in alive)
        (self.slurm / "jobs").write_text("".join(lines))

    def folder(self, job: int, uid: int = USER, owner: int = -1, name: str = "ab12") -> Path:
        path = self.shm / f"srobust-{uid}-{job}-{name}-copies"
        path.mkdir(mode=0o700)
        (path / "own-00000.0").write_bytes(b"x" * 1000)
        (path / "run").write_text("1")
        for item in (path, *path.iterdir()):
            os.chown(item, *(2 * (uid if owner < 0 else owner,)))
        return path

    def run(self, hook: str, job: int | str = THIS, **more: str) -> float:
        """The sweep of a hook as Slurm starts it; the seconds that it took."""
        environ = {"SLURM_JOB_ID": str(job), "SLURM_JOB_UID": str(USER), **more}
        config = NodeConfig(hooks=Hooks(slurm_bin=str(self.slurm), slurm_s=2.0))
        begun = time.monotonic()
        if hook == "prolog":
            number = sweep.number(environ, "SLURM_JOB_ID")
            self.swept = sweep.sweep_gone(config, number, "n1", 10.0, self.shm)
        else:
            self.swept = sweep.sweep_job(config, environ, 10.0, self.shm)
        return time.monotonic() - begun

    @property
    def calls(self) -> int:
        log = self.slurm / "calls"
        return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.fixture
def node() -> Iterator[Node]:
    """In a folder that all may enter, since the hooks act as the owner of what they remove."""
    with tempfile.TemporaryDirectory(prefix="sweep-test-", dir="/dev/shm") as folder:
        Path(folder).chmod(0o755)
        yield Node(Path(folder))


def test_the_prolog_removes_copies_of_jobs_that_are_gone_whoever_owns_them(node: Node) -> None:
    gone, others = node.folder(1), node.folder(2, OTHER)
    pending, running, own = node.folder(3), node.folder(4, OTHER), node.folder(THIS)
    ended = node.folder(5)
    node.jobs(
        (3, "COMPLETING", "n1"), (4, "RUNNING", "n1,n2"), (5, "NODE_FAIL", "n1"), (THIS, "CONFIGURING", "n1")
    )
    (node.shm / "srobust-65534-1-ab12-x8f2").mkdir()
    (node.shm / "something").mkdir()
    node.run("prolog")
    left = {path.name for path in node.shm.iterdir()}
    kept = {pending.name, running.name, own.name, "srobust-65534-1-ab12-x8f2", "something"}
    assert left == kept
    assert not gone.exists()
    assert not ended.exists()
    assert not others.exists()
    assert node.calls == 1 + 5


def test_the_prolog_removes_copies_of_a_job_that_runs_without_this_node(node: Node) -> None:
    elsewhere, here, waiting = node.folder(1), node.folder(2), node.folder(3)
    node.jobs((1, "RUNNING", "n11,n2"), (2, "RUNNING", "n3,n1"), (3, "PENDING", ""), (THIS, "RUNNING", "n1"))
    node.run("prolog")
    assert [path.exists() for path in (elsewhere, here, waiting)] == [False, True, True]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hook", "trouble"),
    [(hook, trouble) for hook in ("prolog", "epilog") for trouble in ("down", "hang", "missing")]
    + [("prolog", "ignorant")],
)
def test_without_an_answer_of_slurm_nothing_is_removed(node: Node, hook: str, trouble: str) -> None:
    folder = node.folder(1)
    if trouble == "ignorant":
        node.jobs()
    elif trouble == "missing":
        (node.slurm / "squeue").write_text("#!/nonexistent\n")
        (node.slurm / "scontrol").write_text("#!/nonexistent\n")
    else:
        (node.slurm / trouble).touch()
    took = node.run(hook, job=THIS if hook == "prolog" else 1)
    assert folder.exists()
    assert took < 60


def test_slurm_is_not_asked_where_nothing_is_left(node: Node) -> None:
    node.run("prolog")
    node.run("epilog")
    assert node.calls == 0


def test_a_folder_of_another_owner_is_left_alone(node: Node) -> None:
    kept = node.folder(7, name="kept")
    node.jobs((7, "PENDING", ""), (THIS, "RUNNING", "n1"))
    link = node.shm / f"srobust-{USER}-1-ab12-copies"
    link.symlink_to(kept)
    os.chown(link, USER, USER, follow_symlinks=False)
    roots = node.folder(1, 0)
    trap = node.folder(2, OTHER, owner=USER)
    odd = node.shm / f"srobust-{USER}-1-ab 12\n-copies"
    odd.mkdir()
    os.chown(odd, USER, USER)
    inside = node.folder(3)
    (inside / "link").symlink_to(kept)
    node.run("prolog")
    assert kept.is_dir()
    assert list(kept.iterdir())
    assert link.is_symlink()
    assert [path.exists() for path in (roots, trap, odd, inside)] == [True, True, True, False]


@pytest.mark.parametrize("job", ["", "x", "1;id", "-1", "0", "\u0661", "9" * 30])
@pytest.mark.parametrize("hook", ["prolog", "epilog"])
def test_nothing_is_done_with_odd_input(node: Node, hook: str, job: str) -> None:
    folder = node.folder(1)
    node.run(hook, job=job)
    assert folder.exists()
    assert node.calls == 0


def test_what_the_owner_may_not_remove_is_reported(node: Node) -> None:
    folder = node.folder(1)
    node.shm.chmod(0o755)
    node.run("prolog")
    assert folder.exists()
    assert list(node.swept.failed) == [folder.name]
    assert "Permission denied" in node.swept.failed[folder.name]
    assert node.swept.removed == ()


def test_the_epilog_keeps_copies_of_a_job_that_comes_back(node: Node) -> None:
    copies, others = node.folder(1), node.folder(2)
    left = node.shm / f"srobust-{USER}-1-ab12-x8f2"
    left.mkdir()
    os.chown(left, USER, USER)
    node.run("epilog", job=1, SLURM_JOB_RESTART_COUNT="2")
    assert [path.exists() for path in (copies, others, left)] == [True, True, False]
    (node.slurm / "restarts").write_text("2")
    node.run("epilog", job=1)
    assert copies.exists()
    (node.slurm / "restarts").write_text("1")
    node.run("epilog", job=1)
    assert [path.exists() for path in (copies, others)] == [False, True]


@pytest.mark.parametrize("run", ["", "x", "-1", "1\n2", "9" * 100])
def test_the_epilog_leaves_to_the_prolog_what_it_does_not_understand(node: Node, run: str) -> None:
    copies = node.folder(1)
    (copies / "run").write_text(run)
    node.run("epilog", job=1, SLURM_JOB_RESTART_COUNT="2")
    assert copies.exists() or run.startswith("9")


@pytest.mark.parametrize("job", [2**31, 9_999_999_999])
def test_a_number_that_is_not_a_job_of_slurm_spoils_no_answer(node: Node, job: int) -> None:
    gone, odd = node.folder(1, OTHER), node.folder(job)
    node.run("prolog")
    assert [path.exists() for path in (gone, odd)] == [False, True]


def test_a_question_without_an_answer_keeps_the_folders_of_that_job_only(node: Node) -> None:
    gone, unsure = node.folder(1, OTHER), node.folder(2)
    script = node.slurm / "squeue"
    refusal = '[[ "$*" == *"-j 2 "* ]] && { echo "squeue: error: no" >&2; exit 1; }\n'
    script.write_text(script.read_text().replace("\n", f"\n{refusal}", 1))
    node.run("prolog")
    assert [path.exists() for path in (gone, unsure)] == [False, True]


@pytest.mark.parametrize("hook", ["prolog", "epilog"])
def test_a_user_with_many_folders_does_not_delay_others(node: Node, hook: str) -> None:
    """Pending jobs, so that they stay; empty ones and copies, since both have been in the way."""
    pending = 5
    for number in range(700):
        for name in (f"srobust-{OTHER}-{pending}-{number}-copies", f"srobust-{OTHER}-{pending}-{number}-x"):
            (node.shm / name).mkdir()
            os.chown(node.shm / name, OTHER, OTHER)
    node.jobs((pending, "PENDING", ""), (THIS, "CONFIGURING", "n1"))
    left = node.folder(7)
    node.run(hook, job=THIS if hook == "prolog" else 7, SLURM_JOB_RESTART_COUNT="1")
    assert node.swept.removed == (left.name,)
    assert len(list(node.shm.iterdir())) == 1400


def test_folders_with_the_uid_of_another_count_for_no_user(node: Node) -> None:
    for number in range(2 * sweep.MAX_FOLDERS):
        (node.shm / f"srobust-{USER}-1-{number}-copies").mkdir()
    left = node.folder(7)
    node.run("prolog")
    assert node.swept.removed == (left.name,)


def test_more_names_than_are_read_are_reported(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "MAX_NAMES", 10)
    node.folder(1)
    for number in range(20):
        (node.shm / f"x{number}").touch()
    node.run("prolog")
    assert node.swept.failed == {str(node.shm): "too many names: only 10 were read"}


def test_a_deep_and_wide_folder_goes_as_a_whole(node: Node) -> None:
    top = node.folder(1)
    for number in range(1500):
        (top / f"file{number}").touch()
    here = os.open(top, os.O_RDONLY)
    for _ in range(2500):  # deeper than Python calls itself, and than a path may be long
        os.mkdir("d", dir_fd=here)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        for name in ("d", "f"):
            os.chown(name, USER, USER, dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    node.run("prolog")
    assert node.swept.removed == (top.name,)
    assert not top.exists()


def test_what_is_mounted_in_a_folder_stays_and_is_reported(node: Node) -> None:
    top, other = node.folder(1), node.folder(2)
    inner = top / "inner"
    inner.mkdir()
    os.chown(inner, USER, USER)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"uid={USER}", "srobust-test", inner], check=True)
    try:
        (inner / "kept").touch()
        node.run("prolog")
        assert (inner / "kept").exists()
        assert "another file system is mounted" in node.swept.failed[top.name]
        assert node.swept.removed == (other.name,)
    finally:
        subprocess.run(["umount", inner], check=True)


# As a process of the user's job does it: traces whatever is his and is none of his own, with ptrace(2).
TRACER = """
import ctypes, os, sys
os.setgroups([]); os.setresgid({uid}, {uid}, {uid}); os.setresuid({uid}, {uid}, {uid})
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
own = os.getpid()
print("ready", flush=True)
while os.path.exists({folder!r}):
    for name in os.listdir("/proc"):
        try:
            if not name.isdigit() or int(name) == own or os.stat("/proc/" + name).st_uid != {uid}:
                continue
        except OSError:
            continue
        if libc.ptrace(16, int(name), 0, 0) == 0:  # PTRACE_ATTACH
            print("attached", flush=True)
            os._exit(0)
        if ctypes.get_errno() == 1:
            print("refused", flush=True)
"""


@pytest.mark.slow
def test_no_process_of_the_user_can_take_over_the_one_that_removes(node: Node) -> None:
    folder = node.folder(1)
    for number in range(40_000):
        os.close(os.open(folder / f"f{number}", os.O_CREAT | os.O_WRONLY))
    code = TRACER.format(uid=USER, folder=str(folder))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as tracer:
        assert tracer.stdout is not None
        assert tracer.stdout.readline() == "ready\n"
        node.run("prolog")
        said = tracer.stdout.read().split()
    assert set(said) == {"refused"}
    assert node.swept.removed == (folder.name,)
