"""Every error ends in one message, the fix and an exit code; the options are frozen."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust import home
from slurm_robust.cli import main as cli
from slurm_robust.cli.commands import GROUPS
from slurm_robust.cli.main import main, make_parser
from slurm_robust.cli.parsing import Examples, Parser, span
from slurm_robust.cli.words import OTHER_VALUE_OPTIONS, OWN_OPTIONS, parse, split_command
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.slurm.errors import NotInAllocation
from tests.pages import commands

FROZEN = Path(__file__).with_name("options.txt")


def tree(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command by its full name."""
    yield parser.prog, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from tree(child)


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    """The options and arguments of one command as they are typed."""
    return [
        " ".join(action.option_strings) or str(action.metavar or action.dest)
        for action in parser._actions
        if not isinstance(action, argparse._HelpAction)
    ]


def test_options_are_frozen() -> None:
    """An option that changes its name breaks somebody's sbatch script: it must be a decision.

    After such a decision, copy the text that this test shows into options.txt.
    """
    found = "".join(f"{name}: {', '.join(options_of(p))}".rstrip() + "\n" for name, p in tree(make_parser()))
    assert found == FROZEN.read_text()


@pytest.mark.parametrize("name", [name for name, _ in tree(make_parser())])
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*name.split()[1:], "--help"])
    assert ended.value.code == 0
    assert f"usage: {name}" in capsys.readouterr().out


def test_help_of_all_commands_has_one_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for title, group in GROUPS.items():
        first = lines.index(f"{title}:") + 1
        shown = [line.split(None, 1) for line in lines[first : first + len(group)]]
        assert shown == [[name, text] for name, text in group.items()]


def examples_of_commands() -> Iterator[tuple[str, Examples]]:
    """The examples of each command that is no group of commands."""
    for name, parser in tree(make_parser()):
        assert isinstance(parser, Parser)
        if not any(isinstance(action, argparse._SubParsersAction) for action in parser._actions):
            yield name, parser.examples


@pytest.mark.parametrize(("name", "examples"), [*examples_of_commands()])
def test_help_ends_with_examples_that_are_right(
    name: str, examples: Examples, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*name.split()[1:], "--help"])
    end = capsys.readouterr().out.partition("\nexamples:\n")[2].splitlines()
    assert end == [line for line, text in examples for line in (f"  {line}", f"      {text}")]
    assert max(map(len, end)) <= 80
    assert len(examples) >= 2
    for line, _ in examples:
        (argv,) = commands(line, "srobust")
        assert line == "srobust --version" or f"{shlex.join(argv)} ".startswith(f"{name} ")
        if argv[1:] != ["--version"]:
            parse(make_parser(argv[1]), argv[1:])


@pytest.mark.parametrize("command", ["", "status", "checkpoint", "checkpoint ls", "run"])
def test_help_as_everybody_asks_for_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for argv in (["help", *command.split()], [*command.split(), "--help"], [*command.split(), "-h"]):
        with pytest.raises(SystemExit) as ended:
            main(argv)
        assert ended.value.code == 0
        shown.append(capsys.readouterr().out)
    assert shown[0].startswith(f"usage: srobust {command}".rstrip())
    assert shown[0] == shown[1] == shown[2]


def test_the_version_as_everybody_asks_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    asked = capsys.readouterr().out
    assert main(["version"]) == 0
    assert capsys.readouterr().out == asked
    assert main(["version", "--json"]) == 0
    assert f"srobust {json.loads(capsys.readouterr().out)['version']}\n" == asked


def test_an_error_has_no_code_of_a_verdict() -> None:
    """1 and 2 say that something was found; only checks, like plugins of Nagios, end with 3 in an error."""
    units = ("admin", "cli", "config", "controller", "model", "report", "sandbox", "slurm")
    for unit in units:
        package = importlib.import_module(f"slurm_robust.{unit}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    kinds: list[type[SrobustError]] = [SrobustError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    known = [kind for kind in kinds if kind.__module__.split(".")[1] in units]
    assert {kind.__name__ for kind in known if kind.exit_code not in {*ExitCode}} == {
        "NoSuchCheck",
        "CannotRecord",
    }
    assert NotInAllocation.exit_code == ExitCode.ALLOCATION


def test_help_of_all_commands_needs_none_of_them() -> None:
    assert make_parser("").format_help() == make_parser().format_help()


def test_help_loads_nothing_heavy() -> None:
    heavy = ("torch", "rich", "yaml", "zmq", "psutil", "numpy")
    code = "import sys, slurm_robust.cli.main as m; m.make_parser(''); print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert sorted(set(found.stdout.split()) & set(heavy)) == []


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        ([], ExitCode.USAGE, "required: COMMAND"),
        (["bogus"], ExitCode.USAGE, "no command 'bogus'\n  fix: see srobust --help"),
        (["statsu"], ExitCode.USAGE, "no command 'statsu'\n  fix: did you mean status?"),
        (["help", "statsu"], ExitCode.USAGE, "did you mean status?"),
        (["checkpoint", "lss"], ExitCode.USAGE, "no command 'lss'\n  fix: did you mean ls?"),
        (
            ["sandbox", "fault", "powercut"],
            ExitCode.USAGE,
            "no fault 'powercut'\n  fix: did you mean power-cut?",
        ),
        (["status", "--jsn"], ExitCode.USAGE, "status has no option --jsn\n  fix: did you mean --json?"),
        (
            ["run", "--spare", "1", "a.py"],
            ExitCode.USAGE,
            "has no option --spare\n  fix: did you mean --spares?",
        ),
        (["status", "7", "8"], ExitCode.USAGE, "status takes no '8'\n  fix: see srobust status --help"),
        (["classify", "--stream", "kernl"], ExitCode.USAGE, "no 'kernl'\n  fix: did you mean kernel?"),
        (["run"], ExitCode.USAGE, "nothing to run"),
        (["run", "--"], ExitCode.USAGE, "nothing to run"),
        (["run", "-m", "--", "x"], ExitCode.USAGE, "-m and -- exclude each other"),
        (["run", "--nodes", "two", "a.py"], ExitCode.USAGE, "argument --nodes"),
        (["run", "--node", "2", "a.py"], ExitCode.USAGE, "did you mean --nodes?"),
        (
            ["run", "--quux", "a.py"],
            ExitCode.USAGE,
            "srobust run has no option --quux\n  fix: see srobust run --help",
        ),
        (["run", "--name", "../x", "a.py"], ExitCode.USAGE, "not a folder name"),
        (["run", "--from", " ", "a.py"], ExitCode.USAGE, "argument --from: it is empty"),
        (["run", "--set", "nodes", "a.py"], ExitCode.USAGE, "--set nodes: no value"),
        (
            ["run", "--nodes", "0", "a.py"],
            ExitCode.USAGE,
            "option --nodes: nodes must be an integer of 1 or more",
        ),
        (["run", "--set", "nodez=1", "a.py"], ExitCode.USAGE, "did you mean nodes"),
        (["run", "--nproc-per-node", "0", "a.py"], ExitCode.USAGE, "nproc_per_node must be an integer"),
        (["run", "--config", "/nowhere/a.yaml", "a.py"], ExitCode.NO_INPUT, "/nowhere/a.yaml cannot be read"),
        (["replay"], ExitCode.USAGE, "usage: srobust replay"),
        (["replay", "--", "x"], ExitCode.USAGE, "only a Python script or module can be replayed"),
        (["config", "check", "/nowhere/job.yaml"], ExitCode.NO_INPUT, "cannot be read"),
        (["status", ""], ExitCode.USAGE, "JOB is empty"),
        *(
            ([*words, nodes], ExitCode.USAGE, f"{nodes!r} names no node")
            for nodes in ("", " ", "(null)")
            for words in (["admin", "repair"], ["admin", "quarantine"], ["nodes"], ["diagnose", "--nodes"])
        ),
        *(
            (["nodes", "--days", days], ExitCode.USAGE, f"'{days}' is not a number above 0")
            for days in ("nan", "inf", "-1", "0")
        ),
        (["nodes", "--days", "1e300"], ExitCode.USAGE, "'1e300' is too large: 1,000,000,000 at most"),
        (["logs", "7", "--generation", "-1"], ExitCode.USAGE, "'-1' is not a number from 0"),
        (["drill", "7", "kill-rank", "--rank", "²"], ExitCode.USAGE, "'²' is not a number from 0"),
        (["drill", "7", "burn"], ExitCode.USAGE, "no fault 'burn'\n  fix: see srobust drill"),
        (["update", "7", "--deadline", "soon"], ExitCode.USAGE, "'soon' is no time span"),
        (["update", "7", "--now", "--deadline", "6h"], ExitCode.USAGE, "--deadline is for an update that"),
        (["update", "/nowhere/7", "--", "--now"], ExitCode.NO_INPUT, "there is no folder /nowhere/7"),
        (["rollback", "/nowhere/7"], ExitCode.NO_INPUT, "there is no folder /nowhere/7"),
        (["diff", "/nowhere/7"], ExitCode.NO_INPUT, "there is no folder /nowhere/7"),
        (["releases", "/nowhere/7"], ExitCode.NO_INPUT, "there is no folder /nowhere/7"),
        (["status", "/nowhere/7"], ExitCode.NO_INPUT, "there is no folder /nowhere/7"),
    ],
)
def test_wrong_usage_ends_with_a_message_and_its_code(
    argv: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == code
    said = capsys.readouterr().err
    assert said.startswith("srobust: error: ")
    assert message in said
    assert "\n  fix: " in said or "did you mean" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("command", ["run", "replay"])
def test_all_errors_of_a_command_line_are_reported_together(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, options = tmp_path / "bad.yaml", ["--set", "nodes=q", "--set", "a=b", "--set", "spares"]
    bad.write_text("spare: 1\nmode: actt\n")
    assert main([command, "--config", str(bad), *options, "nofile.py"]) == ExitCode.CONFIG
    said = capsys.readouterr().err
    for problem in ("unknown key spare", "mode must be", "option --set nodes=q", "unknown key a"):
        assert problem in said
    assert "--set spares: no value\n  fix: write --set spares=VALUE" in said
    assert "script not found" in said
    options = ["--set", "timings.node_dead_s=1", "--set", "limits.per_hour=x"]
    assert main([command, "--config", f"{tmp_path}/no.yaml", *options, "nofile.py"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    for problem in ("no.yaml cannot be read", "limits.per_hour must be", "nofile.py"):
        assert problem in said
    assert "heartbeats" not in said  # how long one is may stand in the file


@pytest.mark.parametrize(
    "command", [["-m", "only_in_the_image"], ["/only/in/the/image.py"], ["--", "/only/there"]]
)
def test_what_may_be_in_the_image_is_not_looked_for_outside(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    image = ["--set", "agents.srun_options=--container-image=a.sqsh"]
    assert main(["run", *command]) == ExitCode.NO_INPUT
    assert main(["run", *image, *command]) == ExitCode.ALLOCATION
    assert main(["run", *image, "nofile.py"]) == ExitCode.NO_INPUT


def test_outside_slurm_it_says_how_to_get_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    (tmp_path / "train.py").touch()
    assert main(["run", str(tmp_path / "train.py")]) == ExitCode.ALLOCATION
    assert "sbatch" in capsys.readouterr().err


def test_a_traceback_is_shown_only_on_demand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SROBUST_DEBUG", "1")
    main(["bogus"])
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "srobust: interrupted"),
        (RuntimeError("x"), 70, "with the lines above: https://github.com/slurm-robust/slurm_robust/issues"),
    ],
)
def test_interrupts_and_bugs_have_codes_of_their_own(
    error: BaseException,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr(cli, "_version", fail)
    assert main(["version"]) == code
    assert message in capsys.readouterr().err


def test_a_working_directory_that_was_removed_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code = "import os, sys; os.rmdir(os.getcwd()); from slurm_robust.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "releases", "7"]
    done = subprocess.run(command, cwd=gone, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == ExitCode.NO_INPUT
    assert "the folder in which you are has been removed" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_costs_no_traceback() -> None:
    code = "import sys; from slurm_robust.cli.main import main; sys.exit(main(['config', 'show']))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert said == ""
    assert process.returncode == 141


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("train.py --lr 3", ("", "train.py --lr 3", False)),
        ("--nodes 2 train.py --nodes 9 -- x", ("--nodes 2", "train.py --nodes 9 -- x", False)),
        ("--nodes=2 --observe train.py", ("--nodes=2 --observe", "train.py", False)),
        ("--spares 1 -m pkg.train -x", ("--spares 1 -m", "pkg.train -x", False)),
        ("--nodes 2 -- python -u train.py --help", ("--nodes 2", "python -u train.py --help", True)),
        ("-- -weird -- x", ("", "-weird -- x", True)),
        ("--set a=b --config c --name n t.py", ("--set a=b --config c --name n", "t.py", False)),
        ("--help", ("--help", "", False)),
        ("", ("", "", False)),
    ],
)
def test_our_options_end_where_the_users_command_begins(argv: str, expected: tuple[str, str, bool]) -> None:
    own, command, verbatim = split_command(argv.split())
    assert (" ".join(own), " ".join(command), verbatim) == expected


def test_every_option_with_a_value_is_known_to_the_splitter() -> None:
    """An option that were missing there would take the script's name as its flag's neighbour."""
    parser = dict(tree(make_parser()))["srobust run"]
    with_value = {o for action in parser._actions if action.nargs is None for o in action.option_strings}
    assert with_value == {*OWN_OPTIONS, *OTHER_VALUE_OPTIONS}


def test_ctrl_c_while_the_program_is_loaded_is_no_traceback(tmp_path: Path) -> None:
    """The first module that it loads from here stands for any: the signal comes in the middle of it."""
    (tmp_path / "argparse.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    code += "from slurm_robust.cli.__main__ import program; sys.exit(program())"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (ExitCode.INTERRUPTED, "srobust: interrupted\n")


def test_output_that_a_full_disk_does_not_take_is_an_error() -> None:
    command = [sys.executable, "-m", "slurm_robust.cli", "version"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == ExitCode.JOB_DIR
    assert done.stderr.startswith("srobust: error: the output cannot be written: No space left on device")


def test_a_journal_that_is_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "journal.jsonl" / "x").mkdir(parents=True)
    assert main(["status", str(tmp_path)]) == ExitCode.NO_INPUT
    assert "cannot be read: Is a directory" in capsys.readouterr().err


def test_a_journal_of_which_nothing_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "journal.jsonl").write_text('{"event": "run_sta')
    assert main(["status", str(tmp_path)]) == ExitCode.NO_INPUT
    assert "has no whole event" in capsys.readouterr().err


def test_a_filter_for_all_jobs_is_refused_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incidents", "7", "--node", "n1"]) == ExitCode.USAGE
    assert "fix: give --all in place of JOB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("90m", 5400),
        ("1.5h", 5400),
        ("24h", 86400),
        ("2d", 172800),
        ("1w", 604800),
        ("30:00", 1800),
        ("02:00:00", 7200),
        ("1-12", 129600),
        ("1-00:30", 88200),
        ("1-12:00:05", 129605),
        (" 6H ", 21600),
    ],
)
def test_time_spans_are_read_as_people_and_slurm_write_them(text: str, seconds: float) -> None:
    assert span(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "soon", "0", "-5m", "5 m", "h", "1e9h", "99999999w", "nan", "UNLIMITED", "²h"]
)
def test_what_is_no_time_span_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no time span"):
        span(text)


@pytest.mark.parametrize("command", ["run", "replay", "diagnose"])
def test_the_node_s_side_says_that_a_training_has_another_srobust(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home, "PACKAGE_TREE", Path(home.__file__).parent)
    assert main([command, "train.py"]) == ExitCode.REFUSED
    said = capsys.readouterr().err
    assert f"this srobust is the node's side, without PyTorch: it cannot {command}" in said
    assert "fix: activate the environment of your training" in said
    with pytest.raises(SystemExit):
        main([command, "--help"])
