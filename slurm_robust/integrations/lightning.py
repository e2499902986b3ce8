"""Lightning (``lightning.pytorch``) goes on bitwise after a fault, by two lines.

::

    robust = RobustCallback(every=10)
    trainer = Trainer(..., callbacks=[robust])

Lightning can begin in the middle of an epoch if its loops get their state back and its loaders have one. Both
are part of the snapshot, noted when Lightning's own ``ModelCheckpoint`` saves (the end of a batch, of the
validation, of an epoch), because its loops know how to go on from there. All else is taken at the *begin* of
the batch after: then validation, schedulers and callbacks have done their part of the step, and the
generators are as the next forward pass finds them, and so they are put back.

The position in the data is that of the loader: what the module or the data set fetches ahead is in no
snapshot (docs/checkpoints.md, "Data fetched ahead").

Tested with lightning 2.6 and torchdata 0.11.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader, SequentialSampler

from slurm_robust.checkpoint.errors import WrongUse
from slurm_robust.checkpoint.generators import capture_rng, restore_rng
from slurm_robust.checkpoint.state import Stateful
from slurm_robust.home import page
from slurm_robust.integrations.data import ResumableLoader
from slurm_robust.model.progress import CHECKPOINT, EVALUATION
from slurm_robust.worker.api import Checkpointer
from slurm_robust.worker.phases import PhaseSwitch


class RobustCallback(Callback):
    """Reports optimizer steps, takes snapshots of a Lightning fit, and puts the state back when it starts.

    The arguments are those of :class:`slurm_robust.Checkpointer`. ``ckpt_path`` stays unused.

    Raises :class:`~slurm_robust.checkpoint.errors.WrongUse` for what cannot go on exactly: strategies other
    than one device, DistributedDataParallel and ModelParallel (FSDP2); train loaders without state, without
    length, or whose order depends on more than the epoch.
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
        self._checkpointer: Checkpointer | None = None
        self._loops = _Loops()
        self._rng: dict[str, Any] | None = None
        self._step = 0
        self._global_step = 0
        self._unsaved = False
        self._loss: Any = None
        self._phase = PhaseSwitch()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the state back: everything is built, and the loops have not begun."""
        _refuse_trainer(trainer)
        self._loops = _Loops()
        self._checkpointer = Checkpointer(_entries(trainer, pl_module, self._loops, self), **self._options)
        self._step = self._checkpointer.restore()
        if self._step:
            self._rng = capture_rng()
            restore_rng(self._loops.epoch_rng)
            self._loops.give_to(trainer)
        self._global_step = trainer.global_step
        self._unsaved = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the loaders, which exist now: they must be able to go on exactly."""
        for loader in CombinedLoader(trainer.train_dataloader).flattened:
            _refuse_loader(loader)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the data of this epoch with the same random numbers as when they were begun first."""
        if self._rng is None:
            self._loops.epoch_rng = capture_rng()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Report the step before, which is over with all that belongs to it, and take its snapshot."""
        self._phase.end()
        if self._rng is not None:
            restore_rng(self._rng)
            self._rng = None
        if self._unsaved and self._checkpointer is not None:
            self._unsaved = False
            self._step += 1
            self._checkpointer.step(self._step - 1, loss=self._loss)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a step if an optimizer has stepped; batches in between only add to its gradients."""
        self._loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if trainer.global_step > self._global_step:
            self._global_step = trainer.global_step
            self._unsaved = True
        self._note(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say that a validation, which takes longer than a step, begins."""
        self._phase.begin(EVALUATION)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Say that a checkpoint of Lightning's own begins, which may happen at any time."""
        self._phase.begin(CHECKPOINT)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that the validation of this step is done."""
        self._phase.end()
        if not trainer.sanity_checking:
            self._note(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that the epoch is done."""
        self._note(trainer)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let go. The last step has no snapshot: a run that begins again repeats it and ends by itself."""
        self._phase.end()
        if self._checkpointer is not None:
            self._checkpointer.close()
            self._checkpointer = None

    def _note(self, trainer: Trainer) -> None:
        if self._checkpointer is not None and self._unsaved:
            self._loops.fit_loop = trainer.fit_loop.state_dict()


class _Loops:
    """The entry ``loops``: counters, the position in the data, and the generators when the epoch began."""

    new_rank_takes_first = True

    def __init__(self) -> None:
        self.fit_loop: dict[str, Any] = {}
        self.epoch_rng: dict[str, Any] = {}

    def give_to(self, trainer: Trainer) -> None:
        """Let Lightning's loops go on from there."""
        loop = trainer.fit_loop
        limit = loop.epoch_loop.max_steps
        # With a limit of steps Lightning takes an epoch that was over for an unfinished one, ends it once
        # more, and so leaves out the next.
        loop.epoch_loop.max_steps = -1
        loop.load_state_dict(self.fit_loop)
        loop.epoch_loop.max_steps = limit

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return {"fit_loop": self.fit_loop, "epoch_rng": self.epoch_rng}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state back."""
        self.fit_loop, self.epoch_rng = state_dict["fit_loop"], state_dict["epoch_rng"]


class _Hooks:
    """The entry ``hooks``: what callbacks, data module and module save by Lightning's hooks for that."""

    new_rank_takes_first = True

    def __init__(self, trainer: Trainer, module: LightningModule, own: Callback) -> None:
        self._trainer, self._module = trainer, module
        self._callbacks = [one for one in trainer.callbacks if one is not own]

    def state_dict(self) -> dict[str, Any]:
        """Return what the hooks return and add."""
        data = self._trainer.datamodule
        basics = self._basics()
        known = dict(basics)
        for callback in self._callbacks:
            callback.on_save_checkpoint(self._trainer, self._module, known)
        self._module.on_save_checkpoint(known)
        return {
            "callbacks": {one.state_key: one.state_dict() for one in self._callbacks},
            "data": data.state_dict() if data is not None else {},
            "saved": {name: value for name, value in known.items() if name not in basics},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Call the hooks that take it back."""
        data = self._trainer.datamodule
        known = {**self._basics(), **state_dict["saved"]}
        self._module.on_load_checkpoint(known)
        if data is not None and state_dict["data"]:
            data.load_state_dict(state_dict["data"])
        for callback in self._callbacks:
            callback.on_load_checkpoint(self._trainer, self._module, known)
            saved = state_dict["callbacks"].get(callback.state_key)
            if saved:
                callback.load_state_dict(saved)

    def _basics(self) -> dict[str, Any]:
        """Return what such hooks may expect to find; not stored a second time."""
        return {
            "epoch": self._trainer.current_epoch,
            "global_step": self._trainer.global_step,
            "state_dict": self._module.state_dict(),
        }


def _entries(trainer: Trainer, module: LightningModule, loops: _Loops, own: Callback) -> dict[str, Stateful]:
    entries: dict[str, Any] = {"model": trainer.model}
    entries |= {f"optimizer{number}": one for number, one in enumerate(trainer.optimizers)}
    schedulers = (config.scheduler for config in trainer.lr_scheduler_configs)
    entries |= {f"scheduler{number}": one for number, one in enumerate(schedulers)}
    # The model comes first, so that hooks that look at it find it restored.
    hooks = _Hooks(trainer, module, own)
    return {**entries, "precision": trainer.precision_plugin, "hooks": hooks, "loops": loops}


def _refuse_trainer(trainer: Trainer) -> None:
    strategy = trainer.strategy
    if not isinstance(strategy, SingleDeviceStrategy | DDPStrategy | ModelParallelStrategy):
        raise WrongUse(
            f"RobustCallback does not support {type(strategy).__name__}: use strategy='ddp', one device, or "
            "ModelParallelStrategy with fully_shard in configure_model(); or a loop of your own with "
            f"slurm_robust.Checkpointer ({page('frameworks.md')})"
        )
    if trainer.ckpt_path:
        raise WrongUse(
            f"ckpt_path={trainer.ckpt_path!r} would overwrite what RobustCallback restores after a fault: "
            "leave it out; to begin from weights of another training, load them into the module before fit()"
        )


def _refuse_loader(loader: Any) -> None:
    name = type(loader).__name__
    resumable: Any = ResumableLoader if isinstance(loader, DataLoader) else Stateful
    if not isinstance(loader, resumable):
        raise WrongUse(
            f"the train loader is a {name}, which after a restart would not go on where it was: use "
            "slurm_robust.integrations.data.ResumableLoader, which takes the same arguments"
        )
    try:
        len(loader)
    except (TypeError, NotImplementedError):
        raise WrongUse(
            f"the train loader ({name}) has no length; then Lightning reads one batch ahead, which a restart "
            "would lose: give its data set a __len__"
        ) from None
    sampler = getattr(loader, "sampler", None)
    if sampler is not None and not (hasattr(sampler, "set_epoch") or isinstance(sampler, SequentialSampler)):
        raise WrongUse(
            f"the train loader draws by a {type(sampler).__name__}, whose order a restart cannot repeat: "
            "give sampler=torch.utils.data.DistributedSampler(data, num_replicas, rank), also with one rank"
        )
