"""Augmentation: prompts that trajectories propose while training, from a scored batch to the batches that draw them.

Consumes the column `new_prompts`; the rows wait in the buffer of `data/augment.py`. Proposals are taken in the order of
the batch's rows, never in that of finishing, so a run draws the same prompts whatever ran at the same time.
"""

import logging
from collections.abc import Callable
from typing import Any

from burnish.agents.check import AgentCheck
from burnish.config import PPOConfig
from burnish.data.augment import AUGMENTED, Intake, PromptBuffer, Proposal, Provenance
from burnish.data.files import Row
from burnish.errors import UserError
from burnish.protocol import DataProto
from burnish.rewards.contract import NEW_PROMPTS, plain
from burnish.rewards.managers import RewardManager
from burnish.workers.rollouts import agent_settings

SHOWN_REASONS = 3  # of a step's refusals
LOGGED_STEPS = 3  # steps whose refusals are logged; later ones are counted, and their reasons are in events.jsonl

log = logging.getLogger(__name__)


def make_buffer(config: PPOConfig, tokenizer: Any, manager: RewardManager) -> PromptBuffer | None:
    """The buffer of a run, None where augmentation is off. Its rows are held to what the rows of files are held to."""
    if not config.data.augment.enable:
        return None
    agents = AgentCheck(agent_settings(config), tokenizer)

    def check(row: Row) -> str | None:
        try:
            agents.row(row)
        except UserError as error:
            return str(error)
        return manager.check_row(row)

    return PromptBuffer(config.data, tokenizer, check)


class Augmentation:
    """The buffer as a training step uses it. `event(kind, **facts)` records what the run should remember."""

    def __init__(self, buffer: PromptBuffer | None, event: Callable[..., None]):
        self.buffer, self.event = buffer, event
        self.warned = 0

    def take(self, size: int) -> list[Row]:
        return [] if self.buffer is None else self.buffer.take(size)

    def share(self, drawn: int, from_data: int) -> dict[str, float]:
        """The metric of a step that drew so many prompts in all, and so many of them from the data."""
        return {} if self.buffer is None else {"augment/share": (drawn - from_data) / drawn}

    def collect(self, batch: DataProto, step: int, metrics: dict[str, float]) -> None:
        columns, proposals = batch.non_tensor_batch, list[Proposal]()
        handed_out = columns.get(AUGMENTED, [None] * len(batch))  # rows of the buffer: how far they are from the data
        for i, proposed in enumerate(columns.pop(NEW_PROMPTS)):
            parent = handed_out[i]
            depth = 1 if parent is None else parent["depth"] + 1
            for by, rows in proposed.items():
                origin = Provenance(int(columns["uid"][i]), plain(columns["index"][i]), step, by, depth)
                proposals.append(Proposal(rows, origin))
        if self.buffer is None:
            if proposals and not self.warned:
                self.warned += 1
                who = {"reward": "reward function", "agent": "agent loop"}[proposals[0].origin.by]
                fix = "set data.augment.enable=true to train on them"
                log.warning("step %d: the %s proposes new_prompts, and they are ignored: %s", step, who, fix)
            return
        intake = self.buffer.add(proposals)
        for name in ("added", "duplicates", "refused", "dropped"):
            metrics[f"augment/{name}"] = metrics.get(f"augment/{name}", 0) + getattr(intake, name)
        metrics["augment/waiting"] = len(self.buffer)
        if intake.refused:
            self._report_refusals(step, intake)

    def _report_refusals(self, step: int, intake: Intake) -> None:
        reasons = [f"{reason} (by the {o.by}, from uid {o.from_uid})" for reason, o in intake.reasons.items()]
        shown, more = reasons[:SHOWN_REASONS], len(reasons) - SHOWN_REASONS
        self.event("augment_refused", step=step, refused=intake.refused, reasons=shown)
        self.warned += 1
        if self.warned > LOGGED_STEPS:
            return
        rest = f"; and {more} other reasons" if more > 0 else ""
        log.warning("step %d: %d new prompts are refused: %s%s", step, intake.refused, "; ".join(shown), rest)
        if self.warned == LOGGED_STEPS:
            log.warning("further refusals are counted (augment/refused), with their reasons in events.jsonl")
