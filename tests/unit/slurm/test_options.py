"""The options of sbatch, from batch scripts, environments and what Slurm remembers of a submission."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from slurm_robust.slurm.options import OFF, Options, Signal, _lines, of_script, of_submission, parse_signal
from slurm_robust.slurm.records import Submission
from slurm_robust.slurm.values import parse_memory

SCRIPT = """#!/bin/bash
#SBATCH --no-kill --requeue      # --hold is a comment
#SBATCH -t 2:00:00 -N2
##SBATCH --mem=0

#SBATCH --signal=B:USR1@120 --comment="a b"
srun hostname
#SBATCH --exclusive
"""


def test_lines_before_the_first_command_count() -> None:
    assert of_script(SCRIPT, {}).given == {
        "no-kill": "",
        "requeue": "",
        "time": "2:00:00",
        "nodes": "2",
        "signal": "B:USR1@120",
        "comment": "a b",
    }


def test_lines_below_the_first_command_are_late() -> None:
    assert of_script(SCRIPT, {}).late == (8,)
    assert of_submission(Submission(script=SCRIPT), {}).late == (8,)
    assert of_script("#!/bin/sh\n  # why\n#SBATCH -k\n", {}) == Options(
        given={"no-kill": ""}, lines={"no-kill": 3}
    )


@pytest.mark.parametrize(
    ("words", "given", "unknown"),
    [
        ("--no-kil --sig B:USR1@60", {"no-kill": "", "signal": "B:USR1@60"}, ()),
        ("--no --mem=0", {"mem": "0"}, ("--no",)),
        ("--foo --mem=0", {"mem": "0"}, ("--foo",)),
        ("--foo=1 --bar 2 --mem=0", {"mem": "0"}, ("--foo", "--bar")),
        ("-Z 2 -k", {"no-kill": ""}, ("-Z",)),
        ("why --mem=0", {"mem": "0"}, ("why",)),
        ("-- - --mem=0", {"mem": "0"}, ("--", "-")),
        ("--mem --no-kill", {"mem": "--no-kill"}, ()),  # as getopt has it, and sbatch refuses that
        ("-HN2 -OG 8 --oom-kill-step -k", {"hold": "", "nodes": "2", "overcommit": "", "gpus": "8"}, ()),
        ("hetjob --mem=0", {}, ()),
        ("-k hetjob --mem=0", {"no-kill": ""}, ()),  # it ends the line, and begins no component
    ],
)
def test_what_is_no_option_ends_nothing(words: str, given: dict[str, str], unknown: tuple[str, ...]) -> None:
    options = of_script(f"#!/bin/sh\n#SBATCH {words}\n#SBATCH --time=5\nhostname\n", {})
    assert options.unknown == unknown
    assert options.given.items() >= given.items()
    assert ("time" in options.given) is not words.startswith("hetjob")
    assert options.heterogeneous is words.startswith("hetjob")


HERE = """#!/bin/bash
#SBATCH -k
cat > inner.sh <<'EOF'
#SBATCH --nodelist=n07
EOF
srun bash -c '
#SBATCH --hold
'
"""


def test_what_is_in_a_string_or_a_here_document_is_no_late_option() -> None:
    assert of_script(HERE, {}) == Options(given={"no-kill": ""}, lines={"no-kill": 2})
    assert of_script(HERE + "cat <<-X\n\t#SBATCH\n\tX\n#SBATCH -H\n", {}).late == (12,)


@pytest.mark.parametrize(
    "line",
    [
        "#sbatch --nodes=4",
        "# SBATCH --no-kill",
        "#\tSBATCH -N 4",
        " #SBATCH --no-kill",
        "\t#SBATCH --no-kill",
        "#Sbatch --mem=0",
        "# sbatch --mem=0",
        "#SBACTH --mem=0",
        "#sbatch -N4 # four",
        "# SBATCH --mem=0 all of it",
    ],
)
def test_lines_that_only_look_like_options(line: str) -> None:
    options = of_script(f"#!/bin/bash\n{line}\n#SBATCH --requeue\nhostname\n", {})
    assert (options.given, options.near, options.off) == ({"requeue": ""}, (2,), {})


@pytest.mark.parametrize(
    "line",
    [
        "# sbatch --nodes=5 train.sbatch",
        "#   sbatch --nodes=4-5 train.sbatch --nodes 4 train.py",
        "#SBATCH",
        "# SBATCH lines follow",
        "# the SBATCH --mem line",
        "# submit with sbatch -N4",
        "echo '# SBATCH --no-kill'",
        "#SBATCHES --x",
    ],
)
def test_comments_that_look_like_nothing(line: str) -> None:
    options = of_script(f"#!/bin/bash\n{line}\n", {})
    assert (options.near, options.off) == ((), {})


@pytest.mark.parametrize(
    "line", ["##SBATCH --no-kill -t 5", "### #SBATCH --no-kill -t 5", "# #SBATCH -k -t5"]
)
def test_an_option_that_was_taken_out_is_known(line: str) -> None:
    options = of_script(f"#!/bin/bash\n{line}\n#SBATCH -t 7\n", {})
    assert (options.given, options.near, options.off) == ({"time": "7"}, (), {"no-kill": 2})


LINES = [
    "#SBATCH\t--requeue",
    "#SBATCH--requeue -N2",
    "#SBATCH --gpus-per-task=8 # eight",
    '#SBATCH --signal="B:USR1@180"',
    "#SBATCH --comment='a # b' -J a#b --mem=0",
    "#SBATCH --comment=a\\=b\\#c 'x'\"y\"",
    '#SBATCH --comment "it\'s" -k',
    "#SBATCH -J 'a\\'b' -k",
    "#SBATCH -k '' --mem=0",
    "#SBATCH \\#a",
    "#SBATCH\f-k\v-H",
    "#SBATCH -k hetjob --mem=0",
    "#SLURM -k",
    "#SBATCH --x='a b'c -N 3",
]


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="no Slurm is installed")
@pytest.mark.parametrize("line", LINES)
def test_words_are_those_that_sbatch_finds(line: str, tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nAuthType=auth/none\nCredType=cred/none\n")
    (tmp_path / "job").write_text(f"#!/bin/sh\n{line}\n#SBATCH --definitely-no-option\n")
    done = subprocess.run(
        ["sbatch", "-vvvv", "job"],
        cwd=tmp_path,
        env={**os.environ, "SLURM_CONF": str(conf)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found = re.findall(r'Found in script, argument "(.*)"\n', done.stderr)
    assert [*_lines(f"#!/bin/sh\n{line}\n").words] == found[:-1], done.stderr


@pytest.mark.parametrize("line", ["--nodes 2 :", "-J 'a b", '-k "'])
def test_what_sbatch_cannot_read_is_unknown(line: str) -> None:
    assert of_script(f"#!/bin/sh\n#SBATCH {line}\n", {}).unknown


def test_of_a_submission_sbatch_has_taken_every_option() -> None:
    submission = Submission(line="sbatch --foo --mem=0 x --time=5", script="#!/bin/sh\n#SBATCH --bar -k\n")
    options = of_submission(submission, {})
    assert options == Options(given={"mem": "0", "no-kill": ""})


def test_the_environment_overrides_the_script_and_the_command_line_both() -> None:
    environ = {"SBATCH_SIGNAL": "USR1", "SBATCH_NO_REQUEUE": "1", "SBATCH_MEM_PER_NODE": "4G"}
    given = of_script(SCRIPT, environ).given
    assert (given["signal"], given["requeue"], given["mem"]) == ("USR1", OFF, "4G")
    line = "sbatch --requeue --signal B:USR1@60 train.sbatch --no-kill=off --mem=1"
    options = of_submission(Submission(line=line, script=SCRIPT), environ)
    assert options.complete
    assert (options.given["signal"], options.given["requeue"], options.given["mem"]) == (
        "B:USR1@60",
        "",
        "4G",
    )
    assert options.given["no-kill"] == ""


def test_an_option_that_is_taken_back_is_not_given() -> None:
    line = "sbatch --no-kill=off train.sbatch"
    assert "no-kill" not in of_submission(Submission(line=line, script=SCRIPT), {}).given


@pytest.mark.parametrize(
    "submission", [Submission(), Submission(line="sbatch -k x"), Submission(script=SCRIPT)]
)
def test_what_slurm_does_not_show_may_have_been_given(submission: Submission) -> None:
    assert not of_submission(submission, {}).complete


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("-k -w n1 x", {"no-kill": "", "nodelist": "n1"}),
        ("-wn1 --wait x", {"nodelist": "n1", "wait": ""}),
        ("--exclusive --nodes 2 x --hold", {"exclusive": "", "nodes": "2"}),
        ("--requeue=expedite -- x", {"requeue": "expedite"}),
        ("--wrap 'sleep 9", {"wrap": "'sleep"}),
        ("--mem", {"mem": ""}),
    ],
)
def test_words_of_a_command_line(words: str, given: dict[str, str]) -> None:
    assert of_submission(Submission(line=f"sbatch {words}"), {}).given == given


@pytest.mark.parametrize(
    ("text", "signal"),
    [
        ("B:USR1@120", Signal(name="USR1", before_s=120, to_batch=True)),
        ("b:sigusr1", Signal(name="USR1", to_batch=True)),
        ("R:10@0", Signal(name="USR1", before_s=0)),
        ("RB:TERM@5", Signal(name="TERM", before_s=5, to_batch=True)),
        ("@5", None),
        ("", None),
    ],
)
def test_the_signal_option_is_understood(text: str, signal: Signal | None) -> None:
    assert parse_signal(text) == signal


def test_sizes_as_slurm_has_them() -> None:
    assert parse_memory("40G") == 40 << 30
    assert parse_memory("100") == 100 << 20
    assert parse_memory("1t") == 1 << 40
    assert parse_memory("2T") == parse_memory("2TB") == parse_memory("2tib") == 2 << 40
    assert parse_memory("1.5T") == 3 << 39
    for text in ("", "4 G", "-1", "4P", "1.5.5G", ".5G", "5B", "5i", "4TBB", "\u0664G"):
        with pytest.raises(ValueError, match="not a size"):
            parse_memory(text)
