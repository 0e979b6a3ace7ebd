"""Supervised fine-tuning on conversations: what `burnish sft` runs; `supervised.py` has the loop.

The loss of a step is the mean over all assistant tokens of its examples: each is a separate row and never sees another.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from burnish.algorithms.tally import Metrics, part_of_mean
from burnish.config import SFTConfig
from burnish.data.examples import SFTDataset, SFTExample
from burnish.engine.batching import MicroBatch
from burnish.engine.forward import Forward
from burnish.engine.packing import pack
from burnish.engine.trainable import Loss
from burnish.models.loading import load_causal_lm
from burnish.protocol import DataProto
from burnish.trainer.supervised import TOKENS_PER_PASS, Objective


class NextTokens(Objective[SFTConfig, SFTExample]):
    command, examples = "sft", "examples"

    @property
    def micro(self) -> MicroBatch:
        """`micro_batch_size_per_gpu` examples; with `packing`, as many tokens as these may have."""
        data = self.config.data
        count = data.micro_batch_size_per_gpu or max(1, TOKENS_PER_PASS // data.max_length)
        return MicroBatch(max_tokens=count * data.max_length) if data.packing else MicroBatch(max_sequences=count)

    def dataset(self, files: Sequence[str], max_samples: int) -> SFTDataset:
        return SFTDataset(files, self.tokenizer, self.config.data, max_samples=max_samples)

    def load_model(self, device: torch.device | None) -> PreTrainedModel:
        model = self.config.model
        return load_causal_lm(model.path, model, device, seed=self.config.trainer.seed)

    def collate(self, examples: Sequence[SFTExample]) -> DataProto:
        """Examples as the rows of a padded batch; the prompt of each is what precedes its first assistant token."""
        splits = [int(example.loss_mask.argmax()) for example in examples]
        width_p = max(splits)
        width = width_p + max(len(example) - split for example, split in zip(examples, splits, strict=True))
        input_ids, attention_mask, loss_mask = np.zeros((3, len(examples), width), dtype=np.int64)  # (B, P+R) each
        for b, (example, split) in enumerate(zip(examples, splits, strict=True)):
            where = slice(width_p - split, width_p - split + len(example))
            input_ids[b, where], attention_mask[b, where], loss_mask[b, where] = example.ids, 1, example.loss_mask
        arrays = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "prompts": input_ids[:, :width_p],
            "responses": input_ids[:, width_p:],
            "response_mask": loss_mask[:, width_p:],
        }
        return DataProto.from_dict({name: torch.from_numpy(array) for name, array in arrays.items()})

    def loss(self, forward: Forward, batch: DataProto) -> Loss:
        total = batch.batch["response_mask"].sum()  # of the whole batch: the loss does not depend on the cut

        def share(rows: DataProto) -> tuple[Tensor, Metrics]:
            return negative_log_likelihood(forward, rows).sum() / total, {}

        return share

    def row_values(self, forward: Forward, rows: DataProto) -> dict[str, Tensor]:
        return {"nll": negative_log_likelihood(forward, rows)}

    def validation(self, batch: DataProto, values: Mapping[str, Tensor]) -> Metrics:
        return {"loss": part_of_mean(values["nll"].double().sum(), batch.batch["response_mask"].sum())}


def negative_log_likelihood(forward: Forward, rows: DataProto) -> Tensor:  # (B,)
    log_prob = forward.log_probs(pack(rows.batch))["log_prob"]  # (B, R)
    return -(log_prob * rows.batch["response_mask"]).sum(-1)
