"""The report of ``srobust doctor``, and the command itself without a Slurm."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.console import Console

from slurm_robust.cli.main import main
from slurm_robust.doctor.main import HazardReport, render
from slurm_robust.doctor.rule import apply_all
from slurm_robust.doctor.rules import RULES
from slurm_robust.model.errors import ExitCode
from tests.unit.doctor.samples import GOOD, environ, slurm

EVIL = "ib0\x1b[2J\nBAD  nothing"


def report(*, clean: bool = False) -> HazardReport:
    facts = GOOD if clean else environ(NCCL_SOCKET_IFNAME=EVIL)(slurm(SlurmdTimeout="300 sec")(GOOD))
    return HazardReport(host="n1", hazards=apply_all(RULES, facts), unseen=("the job: give one",))


def shown(*, verbose: bool, width: int = 0) -> str:
    """The report in a terminal of ``width``; 0: in none."""
    screen = Console(width=width or 100, force_terminal=bool(width), color_system=None, highlight=False)
    with screen.capture() as capture:
        screen.print(render(report(), verbose=verbose), crop=bool(width))
    return capture.get()


def test_a_person_sees_what_is_wrong_and_why() -> None:
    head, *lines = shown(verbose=False).splitlines()
    assert head == "not seen: the job: give one"
    lines = lines[-4:]
    assert lines[0].startswith(
        "    BAD  nccl.interfaces: NCCL_SOCKET_IFNAME is ib0 BAD nothing, and this node has"
    )
    assert "\x1b" not in "".join(lines)
    assert lines[1].startswith("           why: ")
    assert lines[2].startswith("           fix: ")
    assert lines[-1].startswith(f"n1: {len(RULES)} rules, 1 bad, 2 note")
    assert lines[-1].endswith(" unknown; --verbose lists all")
    lines = shown(verbose=False).splitlines()
    assert not any("good  " in line or "source:" in line for line in lines)


def test_a_verbose_report_names_every_rule_and_its_source() -> None:
    text = shown(verbose=True)
    assert all(rule.name in text for rule in RULES)
    assert "source: slurm.conf(5) SlurmdTimeout" in text


def test_on_a_terminal_no_line_is_longer_than_it_and_the_rest_stands_below_its_beginning() -> None:
    lines = shown(verbose=True, width=80).splitlines()
    assert max(map(len, lines)) <= 80
    why = next(place for place, line in enumerate(lines) if line.startswith(" " * 11 + "why: "))
    below = lines[why + 1]
    assert below.startswith(" " * 16)
    assert below[16] != " "
    assert max(map(len, shown(verbose=True).splitlines())) > 80, "a program gets each finding in one line"


@pytest.fixture
def no_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


@pytest.mark.usefixtures("no_slurm")
def test_without_slurm_nothing_is_bad(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {hazard["rule"] for hazard in document["hazards"]} == {rule.name for rule in RULES}
    assert document["unseen"][0].startswith("Slurm: ")


@pytest.mark.usefixtures("no_slurm")
def test_a_bad_script_is_bad(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text("#!/bin/sh\n#SBATCH --requeue\n")
    assert main(["doctor", str(script), "--set", "spares=1"]) == 1
    assert "BAD  job.no_kill" in capsys.readouterr().out
    script.write_text("#!/bin/sh\n#SBATCH --no-kill --signal=B:USR1@120\n")
    assert main(["doctor", str(script)]) == 1
    *_, first, _, fix, _ = capsys.readouterr().out.splitlines()
    assert first == "    BAD  job.unprotected: the script does not call srobust run"
    assert fix.endswith("write instead: exec srobust run train.py")
    (tmp_path / "train.py").touch()
    script.write_text(
        f"#!/bin/sh\n#SBATCH --no-kill --signal=B:USR1@120\nexec srobust run {tmp_path}/train.py\n"
    )
    assert main(["doctor", str(script)]) == 0


BARE = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --partion=main
#SBATCH --output=/tmp/x-%j.out
export TORCH_NCCL_ASYNC_ERROR_HANDLING=0
export CUDA_LAUNCH_BLOCKING='1' NCCL_IB_TIMEOUT=$T
cd /tmp/work

srun --label torchrun --nproc_per_node 8 train.py --lr 1
"""


@pytest.mark.usefixtures("no_slurm")
def test_findings_have_the_lines_of_the_script_and_end_with_the_worst_and_a_line_to_paste(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text(BARE)
    assert main(["doctor", str(script)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in lines if line.startswith(("    BAD", "   note"))] == [
        "note  line 5, nccl.error_handling: TORCH_NCCL_ASYNC_ERROR_HANDLING is 0",
        "note  line 6, cuda.launch_blocking: CUDA_LAUNCH_BLOCKING is 1",
        "note  line 7, job.working_folder: the script changes to it: cd /tmp/work",
        "note  line 4, job.local_output: --output=/tmp/x-%j.out",
        "BAD  job.signal: the job does not ask for --signal",
        "BAD  job.no_kill: the job does not ask for --no-kill",
        "BAD  line 3, job.misspelt_option: unknown option --partion; did you mean --partition?",
        "BAD  line 9, job.unprotected: the script does not call srobust run: "
        "it starts srun --label torchrun --nproc_per_node 8 train.py --lr 1",
    ]
    assert lines[-4].strip() == "fix: write instead: exec srobust run --nproc-per-node 8 train.py --lr 1"
    assert lines[-7].strip() == "fix: write --partition"
    assert lines[-2] == "#SBATCH --no-kill --signal=B:USR1@120"


class Found(NamedTuple):
    """A report, by rule."""

    levels: dict[str, str]
    texts: dict[str, str]
    fixes: dict[str, str]
    unseen: list[str]
    """Of the script."""


Doctor = Callable[..., Found]


@pytest.fixture
def doctor(
    no_slurm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Doctor:
    """``srobust doctor`` of a script with a command, beside a job.yaml."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("spares: 2\ncheckpoint: {peers: false}\n")

    def ask(command: str, *options: str) -> Found:
        Path("train.sbatch").write_text(f"#!/bin/sh\n#SBATCH --nodes=4\n{command}\n")
        main(["doctor", "train.sbatch", "--json", *options])
        document = json.loads(capsys.readouterr().out)
        hazards = {hazard["rule"]: hazard for hazard in document["hazards"]}
        return Found(
            levels={rule: hazard["level"] for rule, hazard in hazards.items()},
            texts={rule: hazard["text"] for rule, hazard in hazards.items()},
            fixes={rule: hazard["fix"] for rule, hazard in hazards.items()},
            unseen=[text for text in document["unseen"] if text.endswith("script") or "script," in text],
        )

    return ask


@pytest.mark.parametrize(
    ("command", "level", "why"),
    [
        ("srobust run code/t.py", "good", ""),
        ("cd code && srobust run t.py --lr 1", "good", ""),
        ('cd "$SLURM_SUBMIT_DIR"; cd code\nsrobust run -m t', "good", ""),
        ("srobust run t.py", "note", "holds more than the code"),
        ("cd code\nsrobust run big/t.py", "note", "it has more than 3 files, the most of it in "),
        ("cd code\nsrobust run -- python big/t.py", "note", "it has more than 3 files"),
        ("srobust run --set code.paths=[code/big/data] t.py", "good", ""),
        ("srobust run --set code.releases=false t.py", "note", "code.releases is false"),
        ("srobust run gone.py", "unknown", "not seen: the code"),
        ("srobust run $HERE/t.py", "unknown", "not seen: the code"),
        ("cd $HERE\nsrobust run t.py", "unknown", "not seen: the code"),
        ("if cd code; then srobust run t.py; fi", "unknown", "not seen: the code"),
        ("./start.sh", "unknown", "not seen: the code"),
    ],
)
def test_whether_a_copy_of_the_code_can_be_taken(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, level: str, why: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "code/big/data").mkdir(parents=True)
    for name in ("t.py", "code/t.py", "code/big/t.py", *(f"code/big/{number}.py" for number in range(5))):
        (tmp_path / name).touch()
    (tmp_path / "code/.srobustignore").write_text("/big\n")
    found = doctor(command, "--set", "code.max_files=3")
    assert found.levels["job.code_in_place"] == level
    assert why in found.texts["job.code_in_place"]


@pytest.mark.parametrize(
    ("command", "options", "spares"),
    [
        ("srobust run --spares 0 t.py", (), "note"),
        ('exec srobust run --spares=1 \\\n "$@"', (), "good"),
        ("srobust run t.py --spares 1", (), "note"),  # as the script's own option
        ("srobust run -- t.py", (), "note"),
        ("srobust run --config job.yaml t.py", (), "good"),
        ("srobust run --config job.yaml --spares 0 t.py", (), "note"),
        ("export SROBUST_CONFIG_SPARES='1'\nsrobust run t.py", (), "good"),
        ("export SROBUST_CONFIG_SPARES=1\nsrobust run --set spares=0 t.py", (), "note"),
        ("srobust run --spares 0 t.py", ("--set", "spares=1"), "good"),
        ("srobust run --spares 0 t.py", ("--config", "job.yaml"), "good"),
        ("srobust run --spares 1 t.py", ("--set", "spares=0"), "note"),
        ('srobust run "$@"', (), "unknown"),
        ("srobust run $MORE t.py", (), "unknown"),
        ('srobust run --spares "$SPARES" t.py', (), "unknown"),
        ("srobust run --config job.yaml --spares `cat n` t.py", (), "unknown"),
        ("export SROBUST_CONFIG_SPARES=$N\nsrobust run --config job.yaml t.py", (), "unknown"),
        ("srobust run --name $NAME --spares 1 t.py", (), "good"),
        ("./start.sh", (), "unknown"),
        ("./start.sh", ("--set", "spares=0"), "note"),
    ],
)
def test_the_settings_are_those_of_srobust_run(
    doctor: Doctor, command: str, options: tuple[str, ...], spares: str
) -> None:
    found = doctor(command, *options)
    assert found.levels["settings.spares"] == spares
    assert found.levels["settings.refused"] == ("unknown" if command == "./start.sh" else "good")


def test_what_is_not_seen_may_solve_a_contradiction(doctor: Doctor) -> None:
    found = doctor("srobust run --config ~none/x --set timings.stop_grace_s=20 t.py")
    assert found.levels["settings.refused"] == "good"


def test_all_options_of_srobust_run_count(doctor: Doctor) -> None:
    found = doctor("srobust run --config job.yaml --observe --nodes 90 --nproc-per-node 8 t.py")
    assert found.levels["settings.peers"] == "note"
    assert found.levels["settings.observe"] == "bad"
    assert doctor("srobust run t.py").texts["nccl.all_to_all"] == "not seen: ranks"
    assert found.texts["nccl.all_to_all"] != "not seen: ranks"
    assert found.unseen == []


@pytest.mark.parametrize(
    ("command", "unseen"),
    [
        ('srobust run --spares "$SPARES" t.py', ['--spares "$SPARES" of srobust run in the script']),
        ("srobust run --set a=$(x y) -- $RUN", ["--set a=$(x y) of srobust run in the script"]),
        ('srobust run "$@"', ['"$@" of srobust run in the script, and what follows it']),
        ("export SROBUST_CONFIG_MODE=$M\nsrobust run t.py", ["SROBUST_CONFIG_MODE=$M in the script"]),
        ("srobust run a.py\nsrobust run b.py", ["1 other srobust run in the script"]),
    ],
)
def test_what_only_the_shell_knows_is_not_seen(doctor: Doctor, command: str, unseen: list[str]) -> None:
    assert doctor(command).unseen == unseen


@pytest.mark.usefixtures("no_slurm")
def test_what_follows_the_script_on_sbatchs_line_is_seen(
    no_slurm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.sbatch").write_text('#!/bin/sh\nexec srobust run --spares 1 "$@"\n')

    def told(*behind: str) -> str:
        main(["doctor", "--state", "1G", "train.sbatch", *behind])
        return capsys.readouterr().out

    assert '"$@" of srobust run in the script' in told()
    assert "of srobust run in the script" not in told("train.py", "--lr", "3e-4")
    assert "train.py" in told("train.py"), "which is not there"
    Path("train.py").write_text("")
    assert "train.py" not in told("train.py")


def test_options_behind_the_script_are_those_of_srobust_run_unless_the_doctor_has_them(
    no_slurm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    Path("train.sbatch").write_text('#!/bin/sh\nexec srobust run "$@"\n')
    for own in ([], ["--json"]):
        code = main(["doctor", "train.sbatch", *own, "--from", "2", "--spares", "1", "train.py", "--lr", "1"])
        told = capsys.readouterr()
        assert (code in (0, 1), told.err, told.out.startswith("{")) == (True, "", bool(own))
    assert main(["doctor", "--from", "2", "train.sbatch"]) == ExitCode.USAGE
    assert "srobust doctor has no option --from" in capsys.readouterr().err
    main(["doctor", "train.sbatch", "--nodez", "2", "train.py"])
    assert "no option --nodez" in capsys.readouterr().out


def test_words_that_a_script_does_not_pass_on_are_refused(
    no_slurm: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text("#!/bin/sh\nexec srobust run train.py\n")
    assert main(["doctor", str(script), "train.py"]) == ExitCode.USAGE
    assert "the script does not pass train.py on to srobust run" in capsys.readouterr().err


def test_a_script_whose_settings_are_not_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text("#!/bin/sh\n./start.sh\n")
    main(["doctor", str(script)])
    assert "not seen: srobust run in the script: without it the job is not" in capsys.readouterr().out
    script.write_text("#!/bin/sh\nsrobust run --config none.yaml t.py\n")
    main(["doctor", str(script)])
    assert "not seen: --config none.yaml of srobust run in the script: no such" in capsys.readouterr().out


def test_a_script_that_srobust_run_does_not_find_is_bad(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "t.py").touch()
    assert doctor("srobust run t.py").levels["job.script_missing"] == "good"
    found = doctor("srobust run code/t.py")
    assert found.levels["job.script_missing"] == "bad"
    assert f"{tmp_path}/code/t.py" in found.texts["job.script_missing"]
    assert doctor("cd $HERE\nsrobust run t.py").levels["job.script_missing"] == "unknown"


def test_another_script_may_call_srobust_run(doctor: Doctor) -> None:
    assert doctor("./start.sh").levels["job.unprotected"] == "unknown"
    assert doctor("source env.sh\npython t.py").levels["job.unprotected"] == "bad"
    assert doctor("./prepare.sh\npython t.py").levels["job.unprotected"] == "bad"


def test_wrong_settings_of_a_file_name_its_line(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("spares: 1\nspare: 2\n")
    found = doctor("srobust run --config site.yaml t.py")
    assert found.fixes["settings.refused"] == "correct site.yaml, line 2"
    assert (
        doctor("srobust run --spares one t.py").fixes["settings.refused"] == "correct it in the batch script"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--spare 1 t.py", "srobust run has no option --spare; fix: did you mean --spares?"),
        ("--spares one t.py", "argument --spares: invalid int value: 'one'"),
        ("--spares -1 t.py", "option --spares: spares must be an integer of 0 or more"),
        ("--set spare=1 t.py", "unknown key spare"),
        ("--config train.sbatch t.py", "train.sbatch"),
        ("--name a/b t.py", "--name 'a/b' is not a folder name"),
        ("--spares 1", "nothing to run"),
        ("--help", "nothing to run"),
        ("--set timings.stop_grace_s=20 t.py", "shutdown_s (10) is less than the 25 s"),
    ],
)
def test_what_srobust_run_will_refuse(doctor: Doctor, options: str, said: str) -> None:
    found = doctor(f"srobust run {options}")
    assert found.levels["settings.refused"] == "bad"
    assert said in found.texts["settings.refused"]
    assert found.levels["settings.spares"] == "unknown"


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["x.sbatch", "--job", "7"], ExitCode.USAGE),
        (["--state", "much"], ExitCode.USAGE),
        (["--job", "0"], ExitCode.USAGE),
        (["/no/such/script"], ExitCode.NO_INPUT),
        (["--set", "spares=-1"], ExitCode.USAGE),
        (["--config", "/no/such/file"], ExitCode.NO_INPUT),
    ],
)
@pytest.mark.usefixtures("no_slurm")
def test_errors_have_the_codes_of_the_house(argv: list[str], code: ExitCode) -> None:
    assert main(["doctor", *argv]) == code
