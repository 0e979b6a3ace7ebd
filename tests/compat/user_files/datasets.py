"""Datasets as verl's users write them: a subclass that changes rows, and one of their own."""

import torch
from torch.utils.data import Dataset
from verl.experimental.dataset.sampler import AbstractSampler
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.model import compute_position_id_with_mask


class Tokenized(RLHFDataset):
    def __getitem__(self, item):
        row = super().__getitem__(item)
        text = self.tokenizer.apply_chat_template(row["raw_prompt"], add_generation_prompt=True, tokenize=False)
        model_inputs = self.tokenizer(text, return_tensors="pt", add_special_tokens=False)
        row["input_ids"] = model_inputs["input_ids"][0]
        row["attention_mask"] = model_inputs["attention_mask"][0]
        row["position_ids"] = compute_position_id_with_mask(row["attention_mask"])
        row["raw_prompt_ids"] = self.tokenizer.encode(text, add_special_tokens=False)
        return row


class Mapped(RLHFDataset):
    def _read_files_and_tokenize(self):
        super()._read_files_and_tokenize()
        self.dataframe = [dict(row, data_source="mapped") for row in self.dataframe]

    def _build_messages(self, example):
        return [dict(message) for message in example.pop(self.prompt_key)]


class OwnRows(Dataset):
    def __init__(self, data_files, tokenizer, config, processor=None, max_samples=-1):
        super().__init__()
        inner = RLHFDataset(data_files, tokenizer, config, processor)
        self.rows = [inner[i] for i in range(len(inner))][: config.get("own_limit", 8)]
        self.scale = torch.ones(1)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, item):
        return dict(self.rows[item], index=item, scale=self.scale)


class LastFirst(AbstractSampler):
    def __init__(self, data_source, data_config):
        self.rows = len(data_source)
        self.shuffle = data_config.get("shuffle", True)

    def __iter__(self):
        return iter(range(self.rows - 1, -1, -1))

    def __len__(self):
        return self.rows
