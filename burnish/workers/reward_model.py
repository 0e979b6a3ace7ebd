"""The reward model: a classifier with one label that gives each finished conversation a score.

Made where `reward_model.enable` is set. It is frozen: no optimiser, nothing in a checkpoint. What it reads of a batch,
in its own token ids, is the business of `conversations.py`; which rows are sent here, and what becomes of their scores,
that of `trainer/reward_model.py`.
"""

from functools import partial

import numpy as np
import torch

from burnish.controller import Dispatch, register
from burnish.engine.batching import MicroBatch
from burnish.engine.offload import HostModule
from burnish.engine.trainable import frozen, infer_rows
from burnish.models.loading import load_reward_model, naming
from burnish.protocol import DataProto
from burnish.workers.conversations import MODEL, ConversationReader, padded
from burnish.workers.model_worker import ModelWorker


class RewardModelWorker(ModelWorker):
    """Scores conversations."""

    @register(dispatch_mode=Dispatch.TOGETHER)
    def init_model(self) -> None:
        model = self.config.reward_model.model
        self.conversations = ConversationReader(self.config)
        self.together = self.mesh(model.fsdp_config)
        with naming(f"{MODEL}.path"):
            module = self.load(partial(load_reward_model, model.path, model), self.together)
        self.conversations.expect(module.get_input_embeddings().weight.shape[0])
        self.forward = frozen(module, model, model.fsdp_config, self.together)
        self.weights = HostModule(module, parks=model.fsdp_config.param_offload)

    @register(dispatch_mode=Dispatch.TOGETHER)
    def compute_rm_score(self, data: DataProto) -> DataProto:
        """`rm_scores` (B, R): the score on the last token with response_mask 1, 0 elsewhere.

        Also `rm_problem`, why a row has no score (it is NaN then), else None; and `rm_cut`, whether the
        conversation lost its start.
        """
        conversations = self.conversations.of(data)
        readable = [row for row, conversation in enumerate(conversations) if conversation.problem is None]
        readable.sort(key=lambda row: len(conversations[row].ids))  # so that a pass pads little
        ids = [conversations[row].ids for row in readable]

        def score(rows: np.ndarray) -> dict[str, torch.Tensor]:
            return {"score": self.forward.scores(*padded([ids[row] for row in rows], self.device))}

        with self.weights.on_device():
            lengths = [len(of_row) for of_row in ids]
            found = infer_rows(self.forward.module, score, lengths, self.micro_batch, self.together)
        scores = torch.full((len(data),), torch.nan)  # (B,)
        if readable:
            scores[readable] = found["score"]
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
