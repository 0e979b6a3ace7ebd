"""The critic: a value model that predicts the return at each response token.

Made only where the estimator declares that it needs values. It starts from the model in `critic.model.path` with a
new value head.
"""

import time
from pathlib import Path

from burnish.algorithms.aggregate import Counts
from burnish.config import PPOConfig
from burnish.controller import Dispatch, Worker, register
from burnish.engine.batching import MicroBatch
from burnish.engine.forward import values
from burnish.engine.packing import pack
from burnish.engine.trainable import Trainable
from burnish.models.loading import load_tokenizer, load_value_model
from burnish.protocol import DataProto
from burnish.workers.objectives import ValueObjective
from burnish.workers.updates import lengths, passes, update_metrics


class CriticWorker(Worker):
    """Computes values and learns them from returns."""

    def __init__(self, config: PPOConfig, total_steps: int):
        self.config = config
        self.total_steps = total_steps

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        critic, model = self.config.critic, self.config.critic.model
        self.tokenizer = load_tokenizer(model.tokenizer_path or model.path, model.trust_remote_code)
        module = load_value_model(model.path, model, self.device, seed=self.config.trainer.seed)
        self.critic = Trainable(
            module, critic.optim, grad_clip=critic.grad_clip, total_steps=self.total_steps, device=self.device
        )

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_values(self, data: DataProto) -> DataProto:
        """`values` (B, R): the prediction before each response token."""
        critic = self.config.critic
        micro = MicroBatch.choose(
            critic.use_dynamic_bsz, critic.forward_max_token_len_per_gpu, critic.forward_micro_batch_size_per_gpu
        )
        predicted = self.critic.infer(
            lambda part: {"values": values(self.critic.module, pack(part.batch))}, data, micro
        )
        return DataProto.from_dict(predicted)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def update_critic(self, data: DataProto, step: int) -> dict[str, list[float]]:
        """Train on the batch; one value per optimiser step and metric."""
        critic, start = self.config.critic, time.perf_counter()
        count = self.config.data.train_batch_size // critic.ppo_mini_batch_size
        micro = MicroBatch.choose(
            critic.use_dynamic_bsz, critic.ppo_max_token_len_per_gpu, critic.ppo_micro_batch_size_per_gpu
        )
        updates = []
        for rows in passes(data, count, critic.ppo_epochs, critic.shuffle, seed=self.config.data.seed, step=step):
            mini = data[rows]
            counts = Counts.of(mini.batch["response_mask"])
            objective = ValueObjective(self.critic.module, critic, counts, self.config.data.max_response_length)
            updates.append(self.critic.update(mini, objective, micro, schedule=step - 1))
        return update_metrics(
            "critic", updates, self.critic, critic.ppo_epochs * lengths(data), time.perf_counter() - start
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(self, folder: Path) -> None:
        self.critic.save(folder)
        self.tokenizer.save_pretrained(folder)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, folder: Path) -> None:
        self.critic.load(folder)
