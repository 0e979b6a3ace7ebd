import itertools

import numpy as np
import pytest

from burnish.data.chat import ChatRenderer
from burnish.data.dataset import RLDataset, collate, train_dataset, val_dataset
from burnish.data.files import write_parquet
from burnish.errors import ConfigError, DataError, NotAvailable
from tests.data.conftest import refused

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


@pytest.fixture
def load(write_jsonl, tokenizer, data_config):
    def make(rows, *more, tokenizer=tokenizer, **options):
        files = [write_jsonl(rows), *(write_jsonl(table, f"{i}.jsonl") for i, table in enumerate(more, 1))]
        return RLDataset(files, tokenizer, data_config, **options)

    return make


def contents(dataset):
    return [row["raw_prompt"][0]["content"] for row in dataset]


class TestRows:
    def test_every_column_is_kept_and_rows_are_the_callers_own(self, load, tokenizer, data_config, tmp_path):
        dataset = load([ROW])
        (row,) = list(dataset)
        assert row["raw_prompt"] == ROW["prompt"] and "prompt" not in row and row["index"] == 7
        for name in ROW.keys() - {"prompt"}:
            assert row[name] == ROW[name]
        row["raw_prompt"].append("changed")
        row["extra_info"]["split"] = "changed"
        assert dataset[0]["raw_prompt"] == ROW["prompt"] and dataset[0]["extra_info"]["split"] == "train"
        path = write_parquet([ROW, ROW | {"extra_info": None}], tmp_path / "a.parquet")
        stored = RLDataset([str(path)], tokenizer, data_config)
        assert stored[0]["tools_kwargs"].keys() == {"calc"}
        assert stored[1]["extra_info"] == {} and stored[1]["index"] == 1
        rows = [{"prompt": "q", "agent_name": name} for name in ("b", None)] + [{"prompt": "q"}]
        assert [row["agent_name"] for row in load(rows).known_rows()] == ["b", None, None]

    def test_a_bare_row_gets_the_standard_fields(self, load):
        dataset = load([{"prompts": "hi"}, {"prompts": "ho", "extra_info": None}])
        assert contents(dataset) == ["hi", "ho"] and [row["index"] for row in dataset] == [0, 1]
        empty = {"extra_info": {}, "ability": None, "agent_name": None, "interaction_kwargs": {}, "tools_kwargs": {}}
        own = {"raw_prompt": [{"role": "user", "content": "ho"}], "data_source": "unknown", "index": 1}
        assert dataset[1] == empty | own | {"reward_model": {"style": "rule", "ground_truth": None}}

    def test_keys_name_other_columns_and_kwargs_may_be_inside_extra_info(self, load, data_config):
        info = {"tools_kwargs": {"calc": 1}, "interaction_kwargs": {"name": "y"}}
        (row,) = list(load([{"prompt": "q", "extra_info": info}]))
        assert (row["tools_kwargs"], row["interaction_kwargs"]) == ({"calc": 1}, {"name": "y"})
        data_config.prompt_key, data_config.reward_fn_key = "question", "source"
        (row,) = list(load([{"question": "q", "source": "s", "prompt": 1}]))
        assert row["raw_prompt"][0]["content"] == "q"
        assert (row["data_source"], row["source"], row["prompt"]) == ("s", "s", 1)

    def test_columns_with_names_of_the_batch_are_kept_under_another_but_not_the_prompt(self, load, data_config):
        dataset = load([{"prompt": "q", "uid": "a1", "responses": ["x"]}])
        assert dataset[0]["row_uid"] == "a1" and dataset[0]["row_responses"] == ["x"]
        assert not {"uid", "responses"} & dataset[0].keys()
        assert "column 'uid' is kept as 'row_uid'" in dataset.notices[0]
        for data_config.prompt_key in ("messages", "prompts"):
            dataset = load([{data_config.prompt_key: "q"}])
            assert dataset.notices == [] and contents(dataset) == ["q"]


class TestBadRows:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"prompt": None}, r"field 'prompt' is missing or null \(the row has: data_source, prompt"),
            ({"prompt": 5}, "field 'prompt': expected a string or a list of messages, got a int"),
            ({"reward_model": "4"}, r"field 'reward_model' is a str \('4'\), expected an object"),
            ({"data_source": 3}, r"field 'data_source' is a int \(3\), expected text"),
            ({"agent_name": {}}, "field 'agent_name' is a dict .*expected text"),
            ({"prompt": "half \ud83d"}, r"the text has a lone surrogate \(\\ud83d\); fix or drop the row"),
        ],
    )
    def test_file_row_and_field_are_named(self, load, change, message):
        refused(rf"rows\.jsonl, row 1 \(the first is 0\): {message}", load, [ROW, ROW | change])

    def test_missing_columns_and_files(self, load, tokenizer, data_config):
        message = r"no column 'prompt'; the columns are question, answer\. Name the one .* in data\.prompt_key"
        refused(message, load, [{"question": "q", "answer": "a"}])
        data_config.reward_fn_key = "source"
        refused(r"row 0 .*field 'source' \(data\.reward_fn_key\) is missing", load, [{"prompt": "q"}])
        refused(r"no data files are given; set data\.train_files", RLDataset, [], tokenizer, data_config)

    def test_the_callers_check_and_media(self, load):
        def check(row):
            return None if row["reward_model"]["ground_truth"] else "field 'reward_model.ground_truth' is needed"

        said = r"rows\.jsonl, row 1 .*: field 'reward_model\.ground_truth' is needed"
        refused(said, load, [ROW, ROW | {"reward_model": {"style": "rule"}}], check=check)
        for key in ("images", "videos"):
            said = rf"{key} in prompts \(.*row 1 .*Drop the column '{key}'"
            refused(said, load, [{"prompt": "q", key: []}, {"prompt": "q", key: ["x.png"]}], error=NotAvailable)


class TestLengths:
    ROWS = [{"prompt": "x" * n} for n in (5, 50, 6, 70)]  # noqa: RUF012

    @pytest.fixture
    def limit(self, data_config, tokenizer):
        """Sets the limit that a prompt of n characters just meets."""

        def fit(n):
            ids = ChatRenderer(tokenizer).prompt_ids([{"role": "user", "content": "x" * n}])
            data_config.max_prompt_length = len(ids)
            return len(ids)

        return fit

    def test_errors_name_row_length_limit_and_fix(self, load, limit, data_config):
        most = limit(10)
        over = (
            rf"{most + 40} tokens, over data.max_prompt_length={most} \(2 of 4 prompts are, the longest has {most + 60}"
        )
        fix = r"data.filter_overlong_prompts=true .*data.truncation=left\|right\|middle"
        refused(rf"rows.jsonl, row 1 \(the first is 0\): .*{over}.*{fix}", load, self.ROWS)
        template = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        data_config.apply_chat_template_kwargs = {"chat_template": template}
        rows = [{"prompt": "q"}, {"prompt": [{"role": "system", "content": "s"}]}]
        refused("row 1 .*roles system: no system", load, rows)

    def test_filter_drops_and_reports(self, load, limit, data_config):
        limit(10)
        data_config.filter_overlong_prompts = True
        dataset = load(self.ROWS, self.ROWS[:2])
        assert [len(text) for text in contents(dataset)] == [5, 6, 5] and dataset.source_sizes == [2, 1]
        assert dataset.where(1).endswith("rows.jsonl, row 2 (the first is 0)")
        assert dataset.where(2).endswith("1.jsonl, row 0 (the first is 0)")
        assert any("3 of 6 prompts are over data.max_prompt_length=" in notice for notice in dataset.notices)
        data_config.max_prompt_length = 3
        refused("all 4 prompts are over data.max_prompt_length=3 .*Raise the limit", load, self.ROWS)

    @pytest.mark.parametrize("mode", ["left", "right", "middle", "error"])
    def test_truncation_and_fitting_prompts_keep_the_row(self, load, limit, tokenizer, data_config, mode):
        data_config.max_prompt_length, data_config.truncation = 3, mode
        assert len(load(self.ROWS, tokenizer=tokenizer if mode != "error" else None)) == 4
        limit(70)
        assert len(load(self.ROWS)) == 4


HUGE = "x" * 10**6
DEEP = 60 * '{"a":' + "1" + 60 * "}"
HOSTILE_ROWS = {
    "a long prompt": ({"prompt": HUGE}, "tokens, over data.max_prompt_length=512"),
    "a long message": ({"prompt": [{"role": "user", "content": HUGE}]}, "tokens, over data.max_prompt_length=512"),
    "a long role": ({"prompt": [{"role": HUGE, "content": 5}]}, r"message 0 \(x{40}\) has the content a int"),
    "many messages": ({"prompt": [{"role": "user", "content": "x"}] * 10**4}, "tokens, over data.max_prompt_length"),
    "a role that writes lines": ({"prompt": [{"role": "a\nb\x1b[31m", "content": 5}]}, r"message 0 \(a\\nb\\x1b"),
    "no prompt, long names": ({HUGE: 1, "prompt": None}, "field 'prompt' is missing or null"),
    "a message with long names": ({"prompt": [{HUGE: 1}]}, "message 0 has no role"),
    "a long number": ({"prompt": 10**4000}, "expected a string or a list of messages"),
    "a lone surrogate": ({"prompt": "a\ud800"}, "the text has a lone surrogate"),
    "a long list": ({"prompt": [HUGE]}, "message 0 is a str"),
    "parts of no text": ({"prompt": [{"role": "user", "content": [{"type": HUGE}]}]}, "content part"),
    "a long source": ({"prompt": "q", "data_source": [HUGE]}, "field 'data_source' is a list"),
    "a long extra_info": ({"prompt": "q", "extra_info": HUGE}, "field 'extra_info' is a str"),
    "deep calls": (
        {"prompt": [{"role": "user", "content": "q", "tool_calls": [{"function": {"arguments": DEEP * 40}}]}] * 2000},
        "tokens, over data.max_prompt_length",
    ),
}


@pytest.mark.hostile
@pytest.mark.parametrize(("row", "message"), HOSTILE_ROWS.values(), ids=HOSTILE_ROWS)
def test_a_hostile_row_is_one_line_and_the_others_of_its_file_are_read(load, data_config, row, message):
    with pytest.raises(DataError, match=message) as caught:
        load([ROW, row])
    said = str(caught.value)
    assert "rows.jsonl, row 1" in said and said.isprintable() and len(said) < 700
    if "over data.max_prompt_length" in message:
        data_config.filter_overlong_prompts = True
        assert len(load([ROW, row])) == 1


def test_special_tokens_in_rows_are_warned_of_once(load, data_config, caplog):
    rows = [ROW, {"prompt": "2?<|end|>"}, {"prompt": "3?<|start|>"}]
    load(rows)
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "rows.jsonl, row 1 (the first is 0): message 0 (user) has the special token <|end|>" in warning
    caplog.clear()
    data_config.escape_special_tokens = True
    load(rows)
    assert not caplog.records


class TestMaxSamples:
    @pytest.mark.parametrize(
        ("sizes", "limit", "taken"),
        [([30, 10], 8, [6, 2]), ([10], -1, [10]), ([10], 10, [10]), ([10], 99, [10])],
    )
    def test_files_give_their_first_rows_in_proportion(self, load, sizes, limit, taken):
        dataset = load(*([{"prompt": str(i)} for i in range(n)] for n in sizes), max_samples=limit)
        assert dataset.source_sizes == taken
        assert contents(dataset) == [str(i) for size in taken for i in range(size)]

    def test_each_split_has_its_own_and_none_may_be_left(self, load, write_jsonl, tokenizer, data_config):
        refused("no rows are left of .* with a limit of 0 rows", load, [{"prompt": "q"}], max_samples=0)
        path = write_jsonl([{"prompt": "q"}] * 10)
        data_config.train_files = data_config.val_files = [path]
        data_config.train_max_samples, data_config.val_max_samples = 4, 2
        assert len(train_dataset(data_config, tokenizer)) == 4 and len(val_dataset(data_config, tokenizer)) == 2
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
        refused("row 0 .*: wrong", train_dataset, data_config, tokenizer, check=lambda row: "wrong")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("class Other: pass\n", r"data\.custom_cls\.name=Mine: .* has no such name; it defines Other"),
            ("class Mine:\n    def __len__(self): return 1\n", "Mine has no __getitem__; a dataset needs"),
            ("class Mine:\n    def __getitem__(self, i): return {}\n", "Mine has no __len__"),
            ("class Mine:\n    __len__ = __getitem__ = None\n", r"Mine\(\) cannot be called with 3 arguments"),
        ],
    )
    def test_bad_classes(self, write_python, data_config, text, message):
        refused(message, self.make, data_config, write_python(text), error=ConfigError)

    def test_bad_rows_show_at_once_and_limits_and_filters_are_left_to_the_class(self, write_python, data_config):
        def make(row="{'prompt': 'q'}", length=1):
            body = f"    def __init__(self, a, b, c): pass\n    def __len__(self): return {length}\n"
            name = f"mine_{next(numbers)}.py"  # a file is imported once
            path = write_python(f"class Mine:\n{body}    def __getitem__(self, i): return {row}\n", name)
            return self.make(data_config, path)

        numbers = itertools.count()
        refused("gave a list, expected a dict", make, "[1]")
        refused("Mine, row 0 .*: field 'prompt' is missing", make, "{'q': 1}")
        refused("Mine has no rows", make, length=0)
        assert make().notices == []
        data_config.filter_overlong_prompts = True
        (notice,) = make().notices
        assert notice.startswith("data.filter_overlong_prompts is left to the custom dataset class")
        data_config.train_max_samples = 5
        refused("Mine takes no max_samples", make, error=ConfigError)


def test_rows_become_object_columns_in_which_lists_and_arrays_stay_values():
    rows = [{"uid": 3, "raw_prompt": [{"role": "user"}], "extra": "x"}, {"uid": 4, "raw_prompt": [{"role": "user"}]}]
    batch = collate(rows)
    assert len(batch) == 2 and batch.batch is None
    assert set(batch.non_tensor_batch) == {"uid", "raw_prompt", "extra"}
    assert all(column.dtype == object and column.shape == (2,) for column in batch.non_tensor_batch.values())
    assert batch.non_tensor_batch["extra"].tolist() == ["x", None]
    assert batch.non_tensor_batch["raw_prompt"][1] == [{"role": "user"}]
    batch = collate([{"a": [1, 2], "b": np.zeros(2)}, {"a": [3, 4], "b": np.ones(2)}])
    assert batch.non_tensor_batch["a"].tolist() == [[1, 2], [3, 4]]
    assert batch.non_tensor_batch["b"][1].tolist() == [1.0, 1.0]
    refused("at least one row", collate, [], error=ValueError)
