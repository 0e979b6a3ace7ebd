"""The dataset of prompts that users subclass for `data.custom_cls`.

Rows are read and rendered by burnish. A subclass changes what is read (`_read_files_and_tokenize`, which fills
`self.dataframe`), how a row becomes messages (`_build_messages`), or the row itself (`__getitem__`). What else a row
has, tensors too, reaches agent loops and reward managers; the prompt itself is always made from the messages.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

from burnish.config.data import DataConfig
from burnish.data.chat import ChatRenderer, Message, to_messages
from burnish.data.files import Row, read_first_rows
from burnish.protocol import object_column


def collate_fn(data_list: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rows to columns: tensors are stacked, all else becomes object arrays."""
    columns = defaultdict(list)
    for row in data_list:
        for name, value in row.items():
            columns[name].append(value)
    return {
        name: torch.stack(values) if isinstance(values[0], torch.Tensor) else object_column(values)
        for name, values in columns.items()
    }


class RLHFDataset(Dataset):
    """`dataframe` holds the rows: a list, or what a subclass puts there (anything with `len` and `[i]`)."""

    def __init__(
        self,
        data_files: str | Sequence[str],
        tokenizer: Any,
        config: DataConfig,
        processor: Any = None,
        max_samples: int = -1,
    ):
        self.data_files = [data_files] if isinstance(data_files, str) else list(data_files)
        self.original_data_files = list(self.data_files)
        self.tokenizer, self.processor, self.config, self.max_samples = tokenizer, processor, config, max_samples
        self.prompt_key, self.image_key, self.video_key = config.prompt_key, config.image_key, config.video_key
        self.max_prompt_length, self.truncation = config.max_prompt_length, config.truncation
        self.return_raw_chat, self.filter_overlong_prompts = config.return_raw_chat, config.filter_overlong_prompts
        self.apply_chat_template_kwargs = config.apply_chat_template_kwargs
        self.notices: list[str] = []
        self.dataframe: Any = []
        self._download()
        self._read_files_and_tokenize()

    def _download(self, use_origin_parquet: bool = False) -> None:
        """Files are read where they are."""

    def _read_files_and_tokenize(self) -> None:
        rows = [row for table in read_first_rows(self.data_files, self.max_samples) for row in table]
        self.dataframe = self.maybe_filter_out_long_prompts(rows)

    def maybe_filter_out_long_prompts(self, dataframe: Any = None) -> Any:
        """The rows whose prompt is within `data.max_prompt_length`, under `data.filter_overlong_prompts`."""
        if not self.filter_overlong_prompts:
            return dataframe
        rows = list(dataframe)
        chat = ChatRenderer(self.tokenizer, self.apply_chat_template_kwargs, escape=self.config.escape_special_tokens)
        texts = [chat.text(self._build_messages(dict(row))) for row in rows]
        lengths = chat.token_counts(texts, self.max_prompt_length)
        kept = [row for row, length in zip(rows, lengths, strict=True) if length <= self.max_prompt_length]
        if len(kept) < len(rows):
            limit = f"data.max_prompt_length={self.max_prompt_length}"
            self.notices.append(f"{len(rows) - len(kept)} of {len(rows)} prompts are over {limit} and skipped")
        return kept

    def _build_messages(self, example: Row) -> list[Message]:
        """The messages of a row, taken out of it."""
        return to_messages(example.pop(self.prompt_key))

    def __len__(self) -> int:
        return len(self.dataframe)

    def __getitem__(self, item: int) -> Row:
        row = dict(self.dataframe[item])
        messages = self._build_messages(row)
        return {**row, "raw_prompt": messages}
