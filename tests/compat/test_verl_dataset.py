"""Users' datasets that import from verl, in runs of burnish."""

from pathlib import Path

import pytest
import torch
from verl.utils import hdfs_io, hf_tokenizer
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
from verl.utils.fs import copy_to_local

from burnish.config.data import DataConfig
from burnish.data.dataset import RLDataset
from burnish.data.files import write_parquet
from burnish.data.order import make_order
from burnish.errors import NotAvailable
from burnish.models.tiny import byte_tokenizer
from tests.compat.training import trained

USER_FILE = Path(__file__).parent / "user_files/datasets.py"
ROWS = [{"prompt": [{"role": "user", "content": text}]} for text in ("a", "a much longer prompt", "b")]


@pytest.fixture(scope="module")
def from_file(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("file"))


@pytest.mark.parametrize("name", ["Tokenized", "Mapped", "OwnRows"])
def test_a_users_dataset_gives_the_metrics_of_the_file(tmp_path, from_file, name):
    found = trained(tmp_path, f"data.custom_cls.path={USER_FILE}", f"data.custom_cls.name={name}")
    assert found == from_file


def test_long_prompts_are_filtered_and_reported(tmp_path):
    write_parquet(ROWS, tmp_path / "rows.parquet")
    config = DataConfig(max_prompt_length=20, filter_overlong_prompts=True)
    dataset = RLHFDataset(str(tmp_path / "rows.parquet"), byte_tokenizer(), config)
    assert [dataset[i]["raw_prompt"][0]["content"] for i in range(len(dataset))] == ["a", "b"]
    assert dataset.notices == ["1 of 3 prompts are over data.max_prompt_length=20 and skipped"]


def test_a_users_sampler_orders_the_rows(tmp_path):
    rows = tmp_path / "rows.parquet"
    write_parquet(ROWS, rows)
    config = DataConfig(train_files=[str(rows)])
    config.sampler.class_path, config.sampler.class_name = str(USER_FILE), "LastFirst"
    order = make_order(RLDataset([str(rows)], None, config), config)
    assert [order.index(position) for position in range(4)] == [2, 1, 0, 2]


def test_rows_are_collated_to_columns():
    columns = collate_fn([{"x": torch.tensor([1, 2]), "y": ["a"]}, {"x": torch.tensor([3, 4]), "y": ["b", "c"]}])
    assert columns["x"].tolist() == [[1, 2], [3, 4]] and columns["y"].tolist() == [["a"], ["b", "c"]]


def test_files_and_models_are_read_where_they_are(tiny_model, tmp_path):
    hdfs_io.makedirs(f"{tmp_path}/a/b")
    (tmp_path / "a/b/c.txt").write_text("c")
    assert hdfs_io.copy(f"{tmp_path}/a", f"{tmp_path}/d") and hdfs_io.exists(f"{tmp_path}/d/b/c.txt")
    assert hdfs_io.copy(f"{tmp_path}/a/b/c.txt", f"{tmp_path}/e.txt") and (tmp_path / "e.txt").read_text() == "c"
    assert hf_tokenizer(copy_to_local(str(tiny_model), use_shm=True), trust_remote_code=False).pad_token_id is not None
    with pytest.raises(NotAvailable, match="hdfs://a"):
        copy_to_local("hdfs://a/b")
