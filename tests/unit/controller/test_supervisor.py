"""The supervisor with real processes in place of controllers: how they end, and what it makes of that."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from slurm_robust.config.plan import load_plan
from slurm_robust.controller.supervisor import AT_ONCE, MAX_ENDS, storage_error
from slurm_robust.engine.effects import HANDED_OVER
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode, PreflightError
from slurm_robust.model.job import JobDirectory
from slurm_robust.policy.leaving import AGAIN_S
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.util import proc
from slurm_robust.wire.epochs import take_epoch
from slurm_robust.wire.keys import KeysError
from slurm_robust.wire.sockets import PortTaken
from tests.unit.agent.local_job import is_alive
from tests.waiting import wait_for

pytestmark = pytest.mark.slow  # each starts some interpreters

SUPERVISOR = """
import json, os, sys
from slurm_robust.controller import supervisor
supervisor.STORAGE_S, supervisor.END_S = 2.0, 1.0
if len(sys.argv) > 3:
    supervisor.say = lambda text: os.kill(os.getpid(), int(sys.argv[3]))
sys.exit(supervisor.Supervisor(json.loads(sys.argv[1]), pauses_s=json.loads(sys.argv[2])).run())
"""
UNSTARTABLE = """
import os, signal, sys
from slurm_robust.controller import supervisor
supervisor.STORAGE_S = 1.0
say, said = supervisor.say, []
def signalled_once(text):
    say(text)
    if not said:
        os.kill(os.getpid(), signal.SIGUSR1)
    said.append(text)
supervisor.say = signalled_once
sys.exit(supervisor.Supervisor(["/gone"], pauses_s=[0.3]).run())
"""
TELLING = """
import sys
from pathlib import Path
from slurm_robust.controller import notifier, supervisor
from slurm_robust.model.job import JobDirectory
supervisor.STORAGE_S, notifier.FINISH_S = 0.2, 0.2
teller = notifier.Notifier(JobDirectory(Path(".")), "r", 0)
teller._command = ("sleep", "60")
command = ["bash", "-c", "echo >> starts; exit 73"]
sys.exit(supervisor.Supervisor(command, pauses_s=[0.05], notifier=teller).run())
"""
WATCHING = """
import os, select, sys
from slurm_robust.controller.supervisor import report_end
from slurm_robust.controller.supervisor import Signals
open("begun", "a").write("x")
with Signals() as signals:
    select.select([signals], [], [], 30)
    open("signals", "a").write(f"{signals.taken()} ")
if len(open("starts").read()) == 1:
    sys.exit(70)
report_end(int(sys.argv[2]), 7)
sys.exit(7)
"""

ORDERED = """
import select, sys
from slurm_robust.controller.supervisor import AT_ONCE, Signals, report_end
open("starts", "a").write("x")
ends_first = len(open("starts").read()) == 1
with Signals() as signals:
    open("begun", "a").write("x")
    while True:
        select.select([signals], [], [], 30)
        got = signals.taken()
        open("signals", "a").write("".join(f"{int(number)} " for number in got))
        if AT_ONCE in got:
            break
if ends_first:
    sys.exit(70)
report_end(int(sys.argv[2]), 7)
"""


def over(code: int) -> str:
    """What a controller tells its supervisor; in a shell, whose second word is the descriptor."""
    return f'printf %s {code} > "/proc/self/fd/$2"; exit {code}'


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._supervisors: list[subprocess.Popen[str]] = []

    def keep(self, script: str, pauses: str = "[0.01]", *options: str) -> subprocess.Popen[str]:
        """A supervisor of controllers that are this script of the shell; each leaves a mark.

        With the number of a signal as ``options`` the supervisor sends itself that instead of a message.
        """
        return self.keep_command(["bash", "-c", f"echo >> starts; {script}", "controller"], pauses, *options)

    def keep_command(self, command: list[str], pauses: str, *options: str) -> subprocess.Popen[str]:
        """The same without a shell, which ignores SIGQUIT."""
        supervisor = subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, json.dumps(command), pauses, *options],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._supervisors.append(supervisor)
        return supervisor

    def run(self, script: str, pauses: str = "[0.01]") -> tuple[int, str]:
        supervisor = self.keep(script, pauses)
        said, _ = supervisor.communicate(timeout=60)
        return supervisor.returncode, said

    @property
    def starts(self) -> int:
        return len(self.text("starts"))

    def text(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def end(self) -> None:
        for supervisor in self._supervisors:
            controllers = proc.descendants(proc.process_table(), supervisor.pid)
            if supervisor.poll() is None:
                supervisor.kill()
            for process in controllers:  # they hold its output open
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            supervisor.communicate()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.end()


@pytest.mark.parametrize("code", [0, 1, 70, 73, 93, 143])
def test_what_a_controller_says_is_the_end_is_the_end(world: World, code: int) -> None:
    assert world.run(over(code)) == (code, "")
    assert world.starts == 1


def test_a_controller_that_hands_over_is_no_dead_one(world: World) -> None:
    """However often: the next one begins at once, and nothing is said."""
    last = MAX_ENDS + 2
    code, said = world.run(f"[ $(wc -l < starts) = {last} ] || {{ {over(HANDED_OVER)}; }}; {over(5)}", "[30]")
    assert (code, world.starts, said) == (5, last, "")


def test_the_process_that_tells_people_is_no_agent_and_is_not_waited_for(world: World) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TELLING],
        cwd=world.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == ExitCode.JOB_DIR
    assert "no agent is left" in done.stdout
    assert "their process still runs after 0 s: it is killed" in done.stdout


def test_an_end_reported_just_before_death_counts(world: World) -> None:
    assert world.run('printf 3 > "/proc/self/fd/$2"; kill -9 $$')[0] == 3


def test_a_controller_killed_by_a_signal_without_a_name_is_started_again(world: World) -> None:
    code, said = world.run(f"[ $(wc -l < starts) = 2 ] || kill -40 $$; {over(5)}")
    assert (code, world.starts) == (5, 2)
    assert "was killed by signal 40" in said


@pytest.mark.parametrize("hangs", ["kill -STOP $$", "trap '' TERM; while :; do sleep 0.1; done"])
def test_a_controller_that_runs_on_after_its_report_is_killed(world: World, hangs: str) -> None:
    """As one that hangs in the kernel, on a dead mount."""
    code, said = world.run(f'echo $$ > pid; printf 7 > "/proc/self/fd/$2"; {hangs}')
    assert (code, world.starts) == (7, 1)
    assert "it is killed" in said
    pid = int(world.text("pid"))
    wait_for(lambda: not Path(f"/proc/{pid}").exists())


def test_a_controller_that_closes_the_pipe_without_a_report_may_run_on(world: World) -> None:
    script = f"fd=$2; [ $(wc -l < starts) -eq 1 ] || {{ {over(3)}; }}; exec {{fd}}>&-; sleep 2; exit 70"
    code, said = world.run(script)
    assert (code, world.starts) == (3, 2)
    assert "failed with an internal error" in said


@pytest.mark.parametrize("end", ["exit 0", "exit 1", "exit 73", "exit 70", "kill -9 $$", "kill -BUS $$"])
def test_any_other_exit_is_no_end_of_the_job(world: World, end: str) -> None:
    """An interpreter that cannot read its own modules ends with 1."""
    code, said = world.run(f"if [ $(wc -l < starts) -lt 3 ]; then {end}; fi; {over(5)}")
    assert (code, world.starts) == (5, 3)
    assert "training goes on" in said


@pytest.mark.parametrize("end", ["exit 70", "kill -SEGV $$"])
def test_a_defect_is_not_mended_by_one_start_more(world: World, end: str) -> None:
    code, said = world.run(end)
    assert (code, world.starts) == (ExitCode.INTERNAL, MAX_ENDS)
    assert "giving up" in said


def test_pauses_grow(world: World) -> None:
    _, said = world.run("exit 70", "[0.01, 1.0, 0.01]")
    pauses = [line.rpartition("starting the next one")[2] for line in said.splitlines()[:-1]]
    assert [text.split(" (")[0] for text in pauses] == ["", " in 1 s", "", "", ""]


def test_storage_is_waited_for_as_long_as_agents_live(world: World) -> None:
    """The srun of a controller that is gone stands for them."""
    agents = "[ -e agents ] || { setsid sleep 30 > /dev/null & echo $! > agents; }"
    script = f"{agents}; [ -e room ] || exit 73; kill -9 $(cat agents); {over(0)}"
    supervisor = world.keep(script, "[0.1]")
    wait_for(lambda: world.starts > MAX_ENDS + 2)
    assert supervisor.poll() is None
    (world.folder / "room").touch()
    assert supervisor.wait(60) == 0


def test_without_agents_storage_is_waited_for_a_while(world: World) -> None:
    code, said = world.run("exit 73", "[0.1]")
    assert code == ExitCode.JOB_DIR
    assert "no agent is left" in said


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_that_comes_before_a_controller_watches_is_not_lost(world: World, number: int) -> None:
    (world.folder / "watching.py").write_text(WATCHING)
    script = f'[ $(wc -l < starts) -gt 1 ] || exit 70; exec {sys.executable} watching.py "$@"'
    supervisor = world.keep(script, "[10]")
    wait_for(lambda: world.starts == 1)
    said = supervisor.stdout
    assert said is not None
    assert "starting the next one" in said.readline()
    os.kill(supervisor.pid, number)
    assert supervisor.wait(60) == 7
    assert world.text("signals") == f"[{int(number)}] "


@pytest.mark.parametrize(("number", "pauses"), [(signal.SIGUSR1, "[0.01]"), (signal.SIGTERM, "[60]")])
def test_a_signal_to_a_controller_that_dies_is_given_to_the_next_one(
    world: World, number: int, pauses: str
) -> None:
    """One that tells it to end waits for no pause."""
    (world.folder / "watching.py").write_text(WATCHING)
    supervisor = world.keep(f'exec {sys.executable} watching.py "$@"', pauses)
    wait_for(lambda: world.text("begun") == "x")
    os.kill(supervisor.pid, number)
    assert supervisor.wait(60) == 7
    assert world.text("signals") == f"[{int(number)}] " * 2


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_that_meets_a_controller_as_it_hands_over_is_given_to_the_next_one(
    world: World, number: int
) -> None:
    hands_over = f"report_end(int(sys.argv[2]), {HANDED_OVER})\n    sys.exit()"
    (world.folder / "watching.py").write_text(WATCHING.replace("sys.exit(70)", hands_over))
    supervisor = world.keep(f'exec {sys.executable} watching.py "$@"', "[60]")
    wait_for(lambda: world.text("begun") == "x")
    os.kill(supervisor.pid, number)
    assert supervisor.wait(60) == 7
    assert world.text("signals") == f"[{int(number)}] " * 2


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_second_order_is_told_to_the_controller_and_to_the_one_after_it(
    world: World, first: signal.Signals
) -> None:
    (world.folder / "ordered.py").write_text(ORDERED)
    supervisor = world.keep_command([sys.executable, "ordered.py"], "[60]")
    wait_for(lambda: world.text("begun") == "x")
    for number in (first, first, signal.SIGTERM):  # too soon, and Slurm's: still one order
        seen = len(world.text("signals"))
        os.kill(supervisor.pid, number)
        wait_for(lambda seen=seen: len(world.text("signals")) > seen)
    assert str(int(AT_ONCE)) not in world.text("signals").split()
    until = time.monotonic() + AGAIN_S
    wait_for(lambda: time.monotonic() > until)
    os.kill(supervisor.pid, signal.SIGINT)
    assert supervisor.wait(60) == 7
    told = world.text("signals").split()
    assert told.count(str(int(AT_ONCE))) == 2
    given = {int(number) for number in told[told.index(str(int(AT_ONCE))) + 1 :]}
    assert given == {first, signal.SIGTERM, signal.SIGINT, AT_ONCE}
    assert told[-1] == str(int(AT_ONCE)), "the order before what it is about"


def test_the_supervisor_ends_on_a_signal_while_no_controller_can_start(world: World) -> None:
    supervisor = world.keep("exit 73", "[30]")
    wait_for(lambda: world.starts == 1)
    assert supervisor.stdout is not None
    supervisor.stdout.readline()
    os.kill(supervisor.pid, signal.SIGTERM)
    assert supervisor.wait(60) == ExitCode.TERMINATED
    assert world.starts == 2, "one more may have known what to do"


def test_a_signal_just_before_a_pause_ends_it(world: World) -> None:
    assert world.keep("exit 73", "[30]", str(int(signal.SIGTERM))).wait(60) == ExitCode.TERMINATED
    assert world.starts == 2


def test_a_controller_that_cannot_be_started_is_tried_with_pauses(world: World) -> None:
    """Also after a signal that none has had yet."""
    (world.folder / "run.py").write_text(UNSTARTABLE)
    done = subprocess.run(
        [sys.executable, "run.py"], cwd=world.folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == ExitCode.JOB_DIR
    assert done.stdout.count("no controller can be started") < 10


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR2])
def test_other_signals_end_nobody(world: World, number: int) -> None:
    supervisor = world.keep(f"while [ ! -e room ]; do sleep 0.05; done; {over(0)}")
    wait_for(lambda: world.starts == 1)
    os.kill(supervisor.pid, number)
    (world.folder / "room").touch()
    assert supervisor.wait(60) == 0


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def test_refusals_of_storage_are_recognised() -> None:
    refused = OSError(errno.ESTALE, "Stale file handle")
    assert storage_error(refused) is storage_error(caused(KeysError("no key"), refused)) is refused


def test_a_plan_that_storage_does_not_give_is_waited_for(tmp_path: Path) -> None:
    with pytest.raises(PreflightError) as caught:
        load_plan(JobDirectory(tmp_path / "gone"))
    assert storage_error(caught.value) is not None


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        OSError(errno.EMFILE, "Too many open files"),
        KeysError("others may read it"),
        caused(PortTaken(7, "in use"), OSError(errno.EADDRINUSE, "in use")),
        caused(SlurmError("no srun"), FileNotFoundError(errno.ENOENT, "srun")),
    ],
)
def test_what_is_no_refusal_of_storage_is_not_waited_for(error: Exception) -> None:
    assert storage_error(error) is None


# -- a controller of another host ------------------------------------------------------------------------

FOLLOWING = """
import os, sys
from pathlib import Path
from slurm_robust.controller import supervisor
from slurm_robust.model.job import JobDirectory
supervisor.FOLLOW_S, supervisor.FOLLOW_EVERY_S = float(sys.argv[2]), 0.05
others = supervisor.Others(JobDirectory(Path(".")), 0)
command = ["bash", "-c", sys.argv[1], "controller"]
sys.exit(supervisor.Supervisor(command, pauses_s=[0.01], others=others).run())
"""


def follow(world: World, script: str, bound_s: float = 60.0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", FOLLOWING, f"echo >> starts; {script}", str(bound_s)]
    supervisor = subprocess.Popen(
        command, cwd=world.folder, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    world._supervisors.append(supervisor)
    return supervisor


TAKEN_OVER = """
import sys
from pathlib import Path
from slurm_robust.controller import supervisor
supervisor.STORAGE_S, sys.executable = 0.0, "./controller"
supervisor.Supervisor.__init__.__kwdefaults__["pauses_s"] = [0.01]
sys.exit(supervisor.supervise(Path("."), "r", after=[1, None][int(sys.argv[1])]))
"""


@pytest.mark.parametrize(("taken_over", "code"), [(True, 0), (False, ExitCode.JOB_DIR)])
def test_agents_of_another_host_may_live_as_long_as_the_job(
    world: World, taken_over: bool, code: int
) -> None:
    report = 'printf 0 > "/proc/self/fd/${@: -1}"; exit 0'
    controller = world.folder / "controller"
    controller.write_text(
        f"#!/bin/bash\necho >> starts; [ $(wc -l < starts) -lt 5 ] || {{ {report}; }}; exit 73"
    )
    controller.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", TAKEN_OVER, str(int(not taken_over))],
        cwd=world.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert ("no agent is left" in done.stdout) is not taken_over


OVERTAKEN = f"until test -e epochs/000001.json; do sleep 0.02; done; {over(76)}"


def another_takes(world: World, *events: ev.AnyEvent) -> None:
    take_epoch(world.folder / "epochs", host="elsewhere", addresses=(), port=1, pid=1, run_id="r")
    with (world.folder / "journal.jsonl").open("ab") as journal:
        journal.write(b"".join(ev.encode_event(event) + b"\n" for event in events))


@pytest.mark.parametrize("code", [0, 93])
def test_an_overtaken_supervisor_ends_with_the_code_that_the_journal_holds(world: World, code: int) -> None:
    supervisor = follow(world, OVERTAKEN)
    wait_for(lambda: world.starts)
    another_takes(world)
    another_takes(world, ev.RunEnded(t=0.0, code=code, reason="done"))
    said, _ = supervisor.communicate(timeout=60)
    assert supervisor.returncode == code
    assert world.starts == 1
    assert "waits for the end of the job" in said


def test_no_controller_is_started_over_that_of_another_host(world: World) -> None:
    supervisor = follow(world, "until test -e epochs/000001.json; do sleep 0.02; done; kill -9 $$")
    wait_for(lambda: world.starts)
    another_takes(world)
    another_takes(world, ev.RunEnded(t=0.0, code=7, reason="done"))
    supervisor.communicate(timeout=60)
    assert (supervisor.returncode, world.starts) == (7, 1)


def test_an_overtaken_supervisor_ends_its_sruns_and_nothing_else(world: World) -> None:
    """One that lives on would end the step of that number in the job's next run."""
    for name in ("srun", "other"):
        (world.folder / name).symlink_to("/bin/sleep")
    left = "; ".join(
        f"setsid ./{name} 60 </dev/null >/dev/null 2>&1 & echo $! > {name}.pid" for name in ("srun", "other")
    )
    supervisor = follow(world, f"{left}; touch both; {OVERTAKEN}")
    wait_for((world.folder / "both").exists)
    another_takes(world)
    srun, other = (int((world.folder / f"{name}.pid").read_text()) for name in ("srun", "other"))
    wait_for(lambda: not is_alive(srun))
    assert is_alive(other)
    another_takes(world, ev.RunEnded(t=0.0, code=0, reason="done"))
    supervisor.communicate(timeout=30)
    assert supervisor.returncode == 0
    os.kill(other, 9)


def test_slurm_ends_an_overtaken_supervisor(world: World) -> None:
    supervisor = follow(world, OVERTAKEN)
    wait_for(lambda: world.starts)
    another_takes(world)
    supervisor.terminate()
    supervisor.communicate(timeout=60)
    assert supervisor.returncode == 143


def test_a_journal_that_does_not_grow_has_no_controller_any_more(world: World) -> None:
    supervisor = follow(world, f"test $(wc -l < starts) = 2 && {over(5)}; {over(76)}", 0.5)
    another_takes(world)
    said, _ = supervisor.communicate(timeout=60)
    assert supervisor.returncode == 5, said
    assert "another controller is started here" in said
