"""Actor, rollout engine and reference policy in one process.

The engine (`replica.py`) gives its memory to training, unless `rollout.free_cache_engine` is false. The reference is a
frozen copy of the first model, loaded only where a KL term reads it; with LoRA, the actor's with its adapter off.
"""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from burnish.algorithms.aggregate import LossCounts
from burnish.algorithms.correction import is_gap
from burnish.algorithms.losses import needs_of, policy_loss, token_choice
from burnish.config.engines import engine_spec
from burnish.controller import Dispatch, register
from burnish.engine.batching import MicroBatch
from burnish.engine.diagnosis import check_weights
from burnish.engine.dump import BadSteps, Update
from burnish.engine.forward import Forward
from burnish.engine.offload import HostModule
from burnish.engine.packing import pack
from burnish.engine.trainable import frozen, infer
from burnish.models.backbones import FusedBackbone
from burnish.models.compile_ahead import compile_ahead
from burnish.models.loading import load_causal_lm, load_tokenizer
from burnish.models.lora import adapter_off
from burnish.protocol import DataProto
from burnish.rollout.base import Request
from burnish.rollout.replicas import ReplicaAnswer, ReplicaLimits
from burnish.workers.model_worker import ModelFolder, TrainedModelWorker, lengths, update_metrics
from burnish.workers.objectives import PolicyObjective, loss_mask, rows_with_gradient
from burnish.workers.replica import Replica
from burnish.workers.rollouts import Rollouts, RoundSettings
from burnish.workers.trajectories import BEGUN_ROLLOUTS, GROUPED_ROLLOUTS, ROLLOUTS


class ActorRolloutRefWorker(TrainedModelWorker):
    """The policy: samples from it, computes its log-probs, updates it, and keeps its reference."""

    _parts: ClassVar = {
        "actor_rollout_ref.actor": ("compute_log_prob", "update_actor"),
        "actor_rollout_ref.ref": ("compute_ref_log_prob",),
        "actor_rollout_ref.rollout": ("update_weights", "finish_sequences", "generate_sequences"),
    }
    profiled: ClassVar = {"actor_rollout_ref": sum(_parts.values(), ())} | _parts

    @register(dispatch_mode=Dispatch.TOGETHER)
    def init_model(self) -> None:
        """Load what this role needs; errors about the model folder come from here."""
        model, ref = self.config.actor_rollout_ref.model, self.config.actor_rollout_ref.ref
        self.tokenizer = load_tokenizer(model.tokenizer_path or model.path, model.trust_remote_code)
        self.load_actor()
        check_weights(self.actor.module, f"actor_rollout_ref.model.path={model.path}")
        self.dumps = BadSteps(self.config.trainer.default_local_dir, "ppo", self.config)
        self.model_folder = ModelFolder(self.actor, self.tokenizer, self.config.actor_rollout_ref.actor.checkpoint)
        self.reference: Forward | None = None
        if self.config.reads_reference and model.has_lora:
            self.reference, self.reference_mesh = self.actor.forward, self.actor.mesh  # with its adapter off
        elif self.config.reads_reference:
            mesh = self.mesh(ref.fsdp_config, self.config.actor_rollout_ref.actor.ulysses_sequence_parallel_size)
            module = self.load(partial(load_causal_lm, model.path, model), mesh)
            self.reference, self.reference_mesh = frozen(module, model, ref.fsdp_config, mesh), mesh
            self.reference_weights = HostModule(module, parks=ref.fsdp_config.param_offload)
        load_copy = partial(load_causal_lm, model.path, model, seed=self.config.trainer.seed, device=self.device)
        self.replica = Replica(self.config, self.tokenizer, self.actor, load_copy, self.rank)
        self.engine = self.replica.engine
        if self.device.type == "cuda":
            is_fused = isinstance(self.actor.forward.backbone, FusedBackbone)
            own_kernels = engine_spec(self.config.actor_rollout_ref.rollout.name).own_kernels
            compile_ahead(self.replica.module, rollout=own_kernels, training=is_fused)
        if not self.config.agents_apart:
            self.rollouts = Rollouts(self.config, self.tokenizer, self.engine)

    def load_actor(self) -> None:
        """The policy, its optimiser and its loss: what an update takes, and all that `burnish replay` loads."""
        model, actor = self.config.actor_rollout_ref.model, self.config.actor_rollout_ref.actor
        self.warmup = self.config.trainer.critic_warmup  # steps before the actor's own schedule begins
        steps = max(self.total_steps - self.warmup, 1)
        fsdp, ulysses = actor.fsdp_config, actor.ulysses_sequence_parallel_size
        self.actor = self.trainable(load_causal_lm, model, actor.optim, actor.grad_clip, steps, fsdp, ulysses)
        self.weights = HostModule(self.actor.module, parks=fsdp.param_offload and self.actor.mesh is not None)
        loss = actor.policy_loss.loss_mode
        self.policy_loss, self.choose = policy_loss(loss), token_choice(loss)
        # Rows without advantage add nothing to such a loss, and there is no other term that they could add to.
        has_other_terms = actor.use_kl_loss or actor.entropy_coeff != 0
        self.skips_zero_advantage = needs_of(loss).skips_zero_advantage and not has_other_terms

    @register(dispatch_mode=Dispatch.TOGETHER)
    def update_weights(self, version: int) -> None:
        """Bring the actor's weights, as they are now, to the rollout engine: they are version `version`."""
        with self.weights.on_device():
            self.replica.publish(version)

    @register(dispatch_mode=GROUPED_ROLLOUTS)
    def begin_sequences(
        self, rows: Sequence[dict[str, Any]], settings: RoundSettings, total: int | None = None
    ) -> None:
        """Begin one trajectory per row over the engine of this process; see `Rollouts.begin`."""
        self.rollouts.begin(rows, settings, total)

    @register(dispatch_mode=BEGUN_ROLLOUTS)
    def finish_sequences(self, number: int) -> DataProto | None:
        """Wait for what was begun under this number; without running ahead, this is when it is generated."""
        if not self.config.staleness:
            self.engine.wake()
        return self.rollouts.finish(number)

    @register(dispatch_mode=ROLLOUTS)
    def generate_sequences(
        self, rows: Sequence[dict[str, Any]], settings: RoundSettings, total: int | None = None
    ) -> DataProto | None:
        """`begin_sequences` and `finish_sequences` in one call."""
        self.begin_sequences(rows, settings, total)
        return self.finish_sequences(settings.number)

    @register(dispatch_mode=Dispatch.DIRECT_ROLLOUT_METHOD)
    async def generate(self, request: Request) -> ReplicaAnswer:
        """One completion for an agent loop in another process (`rollout/replicas.py`)."""
        completion = await self.engine.generate(request)
        return ReplicaAnswer(completion, self.engine.in_flight)

    @register(dispatch_mode=Dispatch.DIRECT_ROLLOUT_METHOD)
    async def abort(self, request_id: str) -> None:
        self.engine.abort(request_id)

    @register(dispatch_mode=Dispatch.DIRECT_ROLLOUT_METHOD)
    async def limits(self) -> ReplicaLimits:
        """What `generate` can take."""
        return ReplicaLimits(self.engine.context, self.engine.vocabulary)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def engine_stats(self) -> dict[str, float]:
        return self.engine.stats()

    @register(dispatch_mode=Dispatch.TOGETHER)
    def compute_log_prob(self, data: DataProto, outputs: tuple[str, ...] = ()) -> DataProto:
        """`old_log_probs` and `entropys` (B, R) of the current policy, and the `outputs` an estimator asked for."""
        self.replica.make_room()
        rollout = self.config.actor_rollout_ref.rollout
        named = tuple(dict.fromkeys(("log_prob", "entropy", *outputs)))
        micro_batch = MicroBatch.choose(
            rollout.log_prob_use_dynamic_bsz,
            rollout.log_prob_max_token_len_per_gpu,
            rollout.log_prob_micro_batch_size_per_gpu,
        )
        with self.weights.on_device():
            passed = self.log_probs(data, micro_batch, named)
        renamed = {"log_prob": "old_log_probs", "entropy": "entropys"}
        return DataProto.from_dict({renamed.get(name, name): tensor for name, tensor in passed.items()})

    @register(dispatch_mode=Dispatch.TOGETHER)
    def compute_ref_log_prob(self, data: DataProto) -> DataProto:
        """`ref_log_prob` (B, R) of the model this run started from; with LoRA, of the base without any adapter."""
        assert self.reference is not None, "no KL term reads the reference in this run"
        self.replica.make_room()
        reference, ref = self.reference, self.config.actor_rollout_ref.ref
        micro_batch = MicroBatch.choose(
            ref.log_prob_use_dynamic_bsz, ref.log_prob_max_token_len_per_gpu, ref.log_prob_micro_batch_size_per_gpu
        )
        weights = self.weights if reference is self.actor.forward else self.reference_weights
        with weights.on_device(), adapter_off(reference.module):
            passed = infer(
                reference.module,
                lambda micro: reference.log_probs(pack(micro.batch), self.temperature),
                data,
                micro_batch,
                self.device,
                self.reference_mesh,
            )
        return DataProto.from_dict({"ref_log_prob": passed["log_prob"]})

    @register(dispatch_mode=Dispatch.TOGETHER)
    def update_actor(self, data: DataProto, step: int) -> dict[str, list[float]]:
        """Train on the batch; one value per optimiser step and metric."""
        self.replica.make_room()
        actor, start = self.config.actor_rollout_ref.actor, time.perf_counter()
        schedule = step - 1 - self.warmup
        updates, computed = [], []
        with self.weights.on_device():
            steps = self.update_rows(data, step, actor.ppo_mini_batch_size, actor.ppo_epochs, actor.shuffle)
            for number, rows in enumerate(steps):
                mini = data[rows] if self.choose is None else self.with_choice(data[rows], step, number)
                needed = self.rows_to_train(mini)
                update = self.actor.forward_backward(needed, self.objective(mini), self.update_micro_batch)
                update |= self.actor.optim_step(update["loss"], schedule)
                if update["bad_step"]:
                    self.dumps.write(Update("actor", step, number, schedule, update), mini, self.actor, self.tokenizer)
                if number:  # from the second update on the policy itself has moved, which is no gap to the engine
                    update = {name: value for name, value in update.items() if not is_gap(name)}
                updates.append(update | {"skipped_tokens_ratio": 1 - sum(lengths(needed)) / sum(lengths(mini))})
                computed += lengths(needed)
        return update_metrics("actor", updates, self.actor, computed, time.perf_counter() - start)

    def objective(self, mini: DataProto) -> PolicyObjective:
        actor, correction = self.config.actor_rollout_ref.actor, self.config.algorithm.rollout_correction
        is_first_pass = "old_log_probs" not in mini.batch  # which then reports the entropy as well
        entropy = ("entropy",) if actor.entropy_coeff or is_first_pass else ()
        return PolicyObjective(
            self.actor.forward,
            self.policy_loss,
            actor,
            LossCounts.of(loss_mask(mini)),
            self.config.data.response_limit,
            self.temperature,
            tuple(dict.fromkeys(("log_prob", *entropy, *needs_of(actor.policy_loss.loss_mode).outputs))),
            correction if correction.bypass_mode else None,
        )

    def rows_to_train(self, mini: DataProto) -> DataProto:
        """Of a mini-batch, those that its update runs the model on."""
        return mini[rows_with_gradient(mini)] if self.skips_zero_advantage else mini

    def log_probs(
        self, data: DataProto, micro_batch: MicroBatch, outputs: tuple[str, ...] = ("log_prob",)
    ) -> dict[str, torch.Tensor]:
        """`outputs` (B, R) of a batch under the policy as it is, without gradients."""
        forward = self.actor.forward
        return self.actor.infer(
            lambda micro: forward.log_probs(pack(micro.batch), self.temperature, outputs), data, micro_batch
        )

    def with_choice(self, mini: DataProto, step: int, number: int) -> DataProto:
        """The mini-batch with the column `chosen`: tokens that the loss treats differently, picked from all of it."""
        assert self.choose is not None
        seed = np.random.SeedSequence([self.config.trainer.seed, step, number]).generate_state(1)
        inputs, _ = self.objective(mini).inputs(mini, self.log_probs(mini, self.update_micro_batch))
        chosen = self.choose(inputs, torch.Generator().manual_seed(int(seed[0])))
        return mini.union(DataProto.from_dict({"chosen": chosen}))

    @property
    def update_micro_batch(self) -> MicroBatch:
        actor = self.config.actor_rollout_ref.actor
        return MicroBatch.choose(
            actor.use_dynamic_bsz, actor.ppo_max_token_len_per_gpu, actor.ppo_micro_batch_size_per_gpu
        )

    @register(dispatch_mode=Dispatch.TOGETHER)
    def load_checkpoint(self, folder: Path) -> None:
        """The weights change in place: what the engine computed with the old ones is dropped."""
        super().load_checkpoint(folder)
        self.update_weights(0)  # whose version the trainer says before it generates

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def close(self) -> None:
        """End what generating has started: processes that score, what agents opened, the engine's own thread."""
        try:
            if not self.config.agents_apart:
                self.rollouts.close()
        finally:
            self.replica.close()

    @property
    def temperature(self) -> float:
        """What logits are divided by: the sampling temperature, or 1 where sampling is greedy."""
        rollout = self.config.actor_rollout_ref.rollout
        return rollout.temperature if rollout.do_sample and rollout.temperature > 0 else 1.0
