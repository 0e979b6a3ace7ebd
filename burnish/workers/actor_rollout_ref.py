"""Actor, rollout engine and reference policy in one process.

The rollout engine reads the actor's own module, so after an update the next token comes from the new weights. It
sleeps while the policy trains, and its memory is then training's, unless `rollout.free_cache_engine` is false. The
reference is a frozen copy of the model the run started from, loaded only where a KL term reads it. Methods take and
return `DataProto`; how they are spread over processes is `controller`'s business.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from burnish.agents.output import AgentLoopOutput
from burnish.agents.runner import Score, TrajectoryRunner
from burnish.algorithms.aggregate import Counts
from burnish.algorithms.correction import is_gap
from burnish.algorithms.losses import needs_of, policy_loss, token_choice
from burnish.config import PPOConfig
from burnish.controller import Dispatch, Worker, register
from burnish.engine.batching import MicroBatch
from burnish.engine.forward import log_probs
from burnish.engine.packing import pack
from burnish.engine.trainable import Trainable, infer
from burnish.models.loading import load_causal_lm, load_tokenizer
from burnish.protocol import DataProto
from burnish.rewards.contract import ScoreResult
from burnish.rewards.failures import FailureWatch
from burnish.rewards.scoring import Scoring
from burnish.rollout import make_engine
from burnish.rollout.base import Sampling
from burnish.workers.objectives import PolicyObjective
from burnish.workers.rollout_metrics import engine_metrics
from burnish.workers.trajectories import ROLLOUT_ROWS, to_batch
from burnish.workers.updates import lengths, loss_mask, passes, rows_with_gradient, update_metrics


class ActorRolloutRefWorker(Worker):
    """The policy: samples from it, computes its log-probs, updates it, and keeps its reference."""

    def __init__(self, config: PPOConfig, total_steps: int):
        self.config = config
        self.total_steps = total_steps

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Load what this role needs; errors about the model folder come from here."""
        model, actor, rollout = (getattr(self.config.actor_rollout_ref, name) for name in ("model", "actor", "rollout"))
        self.tokenizer = load_tokenizer(model.tokenizer_path or model.path, model.trust_remote_code)
        module = load_causal_lm(model.path, model, self.device)
        self.warmup = self.config.trainer.critic_warmup  # steps before the actor's own schedule begins
        steps = max(self.total_steps - self.warmup, 1)
        self.actor = Trainable(module, actor.optim, grad_clip=actor.grad_clip, total_steps=steps, device=self.device)
        self.reference: nn.Module | None = None
        if self.config.reads_reference:
            self.reference = load_causal_lm(model.path, model, self.device).requires_grad_(False)
        loss = actor.policy_loss.loss_mode
        self.policy_loss, self.choose = policy_loss(loss), token_choice(loss)
        # Rows without advantage add nothing to such a loss, and there is no other term that they could add to.
        has_other_terms = actor.use_kl_loss or actor.entropy_coeff != 0
        self.skips_zero_advantage = needs_of(loss).skips_zero_advantage and not has_other_terms
        self.scoring = Scoring.from_config(self.config)
        self.engine = make_engine(rollout.name, module, self.tokenizer, rollout)
        self.runner = TrajectoryRunner(self.engine, self.tokenizer, self.config)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def update_weights(self, version: int) -> None:
        """Tell the rollout engine that the actor's weights are now version `version`."""
        self.engine.wake()
        self.engine.publish(None, version)

    @register(dispatch_mode=ROLLOUT_ROWS)
    def generate_sequences(self, prompts: DataProto, sampling: Sampling, namespace: str, score: bool) -> DataProto:
        """Run one trajectory per row; adds the rollout columns and `score_result`, and what the engine did as metrics.

        namespace   keeps the noise of training and validation apart
        score       score each trajectory as it finishes, with the configured function; otherwise the results are None
        """
        rows = [dict(zip(prompts.non_tensor_batch, values, strict=True)) for values in _rows(prompts)]
        rollout = self.config.actor_rollout_ref.rollout
        self.engine.wake()
        before = self.engine.stats()
        trajectories = self.runner.run(
            rows,
            sampling,
            namespace=namespace,
            seed=self.config.trainer.seed,
            score=self._scorer(len(rows)) if score else None,
            deadline_s=rollout.timeout,
        )
        batch = to_batch(trajectories, self.tokenizer.pad_token_id, log_probs=rollout.calculate_log_probs)
        batch.meta_info["metrics"] = engine_metrics(before, self.engine.stats())
        return batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_log_prob(self, data: DataProto, outputs: tuple[str, ...] = ()) -> DataProto:
        """`old_log_probs` and `entropys` (B, R) of the current policy, and the `outputs` an estimator asked for."""
        self._make_room()
        rollout = self.config.actor_rollout_ref.rollout
        named = tuple(dict.fromkeys(("log_prob", "entropy", *outputs)))
        passed = self.actor.infer(
            lambda micro: log_probs(self.actor.module, pack(micro.batch), self.temperature, named),
            data,
            MicroBatch.choose(
                rollout.log_prob_use_dynamic_bsz,
                rollout.log_prob_max_token_len_per_gpu,
                rollout.log_prob_micro_batch_size_per_gpu,
            ),
        )
        renamed = {"log_prob": "old_log_probs", "entropy": "entropys"}
        return DataProto.from_dict({renamed.get(name, name): tensor for name, tensor in passed.items()})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_ref_log_prob(self, data: DataProto) -> DataProto:
        """`ref_log_prob` (B, R) of the model this run started from."""
        assert self.reference is not None, "no KL term reads the reference in this run"
        self._make_room()
        reference, ref = self.reference, self.config.actor_rollout_ref.ref
        passed = infer(
            reference,
            lambda micro: log_probs(reference, pack(micro.batch), self.temperature),
            data,
            MicroBatch.choose(
                ref.log_prob_use_dynamic_bsz, ref.log_prob_max_token_len_per_gpu, ref.log_prob_micro_batch_size_per_gpu
            ),
            self.device,
        )
        return DataProto.from_dict({"ref_log_prob": passed["log_prob"]})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def update_actor(self, data: DataProto, step: int) -> dict[str, list[float]]:
        """Train on the batch; one value per optimiser step and metric."""
        self._make_room()
        actor, start = self.config.actor_rollout_ref.actor, time.perf_counter()
        entropy = ("entropy",) if actor.entropy_coeff else ()
        outputs = tuple(dict.fromkeys(("log_prob", *entropy, *needs_of(actor.policy_loss.loss_mode).outputs)))
        count = self.config.data.train_batch_size // actor.ppo_mini_batch_size
        micro = MicroBatch.choose(
            actor.use_dynamic_bsz, actor.ppo_max_token_len_per_gpu, actor.ppo_micro_batch_size_per_gpu
        )
        correction = self.config.algorithm.rollout_correction
        updates, computed = [], []
        steps = passes(data, count, actor.ppo_epochs, actor.shuffle, seed=self.config.data.seed, step=step)
        for number, rows in enumerate(steps):
            mini = data[rows]
            objective = PolicyObjective(
                self.actor.module,
                self.policy_loss,
                actor,
                Counts.of(loss_mask(mini)),
                self.config.data.max_response_length,
                self.temperature,
                outputs,
                correction if correction.bypass_mode else None,
            )
            if self.choose is not None:
                mini = self._with_choice(mini, objective, micro, step, number)
            needed = mini[rows_with_gradient(mini)] if self.skips_zero_advantage else mini
            update = self.actor.update(needed, objective, micro, schedule=step - 1 - self.warmup)
            if number:  # from the second update on the policy itself has moved, which is no gap to the rollout engine
                update = {name: value for name, value in update.items() if not is_gap(name)}
            updates.append(update | {"skipped_tokens_ratio": 1 - sum(lengths(needed)) / sum(lengths(mini))})
            computed += lengths(needed)
        return update_metrics("actor", updates, self.actor, computed, time.perf_counter() - start)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(self, folder: Path) -> None:
        """Weights in HF format with the tokenizer, and the optimiser's state beside them."""
        self.actor.save(folder)
        self.tokenizer.save_pretrained(folder)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, folder: Path) -> None:
        """The weights change where they lie: what the engine computed with those before is forgotten."""
        self.actor.load(folder)
        self.update_weights(0)  # whose version the trainer says before it generates

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def close(self) -> None:
        """End the processes that score."""
        self.scoring.close()

    @property
    def temperature(self) -> float:
        """What logits are divided by: the sampling temperature, or 1 where sampling is greedy."""
        rollout = self.config.actor_rollout_ref.rollout
        return rollout.temperature if rollout.do_sample and rollout.temperature > 0 else 1.0

    def _make_room(self) -> None:
        """Before a pass of training: the engine gives its memory back until it is asked again."""
        if self.config.actor_rollout_ref.rollout.free_cache_engine:
            self.engine.sleep()

    def _with_choice(
        self, mini: DataProto, objective: PolicyObjective, micro: MicroBatch, step: int, number: int
    ) -> DataProto:
        """The mini-batch with the column `chosen`: tokens that the loss treats differently, picked from all of it."""
        assert self.choose is not None
        passed = self.actor.infer(
            lambda rows: log_probs(self.actor.module, pack(rows.batch), self.temperature), mini, micro
        )
        seed = np.random.SeedSequence([self.config.trainer.seed, step, number]).generate_state(1)
        inputs, _ = objective.inputs(mini, passed)
        chosen = self.choose(inputs, torch.Generator().manual_seed(int(seed[0])))
        return mini.union(DataProto.from_dict({"chosen": chosen}))

    def _scorer(self, total: int) -> Score:
        """Scores trajectories as they finish; RewardError as soon as more of `total` have failed than may."""
        watch = FailureWatch(total, self.config.reward.max_failure_ratio)

        async def score(row: dict[str, Any], output: AgentLoopOutput, text: str) -> ScoreResult | None:
            result = await self.scoring.score(row, output, text)
            if result is not None:  # else it is left to the reward model
                watch.add(row["uid"], result)
            return result

        return score


def _rows(prompts: DataProto) -> Iterator[tuple]:
    return zip(*prompts.non_tensor_batch.values(), strict=True)
