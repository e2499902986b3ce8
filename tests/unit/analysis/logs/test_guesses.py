"""Guesses, examples and advice inside a message are no evidence; what stands beside them is."""

from __future__ import annotations

import pytest

from slurm_robust.analysis.logs import classify
from slurm_robust.analysis.logs.guesses import is_guess, without_guess
from slurm_robust.analysis.logs.text import lines_of

# What would be a cause if it were said as a fact.
CAUSES = [
    ("the OOM killer: Memory cgroup out of memory", "cpu_oom"),
    ("CUDA out of memory", "gpu_oom"),
    ("No space left on device", "disk_full"),
    ("a Segmentation fault", "killed_signal"),
    ("an uncorrectable ECC error", "gpu_memory_error"),
    ("a NODE_FAIL of Slurm", "preemption_or_time_limit"),
]
GUESSES = [
    "Some common causes include: (1) {}. (2) ray stop --force was called.",
    "There are some potential root causes. (1) {}. (2) others.",
    "Possible reasons: {}",
    "This can happen if there was {}",
    "This could have been caused by {}",
    "It may be due to {}",
    "This is most likely caused by wrong sizes, or {}",
    "This usually means {}",
    "This typically happens with {}",
    "It failed for some reason, e.g. {}",
    "It failed for some reason (e.g., {}).",
    "It failed for some reason, such as {}",
    "It failed for some reason, for example {}",
    "Hint: {}",
    "Please check for {}",
    "Perhaps {}",
    "If you see {} as well, restart.",
    "Check whether there was {}",
    "This may indicate {}",
]


@pytest.mark.parametrize(("cause", "symptom"), CAUSES)
@pytest.mark.parametrize("guess", GUESSES)
def test_what_a_message_guesses_is_not_read(guess: str, cause: str, symptom: str) -> None:
    said = f"RuntimeError: shape '[8]' is invalid for input of size 9. {cause}"
    guessed = f"RuntimeError: shape '[8]' is invalid for input of size 9. {guess.format(cause)}"
    assert classify(said).symptom == symptom
    assert classify(guessed).symptom == "code_error"


@pytest.mark.parametrize("label", ["", "(raylet) ", "[rank3]: ", "\t"])
@pytest.mark.parametrize("entry", ["(1) {}", "1. {}", "1) {}", "- {}", "* {}"])
def test_a_list_below_a_guess_is_part_of_it(entry: str, label: str) -> None:
    for cause, symptom in CAUSES:
        text = f"{label}ValueError: bad. Possible causes:\n{label}{entry.format('bad luck')}\n{label}"
        assert classify(text + entry.format(cause)).symptom == "code_error"
        assert classify(f"{text}\n{cause}").symptom == symptom


def test_a_list_of_facts_is_read() -> None:
    assert classify("Errors of this step:\n- CUDA out of memory\n").symptom == "gpu_oom"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("lost it. Please check the cable. CUDA error: no", "lost it.  CUDA error: no"),
        ("bad (e.g. a typo): No space left on device", "bad ( : No space left on device"),
        ("general protection fault, probably for address 0x1", None),
        ("watchdog got stuck for 480 seconds", None),
        ("loss is nan at step 7", None),
        ("", None),
    ],
)
def test_only_the_guess_is_cut(text: str, kept: str | None) -> None:
    assert without_guess(text).split() == (kept if kept is not None else text).split()


def test_an_entry_belongs_to_the_nearest_line_that_is_none() -> None:
    lines = lines_of("This can happen when a:\n(1) crash\nstep 7\n(1) CUDA out of memory\n")
    assert [is_guess(lines, at) for at in range(len(lines))] == [False, True, False, False]
