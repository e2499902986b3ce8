"""What a batch script does around ``srobust run``."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.doctor.rule import Level, apply
from slurm_robust.doctor.rules import RULES
from slurm_robust.doctor.shape import ScriptShape, shape_of
from slurm_robust.slurm.options import of_script
from tests.unit.doctor.samples import GOOD, config, fact, options, slurm

RUN = "srobust run --spares 1 -- python train.py"
BY_NAME = {rule.name: rule for rule in RULES}


def shape(lines: str) -> ScriptShape:
    found = shape_of(f"#!/bin/bash\n#SBATCH --nodes=4\n{lines}\n")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (f"{RUN}\nexit 99", 99),
        (f"{RUN}; exit 0", 0),
        (f"{RUN} || true", 0),
        (f"{RUN} || :", 0),
        (f"{RUN} || exit 1", 1),
        (f"{RUN} | tee log", None),
        (f"{RUN} 2>&1 | tee -a log", None),
        (f"{RUN} |& grep -v x", None),
        (f"{RUN} &", None),
        (f"{RUN} &\nsleep 5", None),
        (f"{RUN}\necho done", None),
        (f"{RUN}\nrsync -a out/ /archive", None),
        (f"if {RUN}; then echo good; fi", None),
        (f"if ! {RUN}; then exit 1; fi", None),
        (f"while {RUN}; do sleep 1; done", None),
        (f"set -euo pipefail\n{RUN}\nexit 99", 99),
    ],
)
def test_what_hides_the_exit_code(lines: str, code: int | None) -> None:
    found = shape(lines)
    assert found.hides
    assert found.code == code


@pytest.mark.parametrize(
    "lines",
    [
        RUN,
        f"exec {RUN}",
        f"exec {RUN}\nexit 99",
        f"exec {RUN} || exit 1",
        f"{RUN}\nexit $?",
        f'{RUN}\ncode=$?\ncp a b\nexit "$code"',
        f"{RUN} || exit $?",
        f"{RUN} & pid=$!\nwait $pid",
        f"{RUN} & pid=$!\nwait $pid\nexit $?",
        f"set -o pipefail\n{RUN} | tee log",
        f"set -e\n{RUN}\ncp a b",
        f"if [ -n x ]; then\n  {RUN}\nfi",
        f"cat > x <<E\nexit 99\nE\n{RUN} # exit 99",
    ],
)
def test_what_leaves_the_exit_code(lines: str) -> None:
    assert shape(lines).hides == ""


@pytest.mark.parametrize(
    ("lines", "level"),
    [
        ("#SBATCH --signal=B:USR1@300\nsrun python train.py", Level.BAD),
        ("#SBATCH --signal=B:TERM@300\nmodule load x; torchrun train.py", Level.BAD),
        ("#SBATCH --signal=B:10@60\ntrap 'echo' TERM\nsrun x", Level.BAD),
        ("#SBATCH --signal=B:USR1\nexec > log\nsrun x", Level.BAD),
        ("#SBATCH --signal=USR1@300\nsrun python train.py", Level.GOOD),
        ("#SBATCH --signal=B:USR1@300\nexec python train.py", Level.GOOD),
        ("#SBATCH --signal=B:USR1@300\ntrap 'kill -USR1 $p' SIGUSR1\nsrun x & p=$!; wait $p", Level.GOOD),
        ("#SBATCH --signal=B:CONT@300\nsrun python train.py", Level.GOOD),
        ("srun python train.py", Level.GOOD),
        (f"#SBATCH --signal=B:USR1@300\n{RUN}", Level.GOOD),  # job.exec says it
    ],
)
def test_a_signal_that_nobody_listens_for(lines: str, level: Level) -> None:
    script = f"#!/bin/bash\n{lines}\n"
    facts = fact(shape=shape_of(script), options=of_script(script, {}))(GOOD)
    assert apply(BY_NAME["job.signal_unheard"], facts).level is level


@pytest.mark.parametrize(
    "lines",
    [
        "if [ $SLURM_RESTART_COUNT -gt 0 ]; then echo again; fi",
        'if [ "$SLURM_RESTART_COUNT" -eq 0 ]; then x; fi',
        "test ${SLURM_RESTART_COUNT} -ge 3 && exit 1",
        "set -u\necho $SLURM_RESTART_COUNT",
        "set -euo pipefail\nif [[ $SLURM_RESTART_COUNT -gt 0 ]]; then x; fi",
        'set -o nounset\nN="run $SLURM_RESTART_COUNT"',
    ],
)
def test_counts_of_restarts_that_may_not_be_set(lines: str) -> None:
    assert shape(lines).restarts
    facts = fact(shape=shape(lines))(GOOD)
    assert apply(BY_NAME["job.restart_count"], facts).level is Level.NOTE
    assert apply(BY_NAME["job.restart_count"], slurm(SLURM_VERSION="26.11.0")(facts)).level is Level.GOOD


@pytest.mark.parametrize(
    "lines",
    [
        "set -u\necho ${SLURM_RESTART_COUNT:-0}",
        "if [ ${SLURM_RESTART_COUNT:-0} -gt 0 ]; then x; fi",
        "if [[ $SLURM_RESTART_COUNT -gt 0 ]]; then x; fi",
        'if [ -n "$SLURM_RESTART_COUNT" ]; then x; fi',
        "echo $SLURM_RESTART_COUNT",
        ": ${SLURM_RESTART_COUNT:=0}\n[ $SLURM_RESTART_COUNT -gt 0 ] && x",
        "set -u\necho '$SLURM_RESTART_COUNT'",
    ],
)
def test_counts_of_restarts_that_are_read_with_care(lines: str) -> None:
    assert shape(lines).restarts == ""


@pytest.mark.parametrize(
    ("lines", "given", "level"),
    [
        ("srun --gres=gpu:8 nvidia-smi", {"gpus_per_node": "8"}, Level.BAD),
        ("srun --ntasks=1 --gres gpu:h100:8 x", {"gpus_per_node": "h100:8"}, Level.BAD),
        ("cd x && srun --gres=nic:1,gpu:2 x", {"gpus_per_node": "8"}, Level.BAD),
        ("srun --gres=gpu:1 --gpus-per-node=1 x", {}, Level.BAD),
        ("srun --gres=gpu:8 nvidia-smi", {"gres": "gpu:8"}, Level.GOOD),
        ("srun --gres=none x", {"gpus_per_node": "8"}, Level.GOOD),
        ("srun x # --gres=gpu:8", {"gpus_per_node": "8"}, Level.GOOD),
        ("srun x", {"gpus_per_node": "8", "gres": "nic:2"}, Level.GOOD),
    ],
)
def test_two_options_for_gpus(lines: str, given: dict[str, str], level: Level) -> None:
    facts = fact(shape=shape(lines))(options(**given)(GOOD))
    assert apply(BY_NAME["job.gpu_options"], facts).level is level
    assert apply(BY_NAME["job.gpu_options"], slurm(SLURM_VERSION="25.11.3")(facts)).level is Level.GOOD
    assert apply(BY_NAME["job.gpu_options"], fact(slurm=None)(facts)).level is level


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("job.one_node", {"nodes": "4", "ntasks": "1"}, "gets 1 of 4 nodes"),
        ("job.one_node", {"nodes": "4", "ntasks": "4"}, ""),
        ("job.one_node", {"nodes": "4", "ntasks": "32"}, ""),
        ("job.one_node", {"nodes": "4", "ntasks_per_node": "1"}, ""),
        ("job.one_node", {"nodes": "1-4", "ntasks": "1"}, ""),
        ("job.one_node", {"ntasks": "1"}, ""),
        (
            "job.segment",
            {"nodes": "18", "segment": "16"},
            "(17 and 1 spares) are no multiple of --segment=16; 16 or 32",
        ),
        ("job.segment", {"nodes": "32", "segment": "16"}, ""),
        ("job.segment", {"nodes": "16-18", "segment": "16"}, ""),
        ("job.segment", {"nodes": "18", "segment": "x"}, ""),
        ("job.segment", {"nodes": "8", "segment": "16"}, ""),
        ("job.gpus_in_all", {"gpus": "32"}, "--gpus=32 counts"),
        ("job.gpus_in_all", {"gpus": "32", "exclusive": ""}, ""),
        ("job.gpus_in_all", {"gpus_per_node": "8"}, ""),
    ],
)
def test_counts_of_nodes_and_tasks_are_judged(name: str, given: dict[str, str], text: str) -> None:
    found = apply(BY_NAME[name], options(**given)(GOOD)).text
    assert text in found if text else not found


@pytest.mark.parametrize(
    ("spares", "segment", "text"),
    [
        (8, "18", "64 of 72 nodes train, no whole segments of 18: a requeue needs 72 nodes"),
        (8, "8", ""),
        (18, "18", ""),
        (0, "18", ""),
        (8, "72", ""),
    ],
)
def test_spares_beside_segments_are_judged(spares: int, segment: str, text: str) -> None:
    facts = config(spares=spares)(options(nodes="72", segment=segment)(GOOD))
    found = apply(BY_NAME["job.segment_spares"], facts).text
    assert found.startswith(text) if text else "whole segments" not in found


def test_within_one_segment_earlier_releases_refuse() -> None:
    facts = slurm(SLURM_VERSION="25.05.2")(options(nodes="8", segment="16")(GOOD))
    assert apply(BY_NAME["job.segment"], facts).level is Level.BAD


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (f'echo unterminated "string\nexec {RUN}', 3),
        (f"echo it's\nexec {RUN}", 3),
        (f"{RUN}\necho 'a\nb", 4),
        ('x="$(date) and', 3),
        (f'echo "a\nb"\nexec {RUN}', None),
        ("echo it\\'s # don't", None),
        ("cat <<EOF\nit's\nEOF", None),
        ('x="$(a $(b $(c $(d "e"))))"', None),
        ("""echo "it's" 'a "quote'""", None),
        ("x=${y//\\'/}", None),
        ("echo $'it\\'s'", None),
    ],
)
def test_a_quote_that_does_not_end(lines: str, line: int | None) -> None:
    assert shape(lines).open_quote == line


def test_a_script_for_no_shell_has_no_shape() -> None:
    assert shape_of("#!/usr/bin/env python3\nimport os\n") is None


SCRIPTS = Path(__file__).parents[2] / "data" / "batch_scripts"


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("gres-and-gpus-per-node", {"job.gpu_options"}),
        ("tasks-below-nodes", {"job.one_node"}),
        ("segments", {"job.segment"}),
        ("with-srobust", {"job.exit_code", "job.exit_requeued", "job.signal_target"}),
        ("step-signal", {"job.unprotected", "job.no_kill", "job.mem", "job.signal_target"}),
        (
            "batch-signal",
            {"job.unprotected", "job.no_kill", "job.mem", "job.open_mode", "job.signal_unheard"},
        ),
        ("job", {"job.no_kill", "job.mem", "job.open_mode", "job.late_option", "job.near_option"}),
        ("heredoc", set()),
    ],
)
def test_scripts_of_users(name: str, rules: set[str]) -> None:
    """From reports of 2026: NVIDIA/NVFlare#5268, mehta-lab/VisCy#478, ACEsuit/mace#435 and others."""
    script = (SCRIPTS / f"{name}.sbatch").read_text()
    change = fact(shape=shape_of(script), options=of_script(script, {}), job=None)
    facts = slurm(RequeueExit="99", SlurmctldParameters="")(change(GOOD))
    found = {rule.name for rule in RULES if rule.name.startswith("job.") and apply(rule, facts).text}
    assert {name for name in found if apply(BY_NAME[name], facts).level is not Level.UNKNOWN} == rules


TRAP = "trap 'kill -USR1 $p' USR1\n"
FUNCTION = "pass() {\n  kill -USR1 $p\n}\ntrap pass USR1 TERM\n"


@pytest.mark.parametrize(
    ("lines", "wait"),
    [
        (f"{TRAP}srun x & p=$!; wait $p", "wait $p"),
        (f"{TRAP}srun x &\np=$!\nwait", "wait"),
        (f"{TRAP}srun x &\np=$!\nwait $p\ncode=$?\nexit $code", "wait $p"),
        (f"srun x &\np=$!\n{TRAP}wait ${{p}}", "wait ${p}"),
        (f"{FUNCTION}srun x &\np=$!\nwait $p", "wait $p"),
        ("trap -- 'kill $p' SIGTERM\nfor i in 1 2; do\n  srun x &\n  p=$!\ndone\nwait", "wait"),
        (f"{TRAP}{RUN} & p=$!\nwait $p", "wait $p"),
        (f"{TRAP}srun x & p=$!; wait $p; wait $p", ""),
        (f"{TRAP}srun x & p=$!\nwait $p || wait $p", ""),
        (f"{TRAP}srun x & p=$!\nwhile kill -0 $p; do wait $p; done", ""),
        (f"{TRAP}srun x & p=$!\nuntil wait $p; do :; done", ""),
        (f"{TRAP}srun x & p=$!\nwait $p\nwhile kill -0 $p; do sleep 1; done", ""),
        ("trap 'kill -USR1 $p; wait $p' USR1\nsrun x & p=$!; wait $p", ""),
        ("pass() {\n  kill -USR1 $p\n  wait $p\n}\ntrap pass USR1\nsrun x & p=$!\nwait $p", ""),
        ("trap 'kill $p; exit 1' TERM\nsrun x & p=$!; wait $p", ""),
        ("trap 'rm -f x' EXIT\nsrun x & p=$!; wait $p", ""),
        ("trap '' USR1\nsrun x & p=$!; wait $p", ""),
        ("trap - USR1\nsrun x & wait", ""),
        (f"{TRAP}srun x", ""),
        ("srun x & wait", ""),
    ],
)
def test_a_wait_ends_with_the_trap(lines: str, wait: str) -> None:
    assert shape(lines).waits_once == wait
