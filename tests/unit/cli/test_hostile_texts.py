"""Texts of jobs, logs, Slurm and users reach nobody's screen as an order, nor as a line of ours."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import string
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from slurm_robust.admin import install, quarantine, spares, verify
from slurm_robust.admin.files import Tree
from slurm_robust.admin.site import Site
from slurm_robust.admin.spare_plan import PlannedNodes, SpareRequirements, plan_for, text_of
from slurm_robust.admin.spares import pool_of
from slurm_robust.cli.main import main, make_parser, visible_only
from slurm_robust.config.node import Paths
from slurm_robust.diagnostics import command as diagnose
from slurm_robust.hooks.log import EventLog
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.findings import Finding, Outcome
from slurm_robust.model.incident import Diagnosis, TestResult
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.live_status import encode
from slurm_robust.model.training import Chapter, TrainingDirectory, encoded
from slurm_robust.notify import main as notify
from slurm_robust.run.preflight import open_directory
from slurm_robust.slurm.configuration import LiveConfiguration
from slurm_robust.slurm.process import CompletedCommand
from slurm_robust.slurm.requests import ReservationRequest, SubmitRequest
from slurm_robust.terminal import console as console
from slurm_robust.terminal.console import Screen
from slurm_robust.testing.fake_replayer import FakeReplayer, NodeDefect
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.testing.sim.job import Sim
from slurm_robust.testing.sim.training import doing
from slurm_robust.util.output import say
from slurm_robust.wire.epochs import take_epoch
from slurm_robust.wire.keys import load_server
from slurm_robust.wire.messages import DrillReply
from slurm_robust.wire.sockets import ControllerSocket
from tests.builders import specs
from tests.builders.live_statuses import live_status
from tests.contracts.replayer import run as replayed
from tests.unit.diagnostics import test_live
from tests.unit.engine.stories import trained
from tests.unit.report import incident_journal
from tests.unit.report.test_logs import STARTED
from tests.users import as_root

MARK = "FORGED"
"""A line that begins with it has not been written by us."""

PIECES = (
    "\x1b[2J", "\x1b[31m", "\x1b]0;title\x07", "\x1b]8;;http://x\x1b\\", "\x1b]52;c;aGk=", "\x1bP1$q\x1b\\",
    "\x1b", "\x9b31m", "\x9d0;t\x9c", "\x84", "\x85", "\x00", "\x07", "\x08", "\r", "\t", "\x7f", "\n\n",
    "\u2028", "\u202e", "\u2066", "\u200f", "\ufeff", "[bold]", "[/]", "[/data]", "[link=http://x]", "[",
    ":boom:", "<script>", "&lt;", "{0}", "%s", "|", '"', "'", "\\", "x" * 3000, "漢", "; ",
)  # fmt: skip
ENDS = (f"\n{MARK}", f"\r{MARK}", f"\r\n{MARK}", f"\x0b{MARK}", f"\x1c{MARK}")
HOSTILE = st.tuples(
    st.lists(st.sampled_from(PIECES) | st.text(string.printable, max_size=5), max_size=8).map("".join),
    st.sampled_from(ENDS),
).map(lambda parts: "it said " + "".join(parts))
_FEW = settings(
    max_examples=5,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink takes minutes, and tells little more
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def fuzz(test: Callable[..., None]) -> Callable[..., None]:
    """A test with a few hostile texts, each of them many pieces; they take seconds."""
    return cast(Callable[..., None], pytest.mark.slow(_FEW(test)))


# What decides how a record is read, and so is no free text.
_WORDS_OF_OURS = frozenset({"sealed", "restore", "what", "key"})


def poisoned(value: Any, text: str) -> Any:
    """``value`` with ``text`` at the end of every text in it."""
    if type(value) is str:
        return value + text
    if isinstance(value, msgspec.Struct):
        found = {name: getattr(value, name) for name in value.__struct_fields__ if name not in _WORDS_OF_OURS}
        return msgspec.structs.replace(value, **{name: poisoned(each, text) for name, each in found.items()})
    if isinstance(value, tuple | list):
        return type(value)(poisoned(each, text) for each in value)
    if isinstance(value, dict):
        return {key: poisoned(each, text) for key, each in value.items()}
    return value


def harmless(output: str) -> str:
    """The output, in which nothing commands a terminal and no line is somebody else's."""
    strange = {char for char in output if not char.isprintable() and char != "\n"}
    assert not strange, (strange, output)
    assert not [line for line in output.split("\n") if line.startswith(MARK)], output
    return output


def output_of(*argv: str) -> str:
    """What ``srobust`` writes when it is called with ``argv``; it must not stumble."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(argv)
    output = out.getvalue() + err.getvalue()
    assert code != ExitCode.INTERNAL, output
    if "--json" in argv and out.getvalue():
        assert out.getvalue().isascii()
        for line in out.getvalue().splitlines() if argv[0] == "logs" else [out.getvalue()]:
            json.loads(line)
    return harmless(output)


def printed(write: Callable[[], object]) -> str:
    """The same for a part of a command."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), visible_only():
        write()
    return harmless(out.getvalue())


# -- Slurm, whose answers hold the hostile text -----------------------------------------------------


class Answers:
    """Slurm's commands as scripts that print what they are told to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        answer = 'cat "$0.answer"; cat "$0.error" >&2; exit "$(cat "$0.code")"'
        script = folder / "script"
        script.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo slurm 22.05.8 && exit\n{answer}\n')
        script.chmod(0o755)
        for name in ("scontrol", "sacct", "sacctmgr", "squeue", "srun", "sbatch"):
            (folder / name).symlink_to(script)
            self.say(name)

    def say(self, name: str, text: str = "", *, error: str = "", code: int = 0) -> None:
        """What the command prints from now on, and how it ends."""
        for ending, content in (("answer", text), ("error", error), ("code", str(code))):
            (self._folder / f"{name}.{ending}").write_bytes(content.encode(errors="surrogateescape"))


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answers:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    # Where a long line is folded is chance; what is a line of its own is not.
    monkeypatch.setattr(console, "WIDTH", 200_000)
    monkeypatch.chdir(tmp_path)
    return Answers(folder)


@pytest.fixture
def job(tmp_path: Path, slurm: Answers) -> JobDirectory:
    made = JobDirectory(tmp_path / "4711")
    made.path.mkdir()
    return made


def journal(job: JobDirectory, events: Sequence[ev.AnyEvent]) -> None:
    job.journal.write_bytes(b"".join(ev.encode_event(event) + b"\n" for event in events))


# -- the commands -----------------------------------------------------------------------------------


@fuzz
@given(HOSTILE)
def test_a_job_and_its_incidents(job: JobDirectory, slurm: Answers, text: str) -> None:
    events = incident_journal.whole()
    journal(job, [poisoned(event, text) for event in events])
    slurm.say(
        "scontrol", f"JobId=4711 JobName=a{text}\n   JobState=RUNNING Reason=x{text}\n   Comment={text}\n"
    )
    for argv in (["status"], ["incidents"], *(["incident", str(number)] for number in range(1, 7))):
        command = [argv[0], str(job.path), *argv[1:]]
        output_of(*command)
        output_of(*command, "--json")


@fuzz
@given(HOSTILE)
def test_srobust_trace_cleans_hostile_texts(job: JobDirectory, text: str) -> None:
    journal(job, [poisoned(event, text) for event in incident_journal.whole()])
    output_of("trace", str(job.path))
    output_of("trace", str(job.path), "--json")


@fuzz
@given(HOSTILE)
def test_srobust_top_cleans_hostile_texts(job: JobDirectory, slurm: Answers, text: str) -> None:
    journal(job, [poisoned(event, text) for event in incident_journal.whole()])
    slurm.say("scontrol", f"JobId=4711 JobName=a{text}\n   JobState=RUNNING Reason=x{text}\n")
    job.live_status.write_bytes(encode(poisoned(live_status(), text)))
    output_of("top", str(job.path), "--json")  # its screen: tests/unit/report/top
    job.live_status.unlink()
    output_of("top", str(job.path), "--json")
    output_of("status", str(job.path), "--watch")  # this job has ended


@fuzz
@given(HOSTILE)
def test_the_evidence_of_an_incident(job: JobDirectory, text: str) -> None:
    incident_journal.write(job, incident_journal.whole()) if not job.journal.exists() else None
    evidence = job.path / "incidents" / "0003"
    evidence.mkdir(parents=True, exist_ok=True)
    for name in ("stacks.txt", "logs/gen-003/rank-00001.out", "alerts.json", "stacks.json"):
        (evidence / name).parent.mkdir(parents=True, exist_ok=True)
        (evidence / name).write_text(text)
    output_of("incident", str(job.path), "3", "--logs", "--stacks")


@fuzz
@given(HOSTILE, st.binary(max_size=20))
def test_the_logs_of_a_training(job: JobDirectory, text: str, bytes_: bytes) -> None:
    journal(job, [STARTED])
    for stream in ("out", "err"):
        log = job.worker_log(1, 0, stream)
        log.parent.mkdir(parents=True, exist_ok=True)
        # Lines of the training are lines here.
        log.write_bytes(text.replace(MARK, "").encode() + b"\n" + bytes_ + b"\nRuntimeError: " + bytes_)
    output_of("logs", str(job.path))
    output_of("logs", str(job.path), "--rank", "all", "--err", "--json")
    output_of("classify", str(job.worker_log(1, 0, "out")))
    output_of("classify", str(job.worker_log(1, 0, "out")), str(job.worker_log(1, 0, "err")), "--json")


@fuzz
@given(HOSTILE)
def test_srobust_checkpoint_cleans_hostile_texts(job: JobDirectory, text: str) -> None:
    journal(job, [STARTED, ev.Noted(t=1.0, text=text), incident_journal.whole()[3]])
    spec = specs.job_spec(
        command=(text,),
        copies=specs.copy_spec(),
        checkpoint_dir=str(job.path / text.replace("/", "").replace("\0", "")[:50]),
    )
    job.spec.write_bytes(msgspec.json.encode(spec))
    for argv in (["ls"], ["verify"], ["export", "latest", "--to", str(job.path / "to")]):
        output_of("checkpoint", argv[0], str(job.path), *argv[1:])
        output_of("checkpoint", argv[0], str(job.path), *argv[1:], "--json")


@fuzz
@given(HOSTILE)
def test_srobust_trainings_cleans_hostile_texts(tmp_path: Path, text: str) -> None:
    root = tmp_path / "jobs"
    training = TrainingDirectory.of(root, "gpt")
    training.path.mkdir(parents=True, exist_ok=True)
    name = text.replace("/", "").replace("\0", "").encode(errors="replace").decode()[:50] or "x"
    (root / f"training-{name}").mkdir(exist_ok=True)
    chapters = [Chapter(job_id=7, run_id="r", folder="7", t=1.0, array_task=text, node=text)]
    chapters.append(msgspec.structs.replace(chapters[0], job_id=8, run_id=text, folder=name))
    training.chapters.write_bytes(b"".join(map(encoded, chapters)))
    (root / "7").mkdir(exist_ok=True)
    started = msgspec.structs.replace(STARTED, training=text, array_task=text)
    end = ev.RunEnded(t=9.0, code=1, reason=text)
    journal(JobDirectory(root / "7"), [started, *incident_journal.whole()[1:], end])
    for argv in (
        ["training"], ["training", "gpt"], ["training", "gpt", "--json"], ["report", "gpt"],
        ["incidents", "gpt"], ["incident", "7/1"], ["checkpoint", "prune", "gpt", "--yes"],
        ["checkpoint", "rm", "gpt", text],
    ):  # fmt: skip
        output_of(*argv, "--job-dir", str(root))


@pytest.fixture
def sim() -> Sim:
    return trained(4)


@fuzz
@given(HOSTILE)
def test_the_stacks_of_a_running_job(tmp_path: Path, slurm: Answers, sim: Sim, text: str) -> None:
    stacks = doing(2, "n3", f"forward{text}@/home/me/{text}", state="T")
    sim.rank(2).shows = lambda order: msgspec.structs.replace(poisoned(stacks, text), node="n3")
    directory = JobDirectory(tmp_path / f"job-{len(list(tmp_path.iterdir()))}")
    test_live.prepare(directory, sim)
    with test_live.controller(directory, sim):
        assert "forward" in output_of("stacks", str(directory.path), "--raw")
    with test_live.controller(directory, sim):
        output_of("stacks", str(directory.path), "--json")


@fuzz
@given(HOSTILE, st.booleans())
def test_srobust_drill_cleans_hostile_texts(tmp_path: Path, slurm: Answers, text: str, ok: bool) -> None:
    directory = JobDirectory(tmp_path / f"job-{len(list(tmp_path.iterdir()))}")
    open_directory(directory)
    journal(directory, [STARTED])
    with contextlib.closing(ControllerSocket(load_server(directory.keys))) as server:
        take_epoch(
            directory.epochs, host="localhost", addresses=("127.0.0.1",), port=server.port, pid=1, run_id="r"
        )
        with test_live.serving(server, lambda wish: DrillReply(ok=ok, text=text)):
            output_of("drill", str(directory.path), "kill-rank", "--no-wait")


@fuzz
@given(HOSTILE)
def test_the_history_of_nodes(tmp_path: Path, slurm: Answers, text: str) -> None:
    head = "NodeName|Start|End|State|User|Reason"
    slurm.say("sacctmgr", f"{head}\nn1|2026-01-01T00:00:00|Unknown|DRAIN|root(0)|srobust: {text}\n")
    slurm.say(
        "sacct",
        "JobIDRaw|State|ExitCode|NodeList|Start|End\n7|NODE_FAIL|0:0|n1|2026-01-01T00:00:00|2026-01-02T00:00:00\n",
    )
    log = tmp_path / "events.jsonl"
    log.write_bytes(
        b"".join(
            msgspec.json.encode({"at": 2e9, "node": f"n{text}", "event": event, "reason": text, "job": 1})
            + b"\n"
            for event in ("drained", "acquitted")
        )
    )
    for more in ([], ["--lemons"], ["n1"], ["--json"], ["--lemons", "--json"]):
        output_of("nodes", "--days", "100000", "--log", str(log), *more)


@fuzz
@given(HOSTILE)
def test_srobust_spares_cleans_hostile_texts(text: str) -> None:
    slurm = FakeSlurm()
    slurm.create_reservation(
        ReservationRequest(name="s", node_count=2, users=("alice",), accounts=("users",))
    )
    slurm.submit(SubmitRequest(command=("x",), reservation="s"))
    nodes, jobs = slurm.nodes(["n1", "n2"]), slurm.jobs()
    plan = plan_for(slurm, PlannedNodes(name="nodes", count=8), SpareRequirements(), 0.0)
    pool = msgspec.structs.replace(pool_of(slurm.reservations()[0], nodes, jobs), plan=plan)
    printed(lambda: Screen().print(spares._pool_text(poisoned(pool, text), 0.0)))
    printed(
        lambda: Screen().print(text_of(PlannedNodes(name=f"nodes of {text}", count=8))(poisoned(plan, text)))
    )
    printed(lambda: print(spares._removal(poisoned(slurm.reservations()[0], text), poisoned(jobs, text))))


@fuzz
@given(HOSTILE, st.integers(0, 3))
def test_a_check_of_the_site(tmp_path: Path, text: str, code: int) -> None:
    command, said = tmp_path / "check", tmp_path / "said"
    said.write_text(text)
    command.write_text(f'#!/bin/sh\ncat "{said}"; exit {code}\n')
    command.chmod(0o755)
    config = {
        "site_checks": [{"name": "odd", "command": [str(command)]}],
        "paths": {"state": str(tmp_path / "state"), "runtime": str(tmp_path / "run")},
    }
    file = tmp_path / "node.yaml"
    file.write_text(json.dumps(config))
    output_of("check", "--only", "site.odd", "--config", str(file))
    output_of("check", "--only", "site.odd", "--config", str(file), "--json")
    output_of("check", "--only", text, "--config", str(file))


@fuzz
@given(HOSTILE)
def test_a_batch_script_that_the_doctor_reads(tmp_path: Path, slurm: Answers, text: str) -> None:
    slurm.say("scontrol", error=text, code=1)
    script = tmp_path / "job.sbatch"
    script.write_text(f"#!/bin/bash\n#SBATCH --nodes={text}\n#SBATCH {text}\nexport NCCL_DEBUG={text}\n")
    output_of("doctor", str(script), "-v")
    output_of("doctor", str(script), "--json")


@fuzz
@given(HOSTILE)
def test_srobust_config_cleans_hostile_texts(tmp_path: Path, text: str) -> None:
    file = tmp_path / re.sub(r"[/\0]", "", text)[:60]
    file.write_text(f"job_dir: {json.dumps(text)}\nname{text}: 1\n")
    output_of("config", "check", str(file))
    output_of("config", "show", "--set", f"job_dir={text}")
    output_of("config", "show", "--set", f"{text}=1")


@fuzz
@given(HOSTILE)
def test_arguments_that_make_no_sense(tmp_path: Path, slurm: Answers, text: str) -> None:
    slurm.say("scontrol", error=text, code=1)
    text = text.replace("\0", "")[:200]  # as long as a name of a file may be
    for argv in (
        [text], ["run", "--", text], ["run", "--nodes", text, "x"], ["run", text], ["status", text],
        ["status", "7"], ["logs", text], ["incidents", text], ["stacks", text], ["drill", text, text],
        ["classify", text], ["nodes", text], ["diagnose", "--tests", text], ["replay", text],
        ["sandbox", "status", "--name", text], ["admin", text], ["admin", "quarantine", text],
        ["version", text], ["help", text], ["completion", text], ["init", "--dir", "/nowhere", text],
        ["simulate", text], ["checkpoint", "ls", text], ["spares", "plan", "--nodes", text],
        ["checkpoint", "plan", "--layout", "2x8", "--params", "7B", "--node-memory", text],
        ["checkpoint", "plan", "--layout", text, "--params", text, "--node-memory", "2T", "--link", text],
        ["spares", "status"], ["spares", "create", "--count", "1", "--users", text],
        ["spares", "remove", "--name", text], ["fleet", "--index", text], ["fleet", "--since", text],
        ["incidents", "--all", "--node", text], ["admin", "fleet", "collect", "--spool", text],
        ["doctor", text], ["doctor", "--state", text],
        ["notify", text], ["update", text], ["update", "/nowhere", "--deadline", text],
        ["releases", text], ["rollback", text, text], ["diff", text, text, text],
    ):  # fmt: skip
        output_of(*argv)


@fuzz
@given(HOSTILE)
def test_srobust_notify_cleans_hostile_texts(text: str) -> None:
    tested = notify.Tested(channel="a", way="mail", ok=False, took_s=0.1, error="x", fix="y")
    row = notify.ChannelRow(
        channel="a", way="mail", kinds=("end",), min_severity="info", sent_last_hour=1, waiting=0, left_out=0,
        trouble="x", given_up_until=1.0,
    )  # fmt: skip
    report = poisoned(notify.TestReport(job="7", channels=(tested,)), text)
    printed(lambda: Screen().print(notify.render_test(report)))
    printed(lambda: Screen().print(notify.render(poisoned(notify.Overview(job="7", channels=(row,)), text))))


@fuzz
@given(HOSTILE)
def test_diagnoses_and_replays(slurm: Answers, text: str) -> None:
    result = TestResult(test="gpu", node="n1", outcome=Outcome.FAIL, text="x", peers=("n2",), value="1")
    found = Diagnosis(results=(result,), suspects=("n1",), reason="x", left_out={"memory": "no time"})
    hostile = poisoned(found, text)
    printed(lambda: Screen().print(diagnose.render(hostile, [hostile.results[0].node])))
    verdict = poisoned(replayed(FakeReplayer({"n5": NodeDefect.CORRUPTS})), text)
    printed(lambda: Screen().print(diagnose.render_replay(verdict)))


@as_root
@fuzz
@given(HOSTILE)
def test_messages_for_administrators_are_cleaned(tmp_path: Path, text: str) -> None:
    root = tmp_path / f"machine-{len(list(tmp_path.iterdir()))}"
    conf = root / "etc/slurm/slurm.conf"
    conf.parent.mkdir(parents=True)
    value = re.sub(r"[\s\0#]", "", text)[:200]
    conf.write_bytes(f"ClusterName=c\nProlog=/a{value}\nHealthCheckProgram=/b{value}\n# {value}\n".encode())

    def scontrol(command: Sequence[str], **_: object) -> CompletedCommand:
        answer = f"Prolog = /a{text}\nHealthCheckProgram = {text}\n"
        return CompletedCommand(command=tuple(command), exit_code=len(text) % 2, stdout=answer, stderr=text)

    def site() -> Site:
        live = LiveConfiguration({"SLURM_CONF": str(conf)}, run=scontrol)
        return Site("/etc/slurm/slurm.conf", tree=Tree(root), live=live, node_command="/bin/true")

    printed(lambda: install.main(site=site(), dry_run=True))
    printed(lambda: install.main(site=site()))
    printed(lambda: verify.main(site=site()))
    printed(lambda: install.uninstall(site=site(), dry_run=True))
    finding = Finding(check="site.odd", outcome=Outcome.FAIL, subject="gpu0", text="x", value="1", limit="2")
    result = quarantine.QuarantineResult(
        node="n1", returned=False, why="x", reason="srobust: x", tests=1, evidence=(finding,),
        checks=("gpu.ecc",), serials={"board_serial": "7"},
    )  # fmt: skip
    printed(lambda: print(quarantine.paragraph(poisoned(result, text))))


@fuzz
@given(HOSTILE)
def test_the_log_of_a_job_and_of_a_node(tmp_path: Path, text: str) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        say(f"rank 3 on n1: {text}")
    harmless(out.getvalue())
    file = tmp_path / "events.jsonl"
    file.unlink(missing_ok=True)
    name = os.fsdecode(text.encode() + b"\xff\x9b")
    EventLog(Paths(log=str(file), syslog=False), "n1").write("allocated", job_name=name, text=text)
    (line,) = file.read_bytes().splitlines()
    assert line.isascii()
    harmless(line.decode())
    assert msgspec.json.decode(line)["text"] == text


@pytest.mark.parametrize("text", ["bad path [/data]", "expected [red] got [bold]x", "a :boom: b"])
def test_what_looks_like_markup_is_shown_as_it_is(job: JobDirectory, text: str) -> None:
    journal(job, [poisoned(event, f" {text}") for event in incident_journal.whole()])
    for command in ("status", "incidents"):
        assert text in output_of(command, str(job.path))


def test_on_a_terminal_only_our_own_colours_command_it(
    job: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    journal(job, [poisoned(event, "".join((*PIECES, *ENDS))) for event in incident_journal.whole()])
    for argv in (["status"], ["incidents"], ["incident", "1"], ["incident", "4"]):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            main([argv[0], str(job.path), *argv[1:]])
        assert "\x1b[1" in out.getvalue()
        left = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
        assert not {char for char in left if not char.isprintable() and char != "\n"}


# -- that none is forgotten -------------------------------------------------------------------------


def commands() -> Iterator[str]:
    parser: argparse.ArgumentParser = make_parser()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices


def test_every_command_is_fuzzed() -> None:
    source = Path(__file__).read_text()
    assert [name for name in commands() if f'"{name}"' not in source] == []


PACKAGE = Path(__file__).parents[3] / "slurm_robust"
VIEWS = [
    path
    for unit in ("report", "terminal", "admin", "cli", "diagnostics", "trainings", "updates", "run")
    for path in (PACKAGE / unit).rglob("*.py")
]


def test_views_make_no_console_of_their_own_and_write_past_nobody() -> None:
    """What is written elsewhere would be cleaned by nobody."""
    bad = re.compile(r"\bConsole\(|std(out|err)\.buffer|__std(out|err)__|from_markup|\bmarkup=True")
    found = {path.name for path in VIEWS if bad.search(path.read_text())}
    assert found == {"deep_check.py", "gpu_reset.py"}  # both answer a program


def test_one_function_prints_json() -> None:
    """Every ``--json`` has one form; ``srobust logs`` prints a document for each line that comes.

    A page holds the data of its charts.
    """
    assert {path.name for path in VIEWS if "as_json(" in path.read_text()} == {
        "console.py",
        "logs.py",
    }
