"""Actor, rollout engine and reference policy in one process.

The rollout engine reads the actor's own module, so after an update the next token comes from the new weights. It
sleeps while the policy trains, and its memory is then training's, unless `rollout.free_cache_engine` is false. The
reference is a frozen copy of the model the run started from, loaded only where a KL term reads it; with LoRA it is the
actor's own module with the adapter off. Methods take and return `DataProto`; how they are spread over processes is
`controller`'s business.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from burnish.agents.output import AgentLoopOutput
from burnish.agents.runner import Score, TrajectoryRunner
from burnish.algorithms.aggregate import Counts
from burnish.algorithms.correction import is_gap
from burnish.algorithms.losses import needs_of, policy_loss, token_choice
from burnish.config import PPOConfig
from burnish.controller import Dispatch, Worker, register
from burnish.engine.batching import MicroBatch
from burnish.engine.dump import BadSteps, Update
from burnish.engine.forward import Forward
from burnish.engine.offload import HostModule
from burnish.engine.packing import pack
from burnish.engine.trainable import Trainable, infer
from burnish.models.backbones import FusedBackbone
from burnish.models.compile_ahead import compile_ahead
from burnish.models.loading import load_causal_lm, load_tokenizer
from burnish.models.lora import adapter_off
from burnish.protocol import DataProto
from burnish.rewards.contract import ScoreResult
from burnish.rewards.failures import FailureWatch
from burnish.rewards.scoring import Scoring
from burnish.rollout import make_engine
from burnish.rollout.base import Sampling
from burnish.workers.model_folder import ModelFolder
from burnish.workers.objectives import PolicyObjective
from burnish.workers.rollout_metrics import engine_metrics, retrieval_metrics
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
        model, rollout = self.config.actor_rollout_ref.model, self.config.actor_rollout_ref.rollout
        self.tokenizer = load_tokenizer(model.tokenizer_path or model.path, model.trust_remote_code)
        self.load_actor()
        if self.actor.device.type == "cuda":
            is_fused = isinstance(self.actor.forward.backbone, FusedBackbone)
            compile_ahead(self.actor.module, rollout=rollout.name == "native", training=is_fused)
        self.dumps = BadSteps(self.config.trainer.default_local_dir, "ppo", self.config)
        contents = self.config.actor_rollout_ref.actor.checkpoint
        self.model_folder = ModelFolder(self.actor, self.tokenizer, contents)
        self.reference: Forward | None = None
        if self.config.reads_reference and model.has_lora:
            self.reference = self.actor.forward  # whose adapter is off while it is the reference
        elif self.config.reads_reference:
            self.reference = Forward(load_causal_lm(model.path, model, self.device).requires_grad_(False), model)
        if self.reference is not None:
            parks = self.config.actor_rollout_ref.ref.fsdp_config.param_offload and not model.has_lora
            self.reference_weights = HostModule(self.reference.module, parks=parks)
        self.scoring = Scoring.from_config(self.config)
        self.engine = make_engine(rollout.name, self.actor.module, self.tokenizer, rollout)
        self.runner = TrajectoryRunner(self.engine, self.tokenizer, self.config)

    def load_actor(self) -> None:
        """The policy, its optimiser and its loss: what an update takes, and all that `burnish replay` loads."""
        model, actor = self.config.actor_rollout_ref.model, self.config.actor_rollout_ref.actor
        module = load_causal_lm(model.path, model, self.device, seed=self.config.trainer.seed)
        self.warmup = self.config.trainer.critic_warmup  # steps before the actor's own schedule begins
        steps = max(self.total_steps - self.warmup, 1)
        self.actor = Trainable(
            module,
            actor.optim,
            grad_clip=actor.grad_clip,
            total_steps=steps,
            device=self.device,
            model=model,
            fsdp=actor.fsdp_config,
        )
        loss = actor.policy_loss.loss_mode
        self.policy_loss, self.choose = policy_loss(loss), token_choice(loss)
        # Rows without advantage add nothing to such a loss, and there is no other term that they could add to.
        has_other_terms = actor.use_kl_loss or actor.entropy_coeff != 0
        self.skips_zero_advantage = needs_of(loss).skips_zero_advantage and not has_other_terms

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
        before, asked = self.engine.stats(), self.runner.environment.retriever_stats()
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
        batch.meta_info["metrics"] |= retrieval_metrics(asked, self.runner.environment.retriever_stats())
        return batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_log_prob(self, data: DataProto, outputs: tuple[str, ...] = ()) -> DataProto:
        """`old_log_probs` and `entropys` (B, R) of the current policy, and the `outputs` an estimator asked for."""
        self._make_room()
        rollout = self.config.actor_rollout_ref.rollout
        named = tuple(dict.fromkeys(("log_prob", "entropy", *outputs)))
        passed = self.actor.infer(
            lambda micro: self.actor.forward.log_probs(pack(micro.batch), self.temperature, named),
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
        """`ref_log_prob` (B, R) of the model this run started from; with LoRA, of the base without any adapter."""
        assert self.reference is not None, "no KL term reads the reference in this run"
        self._make_room()
        reference, ref = self.reference, self.config.actor_rollout_ref.ref
        micro_batch = MicroBatch.choose(
            ref.log_prob_use_dynamic_bsz, ref.log_prob_max_token_len_per_gpu, ref.log_prob_micro_batch_size_per_gpu
        )
        with self.reference_weights.on_device(), adapter_off(reference.module):
            passed = infer(
                reference.module,
                lambda micro: reference.log_probs(pack(micro.batch), self.temperature),
                data,
                micro_batch,
                self.device,
            )
        return DataProto.from_dict({"ref_log_prob": passed["log_prob"]})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def update_actor(self, data: DataProto, step: int) -> dict[str, list[float]]:
        """Train on the batch; one value per optimiser step and metric."""
        self._make_room()
        actor, start = self.config.actor_rollout_ref.actor, time.perf_counter()
        count = self.config.data.train_batch_size // actor.ppo_mini_batch_size
        schedule = step - 1 - self.warmup
        updates, computed = [], []
        steps = passes(data, count, actor.ppo_epochs, actor.shuffle, seed=self.config.data.seed, step=step)
        for number, rows in enumerate(steps):
            mini = data[rows] if self.choose is None else self.with_choice(data[rows], step, number)
            needed = self.rows_to_train(mini)
            update = self.actor.forward_backward(needed, self.objective(mini), self.update_micro_batch)
            update |= self.actor.optim_step(update["loss"], schedule)
            if update["bad_step"]:
                self.dumps.write(Update("actor", step, number, schedule, update), mini, self.actor, self.tokenizer)
            if number:  # from the second update on the policy itself has moved, which is no gap to the rollout engine
                update = {name: value for name, value in update.items() if not is_gap(name)}
            updates.append(update | {"skipped_tokens_ratio": 1 - sum(lengths(needed)) / sum(lengths(mini))})
            computed += lengths(needed)
        return update_metrics("actor", updates, self.actor, computed, time.perf_counter() - start)

    def objective(self, mini: DataProto) -> PolicyObjective:
        """What is minimised on a mini-batch."""
        actor, correction = self.config.actor_rollout_ref.actor, self.config.algorithm.rollout_correction
        is_first_pass = "old_log_probs" not in mini.batch  # which then tells the entropy as well
        entropy = ("entropy",) if actor.entropy_coeff or is_first_pass else ()
        return PolicyObjective(
            self.actor.forward,
            self.policy_loss,
            actor,
            Counts.of(loss_mask(mini)),
            self.config.data.response_limit,
            self.temperature,
            tuple(dict.fromkeys(("log_prob", *entropy, *needs_of(actor.policy_loss.loss_mode).outputs))),
            correction if correction.bypass_mode else None,
        )

    def rows_to_train(self, mini: DataProto) -> DataProto:
        """Of a mini-batch, the rows that its update runs the model on."""
        return mini[rows_with_gradient(mini)] if self.skips_zero_advantage else mini

    def log_probs_for_update(self, mini: DataProto) -> dict[str, torch.Tensor]:
        """`log_prob` (B, R) of a mini-batch under the policy as it is, without gradients."""
        return self.actor.infer(
            lambda micro: self.actor.forward.log_probs(pack(micro.batch), self.temperature),
            mini,
            self.update_micro_batch,
        )

    def with_choice(self, mini: DataProto, step: int, number: int) -> DataProto:
        """The mini-batch with the column `chosen`: tokens that the loss treats differently, picked from all of it."""
        assert self.choose is not None
        seed = np.random.SeedSequence([self.config.trainer.seed, step, number]).generate_state(1)
        inputs, _ = self.objective(mini).inputs(mini, self.log_probs_for_update(mini))
        chosen = self.choose(inputs, torch.Generator().manual_seed(int(seed[0])))
        return mini.union(DataProto.from_dict({"chosen": chosen}))

    @property
    def update_micro_batch(self) -> MicroBatch:
        actor = self.config.actor_rollout_ref.actor
        return MicroBatch.choose(
            actor.use_dynamic_bsz, actor.ppo_max_token_len_per_gpu, actor.ppo_micro_batch_size_per_gpu
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def capture_checkpoint(self) -> None:
        """Copy what `save_checkpoint` is to write, which may then be called while training goes on."""
        self.model_folder.capture()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(self, folder: Path) -> None:
        """What was captured, or else the policy as it is: HF format with the tokenizer, and the training state."""
        self.model_folder.save(folder)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, folder: Path) -> None:
        """The weights change where they lie: what the engine computed with those before is forgotten."""
        self.model_folder.load(folder)
        self.update_weights(0)  # whose version the trainer says before it generates

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def close(self) -> None:
        """End the processes that score, and what agents started."""
        self.scoring.close()
        self.runner.close()

    @property
    def temperature(self) -> float:
        """What logits are divided by: the sampling temperature, or 1 where sampling is greedy."""
        rollout = self.config.actor_rollout_ref.rollout
        return rollout.temperature if rollout.do_sample and rollout.temperature > 0 else 1.0

    def _make_room(self) -> None:
        """Before a pass of training: the engine gives its memory back until it is asked again."""
        if self.config.actor_rollout_ref.rollout.free_cache_engine:
            self.engine.sleep()

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
