import numpy as np
import pytest

from burnish.data.chat import ChatRenderer
from burnish.data.dataset import RLDataset, collate, train_dataset, val_dataset
from burnish.data.files import write_parquet
from burnish.errors import ConfigError, DataError, NotAvailable

ROW = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "2+2?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "4", "more": 1},
    "extra_info": {"split": "train", "index": 7, "difficulty": 2},
    "agent_name": "single_turn_agent",
    "interaction_kwargs": {"name": "x"},
    "tools_kwargs": {"calc": {"create_kwargs": {"digits": 3}}},
    "tool_config": {"available_tools": ["calc"], "tool_format": "react"},
}


def load(files, tokenizer, config, **kwargs):
    return RLDataset([files] if isinstance(files, str) else files, tokenizer, config, **kwargs)


class TestRows:
    def test_every_column_is_kept(self, write_jsonl, tokenizer, data_config):
        (row,) = list(load(write_jsonl([ROW]), tokenizer, data_config))
        assert row["raw_prompt"] == ROW["prompt"] and "prompt" not in row
        assert row["index"] == 7
        for name in ROW.keys() - {"prompt"}:
            assert row[name] == ROW[name]

    def test_a_bare_row_gets_the_standard_fields(self, write_jsonl, tokenizer, data_config):
        rows = list(
            load(write_jsonl([{"prompts": "hi"}, {"prompts": "ho", "extra_info": None}]), tokenizer, data_config)
        )
        assert [row["raw_prompt"][0]["content"] for row in rows] == ["hi", "ho"]
        assert [row["index"] for row in rows] == [0, 1]
        assert rows[1] == {
            "raw_prompt": [{"role": "user", "content": "ho"}],
            "data_source": "unknown",
            "reward_model": {"style": "rule", "ground_truth": None},
            "extra_info": {},
            "ability": None,
            "agent_name": None,
            "interaction_kwargs": {},
            "tools_kwargs": {},
            "index": 1,
        }

    def test_parquet_rows(self, tmp_path, tokenizer, data_config):
        path = write_parquet([ROW, ROW | {"extra_info": None}], tmp_path / "a.parquet")
        dataset = load([str(path)], tokenizer, data_config)
        assert dataset[0]["tools_kwargs"].keys() == {"calc"}
        assert dataset[1]["extra_info"] == {} and dataset[1]["index"] == 1

    def test_keys_name_other_columns(self, write_jsonl, tokenizer, data_config):
        data_config.prompt_key, data_config.reward_fn_key = "question", "source"
        (row,) = list(load(write_jsonl([{"question": "q", "source": "s", "prompt": 1}]), tokenizer, data_config))
        assert row["raw_prompt"][0]["content"] == "q"
        assert (row["data_source"], row["source"], row["prompt"]) == ("s", "s", 1)

    def test_kwargs_inside_extra_info(self, write_jsonl, tokenizer, data_config):
        info = {"tools_kwargs": {"calc": 1}, "interaction_kwargs": {"name": "y"}}
        (row,) = list(load(write_jsonl([{"prompt": "q", "extra_info": info}]), tokenizer, data_config))
        assert (row["tools_kwargs"], row["interaction_kwargs"]) == ({"calc": 1}, {"name": "y"})

    def test_columns_with_names_of_the_batch_are_kept_under_another(self, write_jsonl, tokenizer, data_config):
        dataset = load(write_jsonl([{"prompt": "q", "uid": "a1", "responses": ["x"]}]), tokenizer, data_config)
        assert dataset[0]["row_uid"] == "a1" and dataset[0]["row_responses"] == ["x"]
        assert not {"uid", "responses"} & dataset[0].keys()
        assert "column 'uid' is kept as 'row_uid'" in dataset.notices[0]

    @pytest.mark.parametrize("column", ["messages", "prompts"])
    def test_the_prompts_own_column_is_not_said_to_be_renamed(self, write_jsonl, tokenizer, data_config, column):
        data_config.prompt_key = column
        dataset = load(write_jsonl([{column: "q"}]), tokenizer, data_config)
        assert dataset.notices == [] and dataset[0]["raw_prompt"] == [{"role": "user", "content": "q"}]

    def test_all_rows_are_known_before_they_are_drawn(self, write_jsonl, tokenizer, data_config):
        rows = [{"prompt": "q", "agent_name": name} for name in ("b", None)] + [{"prompt": "q"}]
        found = load(write_jsonl(rows), tokenizer, data_config).known_rows()
        assert [row["agent_name"] for row in found] == ["b", None, None]

    def test_rows_handed_out_are_the_callers_own(self, write_jsonl, tokenizer, data_config):
        dataset = load(write_jsonl([ROW]), tokenizer, data_config)
        dataset[0]["raw_prompt"].append("changed")
        dataset[0]["extra_info"]["split"] = "changed"
        assert dataset[0]["raw_prompt"] == ROW["prompt"] and dataset[0]["extra_info"]["split"] == "train"


class TestBadRows:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"prompt": None}, r"field 'prompt' is missing or null \(the row has: data_source, prompt"),
            ({"prompt": 5}, "field 'prompt': expected a string or a list of messages, got a int"),
            ({"prompt": [{"role": "user"}]}, r"field 'prompt': message 0 \(user\) has the content"),
            ({"reward_model": "4"}, r"field 'reward_model' is a str \('4'\), expected an object"),
            ({"extra_info": [1]}, r"field 'extra_info' is a list \(\[1\]\), expected an object"),
            ({"data_source": 3}, r"field 'data_source' is a int \(3\), expected text"),
            ({"agent_name": {}}, "field 'agent_name' is a dict .*expected text"),
            ({"tools_kwargs": "x"}, "field 'tools_kwargs' is a str"),
            ({"prompt": "half \ud83d"}, r"the text has a lone surrogate \(\\ud83d\); fix or drop the row"),
            (
                {"prompt": [{"role": "assistant", "tool_calls": 5}]},
                r"field 'prompt': message 0 \(assistant\) has the tool_",
            ),
        ],
    )
    def test_file_row_and_field_are_named(self, write_jsonl, tokenizer, data_config, change, message):
        path = write_jsonl([ROW, ROW | change])
        with pytest.raises(DataError, match=rf"rows\.jsonl, row 1 \(the first is 0\): {message}"):
            load(path, tokenizer, data_config)

    def test_missing_prompt_column(self, write_jsonl, tokenizer, data_config):
        path = write_jsonl([{"question": "q", "answer": "a"}])
        message = r"no column 'prompt'; the columns are question, answer\. Name the one .* in data\.prompt_key"
        with pytest.raises(DataError, match=message):
            load(path, tokenizer, data_config)

    def test_missing_reward_key(self, write_jsonl, tokenizer, data_config):
        data_config.reward_fn_key = "source"
        with pytest.raises(DataError, match=r"row 0 .*field 'source' \(data\.reward_fn_key\) is missing"):
            load(write_jsonl([{"prompt": "q"}]), tokenizer, data_config)

    def test_the_callers_check(self, write_jsonl, tokenizer, data_config):
        def check(row):
            return None if row["reward_model"]["ground_truth"] else "field 'reward_model.ground_truth' is needed"

        path = write_jsonl([ROW, ROW | {"reward_model": {"style": "rule"}}])
        with pytest.raises(DataError, match=r"rows\.jsonl, row 1 .*: field 'reward_model\.ground_truth' is needed"):
            load(path, tokenizer, data_config, check=check)

    @pytest.mark.parametrize("key", ["images", "videos"])
    def test_media_are_not_available(self, write_jsonl, tokenizer, data_config, key):
        path = write_jsonl([{"prompt": "q", key: []}, {"prompt": "q", key: ["x.png"]}])
        with pytest.raises(NotAvailable, match=rf"{key} in prompts \(.*row 1 .*Drop the column '{key}'"):
            load(path, tokenizer, data_config)

    def test_no_files(self, tokenizer, data_config):
        with pytest.raises(DataError, match=r"no data files are given; set data\.train_files"):
            load([], tokenizer, data_config)


class TestLengths:
    ROWS = [{"prompt": "x" * n} for n in (5, 50, 6, 70)]  # noqa: RUF012

    def limit(self, config, tokenizer, n):
        """The limit that a prompt of n characters just meets."""
        config.max_prompt_length = len(ChatRenderer(tokenizer).prompt_ids([{"role": "user", "content": "x" * n}]))

    def test_error_names_row_length_limit_and_fix(self, write_jsonl, tokenizer, data_config):
        self.limit(data_config, tokenizer, 10)
        limit = data_config.max_prompt_length
        with pytest.raises(DataError) as caught:
            load(write_jsonl(self.ROWS), tokenizer, data_config)
        message = str(caught.value)
        assert "rows.jsonl, row 1 (the first is 0)" in message
        assert f"{limit + 40} tokens, over data.max_prompt_length={limit}" in message
        assert f"2 of 4 prompts are, the longest has {limit + 60}" in message
        assert "data.filter_overlong_prompts=true" in message and "data.truncation=left|right|middle" in message

    def test_filter_drops_and_reports(self, write_jsonl, tokenizer, data_config):
        self.limit(data_config, tokenizer, 10)
        data_config.filter_overlong_prompts = True
        files = [write_jsonl(self.ROWS, "a.jsonl"), write_jsonl(self.ROWS[:2], "b.jsonl")]
        dataset = load(files, tokenizer, data_config)
        assert [len(row["raw_prompt"][0]["content"]) for row in dataset] == [5, 6, 5]
        assert dataset.source_sizes == [2, 1]
        assert dataset.where(1).endswith("a.jsonl, row 2 (the first is 0)")
        assert dataset.where(2).endswith("b.jsonl, row 0 (the first is 0)")
        assert [dataset.source(i) for i in range(3)] == [0, 0, 1]
        assert any("3 of 6 prompts are over data.max_prompt_length=" in notice for notice in dataset.notices)

    def test_filter_that_leaves_nothing(self, write_jsonl, tokenizer, data_config):
        data_config.max_prompt_length, data_config.filter_overlong_prompts = 3, True
        with pytest.raises(DataError, match="all 4 prompts are over data.max_prompt_length=3 .*Raise the limit"):
            load(write_jsonl(self.ROWS), tokenizer, data_config)

    @pytest.mark.parametrize("mode", ["left", "right", "middle", "error"])
    def test_truncation_and_fitting_prompts_keep_the_row(self, write_jsonl, tokenizer, data_config, mode):
        data_config.max_prompt_length, data_config.truncation = 3, mode
        assert len(load(write_jsonl(self.ROWS), tokenizer if mode != "error" else None, data_config)) == 4
        self.limit(data_config, tokenizer, 70)
        assert len(load(write_jsonl(self.ROWS), tokenizer, data_config)) == 4

    def test_a_template_that_cannot_render_names_the_row(self, write_jsonl, tokenizer, data_config):
        data_config.apply_chat_template_kwargs = {
            "chat_template": "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        }
        rows = [{"prompt": "q"}, {"prompt": [{"role": "system", "content": "s"}]}]
        with pytest.raises(DataError, match=r"row 1 .*roles system: no system"):
            load(write_jsonl(rows), tokenizer, data_config)


class TestMaxSamples:
    @pytest.mark.parametrize(
        ("sizes", "limit", "taken"),
        [([10], 3, [3]), ([30, 10], 8, [6, 2]), ([10], -1, [10]), ([10], 10, [10]), ([10], 99, [10])],
    )
    def test_files_give_their_first_rows_in_proportion(self, write_jsonl, tokenizer, data_config, sizes, limit, taken):
        files = [write_jsonl([{"prompt": str(i)} for i in range(n)], f"{n}.jsonl") for n in sizes]
        dataset = load(files, tokenizer, data_config, max_samples=limit)
        assert dataset.source_sizes == taken
        contents = [row["raw_prompt"][0]["content"] for row in dataset]
        assert contents == [str(i) for size in taken for i in range(size)]

    def test_none_left(self, write_jsonl, tokenizer, data_config):
        with pytest.raises(DataError, match="no rows are left of .* with a limit of 0 rows"):
            load(write_jsonl([{"prompt": "q"}]), tokenizer, data_config, max_samples=0)

    def test_each_split_has_its_own(self, write_jsonl, tokenizer, data_config):
        path = write_jsonl([{"prompt": "q"}] * 10)
        data_config.train_files, data_config.val_files = [path], [path]
        data_config.train_max_samples, data_config.val_max_samples = 4, 2
        assert len(train_dataset(data_config, tokenizer)) == 4
        assert len(val_dataset(data_config, tokenizer)) == 2
        data_config.val_files = None
        assert val_dataset(data_config, tokenizer) is None


class TestCustomClass:
    def make(self, config, path, tokenizer=None, **kwargs):
        config.train_files, config.custom_cls.path = ["one.txt"], path
        config.custom_cls.name = config.custom_cls.name or "Mine"
        return train_dataset(config, tokenizer, **kwargs)

    def test_rows_are_completed(self, write_python, data_config):
        path = write_python(
            "import numpy as np\nclass Mine:\n"
            "    def __init__(self, data_files, tokenizer, config):\n        self.files = data_files\n"
            "    def __len__(self):\n        return 2\n"
            "    def __getitem__(self, i):\n"
            "        messages = np.array([{'role': 'user', 'content': f'{self.files[0]} {i}'}], dtype=object)\n"
            "        return {'prompt': messages, 'score': i, 'v': np.ones(2)}\n"
        )
        dataset = self.make(data_config, path)
        assert len(dataset) == 2 and dataset.source_sizes == [2] and dataset.known_rows() == []
        assert dataset[1]["raw_prompt"] == [{"role": "user", "content": "one.txt 1"}]
        assert (dataset[1]["score"], dataset[1]["index"], dataset[1]["extra_info"]) == (1, 1, {})
        assert dataset.value(1, "score") == 1 and np.array_equal(dataset[0]["v"], np.ones(2))

    def test_a_subclass_of_ours_gets_limit_and_check(self, write_python, write_jsonl, tokenizer, data_config):
        path = write_python(
            "from burnish.data.dataset import RLDataset\n"
            "class Mine(RLDataset):\n"
            "    def __getitem__(self, i):\n        return super().__getitem__(i) | {'extra': 1}\n"
        )
        data_config.custom_cls.path, data_config.custom_cls.name = path, "Mine"
        data_config.train_files, data_config.train_max_samples = [write_jsonl([ROW] * 5)], 2
        dataset = train_dataset(data_config, tokenizer)
        assert len(dataset) == 2
        assert (dataset[0]["extra"], dataset[0]["raw_prompt"]) == (1, ROW["prompt"])
        with pytest.raises(DataError, match="row 0 .*: wrong"):
            train_dataset(data_config, tokenizer, check=lambda row: "wrong")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (None, r"data\.custom_cls\.path=nowhere\.py: no such file \(looked for"),
            ("class Other: pass\n", r"data\.custom_cls\.name=Mine: .* has no such name; it defines Other"),
            ("class Other: pass\nMine = 3\n", "it is of type int and cannot be called"),
            ("def Mine(*a): pass\n", "it is a function, and a class is needed"),
            ("raise RuntimeError('boom')\n", r"importing it failed\n(.|\n)*mine\.py(.|\n)*RuntimeError: boom"),
            ("def broken(:\n", r"importing it failed\n(.|\n)*SyntaxError"),
            ("class Mine:\n    def __len__(self): return 1\n", "Mine has no __getitem__; a dataset needs"),
            ("class Mine:\n    def __getitem__(self, i): return {}\n", "Mine has no __len__"),
            (
                "class Mine:\n    def __init__(self): pass\n    __len__ = __getitem__ = None\n",
                r"Mine\(\) cannot be called with 3 arguments",
            ),
        ],
    )
    def test_bad_classes(self, write_python, data_config, text, message):
        with pytest.raises(ConfigError, match=message):
            self.make(data_config, write_python(text) if text else "nowhere.py")

    @pytest.mark.parametrize(
        ("row", "message"),
        [("[1]", "gave a list, expected a dict"), ("{'q': 1}", "Mine, row 0 .*: field 'prompt' is missing")],
    )
    def test_bad_rows_show_at_once(self, write_python, data_config, row, message):
        body = "    def __init__(self, *a): pass\n    def __len__(self): return 1\n"
        path = write_python(f"class Mine:\n{body}    def __getitem__(self, i): return {row}\n")
        with pytest.raises(DataError, match=message):
            self.make(data_config, path)

    def test_the_name_is_needed(self, write_python, data_config):
        data_config.train_files, data_config.custom_cls.path = ["x"], write_python("class Mine: pass\n")
        with pytest.raises(ConfigError, match="data.custom_cls.name is not set: .* which defines Mine"):
            train_dataset(data_config, None)

    def test_empty_and_unlimited(self, write_python, data_config):
        body = "    def __init__(self, a, b, c): pass\n    def __getitem__(self, i): return {'prompt': 'q'}\n"
        path = write_python(f"class Mine:\n{body}    def __len__(self): return 0\n")
        with pytest.raises(DataError, match="Mine has no rows"):
            self.make(data_config, path)
        data_config.train_max_samples = 5
        with pytest.raises(ConfigError, match="Mine takes no max_samples"):
            self.make(data_config, path)

    def test_filtering_is_left_to_a_custom_class(self, write_python, data_config):
        body = "    def __init__(self, *a): pass\n    def __len__(self): return 1\n"
        path = write_python(f"class Mine:\n{body}    def __getitem__(self, i): return {{'prompt': 'q'}}\n")
        assert self.make(data_config, path).notices == []
        data_config.filter_overlong_prompts = True
        (notice,) = self.make(data_config, path).notices
        assert notice.startswith("data.filter_overlong_prompts is left to the custom dataset class")


def test_rows_become_object_columns():
    rows = [{"uid": 3, "raw_prompt": [{"role": "user"}], "extra": "x"}, {"uid": 4, "raw_prompt": [{"role": "user"}]}]
    batch = collate(rows)
    assert len(batch) == 2 and batch.batch is None
    assert set(batch.non_tensor_batch) == {"uid", "raw_prompt", "extra"}
    assert all(column.dtype == object and column.shape == (2,) for column in batch.non_tensor_batch.values())
    assert batch.non_tensor_batch["extra"].tolist() == ["x", None]
    assert batch.non_tensor_batch["raw_prompt"][1] == [{"role": "user"}]


def test_equally_long_lists_and_arrays_stay_values():
    batch = collate([{"a": [1, 2], "b": np.zeros(2)}, {"a": [3, 4], "b": np.ones(2)}])
    assert batch.non_tensor_batch["a"].tolist() == [[1, 2], [3, 4]]
    assert batch.non_tensor_batch["b"][1].tolist() == [1.0, 1.0]


def test_a_batch_needs_a_row():
    with pytest.raises(ValueError, match="at least one row"):
        collate([])
