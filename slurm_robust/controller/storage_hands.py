"""The loop's hands on shared storage: checkpoints are listed and removed, evidence is saved."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from slurm_robust.checkpoint.tiers import SharedTiers
from slurm_robust.config.job import CheckpointConfig
from slurm_robust.controller.background import Errands
from slurm_robust.controller.conclusion import save_summary
from slurm_robust.controller.journal import Journal
from slurm_robust.engine import effects as fx
from slurm_robust.evidence import bundle
from slurm_robust.jobdir import owner
from slurm_robust.model.copies import CheckpointId, Tier
from slurm_robust.model.job import JobDirectory
from slurm_robust.policy.restore import retained


class StorageHands(Errands):
    """Carries out what concerns shared storage, which may be slow."""

    def __init__(
        self,
        errands: Errands,
        config: CheckpointConfig,
        directory: JobDirectory,
        journal: Journal,
        store: SharedTiers,
    ) -> None:
        super().__init__(errands.background, errands.core, errands.now, errands.do)
        self._config = config
        self._directory, self._journal, self._store = directory, journal, store
        self._pruning = False

    def acts(self) -> dict[type, Callable[..., None]]:
        """Return what carries out each effect."""
        return {
            fx.FindCheckpoint: self._find_checkpoint,
            fx.Prune: self._prune,
            fx.SaveEvidence: self._save_evidence,
            fx.SaveSuspect: self._save_suspect,
            fx.SaveStacks: self._save_stacks,
            fx.SaveAlerts: self._save_alerts,
        }

    def _find_checkpoint(self, effect: fx.FindCheckpoint) -> None:
        def work() -> Callable[[], None]:
            found: dict[CheckpointId, Tier] | None = None
            try:
                found = self._store.complete()
            except OSError as error:
                text = f"checkpoints on storage cannot be listed: {error}"
                self.background.post(
                    lambda: self.do(self.core.on_stage_done("find checkpoint", False, text, self.now()))
                )
            return lambda: self.do(self.core.on_checkpoints(effect.generation, found, self.now()))

        self.run(
            "find checkpoint",
            work,
            lambda text: self.do(self.core.on_checkpoints(effect.generation, None, self.now())),
        )

    def _prune(self, effect: fx.Prune) -> None:
        if self._pruning:
            return  # storage is slow; the next one removes what this one would have
        self._pruning = True
        generation = self.core.state.world.generation
        keep = self._config.keep

        def done(error: str) -> None:
            self._pruning = False
            if error:
                self.core.note(error, "", self.now())

        def work() -> Callable[[], None]:
            try:
                protect = {CheckpointId(step=step, generation=g) for g, step in effect.sealed.items()}
                protect.update(retained(effect.sealed, self._store.complete(), keep))
                self._store.prune(keep, protect, generation, self._config.keep_every)
            except (OSError, ValueError) as error:
                return partial(done, f"old checkpoints could not be removed: {error}")
            return partial(done, "")

        self.run("prune", work, done)

    def _save_evidence(self, effect: fx.SaveEvidence) -> None:
        events = list(self._journal.events)
        save = partial(bundle.save, self._directory, effect.number, events)
        self._save("evidence", f"evidence of incident {effect.number}", save)
        summary = partial(save_summary, self._directory, events, self.core.state.own_node)
        self._save("summary", "the job's summary", summary)

    def _save_stacks(self, effect: fx.SaveStacks) -> None:
        save = partial(bundle.save_stacks, self._directory, effect.number, effect.stacks, effect.localisation)
        self._save("stacks", f"stacks of incident {effect.number}", save)

    def _save_alerts(self, effect: fx.SaveAlerts) -> None:
        save = partial(bundle.save_alerts, self._directory, effect.number, effect.alerts, effect.t)
        self._save("alerts", f"alerts of incident {effect.number}", save)

    def _save_suspect(self, effect: fx.SaveSuspect) -> None:
        def save() -> None:
            # An epilog knows its job's id only: neither which job has borrowed the node nor a run's name.
            folder = self._directory.path.with_name(str(effect.suspect.job_id))
            if folder != self._directory.path:
                owner.make(folder)
            bundle.save_suspect(JobDirectory(folder), effect.suspect)

        self._save("suspect", f"the suspect of {effect.suspect.node}", save)

    def _save(self, stage: str, what: str, save: Callable[[], object]) -> None:
        def work() -> Callable[[], None]:
            try:
                save()
            except OSError as error:
                text = f"{what} could not be saved: {error}"
                return lambda: self.do(self.core.on_stage_done(stage, False, text, self.now()))
            return lambda: None

        self.run(stage, work, lambda text: None)
