"""The reward model: a classifier with one label that gives each finished conversation a score.

Made where `reward_model.enable` is set. It is frozen: no optimiser, nothing in a checkpoint. What it reads of a batch,
in its own token ids, is the business of `conversations.py`; which rows are sent here, and what becomes of their scores,
that of `trainer/reward_model.py`.
"""

import torch

from burnish.config import PPOConfig
from burnish.controller import Dispatch, Worker, register
from burnish.engine.batching import MicroBatch
from burnish.engine.forward import Forward
from burnish.engine.offload import HostModule
from burnish.models.loading import load_reward_model, naming
from burnish.protocol import DataProto
from burnish.workers.conversations import MODEL, Conversations, padded


class RewardModelWorker(Worker):
    """Scores conversations."""

    def __init__(self, config: PPOConfig, total_steps: int):
        self.config = config

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        model = self.config.reward_model.model
        self.conversations = Conversations(self.config)
        with naming(f"{MODEL}.path"):
            module = load_reward_model(model.path, model, self.device).requires_grad_(False).eval()
        self.forward = Forward(module, model)
        self.weights = HostModule(module, parks=model.fsdp_config.param_offload)
        self.conversations.expect(module.get_input_embeddings().weight.shape[0])

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_rm_score(self, data: DataProto) -> DataProto:
        """`rm_scores` (B, R): the score on the last token with response_mask 1, 0 elsewhere.

        Beside it `rm_problem`, why a row has no score (it is NaN then), else None; and `rm_cut`, whether the
        conversation lost its start.
        """
        conversations = self.conversations.of(data)
        scores = torch.full((len(data),), torch.nan)  # (B,)
        readable = [row for row, conversation in enumerate(conversations) if conversation.problem is None]
        readable.sort(key=lambda row: len(conversations[row].ids))  # so that a pass pads little
        with self.weights.on_device(), torch.no_grad():
            for part in self.micro_batch.cut([len(conversations[row].ids) for row in readable]):
                rows = [readable[i] for i in part]
                found = self.forward.scores(*padded([conversations[row].ids for row in rows], self.device))
                scores[rows] = found.cpu()
        return DataProto.from_dict(
            {"rm_scores": on_last_token(scores, data.batch["response_mask"])},
            non_tensors={
                "rm_problem": [conversation.problem for conversation in conversations],
                "rm_cut": [conversation.is_cut for conversation in conversations],
            },
        )

    @property
    def micro_batch(self) -> MicroBatch:
        section = self.config.reward_model
        return MicroBatch.choose(
            section.use_dynamic_bsz, section.forward_max_token_len_per_gpu, section.micro_batch_size_per_gpu
        )


def on_last_token(scores: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    """(B, R): each score (B,) on the last token of its row with response_mask 1; a row without one has none."""
    width = response_mask.shape[1]
    last = (response_mask * torch.arange(1, width + 1)).argmax(-1)  # (B,)
    placed = torch.zeros(response_mask.shape)
    rows = response_mask.any(-1).nonzero()[:, 0]
    placed[rows, last[rows]] = scores[rows]
    return placed
