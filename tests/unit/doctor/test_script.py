"""The ``srobust run`` of a batch script, as a shell would read it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_robust.doctor.script import CannotRead, RobustRun, expands, read, run_of, unquoted
from slurm_robust.slurm.options import of_script
from tests.there import there


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
    run = there(run_of(f"#!/bin/bash\n#SBATCH -k\necho hello\n{command}\n"))
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
    assert run_of(script) == RobustRun(
        words=("--name", "a", "x.py"),
        variables=("SROBUST_CONFIG_SPARES=1", 'SROBUST_CONFIG_MODE="$MODE"', "SROBUST_CONFIG_JOB_DIR='/a b'"),
        more=1,
        hears=False,
    )


TRAP = "trap 'kill -USR1 $pid' USR1\n"


@pytest.mark.parametrize(
    "lines",
    [
        "exec srobust run x.py",
        "cd /x && exec srobust run x.py > log 2>&1",
        "exec > >(tee log) 2>&1\nexec srobust run x.py",
        "exec ~/venv/bin/srobust run x.py",
        "exec -a train srobust run x.py",
        "exec -cla train -- srobust run x.py",
        "exec -c -l srobust run x.py",
        "exec python3 -u -m slurm_robust.cli run x.py",
        "exec env A=1 -u B nice -n 5 srobust run x.py",
        "exec numactl --interleave=all srobust run x.py",
        "exec taskset -c 0-7 srobust run x.py",
        "exec nohup srobust run x.py",
        "A=1 exec srobust run x.py",
        "if true; then exec srobust run x.py; fi",
        "exec srobust run x.py || exit 1",
        f"{TRAP}srobust run x.py & pid=$!\nwait $pid",
        f"{TRAP}env A=1 srobust run x.py &\npid=$!\nwait $pid; wait $pid",
        "srobust run x.py &\npid=$!\ntrap 'kill -s SIGUSR1 \"${pid}\"' TERM SIGUSR1\nwait",
        "trap -- 'echo passed on; kill -10 $!' 10\nsrobust run x.py &\nwait",
        'forward() {\n  kill -USR1 "$p"\n}\ntrap forward USR1\nsrobust run x.py &\np=$!\nwait "$p"',
    ],
)
def test_signals_of_slurm_reach_it(lines: str) -> None:
    run = there(run_of(f"#!/bin/bash\n{lines}\n"))
    assert run.hears is True


@pytest.mark.parametrize(
    "lines",
    [
        "srobust run x.py",
        "exec > log\nsrobust run x.py",
        "exec srobust run x.py | tee log",
        "echo y | exec srobust run x.py",
        "exec srobust run x.py &",
        "(exec srobust run x.py)",
        "exec conda run -n e srobust run x.py",
        "exec uv run srobust run x.py",
        "exec poetry run srobust run x.py",
        "exec timeout 1h srobust run x.py",
        "exec time srobust run x.py",
        "exec apptainer exec i.sif srobust run x.py",
        "exec singularity exec --nv i.sif srobust run x.py",
        "exec docker run --gpus all image srobust run x.py",
        "exec srun -N1 srobust run x.py",
        "nohup srobust run x.py &\nwait",
        "bash -c '\nexec srobust run x.py\n'\nsrobust run x.py",
        "exec ./prepare.sh; srobust run x.py",
        "trap 'echo USR1' USR1\nsrobust run x.py & pid=$!\nwait $pid",
        "trap '' USR1\nsrobust run x.py & pid=$!\nwait $pid",
        "trap 'kill -TERM $pid' USR1\nsrobust run x.py & pid=$!\nwait $pid",
        "trap 'kill -USR1 $pid' TERM\nsrobust run x.py & pid=$!\nwait $pid",
        f"{TRAP}srobust run x.py",
        f"{TRAP}srobust run x.py & pid=$!",
        f"{TRAP}srobust run x.py &\nmonitor & pid=$!\nwait",
        f"{TRAP}monitor & pid=$!\nsrobust run x.py &\nwait",
        f"{TRAP}timeout 1h srobust run x.py & pid=$!\nwait $pid",
        f"{TRAP}srobust run x.py | tee log & pid=$!\nwait $pid",
        f"{TRAP}trap - USR1\nsrobust run x.py & pid=$!\nwait $pid",
    ],
)
def test_signals_of_slurm_do_not_reach_it(lines: str) -> None:
    run = there(run_of(f"#!/bin/bash\n{lines}\n"))
    assert run.hears is False


@pytest.mark.parametrize(
    "lines",
    [
        "exec $LAUNCHER srobust run x.py",
        "trap 'kill -USR1 $(jobs -p)' USR1\nsrobust run x.py &\nwait",
        "trap 'kill -USR1 -- -$$' USR1\nsrobust run x.py &\nwait",
        "trap 'kill -USR1 %1' USR1\nsrobust run x.py &\nwait",
    ],
)
def test_whom_signals_reach_only_the_shell_knows(lines: str) -> None:
    run = there(run_of(f"#!/bin/bash\n{lines}\n"))
    assert run.hears is None


def test_dos_line_breaks_are_refused(tmp_path: Path) -> None:
    (tmp_path / "dos").write_bytes(b"#!/bin/bash\r\n#SBATCH --nodes=4\r\nsrobust run -- python train.py\r\n")
    with pytest.raises(CannotRead, match="DOS line breaks"):
        read(tmp_path / "dos")
    (tmp_path / "one").write_bytes(b"#!/bin/bash\necho 'a\rb'\n")
    assert read(tmp_path / "one").startswith("#!/bin/bash")


PIECES = (
    "#SBATCH ",
    "--nodes=4",
    " ",
    "srobust run",
    "exec ",
    "trap ",
    "wait",
    "kill -USR1 $pid",
    "USR1",
    "pid=$!",
)
SIGNS = (
    "'",
    '"',
    "$(",
    "`",
    "${",
    ")",
    "}",
    "<<EOF",
    "EOF",
    "&",
    ";",
    "|",
    "\\",
    "#",
    "{",
    "(",
    ">",
    "2>&1",
    "\n",
)
TEXTS = st.lists(st.sampled_from([*PIECES, *SIGNS]) | st.text(max_size=4), max_size=60).map("".join)


@pytest.mark.slow
@given(TEXTS)
@settings(deadline=2000)
def test_any_text_is_read(text: str) -> None:
    run_of(text)
    of_script(text, {})
    of_script(f"#!/bin/bash\n{text}", {})


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", ["$(", "${", '"${', '"$(', "<<x\n", "'", '`"', "(1", "a<<b\n", "srobust run & "]
)
def test_a_text_that_is_long_takes_no_longer(piece: str) -> None:
    begun = time.process_time()
    run_of("#!/bin/bash\n" + piece * 30_000)
    assert time.process_time() - begun < 20.0


def test_words_as_the_command_gets_them() -> None:
    assert [unquoted(word) for word in ("'a b'", 'x="1"', "it's", r"a\ b")] == ["a b", "x=1", "it's", "a b"]
    assert [expands(word) for word in ('"$A"', "`x`", "'a b'")] == [True, True, False]
