"""Processes: what is read of them, and which are stuck, dead or left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_robust.config.node import MemoryLimits, NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.kernel.processes import KernelProcess
from slurm_robust.model.findings import Outcome, Suggestion
from slurm_robust.nodes.checks import processes
from slurm_robust.nodes.checks.processes import ProcessFacts
from slurm_robust.util.isolate import call
from tests.unit.nodes.host_files import only, plant, view
from tests.users import as_root
from tests.waiting import wait_for

CONFIG = NodeConfig()
KERNEL_THREAD = 0x00200040
FACTS = ProcessFacts(count=1, cpus=4, load=(0.0, 0.0, 0.0))


def stat(
    pid: int,
    name: str,
    state: str = "S",
    parent: int = 1,
    flags: int = 4194560,
    start: int = 24,
    pending: int = 0,
) -> str:
    rest = f"96258 4135 0 36 1400 6670 8435 3049 20 0 13 0 {start} 55058432 5457 18446744073709551615 1 1"
    rest += f" 140735 0 0 {pending} 0 4096 0 0 0 0 17 3"
    return f"{pid} ({name}) {state} {parent} 1 1 0 -1 {flags} {rest}"


def with_facts(**changes: object) -> ProcessFacts:
    return msgspec.structs.replace(FACTS, **changes)


def test_processes_are_read_without_those_of_the_kernel(tmp_path: Path) -> None:
    lines = {
        1: stat(1, "systemd"),
        2: stat(2, "kthreadd", "D", 0, KERNEL_THREAD),
        7: stat(7, "a) (b", "D", start=4711),
        8: stat(8, "defunct", "Z", 7),
        9: stat(9, "\n\x1b[31m"),
        10: "nonsense",
        11: stat(11, "short")[:20],
    }
    files = {f"/proc/{pid}/stat": line for pid, line in lines.items()}
    files |= {"/proc/loadavg": "1.50 2.00 3.25 1/100 99", "/proc/self/stat": stat(3, "self")}
    files |= {"/sys/devices/system/cpu/online": "0-3,8-11,15"}
    facts = processes.gather(plant(tmp_path, files), CONFIG)
    assert (facts.count, facts.cpus, facts.load) == (4, 9, (1.5, 2.0, 3.25))
    assert (facts.waiting, facts.waiting_names) == ({7: 4711}, ("a) (b",))
    assert (facts.zombies, facts.zombie_parent) == (1, "a) (b")
    assert all(name.isprintable() for name in facts.daemons)


@as_root
def test_a_user_s_own_check_is_not_a_leftover_process() -> None:
    uid = 12345

    def ask() -> bytes:
        os.setresuid(uid, uid, uid)
        tasks = {
            str(number): lambda: msgspec.json.encode(processes.gather(Host(), CONFIG)) for number in range(4)
        }
        answers = call(tasks, dict.fromkeys(tasks, 20.0), 20.0, shared=True)
        return b" ".join(answer.value or b"" for answer in answers.values())

    answer = call({"ask": ask}, {"ask": 30.0}, 30.0)["ask"]
    facts = [msgspec.json.decode(text, type=ProcessFacts) for text in (answer.value or b"").split(b" ")]
    assert [found.users.get(uid) for found in facts] == [None] * 4


def test_threads_of_the_kernel_are_not_even_opened(tmp_path: Path) -> None:
    parent = {"/proc/2/task/2/children": "3 4", "/proc/loadavg": "0 0 0 1/1 1"}
    files = {f"/proc/{pid}/stat": stat(pid, "x") for pid in (3, 4, 5)}
    threads = plant(
        tmp_path / "node", {**files, **parent, "/proc/2/stat": stat(2, "kthreadd", flags=KERNEL_THREAD)}
    )
    assert processes.gather(threads, CONFIG).count == 1
    container = plant(tmp_path / "container", {**files, **parent, "/proc/2/stat": stat(2, "bash")})
    assert processes.gather(container, CONFIG).count == 4


@pytest.mark.slow
def test_thousands_of_processes_take_little_time(tmp_path: Path) -> None:
    files = {f"/proc/{pid}/stat": stat(pid, "python3") for pid in range(10, 2010)}
    host = plant(tmp_path, {**files, "/proc/loadavg": "0 0 0 1/1 1"})
    times = []
    for _ in range(5):
        begun = time.process_time()
        assert processes.gather(host, CONFIG).count == 2000
        times.append(time.process_time() - begun)
    assert (
        min(times) < 0.1
    )  # 15 to 20 ms where nothing else runs; CPU time, but of a machine that may be slow


def test_processes_of_the_real_machine_are_read() -> None:
    facts = processes.gather(Host(), CONFIG)
    assert facts.count > 1
    assert facts.cpus >= len(os.sched_getaffinity(0))
    own = Path("/proc/self/comm").read_text().strip()
    everybody = processes.gather(Host(), NodeConfig(memory=MemoryLimits(min_user_uid=2**31)))
    assert own in everybody.daemons


def test_programs_of_users_are_no_daemons(tmp_path: Path) -> None:
    host = plant(
        tmp_path,
        {
            "/proc/7/stat": stat(7, "munged"),
            "/proc/7/status": "Name:\tmunged\nUid:\t1234\t1234\t1234\t1234",
            "/proc/loadavg": "0 0 0 1/1 1",
        },
    )
    everybody = NodeConfig(memory=MemoryLimits(min_user_uid=max(1, os.getuid())))
    if os.getuid() == 0:
        os.chown(host.path("/proc/7"), 1234, 1234)
    facts = processes.gather(host, everybody)
    assert (facts.daemons, facts.users) == ((), {os.stat(host.path("/proc/7")).st_uid: 1})
    assert facts.user_names == ("munged",)


@pytest.mark.parametrize(("uids", "is_daemon"), [("0 0 0 0", True), ("1234 0 0 0", False), ("", False)])
def test_a_setuid_program_is_not_a_daemon(tmp_path: Path, uids: str, is_daemon: bool) -> None:
    """Its folder in /proc belongs to root, and who starts it gives it any name, by a link."""
    tree = {
        "/proc/7/stat": stat(7, "munged"),
        "/proc/7/status": f"Uid: {uids}",
        "/proc/loadavg": "0 0 0 1/1 1",
    }
    host = plant(tmp_path, tree)
    nobody_is_a_user_here = NodeConfig(memory=MemoryLimits(min_user_uid=max(1000, os.getuid() + 1)))
    assert processes.gather(host, nobody_is_a_user_here).daemons == (("munged",) if is_daemon else ())


@given(st.binary(max_size=200))
def test_no_content_breaks_reading(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    host = plant(tmp_path_factory.mktemp("root"), {"/proc/loadavg": "0 0 0 1/1 1", "/proc/5/stat": ""})
    host.path("/proc/5/stat").write_bytes(data)
    assert processes.gather(host, CONFIG).count <= 1


@as_root
def test_a_waiting_process_can_be_killed_unless_it_was_or_is_the_systems(tmp_path: Path) -> None:
    lines = {
        5: stat(5, "vfork", "D"),
        6: stat(6, "killed", "D", pending=1 << 8),
        7: stat(7, "interrupted", "D", pending=1 << 1),
        8: stat(8, "nfsd", "D"),
        9: stat(9, "short", "D").rpartition(" 140735")[0],
    }
    files = {f"/proc/{pid}/stat": line for pid, line in lines.items()}
    host = plant(tmp_path, {**files, "/proc/loadavg": "0 0 0 1/1 1"})
    for pid in (5, 6, 7, 9):
        os.chown(host.path(f"/proc/{pid}"), 1234, 1234)
    facts = processes.gather(host, CONFIG)
    assert facts.waiting.keys() == {5, 6, 7, 8, 9}
    assert facts.unkillable == {6, 8}


@as_root
def test_a_users_vfork_is_not_a_process_that_cannot_be_killed(tmp_path: Path) -> None:
    """The C library starts programs by vfork: a file that does not open in the child holds up the parent."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o666)
    os.chmod(fifo, 0o666)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    code = (
        "import os, sys; os.setgid(1234); os.setuid(1234)\n"
        "path = [(os.POSIX_SPAWN_OPEN, 9, sys.argv[1], os.O_RDONLY, 0)]\n"
        "os.posix_spawn('/bin/true', ['true'], {}, file_actions=path)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(fifo)], start_new_session=True)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    try:
        # A starting interpreter waits too, for the disk.
        wait_for(lambda: children.read_text(), message="it starts a program")
        wait_for(lambda: parent.pid in processes.gather(Host(), CONFIG).waiting, message="it waits")
        assert parent.pid not in processes.gather(Host(), CONFIG).unkillable
    finally:
        os.killpg(parent.pid, signal.SIGKILL)  # its child too, which may not have come to the file yet
        parent.wait()


@st.composite
def lines_of_a_user(draw: st.DrawFn) -> list[str]:
    """Of twenty processes, whatever they call themselves, in any state, none of them killed."""
    names = st.sampled_from(["kworker/0:1", "slurmstepd", "munged", "a) R 1 (b", "nfsd"]) | st.text(
        max_size=15
    )
    states = st.just("D") if draw(st.booleans()) else st.sampled_from("RSDTtXZI")
    pending = st.integers(0, 2**31 - 1).map(lambda mask: mask & ~(1 << 8))
    return [
        stat(pid, draw(names), draw(states), pending=draw(pending)).replace("\0", "")
        for pid in range(100, 120)
    ]


@as_root
@given(lines_of_a_user(), st.sampled_from([True, False, None]))
@settings(max_examples=15, deadline=None)
def test_no_state_and_no_name_of_a_users_processes_keeps_jobs_away(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], job_gone: bool | None
) -> None:
    root = tmp_path_factory.mktemp("root")
    host = plant(root, {"/proc/loadavg": "900 900 900 1/1 1"})
    for pid, line in enumerate(lines, 100):
        host.path(f"/proc/{pid}").mkdir()
        host.path(f"/proc/{pid}/stat").write_text(line, errors="replace")
        os.chown(host.path(f"/proc/{pid}"), 1234, 1234)
    facts = processes.gather(host, CONFIG)
    seen = view(facts, (100.0, facts), job_gone=job_gone)
    found = [finding for check in processes.CHECKS for finding in check.judge(seen, CONFIG)]
    assert [finding for finding in found if finding.suggestion.keeps_jobs_away] == []
    assert facts.daemons == ()


def waiting(number: int, start: int = 1, killed: int = 99) -> ProcessFacts:
    return with_facts(
        waiting=dict.fromkeys(range(100, 100 + number), start),
        waiting_names=("ls",),
        unkillable=frozenset(range(100, 100 + min(number, killed))),
    )


@pytest.mark.parametrize(
    ("now", "then", "age", "fails"),
    [
        (17, 17, 60.0, True),
        (16, 17, 60.0, False),
        (17, 16, 60.0, False),
        (17, 17, 59.0, False),
        (17, 17, 600.0, True),
        (17, 17, 601.0, False),
    ],
)
def test_a_process_is_stuck_that_waits_in_two_runs(now: int, then: int, age: float, fails: bool) -> None:
    seen = view(waiting(now), (age, waiting(then)))
    found = only(processes.judge_d_state(seen, CONFIG))
    assert (found.outcome is Outcome.FAIL) is fails
    if fails:
        assert (found.text, found.suggestion) == ("17 processes stuck in I/O (ls)", Suggestion.MONITOR)


def test_stuck_processes_without_a_job_need_a_boot_and_others_are_others() -> None:
    past = (100.0, waiting(20))
    gone = only(processes.judge_d_state(view(waiting(20), past, job_gone=True), CONFIG))
    assert gone.suggestion is Suggestion.REBOOT
    living = only(processes.judge_d_state(view(waiting(20, killed=16), past, job_gone=True), CONFIG))
    assert (living.outcome, living.suggestion) == (Outcome.FAIL, Suggestion.MONITOR)
    for seen in (
        view(waiting(20), (100.0, waiting(20, start=2))),  # pids came round
        view(waiting(20), past, boot_id="new"),
        view(waiting(20), past, (70.0, waiting(0))),  # they got on in between
        view(waiting(20)),
    ):
        assert only(processes.judge_d_state(seen, CONFIG)).outcome is Outcome.PASS


@pytest.mark.parametrize(("zombies", "fails"), [(0, False), (500, False), (501, True)])
def test_too_many_zombies_warn_and_keep_no_jobs_away(zombies: int, fails: bool) -> None:
    facts = with_facts(zombies=zombies, zombie_parent="slurmstepd")
    found = only(processes.judge_zombies(view(facts), CONFIG))
    assert (found.outcome is Outcome.FAIL) is fails
    assert not found.suggestion.keeps_jobs_away


def test_leftovers_are_reported_where_no_job_runs() -> None:
    facts = with_facts(users={1000: 3, 1001: 1}, user_names=("python3", "ssh"))
    found = only(processes.judge_leftovers(view(facts, job_gone=True), CONFIG))
    assert found.text == "4 processes without a job: python3, ssh of uid 1000, uid 1001"
    assert found.suggestion is Suggestion.MONITOR
    for gone in (False, None):
        assert list(processes.judge_leftovers(view(facts, job_gone=gone), CONFIG)) == []
    assert only(processes.judge_leftovers(view(FACTS, job_gone=True), CONFIG)).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("load", "fails"),
    [
        ((16.0, 16.0, 16.0), False),
        ((16.1, 17.0, 18.0), True),
        ((0.5, 40.0, 60.0), False),
        ((60.0, 40.0, 1.0), False),
    ],
)
def test_load_counts_when_it_lasts_and_no_job_runs(load: tuple[float, float, float], fails: bool) -> None:
    facts = with_facts(load=load)
    found = only(processes.judge_load(view(facts, job_gone=True), CONFIG))
    assert (found.outcome is Outcome.FAIL) is fails
    assert not found.suggestion.keeps_jobs_away
    assert list(processes.judge_load(view(facts), CONFIG)) == []


@pytest.mark.parametrize(
    ("uid", "user"),
    [(0, False), (999, False), (1000, True), (61183, True), (61184, False), (65534, False), (70000, True)],
)
def test_uids_that_belong_to_users(uid: int, user: bool) -> None:
    assert processes.is_user(uid, CONFIG) is user


def test_processes_of_the_user_who_asks_are_not_left_over() -> None:
    found = [
        KernelProcess(pid=pid, name="bash", state=b"S", parent=1, start=0, uid=uid)
        for pid, uid in ((7, 1000), (8, 1001))
    ]
    assert [process.pid for process in processes.of_others(found, 1000, CONFIG)] == [8]
    assert processes.of_others(found, 0, CONFIG) == found
