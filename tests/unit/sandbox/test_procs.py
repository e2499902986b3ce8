from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_robust.sandbox import procs
from slurm_robust.sandbox.procs import SandboxProcess, find_rank, ranks_of
from tests.waiting import wait_for


def worker(pid: int, rank: int, *, parent: int = 1, job: int = 7, is_live: bool = True) -> SandboxProcess:
    """A worker that was started with its rank in the environment."""
    environ = {"SLURM_JOB_ID": str(job), "RANK": str(rank)}
    return SandboxProcess(pid=pid, parent=parent, is_live=is_live, comm="python", environ=environ)


def forked(pid: int, rank: int, *, parent: int = 1, job: int = 7) -> SandboxProcess:
    """A worker that was forked from a zygote: only its name tells the rank."""
    name = f"srobust-rank{rank}"[:15]
    return SandboxProcess(pid=pid, parent=parent, comm=name, environ={"SLURM_JOB_ID": str(job)})


def found(processes: list[SandboxProcess], job: int, rank: int) -> int | None:
    process = find_rank(processes, job, rank)
    return process.pid if process else None


def test_a_rank_is_found_by_its_environment_or_its_name() -> None:
    assert found([worker(10, 0), worker(11, 1)], 7, 1) == 11
    assert found([forked(10, 0), forked(11, 1)], 7, 1) == 11
    assert found([forked(10, 1), forked(11, 11)], 7, 1) == 10


def test_ranks_of_other_jobs_do_not_count() -> None:
    assert found([worker(10, 0, job=8), forked(11, 0, job=8)], 7, 0) is None


def test_helpers_of_a_worker_are_not_the_worker() -> None:
    loader = worker(20, 3, parent=10)
    assert found([loader, worker(10, 3), worker(21, 3, parent=20)], 7, 3) == 10
    assert found([forked(21, 2, parent=12), forked(12, 2)], 7, 2) == 12


def test_the_own_name_beats_an_inherited_environment() -> None:
    environ = {"SLURM_JOB_ID": "7", "RANK": "0"}
    misled = SandboxProcess(pid=30, parent=1, comm="srobust-rank5", environ=environ)
    assert found([misled], 7, 0) is None
    assert found([misled], 7, 5) == 30


def test_the_dead_are_no_ranks() -> None:
    assert found([worker(10, 0, is_live=False)], 7, 0) is None


def test_the_message_lists_all_ranks() -> None:
    assert ranks_of([worker(1, 3), forked(2, 0), worker(3, 3, parent=1), worker(4, 9, job=8)], 7) == (0, 3)


def test_open_shells_are_those_of_people_with_all_above_them() -> None:
    tmux, window = SandboxProcess(1, 0, "tmux"), SandboxProcess(2, 1, "bash", has_terminal=True)
    editor = SandboxProcess(3, 2, "vi", has_terminal=True)
    left_by_a_job = SandboxProcess(4, 0, "bash", has_terminal=True, environ={"SLURM_JOB_ID": "7"})
    daemon = SandboxProcess(5, 0, "sleep")
    assert procs.open_shells([editor, tmux, window, left_by_a_job, daemon]) == {1, 2, 3}


def test_a_terminal_is_seen_from_outside() -> None:
    _, theirs = ends = pty.openpty()
    command = ["setsid", "--ctty", "--wait", "sh", "-c", "echo up; read line"]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        shell.stdout.readline()
        (inner,) = procs.children(shell.pid) or (procs.read_process(shell.pid),)
        for end in ends:
            os.close(end)
    assert inner is not None
    assert inner.has_terminal


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its root")
def test_the_same_folder_under_another_root_is_another_sandbox(tmp_path: Path) -> None:
    wait = "import os, sys; sys.argv[1] and os.chroot(sys.argv[1]); print(flush=True); sys.stdin.read()"
    for root in ("", str(tmp_path)):
        command = [sys.executable, "-c", wait, root, "-m", procs.INIT_MODULE, "/var/lib/sandbox/x"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            assert procs.runs_init(process.pid, Path("/var/lib/sandbox/x")) is (not root)
            assert procs.sandbox_processes(Path("/var/lib/sandbox/x")) == (() if root else (process.pid,))
            process.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces")
def test_an_init_whose_last_process_nobody_reaps_is_ending() -> None:
    with subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "sleep", "60"]) as launcher:
        wait_for(lambda: procs.children(launcher.pid), 10, "the init of a namespace")
        (init,) = procs.children(launcher.pid)
        assert not procs.is_ending(init.pid)
        with subprocess.Popen(["nsenter", f"--target={init.pid}", "--pid", "sleep", "60"]) as entered:
            wait_for(lambda: procs.children(entered.pid), 10, "a process that entered it")
            entered.send_signal(signal.SIGSTOP)
            os.kill(init.pid, signal.SIGKILL)
            wait_for(lambda: procs.is_ending(init.pid), 10, "it waits for a process that is not reaped")
            entered.send_signal(signal.SIGCONT)
        wait_for(lambda: not procs.is_ending(init.pid), 10, "it has ended")


def test_a_process_is_read_as_it_is() -> None:
    process = procs.read_process(os.getpid())
    assert process is not None
    assert process.parent == os.getppid()
    assert process.environ["PATH"] == os.environ["PATH"]
    assert procs.read_process(2**22 + 1) is None


def test_a_zombie_counts_as_gone() -> None:
    child = subprocess.Popen(["true"])
    try:
        assert procs.wait_gone([child.pid], 5) == ()
        assert Path(f"/proc/{child.pid}").exists()
    finally:
        child.wait()


def test_processes_that_stay_are_returned() -> None:
    assert procs.wait_gone([os.getpid()], 0.05) == (os.getpid(),)


def test_a_listening_port_is_seen() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert not procs.listens(os.getpid(), port)
        server.listen()
        assert procs.listens(os.getpid(), port)


def test_no_sandbox_runs_in_an_empty_folder(tmp_path: Path) -> None:
    assert procs.sandbox_processes(tmp_path) == ()
    assert procs.sandbox_init(tmp_path) is None
