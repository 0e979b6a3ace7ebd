"""Training of a reward model on pairs of answers: what `burnish rm` runs; `supervised.py` has the loop.

The model is a classifier with one label, whose output at the last token of a conversation is its reward; where the
folder has no such head, a new one is drawn from `trainer.seed`. The loss is Bradley–Terry's, the mean over pairs. A row
of a batch is a pair, so that no cut parts its two sides. Notation: B pairs, L tokens in the longest side.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from burnish.algorithms.preference import agreement, bradley_terry
from burnish.algorithms.tally import Metrics, part_of_mean
from burnish.config import RMConfig
from burnish.data.chat import ChatRenderer, special_ids
from burnish.data.examples import PreferenceDataset, PreferencePair
from burnish.engine.batching import MicroBatch
from burnish.engine.forward import Forward
from burnish.engine.trainable import Loss
from burnish.errors import ModelError
from burnish.models.facts import read_model_facts
from burnish.models.folder import read_json, resolve_path
from burnish.models.loading import CLASSIFIER, check_reward_model, load_reward_model
from burnish.protocol import DataProto
from burnish.trainer.supervised import TOKENS_PER_PASS, Objective


class Preferences(Objective[RMConfig, PreferencePair]):
    command, examples = "rm", "pairs"

    def __init__(self, config: RMConfig, tokenizer: PreTrainedTokenizerBase):
        super().__init__(config, tokenizer)
        given = config.data.apply_chat_template_kwargs.get("chat_template")
        if given:
            tokenizer.chat_template = tokenizer.get_chat_template(given)  # saved with it; some have several, by name
        elif not tokenizer.chat_template:
            key = "model.tokenizer_path" if config.model.tokenizer_path else "model.path"
            raise ModelError(
                f"{key}={config.model.tokenizer_path or config.model.path}: its tokenizer has no chat template, "
                "which a reward model needs to read conversations. Name a chat model's tokenizer in "
                "model.tokenizer_path, or give a template in data.apply_chat_template_kwargs.chat_template"
            )
        self.padding = padding_token(tokenizer, read_model_facts(config.model.path).vocab)
        # A head that was trained with its own padding token continues to read where it does.
        stored = read_json(resolve_path(config.model.path, weights=False) / "config.json")
        self.keeps_padding = False
        if any(CLASSIFIER in name for name in stored.get("architectures") or []):
            check_reward_model(config.model)
            self.keeps_padding = (stored | stored.get("text_config", {})).get("pad_token_id") is not None
        if not self.keeps_padding and self.padding is not None:
            tokenizer.pad_token = tokenizer.convert_ids_to_tokens(self.padding)

    @property
    def micro(self) -> MicroBatch:
        data = self.config.data
        count = data.micro_batch_size_per_gpu or max(1, TOKENS_PER_PASS // (2 * data.max_length))
        return MicroBatch(max_sequences=count)

    def dataset(self, files: Sequence[str], max_samples: int) -> PreferenceDataset:
        return PreferenceDataset(files, self.tokenizer, self.config.data, max_samples=max_samples)

    def load_model(self, device: torch.device | None) -> PreTrainedModel:
        model, seed = self.config.model, self.config.trainer.seed
        module = load_reward_model(model.path, model, device, pad_token_id=self.padding, new_head_seed=seed)
        if not self.keeps_padding:
            module.config.get_text_config().pad_token_id = self.padding
        return module

    def collate(self, examples: Sequence[PreferencePair]) -> DataProto:
        """Pairs as rows: the chosen conversation, then the rejected one, each right-padded to L tokens."""
        width = max(max(len(pair.chosen), len(pair.rejected)) for pair in examples)
        input_ids, attention_mask = np.zeros((2, len(examples), 2, width), dtype=np.int64)  # (B, 2, L) each
        for b, pair in enumerate(examples):
            for side, ids in enumerate((pair.chosen, pair.rejected)):
                input_ids[b, side, : len(ids)], attention_mask[b, side, : len(ids)] = ids, 1
        tensors = {
            "input_ids": torch.from_numpy(input_ids).flatten(1),  # (B, 2L)
            "attention_mask": torch.from_numpy(attention_mask).flatten(1),
            "margin": torch.tensor([pair.margin for pair in examples], dtype=torch.float32),
        }
        return DataProto.from_dict(tensors)

    def loss(self, forward: Forward, batch: DataProto) -> Loss:
        total = len(batch)  # of the whole batch: the loss does not depend on the cut

        def share(rows: DataProto) -> tuple[Tensor, Metrics]:
            values = self.row_values(forward, rows)
            return values["loss"].sum() / total, means(values)

        return share

    def row_values(self, forward: Forward, rows: DataProto) -> dict[str, Tensor]:
        ids, mask = (rows.batch[name].view(2 * len(rows), -1) for name in ("input_ids", "attention_mask"))  # (2B, L)
        longest = int(mask.sum(-1).max())  # here, that is; L is that of the whole batch
        scores = forward.scores(ids[:, :longest], mask[:, :longest])
        chosen, rejected = scores.view(-1, 2).unbind(-1)  # (B,) each
        return {
            "loss": bradley_terry(chosen, rejected, rows.batch["margin"]),
            "accuracy": agreement(chosen, rejected),
            "margin": chosen - rejected,
            "reward_chosen": chosen,
            "reward_rejected": rejected,
        }

    def validation(self, batch: DataProto, values: Mapping[str, Tensor]) -> Metrics:
        return means(values)


def padding_token(tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> int | None:
    """The id that is to mark padding: the pad token's, unless conversations end with it. A classifier reads at the last
    token that is not padding. Were the token that ends an answer padding, no model could tell an answer that ended from
    one that did not. So another special token takes its place; None: there is no other."""
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    end = ChatRenderer(tokenizer).whole(messages)[-1]
    choice = (tokenizer.pad_token_id, tokenizer.bos_token_id, *sorted(special_ids(tokenizer)))
    return next((token for token in choice if token is not None and token != end and token < vocabulary), None)


def means(values: Mapping[str, Tensor]) -> Metrics:
    return {name: part_of_mean(value.detach().double().sum(), float(len(value))) for name, value in values.items()}
