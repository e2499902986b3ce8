"""``srobust classify`` as a person and a script use it."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from slurm_robust.analysis.logs.command import bounded
from slurm_robust.cli.main import main
from slurm_robust.model.errors import ExitCode

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
CLOSED = "RuntimeError: Connection closed by peer [10.0.0.1]:3"


def logs(folder: Path, **texts: str) -> list[str]:
    for name, text in texts.items():
        (folder / f"{name.replace('_', '-')}.err").write_text(text)
    return sorted(map(str, folder.iterdir()))


def test_a_person_reads_what_failed_and_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["classify", *logs(tmp_path, log=f"start\n[b]one[/b]\n{OOM}\nlast\n")]) == 0
    said = capsys.readouterr().out
    for text in ("gpu_oom", "how the job was set up", "change the settings", "gpu-out-of-memory", f"3 {OOM}"):
        assert text in said
    assert "2 [b]one[/b]" in said


def test_a_log_that_no_rule_knows_is_unknown_and_its_last_errors_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = logs(tmp_path, log="step 7 loss 2.1\nfluxcap: FATAL, lost the [b]beam\nbye\n")
    assert main(["classify", *files]) == 0
    said = capsys.readouterr().out
    assert "unknown: no rule knows this log" in said
    assert "read the log" in said
    assert "2 fluxcap: FATAL, lost the [b]beam" in said
    assert "bye" not in said
    assert main(["classify", "--json", *files]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"]["symptom"] == found["verdict"]["blame"] == "unknown"
    assert found["ranks"]["0"]["lines"] == [{"number": 2, "line": "fluxcap: FATAL, lost the [b]beam"}]
    (tmp_path / "log.err").write_text("step 7 loss 2.1\n")
    assert main(["classify", *files]) == 0
    said = capsys.readouterr().out
    assert "healthy_noise" in said
    assert "nothing wrong" in said


def test_an_empty_log_is_called_empty_and_a_harmless_one_without_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, harmless = logs(tmp_path, a="\n", b="loaded the tokenizer\n")
    for files, text in (
        ([empty], "the log is empty"),
        ([harmless], "no line looks like a failure"),
        ([empty, harmless], "no rank shows a failure"),
        ([empty, empty], "(empty)"),
    ):
        assert main(["classify", *files]) == 0
        said = capsys.readouterr().out
        assert text in said
        assert "below" not in said
        assert "rank none" not in said


def test_several_files_are_ranks_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = logs(tmp_path, rank_00003=OOM, rank_00000=CLOSED)
    assert main(["classify", "--json", *files]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["root_ranks"] == [3]
    assert said["verdict"]["symptom"] == "gpu_oom"
    assert said["ranks"]["0"]["symptom"] == "secondary"
    assert main(["classify", *files]) == 0
    assert "root cause: rank 3" in capsys.readouterr().out


def test_without_ranks_in_the_names_their_order_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["classify", "--json", *logs(tmp_path, a=CLOSED, b=OOM)])
    assert json.loads(capsys.readouterr().out)["root_ranks"] == [1]


def test_output_and_errors_of_one_rank_belong_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rank-1.out").write_text("fine\n")
    (tmp_path / "rank-1.err").write_text(OOM)
    main(["classify", "--json", str(tmp_path / "rank-1.out"), str(tmp_path / "rank-1.err")])
    said = json.loads(capsys.readouterr().out)
    assert list(said["ranks"]) == ["1"]
    assert said["verdict"]["symptom"] == "gpu_oom"


def test_records_in_answers_out(tmp_path: Path) -> None:
    records = [
        {"id": "a", "stream": "program", "text": OOM, "note": "more"},
        {"id": "b", "text": None, "ranks": [{"rank": "n1:0", "text": CLOSED}, {"rank": "n2:4", "text": OOM}]},
        {"id": "c", "text": ""},
    ]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(map(json.dumps, records)))
    assert main(["classify", "--jsonl", str(source), "--out", str(out)]) == 0
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(a["id"], a["symptom"], a["root_ranks"]) for a in answers] == [
        ("a", "gpu_oom", []),
        ("b", "gpu_oom", ["n2:4"]),
        ("c", "unknown", []),
    ]
    assert set(answers[0]) == {"id", "symptom", "symptoms", "blame", "action", "root_ranks", "line", "rule"}


def test_a_sites_rules_are_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = tmp_path / "site.yaml"
    rules.write_text(
        "- name: ours\n  symptom: config_error\n  blame: user_config\n  action: restart\n  any: [module]\n"
    )
    (tmp_path / "log").write_text("no modules here\n")
    assert main(["classify", "--json", "--rules", str(rules), str(tmp_path / "log")]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["rule"] == "ours"


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["classify"], ExitCode.USAGE, "neither log files nor --jsonl"),
        (["classify", "--jsonl", "x"], ExitCode.USAGE, "--jsonl and --out belong together"),
        (["classify", "a", "--jsonl", "x", "--out", "y"], ExitCode.USAGE, "or both"),
        (["classify", "/nowhere/log"], ExitCode.NO_INPUT, "/nowhere/log cannot be read"),
        (["classify", "/"], ExitCode.NO_INPUT, "/ cannot be read: Is a directory"),
        (
            ["classify", "--jsonl", "/nowhere", "--out", "/tmp/x"],
            ExitCode.NO_INPUT,
            "/nowhere cannot be read",
        ),
        (["classify", "--rules", "/nowhere.yaml", "/dev/null"], ExitCode.CONFIG, "rules cannot be read"),
    ],
)
def test_wrong_input_is_named_with_the_fix(
    argv: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == code
    said = capsys.readouterr().err
    assert message in said
    assert "\n  fix: " in said


def test_a_bad_record_is_named_by_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"id": "a", "text": ""}\n{"id": 7}\n')
    assert main(["classify", "--jsonl", str(source), "--out", str(tmp_path / "out")]) == ExitCode.NO_INPUT
    assert "in.jsonl, line 2: not a record" in capsys.readouterr().err


def test_lines_left_out_of_a_huge_log_are_still_counted() -> None:
    lines = 2_000_000
    text = bounded(io.BytesIO(b"step\n" * lines + OOM.encode()))
    assert text.count("\n") == lines
    assert text.endswith(OOM)
    assert len(text) < 5 * lines


def test_a_device_is_refused_and_a_pipe_without_a_writer_is_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["classify", "/dev/zero"]) == ExitCode.NO_INPUT
    assert "neither a regular file nor a pipe" in capsys.readouterr().err
    os.mkfifo(tmp_path / "pipe")
    assert main(["classify", str(tmp_path / "pipe")]) == 0
    assert "the log is empty" in capsys.readouterr().out
    read, write = os.pipe()
    os.write(write, b"torch.OutOfMemoryError: CUDA out of memory.\n")
    os.close(write)
    assert main(["classify", f"/dev/fd/{read}"]) == 0
    os.close(read)
    assert "gpu_oom" in capsys.readouterr().out
