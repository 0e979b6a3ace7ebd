"""The process reward model: a language model that is trained on outcomes and rewards every token (PRIME).

Made only where the estimator needs process rewards. A token's reward is the log-ratio between the model and a frozen
copy of its start (`algorithms/process_reward.py`), at temperature 1, whatever the policy samples with.
"""

from functools import partial

from torch import Tensor

from burnish.algorithms.aggregate import LossCounts
from burnish.algorithms.process_reward import outcome_loss, process_rewards
from burnish.algorithms.tally import Metrics
from burnish.controller import Dispatch, register
from burnish.engine.batching import MicroBatch
from burnish.engine.diagnosis import check_weights
from burnish.engine.dump import BadSteps
from burnish.engine.offload import HostModule
from burnish.engine.packing import pack
from burnish.engine.trainable import Loss, frozen, infer
from burnish.errors import ModelError
from burnish.models.loading import load_causal_lm, load_tokenizer
from burnish.models.lora import adapter_off
from burnish.protocol import DataProto
from burnish.workers.model_worker import ModelFolder, TrainedModelWorker
from burnish.workers.reward_model import other_ids


class ProcessRewardWorker(TrainedModelWorker):
    @register(dispatch_mode=Dispatch.TOGETHER)
    def init_model(self) -> None:
        """Load the model twice: one is trained, the other stays as it is. With LoRA once: its base stays as it is."""
        model = self.config.process_reward.model
        self.tokenizer = load_tokenizer(model.tokenizer_path or model.path, model.trust_remote_code)
        policy = self.config.actor_rollout_ref.model
        theirs = load_tokenizer(policy.tokenizer_path or policy.path, policy.trust_remote_code)
        if other := other_ids(self.tokenizer, theirs):
            raise ModelError(
                f"process_reward.model.path={model.path}: it reads the policy's tokens, but its tokenizer has other "
                f"ids for {len(other)} of them, such as {other[0]!r}; choose a model with the policy's tokenizer"
            )
        self.load_trained()
        check_weights(self.model.module, f"process_reward.model.path={model.path}")
        self.dumps = BadSteps(self.config.trainer.default_local_dir, "ppo", self.config)
        self.model_folder = ModelFolder(self.model, self.tokenizer)
        self.weights = HostModule(self.model.module, parks=False)
        self.start = self.model.forward  # whose adapter is off while it is the start
        if not model.has_lora:
            module = self.load(partial(load_causal_lm, model.path, model), self.model.mesh)
            self.start = frozen(module, model, mesh=self.model.mesh)

    def load_trained(self) -> None:
        """The model that is trained and its optimiser: what an update takes, and all that `burnish replay` loads."""
        section, steps = self.config.process_reward, self.total_steps
        self.model = self.trainable(load_causal_lm, section.model, section.optim, section.grad_clip, steps)

    @register(dispatch_mode=Dispatch.TOGETHER)
    def compute_start_log_prob(self, data: DataProto) -> DataProto:
        """`process_ref_log_prob` (B, R) of the model as it was at the start."""
        with adapter_off(self.start.module):
            passed = infer(
                self.start.module,
                lambda part: self.start.log_probs(pack(part.batch)),
                data,
                self.micro_batch,
                self.device,
                self.model.mesh,
            )
        return DataProto.from_dict({"process_ref_log_prob": passed["log_prob"]})

    @register(dispatch_mode=Dispatch.TOGETHER)
    def compute_process_reward(self, data: DataProto) -> DataProto:
        """`process_rewards` (B, R) of the model as it is now; reads `process_ref_log_prob`."""
        passed = self.model.infer(lambda part: self.model.forward.log_probs(pack(part.batch)), data, self.micro_batch)
        start, mask = data.batch["process_ref_log_prob"], data.batch["response_mask"]
        rewards = process_rewards(passed["log_prob"], start, mask, self.config.process_reward.beta)
        return DataProto.from_dict({"process_rewards": rewards})

    @register(dispatch_mode=Dispatch.TOGETHER)
    def update_process_reward(self, data: DataProto, step: int) -> dict[str, list[float]]:
        """Train once over the batch on its `outcomes` (B,); one value per optimiser step and metric."""
        rows = self.update_rows(data, step, self.config.process_reward.mini_batch_size)
        return self.train("process_reward", self.model, self.micro_batch, data, step, rows)

    def objective(self, mini: DataProto) -> Loss:
        """The cross-entropy of a sequence's summed process rewards against its outcome."""
        counts = LossCounts.of(mini.batch["response_mask"])

        def loss(micro: DataProto) -> tuple[Tensor, Metrics]:
            batch = micro.batch
            log_prob, mask = self.model.forward.log_probs(pack(batch))["log_prob"], batch["response_mask"]
            beta = self.config.process_reward.beta
            rewards = process_rewards(log_prob, batch["process_ref_log_prob"], mask, beta)
            return outcome_loss(rewards, batch["outcomes"], mask, counts)

        return loss

    @property
    def micro_batch(self) -> MicroBatch:
        section = self.config.process_reward
        return MicroBatch.choose(
            section.use_dynamic_bsz, section.max_token_len_per_gpu, section.micro_batch_size_per_gpu
        )
