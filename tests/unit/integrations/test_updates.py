"""An update under a framework: its ranks are held at a step, and its checkpoint meets new code."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from slurm_robust.checkpoint.errors import EntryMismatch
from slurm_robust.model.copies import CheckpointId, Tier
from slurm_robust.model.progress import UPDATE
from slurm_robust.worker.environment import REHEARSAL, Fitting
from tests.later import Later, skip_without
from tests.ranks import surroundings
from tests.unit.worker.worker_node import RUN, Node
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # for the imports of the frameworks
skip_without("transformers")
skip_without("lightning")
huggingface = Later("slurm_robust.integrations.huggingface")
trainer_parts = Later("tests.unit.integrations.trainer_parts")
lightning = Later("slurm_robust.integrations.lightning")
lightning_parts = Later("tests.unit.integrations.lightning_parts")

LAST = 2
"""The step after which the ranks are held."""


class OtherOptimizer:
    """Has Lightning's module train by another kind of optimizer than before."""

    def __init__(self, module: Any) -> None:
        module.configure_optimizers = lambda: torch.optim.AdamW(module.parameters(), lr=1e-3)


def by_trainer(*, changed: bool = False, width: int = 1, steps: int = 5) -> tuple[Any, Any]:
    """Train with ``transformers.Trainer``; return the weights and the optimizer."""
    torch.manual_seed(1)
    model = trainer_parts.Line()
    if width > 1:
        model.linear = torch.nn.Linear(2, width)
    robust = huggingface.RobustCallback()
    options = {"optim": "sgd"} if changed else {}
    trainer = trainer_parts.build(robust, model=model, max_steps=steps, **options)
    trainer.train(resume_from_checkpoint=robust.resume(trainer))
    return model.linear.weight.detach().clone(), trainer.optimizer


def by_lightning(*, changed: bool = False, width: int = 1, steps: int = 5) -> tuple[Any, Any]:
    """Train with Lightning; return the weights and the optimizer."""
    torch.manual_seed(1)
    module = lightning_parts.Line()
    if width > 1:
        module.linear = torch.nn.Linear(2, width)
    if changed:
        OtherOptimizer(module)
    trainer = lightning_parts.build(lightning.RobustCallback(), max_steps=steps)
    trainer.fit(module, lightning_parts.loader())
    return module.linear.weight.detach().clone(), trainer.optimizers[0]


Train = Callable[..., tuple[Any, Any]]
both = pytest.mark.parametrize("train", [by_trainer, by_lightning], ids=["transformers", "lightning"])


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    for name in surroundings():
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    memory = Path(tempfile.mkdtemp(prefix="test-updates-", dir="/dev/shm"))
    yield Node(tmp_path, memory)
    shutil.rmtree(memory)


class Launcher:
    """Makes this process rank 0 of a generation, or a rehearsal."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self._node, self._monkeypatch = node, monkeypatch

    def __call__(self, generation: int, **options: Any) -> None:
        self._set(self._node.environ(generation, **options))

    def rehearse(self, **more: Any) -> None:
        """Have the code fit step LAST of generation 1."""
        fitting = Fitting(
            checkpoint=CheckpointId(generation=1, step=LAST),
            job_dir=str(self._node.folder),
            run_id=RUN,
            places={Tier.STORAGE: str(self._node.store.path)},
            **more,
        )
        self._set({REHEARSAL: "1", **fitting.to_env()})

    def _set(self, variables: dict[str, str]) -> None:
        for name, value in variables.items():
            if name.startswith("SROBUST_"):  # else the Trainer makes a process group of this one
                self._monkeypatch.setenv(name, value)


@pytest.fixture
def launch(node: Node, monkeypatch: pytest.MonkeyPatch) -> Launcher:
    return Launcher(node, monkeypatch)


TOKEN = str(CheckpointId(generation=1, step=LAST))


@both
def test_ranks_are_held_behind_a_step_and_go_on_from_it_bitwise(
    train: Train, node: Node, launch: Launcher
) -> None:
    straight, _ = train()
    launch(1)
    record = node.records[0]
    record.request_checkpoint(LAST, 60.0)
    held: list[tuple[int, str]] = []

    def end_the_hold() -> None:
        wait_for(lambda: record.progress(0.0).checkpoint == LAST, 60.0, "the step is not kept")
        progress = record.progress(0.0)
        held.append((progress.step, progress.phase))
        record.request_checkpoint(-1)

    controller = threading.Thread(target=end_the_hold)
    controller.start()
    went_on, _ = train()
    controller.join()
    assert held == [(LAST, UPDATE)]
    assert torch.equal(went_on, straight)
    assert LAST in {copy.step for copy in node.copies.inventory()}
    launch(2, restore=TOKEN, tier="memory")
    resumed, _ = train()
    assert torch.equal(resumed, straight)


@both
def test_new_code_meets_the_checkpoint_of_the_old_one(
    train: Train, node: Node, launch: Launcher, caplog: pytest.LogCaptureFixture
) -> None:
    launch(1)
    node.records[0].request_checkpoint(LAST)
    train()
    launch(2, restore=TOKEN)
    with pytest.raises(EntryMismatch, match=r"weight' has shape \[1, 2\] in the checkpoint and \[3, 2\]"):
        train(width=3)
    launch(3, restore=TOKEN)
    with pytest.raises(EntryMismatch, match="of another kind of optimizer"):
        train(changed=True)
    launch(4, restore=TOKEN, discard_optimizer=True)
    _, optimizer = train(changed=True)
    assert "--discard-optimizer: the state of 'optimizer" in caplog.text
    assert optimizer.param_groups


@both
def test_a_rehearsal_finds_it_out_before(train: Train, node: Node, launch: Launcher) -> None:
    launch(1)
    node.records[0].request_checkpoint(LAST)
    train()
    launch.rehearse()
    train(steps=2)
    with pytest.raises(EntryMismatch, match=r"weight' has shape \[1, 2\] in the checkpoint and \[3, 2\]"):
        train(width=3)
    with pytest.raises(EntryMismatch, match="of another kind of optimizer"):
        train(changed=True)
    launch.rehearse(discard_optimizer=True)
    train(changed=True, steps=2)
