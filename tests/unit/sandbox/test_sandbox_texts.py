"""Files, command lines and refusals that need neither root nor Slurm."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from pathlib import Path

import pytest

from slurm_robust.cli import sandbox as cli
from slurm_robust.cli.main import main, make_parser
from slurm_robust.cli.parsing import Parser
from slurm_robust.cli.words import parse
from slurm_robust.model.errors import ExitCode
from slurm_robust.sandbox import SandboxConfig
from slurm_robust.sandbox.boot import accounts
from slurm_robust.sandbox.errors import ExecTimedOut, NotThere
from slurm_robust.sandbox.faults import Faults, PlantedFault
from slurm_robust.sandbox.folder import StateFolder
from slurm_robust.sandbox.sandbox import missing_packages
from slurm_robust.sandbox.services import head_services, node_services, service
from slurm_robust.sandbox.status import NodeStatus, SandboxStatus
from slurm_robust.sandbox.view import SandboxView
from slurm_robust.terminal.console import show

CONFIG = SandboxConfig(nodes=2)


def test_accounts_are_one_load() -> None:
    assert accounts(CONFIG).splitlines()[-2:] == [
        "User - 'alice':DefaultAccount='users':Fairshare=1",
        "User - 'bob':DefaultAccount='users':Fairshare=1",
    ]


def test_missing_programs_are_reported_as_packages() -> None:
    assert missing_packages(accounting=True, has=lambda program: True) == ()
    assert missing_packages(accounting=True, has=lambda program: program not in ("slurmd", "mariadbd")) == (
        "mariadb-server-core",
        "slurmd",
    )
    assert missing_packages(accounting=False, has=lambda program: program != "mariadbd") == ()


def test_daemons_are_known_by_node() -> None:
    assert list(head_services()) == ["munged", "mariadbd", "slurmdbd", "slurmctld"]
    assert list(node_services("n1")) == ["slurmd"]
    assert service("n1", "slurmd", ("-b",)).argv == ("slurmd", "-D", "-b")
    with pytest.raises(ValueError, match="no daemon 'slurmctld' on n1; there are: slurmd"):
        service("n1", "slurmctld")


def test_a_fault_is_one_line_of_json() -> None:
    fault = PlantedFault(1.5, "power-cut", "n3")
    assert json.loads(fault.to_json()) == {"t": 1.5, "fault": "power-cut", "target": "n3"}


def test_a_command_that_does_not_end_is_told_with_its_last_line_of_errors() -> None:
    said = b"sacctmgr: fatal: no\nsacctmgr: error: cannot stat slurm.conf, retrying\n"
    error = ExecTimedOut(["sacctmgr", "load"], 30.0, said)
    assert "sacctmgr load did not end within 30 s: sacctmgr: error: cannot stat slurm.conf" in str(error)
    assert "it printed nothing" in str(ExecTimedOut(["x"], 1.0, b""))


@pytest.mark.parametrize("name", ["default", "gpus"])
def test_the_command_that_resumes_a_booted_node_is_roots_and_can_be_pasted(name: str) -> None:
    args = parse(make_parser("sandbox"), shlex.split(cli.resume_line(name, "n1"))[1:])
    assert (args.name, args.user) == (name, "root")
    assert args.argv[1:] == ["scontrol", "update", "NodeName=n1", "State=RESUME"]


def test_every_fault_is_on_the_command_line_and_on_the_page() -> None:
    members = inspect.getmembers(Faults, inspect.isfunction)
    faults = {
        name.replace("_", "-") for name, do in members if do.__annotations__.get("return") == "PlantedFault"
    }
    faults -= {name for name in faults if name.startswith("-")}
    page = (Path(__file__).parents[3] / "docs" / "sandbox.md").read_text()
    assert {*cli.NODE_FAULTS, *cli.HEAD_FAULTS, *cli.RANK_FAULTS} == faults
    assert [name for name in sorted(faults) if not re.search(rf"`{name}[` ]", page)] == []


def node(name: str, **changes: object) -> NodeStatus:
    fields = {"address": "10.77.0.11", "on": True, "connected": True, "state": "idle", "reason": ""}
    return NodeStatus(name=name, daemons=("slurmd",), **(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes", [{"on": False}, {"connected": False}, {"state": "down*"}, {"state": "drained"}]
)
def test_a_broken_node_makes_the_sandbox_unhealthy(changes: dict[str, object]) -> None:
    status = SandboxStatus("x", "/x", (node("n1"), node("n2", **changes)))
    assert not status.healthy
    assert SandboxStatus("x", "/x", (node("n1"), node("n2", state="mixed"))).healthy


def test_the_table_has_a_line_per_node(capsys: pytest.CaptureFixture[str]) -> None:
    show(SandboxStatus("x", "/x", (node("n1", reason="broken fan"),)), cli.status_table, json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["node", "address", "power", "network", "Slurm", "daemons", "reason"]
    assert lines[1].split() == ["n1", "10.77.0.11", "on", "plugged", "idle", "slurmd", "broken", "fan"]


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["up", "--nodes", "0"], ExitCode.USAGE, "fix: give a number from 1 to 512"),
        (["status", "--name", "../x"], ExitCode.USAGE, "cannot name a sandbox"),
        (["status"], ExitCode.NO_INPUT, "srobust sandbox up --name default"),
        (["exec", "--", "true"], ExitCode.NO_INPUT, "no sandbox 'default' is up"),
        (["submit"], ExitCode.USAGE, "no batch script"),
        (["fault", "power-cut", "n1"], ExitCode.NO_INPUT, "no sandbox 'default' is up"),
        (["fault", "burn", "n1"], ExitCode.USAGE, "no fault 'burn'"),
    ],
)
def test_wrong_usage_ends_with_a_message(
    argv: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SROBUST_SANDBOX_DIR", str(tmp_path))
    assert main(["sandbox", *argv]) == code
    said = capsys.readouterr()
    assert message in said.err + said.out


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["exec", "--", "ls", "-l", "--", "x"], ["ls", "-l", "--", "x"]),
        (["exec", "--node", "n1", "srun", "--user", "x"], ["srun", "--user", "x"]),
        (["submit", "--", "-N4", "a.sh", "two words", "--user"], ["-N4", "a.sh", "two words", "--user"]),
        (["submit", "a.sh", "--name", "x"], ["a.sh", "--name", "x"]),
    ],
)
def test_arguments_of_the_command_are_not_interpreted(argv: list[str], expected: list[str]) -> None:
    parser = Parser()
    cli.register(parser.add_subparsers())
    args = parser.parse_args(["sandbox", *argv])
    assert cli._without_dashes(args.argv) == expected


def test_a_node_that_the_sandbox_does_not_have() -> None:
    view = SandboxView(StateFolder("x"), SandboxConfig(nodes=2))
    with pytest.raises(NotThere, match="no node 'n9' in 'x'\n  fix: name one of n1, n2") as error:
        view.check_node("n9")
    assert error.value.exit_code == ExitCode.NO_INPUT
