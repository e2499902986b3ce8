"""Each example, killed in two of its epochs and run again, ends with the weights of the undisturbed run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.later import skip_without
from tests.torch_features import needs_fsdp2
from tests.unit.integrations.killed_examples import Example

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# An epoch has five steps. The sixth, BOUNDARY, is the first of the second one, so that what is restored after
# a kill there is the end of the first. The Trainer evaluates after the eighth.
BOUNDARY, IN_SECOND = 5, 8
TRAINER = ("hf_trainer.py", "--steps", "12", "--accumulate", "1")
LIGHTNING = ("lightning_trainer.py", "--epochs", "3")
COMMON = ("--samples", "40", "--out", "out.json", "--step-s", "0.02")
FSDP2 = ("fsdp2.py", "--steps", "12", *COMMON, "--ids", ".")


@needs_fsdp2
def test_fsdp2_uses_every_sample_once_per_epoch(tmp_path: Path) -> None:
    """With and without loader processes: the order depends on neither them nor the interruptions."""
    straight = Example(tmp_path / "straight", *FSDP2, ranks=2).finish()
    broken = Example(tmp_path / "broken", *FSDP2, "--workers", "2", ranks=2)
    for step, victim in (2, 0), (IN_SECOND, 1):
        broken.break_at(step, victim)
    broken_without = Example(tmp_path / "without", *FSDP2, ranks=2)
    broken_without.break_at(BOUNDARY, victim=1)
    assert broken.finish() == broken_without.finish() == straight
    used = samples(tmp_path / "broken")
    assert used == samples(tmp_path / "without") == samples(tmp_path / "straight")
    by_epoch = Counter((step // 5, number) for step, numbers in used for number in numbers)
    for epoch in range(2):
        assert [by_epoch[epoch, number] for number in range(40)] == [1] * 40


@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        (TRAINER, 2),
        (("hf_trainer.py", "--steps", "12", "--accumulate", "2"), 1),
        (LIGHTNING, 2),
        pytest.param((*LIGHTNING, "--shard"), 2, marks=needs_fsdp2, id="lightning-fsdp2-2"),
        # A limit of steps in place of epochs, where Lightning takes another way through its loops.
        (("lightning_trainer.py", "--epochs", "9", "--steps", "12", "--accumulate", "2"), 1),
    ],
    ids=lambda value: "-".join(value[0::2]) if isinstance(value, tuple) else str(value),
)
def test_an_example_that_is_interrupted_ends_bitwise_the_same(
    options: tuple[str, ...], ranks: int, tmp_path: Path
) -> None:
    skip_without("transformers" if "hf" in options[0] else "lightning")
    straight = Example(tmp_path / "straight", *options, *COMMON, ranks=ranks).finish()
    broken = Example(tmp_path / "broken", *options, *COMMON, ranks=ranks)
    for step, victim in (BOUNDARY, 0), (IN_SECOND, ranks - 1):
        broken.break_at(max(step, broken.step()), victim)
    assert broken.finish() == straight


def samples(folder: Path) -> list[tuple[int, frozenset[int]]]:
    """Per step the samples that all ranks used. Of a step that was run twice the last line counts: only that
    one is part of the weights."""
    used: dict[int, frozenset[int]] = {}
    for rank in range(2):
        lines = (folder / f"ids-{rank}").read_text().splitlines()
        mine = {int(step): frozenset(map(int, numbers)) for step, *numbers in map(str.split, lines)}
        for step, numbers in mine.items():
            assert not numbers & used.get(step, frozenset()), "two ranks used one sample"
            used[step] = used.get(step, frozenset()) | numbers
    return sorted(used.items())
