"""Restarts: a run whose workers died goes on from its newest checkpoint, and gives up when that leads nowhere.

`setup.train` builds the run anew after each failure. Consumes the failure and the trainer that met it; says what died,
writes the event `restart`, and hands on the configuration to build from. Steps that were trained after the checkpoint
are trained again: only a new checkpoint counts as progress.
"""

import dataclasses
import logging
from pathlib import Path
from typing import Any

from burnish.config import PPOConfig
from burnish.errors import BurnishError
from burnish.trainer.checkpoint import step_of
from burnish.trainer.ppo import PPOTrainer

log = logging.getLogger(__name__)


class Restarts:
    """Counts restarts in a row without a new checkpoint; `most` of them are made."""

    def __init__(self, most: int):
        self.most = most
        self.in_a_row = 0
        self.checkpoint: Path | None = None  # the newest that this run has written itself
        self.fresh: dict[str, Any] | None = None  # the restart that is under way, until it is told

    def resumed(self, config: PPOConfig) -> PPOConfig:
        """What to build the next attempt from: as it was set, until the run has a checkpoint of its own."""
        if self.checkpoint is None:
            return config
        own = dataclasses.replace(config.trainer, resume_mode="auto", resume_from_path=None)
        return dataclasses.replace(config, trainer=own)

    def note(self, error: BurnishError, trainer: PPOTrainer) -> None:
        """An attempt has failed: returns where another one may be made, and else raises `error` with what to do."""
        log.error("in step %d of %d: %s", trainer.step, trainer.total_steps, error)
        newest = trainer.store.latest() if self._has_saved(trainer) else self.checkpoint
        self.in_a_row = self.in_a_row + 1 if newest == self.checkpoint else 1
        self.checkpoint = newest
        logs = trainer.store.root / "logs"
        if self.in_a_row > self.most:
            tried = f"trainer.max_restarts={self.most} times in a row without a new checkpoint"
            go_on = f"from {newest}" if newest else "from where this one started: it saved nothing (trainer.save_freq)"
            error.args = (
                f"{error}\nGiven up after going on {tried}. The logs of the workers are in {logs}; the same command "
                f"goes on {go_on}",
            )
            raise error
        step = step_of(newest) if newest else None
        self.fresh = {"attempt": self.in_a_row, "failed_step": trainer.step, "checkpoint": step, "error": str(error)}
        log.warning(
            "restart %d of %d: the run goes on %s",
            self.in_a_row, self.most, f"from {newest}" if newest else "from where it started, for it saved nothing yet",
        )  # fmt: skip

    def tell(self, trainer: PPOTrainer) -> None:
        """Write the event into the run folder, before the new attempt trains."""
        if self.fresh is None:
            return
        if trainer.resume_from is None and not trainer.config.trainer.val_only:
            trainer.tracker.start()  # moves what the failed attempt left aside: the event belongs to what comes now
        trainer.tracker.event("restart", **self.fresh)
        self.fresh = None

    def _has_saved(self, trainer: PPOTrainer) -> bool:
        """Whether an attempt has written a checkpoint; `saved` may also be the one that it started from."""
        began = trainer.resume_from
        is_own = began is None or trainer.store.folder(trainer.saved or 0).resolve() != began.resolve()
        return trainer.saved is not None and is_own
