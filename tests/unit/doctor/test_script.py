"""The ``srobust run`` of a batch script, as a shell would read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.doctor.script import CannotRead, Run, expands, read, run_of, unquoted


def test_what_sbatch_would_not_get_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    for name, why in (("no", "no such file"), ("", "a folder"), ("train.py", "sbatch refuses")):
        with pytest.raises(CannotRead, match=why):
            read(tmp_path / name)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ('exec srobust run --spares 1 "$@"', ("--spares", "1", '"$@"')),
        ("srobust run --spares 1 \\\n  --observe \\\n  t.py", ("--spares", "1", "--observe", "t.py")),
        ("cd x && ~/venv/bin/srobust run t.py --lr 1 | tee log", ("t.py", "--lr", "1")),
        ('"$VENV/bin/srobust" run t.py > log 2>&1 &', ("t.py",)),
        ("python3 -m slurm_robust.cli run t.py", ("t.py",)),
        ("if ! srobust run t.py; then exit 1; fi", ("t.py",)),
        ("srobust run --nodes $((N - (1))) t.py", ("--nodes", "$((N - (1)))", "t.py")),
        (
            'srobust run --config "$(dirname "$0")/a b" `which t.py`',
            ("--config", '"$(dirname "$0")/a b"', "`which t.py`"),
        ),
        ("srobust run --set 'a=b; c' t.py#1 # why; not", ("--set", "'a=b; c'", "t.py#1")),
        ("# srobust run a.py \\\nsrobust run b.py", ("b.py",)),
        ("srobust run it's.py " + '"' + "$(a) " * 50, ("it's.py", '"$(a)', *["$(a)"] * 49)),
    ],
)
def test_what_follows_srobust_run(command: str, words: tuple[str, ...]) -> None:
    run = run_of(f"#!/bin/bash\n#SBATCH -k\necho hello\n{command}\n")
    assert run is not None
    assert (run.words, run.variables, run.more) == (words, (), 0)


@pytest.mark.parametrize(
    "command", ["srun train.py", 'echo "srobust run"', "# srobust run", "srobust status; run", "srobust"]
)
def test_a_script_without_it(command: str) -> None:
    assert run_of(f"#!/bin/bash\n{command}\n") is None


def test_exported_settings_and_further_runs() -> None:
    script = """#!/bin/bash
export SROBUST_CONFIG_SPARES=1 OTHER=2; export SROBUST_CONFIG_MODE="$MODE"
SROBUST_CONFIG_NODES=9
SROBUST_CONFIG_JOB_DIR='/a b' srobust run --name a x.py
export SROBUST_CONFIG_SPARES=5
srobust run --name b x.py
"""
    assert run_of(script) == Run(
        words=("--name", "a", "x.py"),
        variables=(
            "SROBUST_CONFIG_SPARES=1",
            'SROBUST_CONFIG_MODE="$MODE"',
            "SROBUST_CONFIG_JOB_DIR='/a b'",
        ),
        more=1,
        hears=False,
    )


@pytest.mark.parametrize(
    ("lines", "hears"),
    [
        ("exec srobust run x.py", True),
        ("srobust run x.py", False),
        ("trap 'kill -USR1 $pid' USR1\nsrobust run x.py & pid=$!", True),
        ("exec > log\nsrobust run x.py", False),
    ],
)
def test_whether_signals_of_slurm_reach_it(lines: str, hears: bool) -> None:
    run = run_of(f"#!/bin/bash\n{lines}\n")
    assert run is not None
    assert run.hears is hears


def test_words_as_the_command_gets_them() -> None:
    assert [unquoted(word) for word in ("'a b'", 'x="1"', "it's", r"a\ b")] == ["a b", "x=1", "it's", "a b"]
    assert [expands(word) for word in ('"$A"', "`x`", "'a b'")] == [True, True, False]
