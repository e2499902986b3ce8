"""Hooks as programs: their codes, their time, and what they leave, whatever is around them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.users import as_root
from tests.waiting import BUSY, wait_for

HEAD = """
import signal, sys
from slurm_robust.nodes import registry
from slurm_robust.nodes.check import EVERYWHERE, Check, Probe, Source, Hang
from slurm_robust.model.findings import Finding, Outcome, Suggestion, Writer
from slurm_robust.model.record import Record

class Fan(Record):
    rpm: int

def look(host, config):
    text = open(sys.argv[-1]).read()
    if text == "hang":
        while True:
            signal.pause()
    return Fan(rpm=int(text))

def judge(view, config):
    if view.facts.rpm == 13:
        raise KeyError("rpm")
    while view.facts.rpm == 14:
        signal.pause()
    bad = view.facts.rpm < 100
    yield Finding(check="fan.speed", outcome=Outcome.FAIL if bad else Outcome.PASS, subject="fan0",
                  text="stands still", suggestion=Suggestion.REPLACE)

fans = Source(name="fans", facts=Fan, gather=look, timeout_s=0.5, fresh_s=0.0,
              hang=Hang(Outcome.FAIL, "the driver hangs", Suggestion.REBOOT))
registry.CHECKS = (Check("fan.speed", fans, judge, "", Writer.KERNEL, EVERYWHERE, Probe.NODE, hangs=True),)
from slurm_robust.hooks.command import main
sys.exit(main(sys.argv[1:-1]))
"""
SLURM = """#!/bin/sh
echo "$(basename $0) $*" >> $(dirname $0)/calls
[ -e $(dirname $0)/hang ] && exec sleep 1000
[ -e $(dirname $0)/answers ] && exec $(dirname $0)/slurmctld "$(basename $0)" "$@"
exit 1
"""
# A cluster of one node, which keeps its reason in a file.
SLURMCTLD = """#!/bin/bash
reason=$(cat "$(dirname "$0")/reason" 2>/dev/null)
state=IDLE${reason:++DRAIN}
case "$*" in
    sdiag) echo "sdiag output at now ($(date +%s))" ;;
    "sinfo --version") echo "slurm 22.05.8" ;;
    sinfo*--nodes=n1*)
        printf '%-256s%-256s%-256s%-64s%-32s%-64s%s\n' n1 main "$state" root 1000 0/8/0/8 "${reason:-none}"
        ;;
    "scontrol show node"*)
        printf 'NodeName=n1 CPUAlloc=0 CPUTot=8\n   State=%s\n   Partitions=main\n' "$state"
        [ -z "$reason" ] || printf '   Reason=%s [root@1000]\n' "$reason"
        ;;
    "scontrol update nodename=n1 state=drain"*)
        words="$*"
        echo "${words#*reason=}" > "$(dirname "$0")/reason"
        ;;
    "scontrol create reservation"* | "scontrol delete reservation"*) ;;
    "scontrol show reservation"*) echo "ReservationName=srobust-turn-main Nodes=n1 NodeCnt=1" ;;
    *) echo "not known: $*" >&2; exit 1 ;;
esac
"""


# Without a configuration a hook writes where it does by default; in here that is not this machine's.
OWN_FOLDERS = """
mount -t tmpfs own /var/lib && mount -t tmpfs own /var/log || exit 99
"$@"
code=$?
cp /var/log/slurm-robust/events.jsonl "$OUT"
exit $code
"""


class Machine:
    """A node with one check, whose fan is a file, and a Slurm that does not answer unless sent to."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.fan, self.log = folder, folder / "fan", folder / "events.jsonl"
        self.program = folder / "hook.py"
        self.program.write_text(textwrap.dedent(HEAD))
        self.config = folder / "config.yaml"
        self.slurm = folder / "slurm"
        self.slurm.mkdir()
        for name in ("scontrol", "sinfo", "squeue", "sdiag"):
            (self.slurm / name).write_text(SLURM)
            (self.slurm / name).chmod(0o755)
        (self.slurm / "slurmctld").write_text(SLURMCTLD)
        (self.slurm / "slurmctld").chmod(0o755)
        self.fan.write_text("500")
        self.configure()

    def configure(self, more: str = "", **hooks: object) -> None:
        settings = {
            "slurm_bin": self.slurm,
            "slurm_s": 0.5,
            "prolog_s": 3,
            "epilog_s": 3,
            "periodic_s": 3,
        } | hooks
        lines = [f"hooks: {{{', '.join(f'{key}: {value}' for key, value in settings.items())}}}"]
        lines.append(f"paths: {{state: {self.folder}/state, log: {self.log}, syslog: false}}")
        self.config.write_text("\n".join([*lines, more, ""]))

    def command(self, hook: str) -> list[str]:
        return [sys.executable, str(self.program), hook, "--config", str(self.config), str(self.fan)]

    def run(self, hook: str, **options: Any) -> int:
        begun = time.monotonic()
        options = {
            "env": {"SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "7"},
            "stdin": subprocess.DEVNULL,
        } | options
        words = self.command(hook)
        done: subprocess.CompletedProcess[bytes] = subprocess.run(
            words, capture_output=True, timeout=100, check=False, **options
        )
        self.took_s = time.monotonic() - begun
        self.errors = done.stderr.decode()
        return done.returncode

    def run_by_default(self, hook: str) -> int:
        """Run a hook whose configuration cannot be used; its events come to the usual place."""
        words = ["unshare", "--mount", "sh", "-c", OWN_FOLDERS, "sh", *self.command(hook)]
        env = {"PATH": os.environ["PATH"], "OUT": str(self.log), "SLURMD_NODENAME": "n1"}
        return subprocess.run(words, env=env, capture_output=True, timeout=100, check=False).returncode

    @property
    def events(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(line) for line in self.log.read_bytes().splitlines()]

    @property
    def last(self) -> dict[str, Any]:
        return [event for event in self.events if event["event"] == "run"][-1]


ACT = "drain: {mode: act}"
pytestmark = pytest.mark.slow


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("hook", ["prolog", "epilog", "periodic"])
def test_a_good_node_gives_one_event_and_asks_slurm_nothing(machine: Machine, hook: str) -> None:
    machine.configure(ACT)
    assert machine.run(hook) == 0
    assert machine.errors == ""
    [event] = machine.events
    assert (event["event"], event["hook"], event["node"], event["job"]) == ("run", hook, "n1", 7)
    assert (event["fit"], event["checks"], event["exit_code"]) == (True, 1, 0)
    assert event["wall_s"] < event["hook_s"] < machine.took_s
    assert not (machine.slurm / "calls").exists()


@pytest.mark.parametrize("hook", ["prolog", "epilog", "periodic"])
def test_metrics_are_written_where_the_site_wants_them(machine: Machine, hook: str) -> None:
    folder = machine.folder / "textfile"
    machine.configure(f"metrics: {{textfile_dir: {folder}}}")
    assert machine.run(hook) == 0
    assert [event["event"] for event in machine.events] == ["run", "metrics_not_written"]
    assert machine.events[-1]["why"].startswith(f"{folder}: No such file or directory")
    folder.mkdir(mode=0o755)
    assert machine.run(hook) == 0
    assert f'srobust_node_fit{{hook="{hook}"}} 1' in (folder / f"srobust_{hook}.prom").read_text()
    assert "srobust_node_drained 0" in (folder / "srobust_node.prom").read_text()
    assert machine.events[-1]["event"] == "run"


def test_a_prolog_refuses_a_bad_node_only_where_it_may_act(machine: Machine) -> None:
    machine.fan.write_text("0")
    (machine.slurm / "answers").touch()
    machine.configure(prolog_s=8)
    assert machine.run("prolog") == 0
    assert machine.last["reason"] == "srobust: fan0 stands still"
    assert machine.last["action"] == "would drain (observe)"
    assert "srobust: fan0 stands still: would drain (observe)" in machine.errors
    machine.configure(ACT, prolog_s=8)
    (machine.folder / "state/drain.json").unlink()
    assert machine.run("prolog") == 1
    assert (machine.slurm / "reason").read_text() == "srobust: fan0 stands still\n"
    assert "srobust: fan0 stands still" in machine.errors
    assert (machine.last["exit_code"], machine.last["mode"]) == (1, "act")
    for hook in ("epilog", "periodic"):
        assert machine.run(hook) == 0
        assert machine.last["reason"] == "srobust: fan0 stands still"


@pytest.mark.parametrize(("trouble", "event"), [("refuses", "slurm_refused"), ("hangs", "slurm_unreachable")])
def test_a_prolog_lets_the_job_start_where_slurm_does_not_answer(
    machine: Machine, trouble: str, event: str
) -> None:
    """Else one fault of all nodes and a slow slurmctld would cost the whole partition."""
    machine.configure(ACT)
    machine.fan.write_text("0")
    if trouble == "hangs":
        (machine.slurm / "hang").touch()
    assert machine.run("prolog") == 0
    assert machine.last["reason"] == "srobust: fan0 stands still"
    assert event in [sent["event"] for sent in machine.events]


def test_a_driver_that_hangs_is_the_finding_and_the_budget_holds(machine: Machine) -> None:
    machine.configure(ACT)
    machine.fan.write_text("hang")
    machine.run("prolog")
    assert machine.took_s < 3.5 * BUSY
    assert machine.last["reason"] == "srobust: the driver hangs"


def test_slurm_that_hangs_costs_no_more_than_the_budget(machine: Machine) -> None:
    machine.configure(ACT)
    machine.fan.write_text("0")
    (machine.slurm / "hang").touch()
    for hook in ("prolog", "epilog", "periodic"):
        machine.run(hook)
        assert machine.took_s < 3.5 * BUSY
    assert (machine.slurm / "calls").exists()


@pytest.mark.parametrize(("closed", "code"), [("open", 0), ("closed", 1)])
def test_python_that_hangs_is_left_behind_with_the_code_of_the_configuration(
    machine: Machine, closed: str, code: int
) -> None:
    machine.configure(ACT, on_error=closed, prolog_s=1.0, epilog_s=1.0)
    machine.fan.write_text("14")
    assert machine.run("prolog") == code
    assert machine.took_s < 3.0 * BUSY
    happened = [event["event"] for event in machine.events]
    assert [event for event in happened if event != "slow_start"] == ["hook_failed"], (
        "a busy machine is slow, too"
    )
    assert "no answer in time" in machine.errors
    assert machine.run("epilog") == 0


def test_a_check_with_a_bug_is_unknown_and_reported(machine: Machine) -> None:
    machine.configure(ACT)
    machine.fan.write_text("13")
    assert machine.run("prolog") == 0
    assert machine.last["errors"] == {"fan.speed": "KeyError: 'rpm'"}
    assert machine.last["unknown"] == ["fan.speed"]


@as_root
def test_a_broken_configuration_is_reported_and_lets_jobs_start(machine: Machine) -> None:
    machine.configure("drain: {mode: act}\nnonsense: 1")
    machine.fan.write_text("0")
    assert machine.run_by_default("prolog") == 0
    assert "nonsense" in machine.events[0]["problem"]
    assert (machine.last["fit"], machine.last["mode"]) == (False, "observe")


# A file system whose server never answers, as NFS without its server; SIGKILL ends who waits for it.
DEAD_MOUNT = """
exec 3<>/dev/fuse && mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 dead "$DEAD" || exit 99
exec "$@"
"""


@as_root
@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="needs /dev/fuse")
def test_a_configuration_that_does_not_answer_holds_no_prolog_beyond_its_budget(
    machine: Machine, tmp_path: Path
) -> None:
    dead = tmp_path / "conf.d"
    dead.mkdir()
    words = ["unshare", "--mount", "bash", "-c", DEAD_MOUNT, "bash", "sh", "-c", OWN_FOLDERS, "sh"]
    env = {"PATH": os.environ["PATH"], "OUT": str(machine.log), "DEAD": str(dead)}
    begun = time.monotonic()
    done = subprocess.run(
        [*words, *machine.command("prolog")], env=env, capture_output=True, timeout=100, check=False
    )
    assert (done.returncode, time.monotonic() - begun < 60) == (0, True), done.stderr
    [event] = machine.events
    assert (event["event"], event["closed"]) == ("hook_failed", False)
    assert event["error"].startswith("reading the configuration took longer than 4 s: repair the file system")


# Storage from which one module comes late; the limits of the start are shorter, so that the test is.
SLOW_STORAGE = """
import time
from importlib.abc import MetaPathFinder
from slurm_robust.hooks import stages
class Storage(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            time.sleep({takes_s})
sys.meta_path.insert(0, Storage())
stages.CONFIGURATION_S, stages.START_S = 0.4, {start_s}
"""


def import_slowly(machine: Machine, module: str, *, takes_s: float, start_s: float = 20.0) -> None:
    slow = SLOW_STORAGE.format(module=module, takes_s=takes_s, start_s=start_s)
    machine.program.write_text(machine.program.read_text().replace("sys.exit(main", slow + "sys.exit(main"))


@pytest.mark.parametrize("module", ["slurm_robust.hooks.log", "slurm_robust.config.reader"])
def test_modules_that_come_late_are_not_the_configurations_fault(machine: Machine, module: str) -> None:
    """Slow is not broken: the node is checked with what is left of the budget."""
    machine.configure(ACT, prolog_s=3.9)
    import_slowly(machine, module, takes_s=1.0)
    assert machine.run("prolog") == 0
    assert [event["event"] for event in machine.events] == ["slow_start", "run"]
    assert machine.last["fit"]
    sent = machine.events[0]["why"]
    assert re.match(r"importing Python modules took \d+\.\d s: .* of 3\.9 s for the hook$", sent), sent
    assert "install slurm_robust on a local disk" in sent


@pytest.mark.parametrize(("closed", "code"), [("open", 0), ("closed", 1)])
def test_a_start_that_uses_up_the_budget_is_named(machine: Machine, closed: str, code: int) -> None:
    machine.configure(ACT, on_error=closed, prolog_s=0.5)
    import_slowly(machine, "slurm_robust.hooks.log", takes_s=0.7)
    assert machine.run("prolog") == code
    [event] = machine.events
    assert event["error"].startswith("nothing is left of the hook's 0.5 s: ")
    assert "importing Python modules took" in event["error"]
    assert "importing Python modules took" in machine.errors


@as_root
def test_modules_that_do_not_come_hold_no_hook(machine: Machine) -> None:
    import_slowly(machine, "slurm_robust.hooks.hook", takes_s=600, start_s=0.5)
    assert machine.run_by_default("prolog") == 0
    [event] = machine.events
    assert event["error"].startswith("importing Python modules took longer than 0.5 s: ")


def test_where_nothing_can_be_imported_the_hook_ends_all_the_same(machine: Machine) -> None:
    """Not even what tells of it: the words are in slurmd's log."""
    import_slowly(machine, "slurm_robust.hooks.log", takes_s=600, start_s=0.5)
    assert machine.run("prolog") == 0
    assert machine.took_s < 60
    assert "prolog failed: importing Python modules took longer than 0.5 s" in machine.errors


@pytest.mark.parametrize("trouble", ["no state", "full", "no environment", "closed files", "gone folder"])
def test_a_hook_works_without_state_or_disk(machine: Machine, trouble: str, tmp_path: Path) -> None:
    machine.configure(ACT)
    options: dict[str, Any] = {}
    if trouble == "no state":
        (machine.folder / "state").touch()
    elif trouble == "full":
        machine.log.symlink_to("/dev/full")
    elif trouble == "no environment":
        options["env"] = {}
    elif trouble == "gone folder":
        options["preexec_fn"] = lambda: go_where_nothing_is(tmp_path / "gone")
    if trouble == "closed files":
        words = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *machine.command("prolog")]
        assert subprocess.run(words, env={}, timeout=60, check=False).returncode == 0
    else:
        assert machine.run("prolog", **options) == 0
    if trouble != "full":
        assert machine.last["fit"]


def go_where_nothing_is(folder: Path) -> None:
    folder.mkdir()
    os.chdir(folder)
    folder.rmdir()


def test_a_failure_is_reported_when_it_begins_and_when_it_ends(machine: Machine) -> None:
    for rpm in ("500", "0", "0", "500", "500"):
        machine.fan.write_text(rpm)
        assert machine.run("periodic") == 0
    changes = [event for event in machine.events if event["event"] == "changed"]
    assert [(event["failing"], event["passing"]) for event in changes] == [
        (["fan.speed fan0"], []),
        ([], ["fan.speed fan0"]),
    ]


def test_two_prologs_side_by_side(machine: Machine) -> None:
    running = [subprocess.Popen(machine.command("prolog"), env={}) for _ in range(4)]
    assert [process.wait(60) for process in running] == [0] * 4
    assert [event["fit"] for event in machine.events] == [True] * 4


def test_sigterm_ends_it(machine: Machine) -> None:
    machine.configure(prolog_s=60)
    machine.program.write_text(machine.program.read_text().replace("timeout_s=0.5", "timeout_s=50"))
    machine.fan.write_text("hang")
    with subprocess.Popen(machine.command("prolog"), env={}) as process:
        wait_for(lambda: len(family(process.pid)) >= 2)
        before = family(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    wait_for(lambda: not Path(f"/proc/{before[0]}").exists())
    for pid in before[1:]:  # They end by themselves after the limit of their check.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def family(pid: int) -> list[int]:
    found = []
    for child in re.findall(r"\d+", Path(f"/proc/{pid}/task/{pid}/children").read_text()):
        found += [int(child), *family(int(child))]
    return found


@pytest.mark.parametrize("words", [[], ["prologue"], ["prolog", "--config"], ["prolog", "--verbose", "x"]])
def test_wrong_usage_is_said(words: list[str]) -> None:
    command = [sys.executable, "-m", "slurm_robust.hooks.command", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr[:6]) == (64, "usage:")


@as_root
def test_a_hook_imports_nothing_heavy(machine: Machine) -> None:
    machine.program.write_text(
        machine.program.read_text().replace(
            "sys.exit(main(sys.argv[1:-1]))",
            "main(sys.argv[1:-1])\n"
            "import slurm_robust.hooks.hook\n"
            "heavy = {'torch', 'rich', 'yaml', 'zmq', 'psutil', 'pynvml', 'argparse', 'subprocess',\n"
            "         'slurm_robust.slurm'}\n"
            "open(sys.argv[-1], 'w').write(' '.join(sorted(heavy & set(sys.modules))))",
        )
    )
    machine.config.unlink()
    assert machine.run_by_default("prolog") == 0
    assert machine.fan.read_text() == ""
