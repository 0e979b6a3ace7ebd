"""A custom dataset and order: rows that are computed instead of read, and easy ones first in every epoch.

A dataset has __len__ and __getitem__(i) -> dict with the fields a file's row would have. A sampler has __len__ (an
epoch) and index(position): the row at any place of the endless stream, from nothing but the position, so that a resumed
run draws the same rows.
"""

from burnish.data.tasks import arithmetic


class Computed:
    def __init__(self, files, tokenizer, config, max_samples=-1):
        self.rows = arithmetic.rows("train", 512 if max_samples < 0 else max_samples, seed=config.seed)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class SmallNumbersFirst:
    def __init__(self, dataset, config):
        sizes = [sum(dataset.value(i, f"extra_info.{name}") for name in "ab") for i in range(len(dataset))]
        self.order = sorted(range(len(dataset)), key=sizes.__getitem__)

    def __len__(self):
        return len(self.order)

    def index(self, position):
        return self.order[position % len(self.order)]
