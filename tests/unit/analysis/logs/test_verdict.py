"""What single logs and ends of workers are taken for."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import yaml

from slurm_robust.analysis.logs import classify, classify_exit, read, shipped
from slurm_robust.analysis.logs.match import MAX_TROUBLE
from slurm_robust.analysis.logs.patterns import compiled
from slurm_robust.analysis.logs.rule import NOISE
from slurm_robust.analysis.logs.rule import UNKNOWN_SYMPTOM as UNKNOWN
from slurm_robust.model.exits import WorkerError, WorkerExit
from slurm_robust.model.incident import Cause, Remedy
from tests.unit.analysis.logs.labelled_logs import labels, score, sets
from tests.unit.analysis.logs.test_variants import VARIANTS

HERE = Path(__file__).parent
TRACEBACK = """\
Traceback (most recent call last):
  File "/jobs/7/releases/ab12/train.py", line 40, in <module>
    main()
  File "/jobs/7/releases/ab12/model/block.py", line 12, in forward
    return self.norm(x)
  File "/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1518, in _call_impl
    return forward_call(*args, **kwargs)
"""


def also_unknown(symptom: str) -> tuple[str, ...]:
    """Lines that are no failure may tell nothing of a training that is well either."""
    return (NOISE, UNKNOWN) if symptom == NOISE else (symptom,)


def misread(text: str, symptom: str, action: str) -> str:
    """What is wrong with the verdict on ``text``; nothing if it is this symptom with this action."""
    found = classify(text)
    if found.symptom in also_unknown(symptom) and action in ("any", found.action.value):
        return ""
    return f"{found.symptom}, {found.action.value} instead of {symptom}, {action}: {text}"


def test_every_rule_has_a_sample() -> None:
    """Rules for codes and shapes of the kernel are held to the tables of these (test_rules.py)."""
    samples = [yaml.safe_load(file.read_text()) for file in HERE.glob("samples/*.yaml")]
    stories = [yaml.safe_load(file.read_text()) for file in HERE.glob("stories/*.yaml")]
    texts = [text for file in samples for group in file.values() for text in group["texts"]]
    texts += [story["text"] for file in stories for story in file]
    texts += [label.text or "" for label in labels()]
    texts += [text for message in VARIANTS for text in message["texts"].values()]
    lines = {line for text in texts for line in text.splitlines()}
    without = [
        rule.name
        for rule in shipped().rules
        if rule.any and not any(compiled(pattern).search(line) for pattern in rule.any for line in lines)
    ]
    assert not without, f"add to samples/ a line that each of these rules matches: {', '.join(without)}"


@pytest.mark.parametrize("file", sorted(HERE.glob("samples/*.yaml")), ids=lambda file: file.stem)
def test_what_libraries_and_kernels_print(file: Path) -> None:
    wrong = [
        misread(text, symptom, group["action"])
        for symptom, group in yaml.safe_load(file.read_text()).items()
        for text in group["texts"]
    ]
    assert not any(wrong), "\n".join(filter(None, wrong))


@pytest.mark.parametrize("file", sorted(HERE.glob("stories/*.yaml")), ids=lambda file: file.stem)
def test_one_line_of_many_decides(file: Path) -> None:
    wrong = [
        misread(story["text"], story["symptom"], story.get("action", "any"))
        for story in yaml.safe_load(file.read_text())
    ]
    assert not any(wrong), "\n".join(filter(None, wrong))


def test_the_labelled_set() -> None:
    found = score(shipped())["all"]
    shares = {name: found[name] / found[f"of {name}"] for name in ("symptom", "blame", "action", "root")}
    assert shares == {name: pytest.approx(1, abs=0.05) for name in shares}


@pytest.mark.parametrize(
    "name", ["public reports", "own, seen", "own, held out", "own, wide", "an examiner's"]
)
def test_the_sets_of_new_software(name: str) -> None:
    found = score(shipped(), sets()[name])["all"]
    shares = {name: found[name] / found[f"of {name}"] for name in ("symptom", "blame", "acceptable", "root")}
    assert shares == {name: pytest.approx(1, abs=0.1) for name in shares}


def test_every_symptom_of_the_set_is_known() -> None:
    assert {label.symptom for label in labels()} == {rule.symptom for rule in shipped().rules}


def test_healthy_noise_of_the_set_is_never_acted_on() -> None:
    labels = [label for of in sets().values() for label in of]
    noise = [label for label in labels if label.symptom == "healthy_noise" and label.stream == "program"]
    assert [classify(label.text or "", label.stream).action for label in noise] == [Remedy.NONE] * len(noise)


@pytest.mark.parametrize("text", ["", "\n\n", "\x00\x01", "näh \udcff", "a" * 10_000, "starting up"])
@pytest.mark.parametrize("more", ["", "\nfluxcap: FATAL, lost the beam"], ids=["", "trouble"])
def test_what_is_not_understood_is_unknown_and_not_acted_on(text: str, more: str) -> None:
    found = read(text + more)
    verdict = found.verdict
    assert (verdict.symptom, verdict.blame, verdict.action) == (UNKNOWN, Cause.UNKNOWN, Remedy.NONE)
    assert (verdict.line, verdict.rule, found.tier) == ("", "", None)
    assert [line for _, line in found.context] == more.splitlines()[1:]


WELL = "epoch 3: loss 2.31, grad_norm 0.4\n"
DEPRECATED = "x.py:3: FutureWarning: Error handling of `f` is deprecated and will fail.\n"


@pytest.mark.parametrize(
    ("log", "stream", "symptom"),
    [
        (WELL, "program", NOISE),
        ("Training finished after 3 hours", "program", NOISE),
        (f"{WELL}errors: 0, failed batches: 0\n", "program", NOISE),
        (f"{WELL}errors: 12\n", "program", UNKNOWN),
        (f"{WELL}fluxcap: FATAL, lost the beam\n{WELL}", "program", UNKNOWN),
        (DEPRECATED, "program", NOISE),
        (f"{DEPRECATED}fluxcap: FATAL, lost the beam", "program", UNKNOWN),
        ("mlx5_core 0000:1a:00.0 ens1: firmware version: 28.39", "program", UNKNOWN),
        ("mlx5_core 0000:1a:00.0 ens1: firmware version: 28.39", "kernel", NOISE),
        ("mlx5_core 0000:1a:00.0 ens1: fluxcap failed", "kernel", UNKNOWN),
        ("", "kernel", UNKNOWN),
    ],
)
def test_healthy_is_only_what_shows_it(log: str, stream: str, symptom: str) -> None:
    assert classify(log, stream).symptom == symptom


def test_of_an_unknown_log_the_last_lines_that_look_like_failures_are_kept() -> None:
    log = "".join(f"fluxcap {i}: cannot hold\nfine\n" for i in range(1000)) + DEPRECATED * 1000
    assert read(log).context == tuple(
        (2 * i + 1, f"fluxcap {i}: cannot hold") for i in range(1000 - MAX_TROUBLE, 1000)
    )


def test_the_earliest_own_cause_decides_and_not_what_follows() -> None:
    log = (
        "[0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7) ran for 60001 milliseconds\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
        "RuntimeError: CUDA error: device-side assert triggered\n"
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 7)\n"
    )
    found = read(log)
    assert (found.verdict.symptom, found.number) == ("gpu_oom", 2)
    assert "cuda_error" in found.verdict.symptoms


def test_killed_after_the_oom_killer_is_memory() -> None:
    log = "line 3:  812 Killed     train.py\nslurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0"
    assert classify(log, "slurm").symptom == "cpu_oom"
    assert classify(log.splitlines()[0], "slurm").symptom == "killed_signal"


def test_a_traceback_speaks_only_for_an_exception_that_no_rule_knows() -> None:
    assert classify(TRACEBACK + "RuntimeError: Connection closed by peer [10.0.0.1]:3").rule == "peer-closed"
    assert classify(TRACEBACK + "OurCrash(3)").line == "Traceback (most recent call last):"


def test_the_place_is_in_the_users_code() -> None:
    found = classify(TRACEBACK + "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x5 and 6x7)")
    assert (found.symptom, found.place) == ("code_error", "block.py:12")
    assert found.line.startswith("RuntimeError: mat1")


def test_a_traceback_of_packages_alone_has_their_place() -> None:
    last = '  File "/env/lib/python3.11/site-packages/x/run.py", line 3, in go\nValueError: no\n'
    assert classify("Traceback (most recent call last):\n" + last).place == "run.py:3"


def test_the_place_of_the_last_traceback_is_not_mixed_with_an_earlier_one() -> None:
    log = TRACEBACK + "ValueError: caught\nTraceback (most recent call last):\n" + "KeyError: 'a'\n"
    assert classify(log).place == "block.py:12"
    assert (
        classify('Traceback (most recent call last):\n  File "b.py", line 2, in f\nKeyError: 1\n').place
        == "b.py:2"
    )


QUOTED = {
    "plain": """\
Traceback (most recent call last):
  File "/jobs/7/train.py", line 40, in <module>
    main()
    ~~~~^^
  File "/jobs/7/train.py", line 12, in main
    SOURCE
    ^^^^^^
ValueError: bad batch
""",
    "of several lines": """\
Traceback (most recent call last):
  File "/jobs/7/train.py", line 12, in main
    retryable(
    ~~~~~~~~~^
        ValueError("bad batch"),

        SOURCE
        ^^^^^^
    )
    ^
ValueError: bad batch
""",
    "chained": """\
Traceback (most recent call last):
  File "/jobs/7/train.py", line 11, in main
    SOURCE
KeyError: 'a'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/jobs/7/train.py", line 12, in main
    SOURCE
ValueError: bad batch
""",
    "group": """\
  + Exception Group Traceback (most recent call last):
  |   File "/jobs/7/train.py", line 11, in main
  |     SOURCE
  | ExceptionGroup: loaders (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/jobs/7/train.py", line 12, in main
    |     SOURCE
    |     ^^^^^^
    | ValueError: bad batch
    +------------------------------------
""",
    "syntax": """\
  File "/jobs/7/train.py", line 12
    SOURCE
    ^
SyntaxError: invalid syntax
""",
    "rich": """\
╭──────────────────── Traceback (most recent call last) ────────────────────╮
│ /jobs/7/train.py:12 in main                                               │
│                                                                           │
│   11 │   # SOURCE                                                        │
│ ❱ 12 │   SOURCE                                                          │
│                                                                           │
│ ╭─ locals ─╮                                                              │
│ │ a = SOURCE │                                                            │
│ ╰──────────╯                                                              │
╰───────────────────────────────────────────────────────────────────────────╯
ValueError: bad batch
""",
    "rich in ASCII": """\
+------------------- Traceback (most recent call last) ---------------------+
| /jobs/7/train.py:12 in main                                               |
|                                                                           |
| > 12 |   SOURCE                                                          |
+---------------------------------------------------------------------------+
ValueError: bad batch
""",
    "rich, cut": """\
│   11 │   # SOURCE                                                        │
│ ❱ 12 │   SOURCE                                                          │
│                                                                           │
│ │ a = SOURCE │                                                            │
╰───────────────────────────────────────────────────────────────────────────╯
ValueError: bad batch
""",
    "cut before a frame": """\
    SOURCE
    ^^^^^^
  File "/jobs/7/train.py", line 12, in main
    pass
ValueError: bad batch
""",
    "cut before the exception": """\
    SOURCE
    ^^^^^^
ValueError: bad batch
""",
    "cut in a repetition": """\
    SOURCE
  [Previous line repeated 990 more times]
  File "/jobs/7/train.py", line 12, in main
ValueError: bad batch
""",
    "between lines of another thread": """\
Traceback (most recent call last):
  File "/jobs/7/train.py", line 12, in main
step 7 loss 2.1
    SOURCE
ValueError: bad batch
""",
}
LABELS = {
    "none": "",
    "rank": "[rank3]: ",
    "srun": "12: ",
    "time": "2026-11-23 13:57:{at:02}.{at:03} [3] ",
    "kubernetes": "2026-11-23T13:57:{at:02}.123456{at:03}Z stderr F ",
}


@cache
def sample_lines() -> list[str]:
    """Every line of the samples that a rule knows when it stands alone."""
    samples = [yaml.safe_load(file.read_text()) for file in HERE.glob("samples/*.yaml")]
    texts = [text for file in samples for group in file.values() for text in group["texts"]]
    lines = dict.fromkeys(line.strip() for text in texts for line in text.splitlines())
    return [line for line in lines if classify(line).rule]


@pytest.mark.slow
@pytest.mark.parametrize("label", LABELS)
def test_no_rule_takes_the_source_that_a_traceback_quotes_for_evidence(label: str) -> None:
    # Each sample with one label, and each label with every form.
    sources = sample_lines()[[*LABELS].index(label) :: len(LABELS)]
    assert len(sources) > 100
    for number, source in enumerate(sources):
        name, template = [*QUOTED.items()][number % len(QUOTED)]
        texts = [template.replace("SOURCE", text) for text in ("pass", source)]
        logs = [
            "".join(LABELS[label].format(at=at) + line for at, line in enumerate(text.splitlines(True)))
            for text in texts
        ]
        without, with_source = map(classify, logs)
        assert with_source == without, f"{name}: {source}"


@pytest.mark.parametrize(
    "log",
    [
        TRACEBACK + "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        TRACEBACK + "ValueError: bad\n    CUDA error: uncorrectable ECC error encountered",
        "[3] NCCL WARN Cuda failure 'uncorrectable ECC error encountered'\n".join(TRACEBACK.splitlines(True)),
        TRACEBACK + "Exception raised from launch at x.cpp:3\nframe #0: uncorrectable ECC error encountered",
        "    CUDA error: uncorrectable ECC error encountered\nstep 7: loss 2.1",
        "╭─ Error ─╮\n│ CUDA error: uncorrectable ECC error encountered │\n╰─────────╯",
        "+----- Traceback (most recent call last) -----+\n| pass |\n+-----+\n| ValueError: bad |\n"
        "| CUDA error: uncorrectable ECC error encountered |",
        'Fatal Python error: Aborted\n  File "a.py", line 3 in f\n    uncorrectable ECC error encountered',
    ],
    ids=[
        "exception",
        "its second line",
        "another thread",
        "C++ frame",
        "indented",
        "panel",
        "table",
        "fatal error",
    ],
)
def test_a_traceback_hides_nothing_but_its_source(log: str) -> None:
    assert classify(log).symptom == "gpu_memory_error"


def test_an_exit_is_judged_by_its_exception() -> None:
    error = WorkerError(type="ValueError", message="bad", file="lib/data.py", line=9, traceback=TRACEBACK)
    found = classify_exit(WorkerExit(rank=0, code=1, error=error, tail=("CUDA out of memory",)))
    assert (found.symptom, found.place, found.line) == ("code_error", "data.py:9", "ValueError: bad")


@pytest.mark.parametrize(
    ("exit", "symptom"),
    [
        (WorkerExit(rank=0, signal=11), "killed_signal"),
        (WorkerExit(rank=0, signal=9), "killed_signal"),
        (WorkerExit(rank=0, signal=15), "secondary"),
        (WorkerExit(rank=0, code=1), "code_error"),
        (WorkerExit(rank=0, code=127), "config_error"),
        (WorkerExit(rank=0, code=0), "healthy_noise"),
        (WorkerExit(rank=0, code=1, tail=("CUDA out of memory.",)), "gpu_oom"),
        (WorkerExit(rank=0, signal=9, tail=("Memory cgroup out of memory: Killed process 3",)), "cpu_oom"),
    ],
)
def test_an_exit_without_an_exception(exit: WorkerExit, symptom: str) -> None:
    assert classify_exit(exit).symptom == symptom


def test_numbers_of_lines_and_context() -> None:
    found = read("a\nb\rprogress\nc\nCUDA out of memory\nd\ne\nf\n")
    assert found.number == 4
    assert [text for _, text in found.context] == ["progress", "c", "CUDA out of memory", "d", "e"]
