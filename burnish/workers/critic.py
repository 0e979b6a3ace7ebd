"""The critic: a value model that predicts the return at each response token.

Made only where the estimator declares that it needs values. It starts from the model in `critic.model.path` with a
new value head.
"""

import time
from functools import partial

from burnish.algorithms.aggregate import LossCounts
from burnish.controller import Dispatch, register
from burnish.engine.batching import MicroBatch
from burnish.engine.dump import BadSteps, Update
from burnish.engine.offload import HostModule
from burnish.engine.packing import pack
from burnish.engine.trainable import Trainable
from burnish.models.loading import load_tokenizer, load_value_model
from burnish.protocol import DataProto
from burnish.workers.model_folder import ModelFolder
from burnish.workers.model_worker import TrainedModelWorker
from burnish.workers.objectives import ValueObjective
from burnish.workers.updates import lengths, update_metrics, update_rows


class CriticWorker(TrainedModelWorker):
    """Computes values and learns them from returns."""

    @register(dispatch_mode=Dispatch.TOGETHER)
    def init_model(self) -> None:
        model = self.config.critic.model
        self.tokenizer = load_tokenizer(model.tokenizer_path or model.path, model.trust_remote_code)
        self.load_critic()
        self.dumps = BadSteps(self.config.trainer.default_local_dir, "ppo", self.config)
        self.model_folder = ModelFolder(self.critic, self.tokenizer, self.config.critic.checkpoint)
        self.weights = HostModule(self.critic.module, parks=self.config.critic.fsdp_config.param_offload)

    def load_critic(self) -> None:
        """The model and its optimiser: what an update takes, and all that `burnish replay` loads."""
        critic, model = self.config.critic, self.config.critic.model
        mesh = self.mesh(critic.fsdp_config, critic.ulysses_sequence_parallel_size)
        loader = partial(load_value_model, model.path, model, seed=self.config.trainer.seed)
        self.critic = Trainable(
            self.load(loader, mesh),
            critic.optim,
            grad_clip=critic.grad_clip,
            total_steps=self.total_steps,
            device=self.device,
            model=model,
            fsdp=critic.fsdp_config,
            mesh=mesh,
        )

    @register(dispatch_mode=Dispatch.TOGETHER)
    def compute_values(self, data: DataProto) -> DataProto:
        """`values` (B, R): the prediction before each response token."""
        critic = self.config.critic
        micro = MicroBatch.choose(
            critic.use_dynamic_bsz, critic.forward_max_token_len_per_gpu, critic.forward_micro_batch_size_per_gpu
        )
        with self.weights.on_device():
            predicted = self.critic.infer(
                lambda part: {"values": self.critic.forward.values(pack(part.batch))}, data, micro
            )
        return DataProto.from_dict(predicted)

    @register(dispatch_mode=Dispatch.TOGETHER)
    def update_critic(self, data: DataProto, step: int) -> dict[str, list[float]]:
        """Train on the batch; one value per optimiser step and metric."""
        critic, start = self.config.critic, time.perf_counter()
        count = self.config.data.train_batch_size // critic.ppo_mini_batch_size
        updates: list[dict[str, float]] = []
        steps = update_rows(data, count, critic.ppo_epochs, critic.shuffle, seed=self.config.data.seed, step=step)
        with self.weights.on_device():
            for number, rows in enumerate(steps):
                mini = data[rows]
                update = self.critic.forward_backward(mini, self.objective(mini), self.update_micro_batch)
                update |= self.critic.optim_step(update["loss"], step - 1)
                if update["bad_step"]:
                    place = Update("critic", step, number, step - 1, update)
                    self.dumps.write(place, mini, self.critic, self.tokenizer)
                updates.append(update)
        return update_metrics(
            "critic", updates, self.critic, critic.ppo_epochs * lengths(data), time.perf_counter() - start
        )

    def objective(self, mini: DataProto) -> ValueObjective:
        """What is minimised on a mini-batch."""
        counts, longest = LossCounts.of(mini.batch["response_mask"]), self.config.data.response_limit
        return ValueObjective(self.critic.forward, self.config.critic, counts, longest)

    @property
    def update_micro_batch(self) -> MicroBatch:
        critic = self.config.critic
        return MicroBatch.choose(
            critic.use_dynamic_bsz, critic.ppo_max_token_len_per_gpu, critic.ppo_micro_batch_size_per_gpu
        )
