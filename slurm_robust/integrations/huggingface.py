"""``transformers.Trainer`` goes on bitwise after a fault, by two lines.

::

    robust = RobustCallback(every=10)
    trainer = Trainer(..., callbacks=[robust])
    trainer.train(resume_from_checkpoint=robust.resume(trainer))

The Trainer itself knows how to begin in the middle: from the ``trainer_state.json`` of a checkpoint folder
it finds the epoch, skips the batches that were used and restores its counters. So
:meth:`RobustCallback.resume` gives it such a folder, made for this one start, with stand-ins for the weights;
the model, the optimizer and all other state come from :class:`slurm_robust.Checkpointer` when the Trainer has
built them.

A snapshot is taken at the *begin* of the step after: then logging, evaluation and saving of the step are part
of it, and the generators are as the next forward pass finds them, and so they are put back.

The position in the data is the number of the batch: what a data set or collator fetches ahead is in no
snapshot (docs/checkpoints.md, "Data fetched ahead").

Tested with transformers 5.23 and accelerate 1.15.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from slurm_robust.checkpoint.errors import EntryMismatch, WrongUse
from slurm_robust.checkpoint.generators import capture_rng, restore_rng
from slurm_robust.checkpoint.state import Stateful, Unread
from slurm_robust.home import page
from slurm_robust.model.progress import CHECKPOINT, EVALUATION
from slurm_robust.worker.api import Checkpointer
from slurm_robust.worker.phases import PhaseSwitch

# Names that transformers documents for the folder of a checkpoint.
_STATE_FILE, _WEIGHTS_FILE = "trainer_state.json", "pytorch_model.bin"


class RobustCallback(TrainerCallback):
    """Reports steps and takes snapshots of a ``transformers.Trainer``; :meth:`resume` goes on from one.

    The arguments are those of :class:`slurm_robust.Checkpointer`. The loss and the gradient norm are reported
    for the steps that the Trainer logs (``logging_steps``), because it gives them to no callback otherwise.

    Raises :class:`~slurm_robust.checkpoint.errors.WrongUse` for what cannot go on exactly: DeepSpeed, the
    first FSDP, models loaded sharded or quantized, ``ignore_data_skip``, ``auto_find_batch_size``.
    """

    def __init__(
        self,
        *,
        every: int = 1,
        path: str | Path = "checkpoints",
        keep: int = 2,
        deduplicate: bool = True,
        overlap: bool = True,
    ) -> None:
        self._options: dict[str, Any] = {
            "every": every,
            "path": path,
            "keep": keep,
            "deduplicate": deduplicate,
            "overlap": overlap,
        }
        self._trainer: Trainer | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._checkpointer: Checkpointer | None = None
        self._counters = _Counters()
        self._rng: dict[str, Any] | None = None
        self._reported = 0
        self._logged: dict[str, float] = {}
        self._phase = PhaseSwitch()

    def resume(self, trainer: Trainer) -> str | None:
        """Return the folder to give to ``trainer.train(resume_from_checkpoint=...)``; None on a fresh start.

        Called by all ranks, right before ``train()``. Raises a
        :class:`~slurm_robust.checkpoint.errors.CheckpointError` that says what to do.
        """
        _refuse(trainer)
        self._trainer = trainer
        self._counters = _Counters()
        self._reported = self._peek(trainer)
        if not self._reported:
            return None
        self._folder = tempfile.TemporaryDirectory(prefix="srobust-resume-")
        folder = Path(self._folder.name)
        (folder / _STATE_FILE).write_text(self._counters.trainer_state)
        if trainer.is_fsdp_enabled:
            # It would read all weights on one rank and send them to the others; they are replaced anyway.
            trainer._load_from_checkpoint = _load_nothing
        else:
            torch.save(_stand_ins(trainer.model), folder / _WEIGHTS_FILE)
        return self._folder.name

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Put the state back into what the Trainer has built by now."""
        trainer = self._trainer
        if trainer is None:
            raise WrongUse(
                "RobustCallback.resume() was not called: call "
                "trainer.train(resume_from_checkpoint=robust.resume(trainer)) at every start"
            )
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
            vars(trainer).pop("_load_from_checkpoint", None)
        if state.global_step != self._reported:
            raise WrongUse(
                f"the Trainer begins at step {state.global_step} and the checkpoint at {self._reported}: "
                "give what robust.resume(trainer) returned to trainer.train(resume_from_checkpoint=...)"
            )
        self._checkpointer = Checkpointer(_entries(trainer, self._counters), **self._options)
        restored = self._checkpointer.restore()
        if restored != self._reported:
            raise EntryMismatch(
                f"the checkpoint of step {self._reported} was gone a moment later and step {restored} was "
                "restored instead: start again"
            )
        if restored:
            self._rng = capture_rng()
            self._counters.give_to_callbacks(trainer, self)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Draw the order of the data from the same state as when this epoch began first."""
        if self._rng is None:
            self._counters.epoch_rng = capture_rng()
        else:
            restore_rng(self._counters.epoch_rng)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Report the step before, which is over with all that belongs to it, and take its snapshot."""
        self._phase.end()
        if self._rng is not None:
            restore_rng(self._rng)
            self._rng = None
        if state.global_step > self._reported and self._checkpointer is not None:
            self._counters.take(self._trainer, state, self)
            self._reported = state.global_step
            self._checkpointer.step(
                state.global_step - 1, loss=self._logged.get("loss"), grad_norm=self._logged.get("grad_norm")
            )
        self._logged = {}

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Say that an evaluation or a save, which takes longer than a step, is next."""
        if control.should_evaluate:
            self._phase.begin(EVALUATION)
        elif control.should_save:
            self._phase.begin(CHECKPOINT)

    on_epoch_end = on_step_end

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Say that an evaluation goes on, which the script itself asked for."""
        if not self._phase:
            self._phase.begin(EVALUATION)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Say that the evaluation is over; the Trainer saves after it."""
        self._phase.end()
        if control.should_save:
            self._phase.begin(CHECKPOINT)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Say that the Trainer has saved."""
        self._phase.end()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Remember the loss for the report."""
        self._logged |= {k: float(v) for k, v in (logs or {}).items() if k in ("loss", "grad_norm")}

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Let go. The last step has no snapshot: a Trainer that begins at its end runs a step too many."""
        self._phase.end()
        if self._checkpointer is not None:
            self._checkpointer.close()
        self._checkpointer = self._trainer = self._rng = None

    def _peek(self, trainer: Trainer) -> int:
        """Return step of the checkpoint to go on from; of its contents only the counters are read."""
        names = _entries(trainer, self._counters)
        unread: dict[str, Stateful] = {name: Unread() for name in names}
        peek = Checkpointer({**unread, "trainer": self._counters}, **self._options)
        rng = capture_rng()
        try:
            return peek.restore()
        finally:
            peek.close()
            restore_rng(rng)  # what the Trainer draws while it builds must be what it drew at the first start


class _Counters:
    """The entry ``trainer``: what the Trainer counts, and the generators' state at the begin of the epoch."""

    new_rank_takes_first = True

    def __init__(self) -> None:
        self.trainer_state = ""
        self.epoch_rng: dict[str, Any] = {}

    def take(self, trainer: Trainer | None, state: TrainerState, own: TrainerCallback) -> None:
        """Note the counters of this moment."""
        known = dataclasses.asdict(state)
        if trainer is not None:
            for callback in _stateful_callbacks(trainer, own):
                known["stateful_callbacks"][type(callback).__name__] = callback.state()
        self.trainer_state = json.dumps(known)

    def give_to_callbacks(self, trainer: Trainer, own: TrainerCallback) -> None:
        """Give stateful callbacks (early stopping) their counters; the Trainer does so only on request."""
        known = json.loads(self.trainer_state)["stateful_callbacks"]
        for callback in _stateful_callbacks(trainer, own):
            saved = known.get(type(callback).__name__, {})
            for name, value in saved.get("attributes", {}).items():
                setattr(callback, name, value)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return {"state": self.trainer_state, "epoch_rng": self.epoch_rng}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state back."""
        self.trainer_state, self.epoch_rng = state_dict["state"], state_dict["epoch_rng"]


def _entries(trainer: Trainer, counters: _Counters) -> dict[str, Stateful]:
    """Return what belongs into a checkpoint. Before ``train()`` only the names mean something."""
    optimizer = trainer.optimizer
    entries: dict[str, Any] = {
        "model": trainer.model_wrapped,
        # accelerate's wrapper adds no state, and hides which parameters the optimizer has.
        "optimizer": getattr(optimizer, "optimizer", optimizer),
        "scheduler": trainer.lr_scheduler,
        "trainer": counters,
    }
    if trainer.accelerator.scaler is not None:
        entries["scaler"] = trainer.accelerator.scaler
    return entries


def _stateful_callbacks(trainer: Trainer, own: TrainerCallback) -> list[Any]:
    callbacks = trainer.callback_handler.callbacks
    return [one for one in callbacks if isinstance(one, ExportableState) and one is not own]


def _stand_ins(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a tensor of zeros for every one of ``model``, of which a file holds one number.

    The Trainer refuses a checkpoint without weights, and warns of every name that is missing; what it loads
    from here is replaced in ``on_train_begin``.
    """
    return {
        name: torch.zeros((), dtype=value.dtype).expand(value.shape)
        for name, value in model.state_dict().items()
        if isinstance(value, torch.Tensor) and not name.endswith("_extra_state")
    }


def _load_nothing(*args: Any, **kwargs: Any) -> None:
    """Replace the Trainer's own loading of weights, which ``on_train_begin`` restores."""


def _refuse(trainer: Trainer) -> None:
    model, args = trainer.model, trainer.args
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    reasons = {
        "DeepSpeed": trainer.is_deepspeed_enabled,
        "the first FSDP (say fsdp_config={'version': 2})": getattr(plugin, "fsdp_version", 2) != 2,
        "a model that was loaded sharded (distributed_config, device_map)": trainer.is_model_parallel
        or getattr(model, "is_distributed_loading_by_transformers", False),
        "a quantized model": getattr(model, "is_quantized", False),
    }
    for reason, holds in reasons.items():
        if holds:
            raise WrongUse(
                f"RobustCallback does not support {reason}: use a loop of your own with "
                f"slurm_robust.Checkpointer ({page('frameworks.md')}), or the Trainer with DDP or FSDP2"
            )
    for name in ("ignore_data_skip", "auto_find_batch_size"):
        if getattr(args, name):
            raise WrongUse(f"{name}=True gives another order of the data after a restart: leave it out")
