"""Validation: the policy answers held-out prompts, and the answers are scored by rule.

Produces `val-core/…` and `val-aux/…` metrics and writes every answer to `validation/<step>.jsonl`. Rows that only a
reward model scores are reported as `rm_score`, and never averaged with rules into one `reward`. Noise has a separate
namespace, and `new_prompts` are left unread, so how often a run validates cannot change what it trains on.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from burnish.algorithms.validation import validation_metrics
from burnish.config import PPOConfig
from burnish.config.rollout import RolloutConfig
from burnish.controller import WorkerGroup
from burnish.data.dataset import CustomDataset, RLDataset, collate, with_same_fields
from burnish.data.files import Row
from burnish.protocol import DataProto, object_column
from burnish.rewards.managers import RewardManager
from burnish.rollout.base import Sampling
from burnish.tracking import RunFolder
from burnish.trainer.experience import training_sampling
from burnish.trainer.groups import RemoteRollouts
from burnish.trainer.report import agent_metrics, sample_rows
from burnish.trainer.reward_model import PRECOMPUTED, RewardModel, models_alone
from burnish.trainer.score import score, scores_at_once
from burnish.workers.rollouts import RoundSettings

BY_MODEL = "scored_by_model"  # column of a batch: whether the row's score is the reward model's alone


class Validator:
    def __init__(
        self,
        config: PPOConfig,
        dataset: RLDataset | CustomDataset,
        policy: WorkerGroup | RemoteRollouts,
        manager: RewardManager,
        tokenizer: Any,
        folder: RunFolder,
        reward_model: RewardModel | None = None,
    ):
        self.config, self.dataset = config, dataset
        self.policy, self.manager = policy, manager
        self.tokenizer, self.folder, self.reward_model = tokenizer, folder, reward_model
        sampling = validation_sampling(config.actor_rollout_ref.rollout)
        self.round = RoundSettings(0, sampling, "val", scores_at_once(manager, config))  # training's begin at 1

    def __call__(self, step: int) -> dict[str, float]:
        metrics: dict[str, float] = {}
        self.policy.update_weights(step)
        batches = []
        for rows in self._batches():
            self.policy.begin_sequences(rows, self.round)
            answered = collate(rows).union(self.policy.finish_sequences(self.round.number))
            for name, parts in answered.meta_info.pop("metrics", {}).items():
                if name.startswith("failures/"):
                    metrics[name] = metrics.get(name, 0.0) + sum(parts)
            model = self.reward_model
            if model is not None and PRECOMPUTED not in answered.batch:
                answered.non_tensor_batch[BY_MODEL] = object_column(models_alone(answered))
            batches.append(score(answered, self.manager, self.config.reward, metrics, needs_groups=False, model=model))
        samples = [row for batch in batches for row in sample_rows(batch, self.tokenizer)]
        self.folder.write_validation(step, samples)
        counts = {f"val-{name}": value for name, value in metrics.items() if value and not name.startswith("timing")}
        reported = agent_metrics([metrics for batch in batches for metrics in batch.non_tensor_batch["agent_metrics"]])
        return counts | {f"val-{name}": value for name, value in reported.items()} | self._metrics(batches)

    def _batches(self) -> Iterator[list[Row]]:
        n = self.config.actor_rollout_ref.rollout.val_kwargs.n
        numbers = np.arange(len(self.dataset))
        if self.config.data.validation_shuffle:
            numbers = np.random.default_rng(self.config.data.seed).permutation(numbers)
        size = self.config.data.val_batch_size or len(numbers)
        for start in range(0, len(numbers), size):
            chosen = numbers[start : start + size].tolist()
            rows = with_same_fields([self.dataset[i] for i in chosen])
            yield [{**row, "uid": i, "sample": k} for i, row in zip(chosen, rows, strict=True) for k in range(n)]

    def _metrics(self, batches: list[DataProto]) -> dict[str, float]:
        sources, uids, infos = [], [], []
        for batch in batches:
            columns = batch.non_tensor_batch
            placed = batch.batch["token_level_scores"].sum(-1).tolist()
            nothing = [None] * len(batch)
            by_model, results = columns.get(BY_MODEL, nothing), columns.get("score_result", nothing)
            rows = zip(by_model, columns["reward_info"], results, placed, strict=True)
            sources += [str(source) for source in columns["data_source"]]
            uids += columns["uid"].tolist()
            for is_models, extra, result, reward in rows:
                if result is not None and result.score is not None and math.isclose(result.score, reward, rel_tol=1e-6):
                    reward = result.score  # tokens hold in float32 what the manager placed unchanged
                infos.append(extra if is_models else {**extra, "reward": reward})
        names = dict.fromkeys(name for info in infos for name in info if name != "score")
        return validation_metrics(sources, uids, {name: [info.get(name) for info in infos] for name in names})


def validation_sampling(rollout: RolloutConfig) -> Sampling:
    """How validation answers are sampled: as in training where `val_kwargs` says nothing else."""
    val = rollout.val_kwargs
    return replace(
        training_sampling(rollout),
        temperature=val.temperature if val.do_sample else 0.0,
        top_k=val.top_k,
        top_p=val.top_p,
        min_p=0.0,
    )
