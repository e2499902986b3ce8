"""Calls in children: whatever a call does, the answer is in time and nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_robust.util import isolate
from slurm_robust.util.isolate import CallResult, call, directly
from tests.alone import alone
from tests.users import as_root
from tests.waiting import wait_for


def hang() -> bytes:
    """As a call in the kernel: no signal but KILL ends it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL})
    while True:
        signal.pause()


def one(task: Callable[[], bytes], timeout_s: float = 5.0, deadline_s: float = 10.0) -> CallResult:
    return call({"it": task}, {"it": timeout_s}, deadline_s)["it"]


def die(number: int) -> bytes:
    os.kill(os.getpid(), number)
    return b"alive"


def leave_pipe() -> bytes:
    os.closerange(3, 10)
    return b"unheard"


def write_half() -> bytes:
    os.write(3, b"v" + (100).to_bytes(4, "little") + b"half")
    os._exit(0)


def claim_much() -> bytes:
    os.write(3, b"v" + (2**32 - 1).to_bytes(4, "little"))
    return hang()


def fail(error: BaseException) -> bytes:
    raise error


def test_an_answer_comes_back_as_it_was_given() -> None:
    value = bytes(range(256)) * (isolate.MAX_BYTES // 256)
    answer = one(lambda: value)
    assert (answer.value, answer.error, answer.hung) == (value, "", False)
    assert 0 < answer.took_s < 60
    assert one(lambda: b"").value == b""


@pytest.mark.parametrize(
    ("task", "error"),
    [
        (lambda: die(signal.SIGKILL), "ended without an answer"),
        (lambda: die(signal.SIGSEGV), "ended without an answer"),
        (leave_pipe, "ended without an answer"),
        (write_half, "ended without an answer"),
        (claim_much, "answered too much"),
        (lambda: b"x" * (isolate.MAX_BYTES + 1), "an answer of 1048577 bytes is too long"),
        (lambda: fail(RuntimeError("the driver\nsays no")), "the driver says no"),
        (
            lambda: fail(OSError(13, "Permission denied", "/dev/kmsg")),
            "[Errno 13] Permission denied: '/dev/kmsg'",
        ),
        (lambda: fail(KeyError("x")), "KeyError: 'x'"),
        (lambda: fail(SystemExit()), "SystemExit"),
        (lambda: None, "TypeError: object of type 'NoneType' has no len()"),
    ],
)
def test_what_goes_wrong_is_an_error_and_no_hang(task: Callable[[], bytes], error: str) -> None:
    answer = one(task)
    assert (answer.value, answer.error, answer.hung) == (None, error, False)


def test_a_hang_costs_its_own_limit_and_others_nothing() -> None:
    begun = time.monotonic()
    answers = call({"dead": hang, "well": lambda: b"ok"}, {"dead": 0.2, "well": 300.0}, 600.0)
    assert time.monotonic() - begun < 100
    assert list(answers) == ["dead", "well"]
    assert (answers["dead"].hung, answers["dead"].error) == (True, "no answer in time")
    assert answers["well"].value == b"ok"


@alone
def test_the_time_for_all_cuts_what_is_under_way_without_calling_it_hung() -> None:
    begun = time.monotonic()
    names = [str(number) for number in range(isolate.AT_ONCE + 5)]
    answers = call(dict.fromkeys(names, hang), dict.fromkeys(names, 600.0), 0.3)
    assert time.monotonic() - begun < 100
    assert not any(answer.hung for answer in answers.values())
    assert answers["0"].error == "no answer within the time for all"
    assert answers[names[-1]].error == "not begun within the time for all"


@alone
def test_hundreds_of_calls_share_a_few_processes_and_leave_none() -> None:
    names = [str(number) for number in range(300)]
    tasks: dict[str, Callable[[], bytes]] = {name: lambda name=name: name.encode() for name in names}  # type: ignore[misc]
    answers = call(tasks, dict.fromkeys(names, 20.0), 60.0)
    assert [answer.value for answer in answers.values()] == [name.encode() for name in names]
    wait_for(lambda: one(lambda: b"").value == b"" and len(isolate._abandoned) <= 1)


def pid() -> bytes:
    return str(os.getpid()).encode()


@alone
def test_shared_children_do_many_tasks_and_each_other_task_has_its_own() -> None:
    names = [str(number) for number in range(40)]
    tasks = dict.fromkeys(names, pid)
    limits = dict.fromkeys(names, 20.0)
    assert len({answer.value for answer in call(tasks, limits, 60.0).values()}) == 40
    assert len({answer.value for answer in call(tasks, limits, 60.0, shared=True).values()}) < 20


@alone
def test_what_goes_wrong_in_a_shared_child_harms_no_other_task() -> None:
    bad: dict[str, Callable[[], bytes]] = {
        "dies": lambda: die(signal.SIGKILL),
        "hangs": hang,
        "raises": lambda: fail(RuntimeError("no")),
        "half": write_half,
        "much": claim_much,
    }
    tasks = {f"{number}-{name}": task for number in range(3) for name, task in {**bad, "well": pid}.items()}
    limits = {name: 0.3 if "hangs" in name else 600.0 for name in tasks}
    begun = time.monotonic()
    answers = call(tasks, limits, 1200.0, shared=True)
    assert time.monotonic() - begun < 100
    assert list(answers) == list(tasks)
    for name, answer in answers.items():
        assert (answer.value is not None) is name.endswith("well"), (name, answer)
        assert answer.hung is name.endswith("hangs")
    assert answers["1-dies"].error == "ended without an answer"
    assert answers["1-raises"].error == "no"


@alone
def test_slow_tasks_do_not_wait_for_each_other_in_shared_children() -> None:
    names = [str(number) for number in range(12)]
    begun = time.monotonic()
    answers = call(dict.fromkeys(names, hang), dict.fromkeys(names, 2.0), 60.0, shared=True)
    assert time.monotonic() - begun < 22  # one after the other they take 24 s
    assert all(answer.hung for answer in answers.values())


@alone
def test_the_time_for_all_cuts_shared_children_too() -> None:
    tasks: dict[str, Callable[[], bytes]] = {"slow": hang, "well": pid}
    answers = call(tasks, dict.fromkeys(tasks, 60.0), 2.0, shared=True)
    assert (answers["slow"].is_cut, answers["slow"].hung) == (True, False)
    assert answers["well"].value


def test_nothing_to_do_is_done_at_once() -> None:
    assert call({}, {}, 10.0) == {}
    assert call({"it": pid}, {"it": 1.0}, 0.0)["it"].is_cut


def test_a_child_inherits_nothing_that_anybody_waits_for(tmp_path: Path) -> None:
    with (tmp_path / "held").open("w") as held:
        os.set_inheritable(held.fileno(), True)

        def task() -> bytes:
            opened = {int(name): os.readlink(f"/proc/self/fd/{name}") for name in ("0", "1", "2", "3")}
            more = len(os.listdir("/proc/self/fd")) - 1
            return json.dumps(
                [list(opened.values()), more, os.getsid(0) == os.getpid(), os.getcwd()]
            ).encode()

        opened, count, is_leader, folder = json.loads(one(task).value or b"")
    assert opened[:3] == ["/dev/null"] * 3
    assert opened[3].startswith("pipe:")
    assert (count, is_leader, folder) == (4, True, "/")


def test_what_a_call_has_started_ends_with_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def start() -> bytes:
        pid = os.posix_spawn("/bin/sleep", ["sleep", "600"], {})
        note.write_text(str(pid))
        return hang()

    assert one(start, timeout_s=0.5).hung
    wait_for(lambda: not is_alive(int(note.read_text())))


def is_alive(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("closed", ["", "<&-", "<&- >&- 2>&-"])
def test_isolated_calls_work_without_standard_files_and_with_children_ignored(
    closed: str, tmp_path: Path
) -> None:
    code = """
        import signal, sys
        from slurm_robust.util.isolate import call
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        value = call({"a": lambda: b"1", "b": lambda: b"2"}, {"a": 5, "b": 5}, 10)
        open(sys.argv[1], "w").write(repr([answer.value for answer in value.values()]))
    """
    out = tmp_path / "out"
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", textwrap.dedent(code), str(out)]
    subprocess.run(command, check=True, timeout=60)
    assert out.read_text() == "[b'1', b'2']"


@as_root
@pytest.mark.slow
def test_a_child_that_cannot_be_killed_delays_nobody() -> None:
    """A file system that takes requests and answers none: its callers are in uninterruptible sleep."""
    code = """
        import os, sys
        from slurm_robust.util import isolate
        from slurm_robust.util.isolate import call
        from tests.stand_ins.dead_mount import DeadMount
        from tests.waiting import wait_for
        with DeadMount() as folder:
            answer = call({"it": lambda: str(os.statvfs(folder)).encode()}, {"it": 0.5}, 5)["it"]
            assert answer.hung, answer
            [pid] = isolate._abandoned
            wait_for(lambda: open(f"/proc/{pid}/stat").read().split()[2] == "D")
            print("ok", flush=True)
            os.close(1)
            sys.stdin.read()
    """
    command = ["unshare", "--mount", sys.executable, "-c", textwrap.dedent(code)]
    root = Path(__file__).resolve().parents[3]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        # The end of the output comes although the child still is in the kernel.
        assert process.stdout.read() == "ok\n"
        process.stdin.close()
        assert process.wait(60) == 0


def test_without_children_the_answers_are_the_same() -> None:
    def wrong() -> bytes:
        raise OSError("no such disk")

    tasks = {
        "good": lambda: str(os.getpid()).encode(),
        "bad": wrong,
        "long": lambda: bytes(isolate.MAX_BYTES + 1),
    }
    limits = dict.fromkeys(tasks, 5.0)
    here, there = directly(tasks, limits, 10.0), call(tasks, limits, 10.0)
    assert here["good"].value == str(os.getpid()).encode() != there["good"].value
    for name in ("bad", "long"):
        assert here[name].value is None
        assert here[name].error == there[name].error
