"""Updates that were NaN or infinite, and so not applied: reported, and the end of a run with too many in a row."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from burnish.algorithms.metrics import reduce_metrics
from burnish.engine.dump import FOLDER as DUMPS
from burnish.engine.dump import dump_folder
from burnish.errors import BadStepError

log = logging.getLogger(__name__)


class BadUpdates:
    """Counts them by role; `in_a_row` is part of the checkpoint. `event(kind, **facts)` records what happened."""

    def __init__(self, most: int, folder: Path, event: Callable[..., None]):
        self.most, self.folder, self.event = most, folder, event
        self.in_a_row = dict.fromkeys(("actor", "critic", "process_reward"), 0)

    def note(self, role: str, updates: Mapping[str, list[float]], step: int, metrics: dict[str, float]) -> None:
        """Add the metrics of a role's optimiser steps; BadStepError when too many in a row could not be applied."""
        bad = updates.get(f"{role}/bad_step", [])
        metrics.update(reduce_metrics({name: values for name, values in updates.items() if name != f"{role}/bad_step"}))
        if any(bad):
            count = int(sum(bad))
            metrics["failures/bad_steps"] = metrics.get("failures/bad_steps", 0) + count
            folders = [dump_folder(self.folder, step, role, i) for i, was_bad in enumerate(bad) if was_bad]
            dumps = [str(folder) for folder in folders if folder.is_dir()]  # only the first of a run are dumped
            self.event("bad_step", step=step, role=role, updates=count, dumps=dumps)
            log.warning("step %d: %d updates of the %s were NaN or infinite and not applied", step, count, role)
            for dump in dumps:
                log.warning("this update was dumped: `burnish replay %s` runs it again", dump)
        for was_bad in bad:
            self.in_a_row[role] = in_a_row = self.in_a_row[role] + 1 if was_bad else 0
            if in_a_row >= self.most:
                dumped = sorted((self.folder / DUMPS).glob(f"*_{role}_*"))
                look = f"`burnish replay {dumped[0]}` shows where it comes from. " if dumped else ""
                raise BadStepError(
                    f"{role}: loss or gradient was NaN or infinite in {in_a_row} updates in a row, up to step {step}. "
                    f"{look}Look at the rewards in {self.folder / 'rollouts' / f'{step}.jsonl'}, or lower the learning "
                    "rate"
                )
