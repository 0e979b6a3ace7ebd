"""The process reward model: a language model that is trained on outcomes and rewards every token (PRIME).

Made only where the estimator declares that it needs process rewards. It starts from the model in
`process_reward.model.path`; a frozen copy of that start stays next to it, and a token's reward is the log-ratio between
the two (`algorithms/process_reward.py`). The start's log-probs are computed once per batch and joined to it; both the
rewards and the update read that column.

Log-probs are taken at temperature 1, whatever the policy samples with: this model judges tokens and draws none.
"""

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from burnish.algorithms.aggregate import LossCounts
from burnish.algorithms.process_reward import outcome_loss, process_rewards
from burnish.algorithms.tally import Metrics
from burnish.config.fsdp import FSDPConfig
from burnish.controller import Dispatch, register
from burnish.engine.batching import MicroBatch
from burnish.engine.dump import BadSteps, Update
from burnish.engine.forward import Forward
from burnish.engine.offload import HostModule
from burnish.engine.packing import pack
from burnish.engine.trainable import Trainable, frozen, infer
from burnish.errors import ModelError
from burnish.models.loading import load_causal_lm, load_tokenizer
from burnish.models.lora import adapter_off
from burnish.protocol import DataProto
from burnish.workers.model_folder import ModelFolder
from burnish.workers.model_worker import TrainedModelWorker
from burnish.workers.updates import lengths, update_metrics, update_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ProcessRewardWorker(TrainedModelWorker):
    """Rewards tokens and learns to from outcomes."""

    @register(dispatch_mode=Dispatch.TOGETHER)
    def init_model(self) -> None:
        """Load the model twice: one is trained, the other stays as it is. With LoRA once: its base stays as it is."""
        model = self.config.process_reward.model
        self.tokenizer = load_tokenizer(model.tokenizer_path or model.path, model.trust_remote_code)
        policy = self.config.actor_rollout_ref.model
        theirs = load_tokenizer(policy.tokenizer_path or policy.path, policy.trust_remote_code)
        check_reads_tokens(self.tokenizer, theirs, model.path)
        self.load_trained()
        self.dumps = BadSteps(self.config.trainer.default_local_dir, "ppo", self.config)
        self.model_folder = ModelFolder(self.model, self.tokenizer)
        self.weights = HostModule(self.model.module, parks=False)
        self.start = self.model.forward  # whose adapter is off while it is the start
        if not model.has_lora:
            module = self.load(partial(load_causal_lm, model.path, model), self.model.mesh)
            self.start = frozen(module, model, mesh=self.model.mesh)

    def load_trained(self) -> None:
        """The model that is trained and its optimiser: what an update takes, and all that `burnish replay` loads."""
        section, model = self.config.process_reward, self.config.process_reward.model
        mesh = self.mesh(FSDPConfig())
        loader = partial(load_causal_lm, model.path, model, seed=self.config.trainer.seed)
        self.model = Trainable(
            self.load(loader, mesh),
            section.optim,
            grad_clip=section.grad_clip,
            total_steps=self.total_steps,
            device=self.device,
            model=model,
            mesh=mesh,
        )

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
        section, start = self.config.process_reward, time.perf_counter()
        count = self.config.data.train_batch_size // section.mini_batch_size
        updates: list[dict[str, float]] = []
        steps = update_rows(data, count, 1, False, seed=self.config.data.seed, step=step)
        for number, rows in enumerate(steps):
            mini = data[rows]
            update = self.model.forward_backward(mini, self.objective(mini), self.micro_batch)
            update |= self.model.optim_step(update["loss"], step - 1)
            if update["bad_step"]:
                bad = Update("process_reward", step, number, step - 1, update)
                self.dumps.write(bad, mini, self.model, self.tokenizer)
            updates.append(update)
        return update_metrics("process_reward", updates, self.model, lengths(data), time.perf_counter() - start)

    def objective(self, mini: DataProto) -> "OutcomeObjective":
        """What is minimised on a mini-batch."""
        counts = LossCounts.of(mini.batch["response_mask"])
        return OutcomeObjective(self.model.forward, self.config.process_reward.beta, counts)

    @property
    def micro_batch(self) -> MicroBatch:
        section = self.config.process_reward
        return MicroBatch.choose(
            section.use_dynamic_bsz, section.max_token_len_per_gpu, section.micro_batch_size_per_gpu
        )


@dataclass(frozen=True)
class OutcomeObjective:
    """The cross-entropy of a sequence's summed process rewards against its outcome, on one micro-batch."""

    forward: Forward
    beta: float
    counts: LossCounts  # of the mini-batch

    def __call__(self, micro: DataProto) -> tuple[Tensor, Metrics]:
        batch = micro.batch
        log_prob, mask = self.forward.log_probs(pack(batch))["log_prob"], batch["response_mask"]
        rewards = process_rewards(log_prob, batch["process_ref_log_prob"], mask, self.beta)
        return outcome_loss(rewards, batch["outcomes"], mask, self.counts)


def check_reads_tokens(ours: "PreTrainedTokenizerBase", theirs: "PreTrainedTokenizerBase", path: str) -> None:
    """Refuse a model to which the policy's token ids mean something else."""
    known = ours.get_vocab()
    other = [token for token, number in theirs.get_vocab().items() if known.get(token) != number]
    if other:
        raise ModelError(
            f"process_reward.model.path={path}: it reads the policy's tokens, but its tokenizer has other ids for "
            f"{len(other)} of them, such as {min(other)!r}; choose a model with the policy's tokenizer"
        )
