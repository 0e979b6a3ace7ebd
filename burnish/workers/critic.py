"""The critic: a value model that predicts the return at each response token, made only where the estimator needs
values. It starts from the model in `critic.model.path` with a new value head."""

from typing import ClassVar

from torch import Tensor

from burnish.algorithms.aggregate import LossCounts
from burnish.algorithms.losses.inputs import ValueLossInputs
from burnish.algorithms.losses.value import value_loss
from burnish.algorithms.tally import Metrics
from burnish.controller import Dispatch, register
from burnish.engine.batching import MicroBatch
from burnish.engine.diagnosis import check_weights
from burnish.engine.dump import BadSteps
from burnish.engine.offload import HostModule
from burnish.engine.packing import pack
from burnish.engine.trainable import Loss
from burnish.models.loading import load_tokenizer, load_value_model
from burnish.protocol import DataProto
from burnish.workers.model_worker import ModelFolder, TrainedModelWorker


class CriticWorker(TrainedModelWorker):
    profiled: ClassVar = {"critic": ("compute_values", "update_critic")}

    @register(dispatch_mode=Dispatch.TOGETHER)
    def init_model(self) -> None:
        model = self.config.critic.model
        self.tokenizer = load_tokenizer(model.tokenizer_path or model.path, model.trust_remote_code)
        self.load_critic()
        check_weights(self.critic.module, f"critic.model.path={model.path}")
        self.dumps = BadSteps(self.config.trainer.default_local_dir, "ppo", self.config)
        self.model_folder = ModelFolder(self.critic, self.tokenizer, self.config.critic.checkpoint)
        self.weights = HostModule(self.critic.module, parks=self.config.critic.fsdp_config.param_offload)

    def load_critic(self) -> None:
        """The model and its optimiser: what an update takes, and all that `burnish replay` loads."""
        critic, steps = self.config.critic, self.total_steps
        fsdp, ulysses = critic.fsdp_config, critic.ulysses_sequence_parallel_size
        self.critic = self.trainable(
            load_value_model, critic.model, critic.optim, critic.grad_clip, steps, fsdp, ulysses
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
        critic = self.config.critic
        rows = self.update_rows(data, step, critic.ppo_mini_batch_size, critic.ppo_epochs, critic.shuffle)
        return self.train("critic", self.critic, self.update_micro_batch, data, step, rows)

    def objective(self, mini: DataProto) -> Loss:
        """The clipped squared error."""
        counts = LossCounts.of(mini.batch["response_mask"])

        def loss(micro: DataProto) -> tuple[Tensor, Metrics]:
            batch = micro.batch
            inputs = ValueLossInputs(
                vpreds=self.critic.forward.values(pack(batch)),
                values=batch["values"],
                returns=batch["returns"],
                response_mask=batch["response_mask"],
                config=self.config.critic,
                counts=counts,
                max_response_length=self.config.data.response_limit,
            )
            return value_loss(inputs)

        return loss

    @property
    def update_micro_batch(self) -> MicroBatch:
        critic = self.config.critic
        return MicroBatch.choose(
            critic.use_dynamic_bsz, critic.ppo_max_token_len_per_gpu, critic.ppo_micro_batch_size_per_gpu
        )
