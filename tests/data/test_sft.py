import json

import numpy as np
import pytest

from burnish.config.sft import SFTDataConfig
from burnish.data.chat import ChatRenderer
from burnish.data.examples import Batches
from burnish.data.files import write_parquet
from burnish.data.sft import SFTDataset
from burnish.errors import DataError

TALK = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
LONGER = [*TALK, {"role": "user", "content": "+1?"}, {"role": "assistant", "content": "5!"}]


@pytest.fixture
def config():
    return SFTDataConfig()


def learnt(tokenizer, example):
    return tokenizer.decode(example.ids[example.loss_mask.astype(bool)])


class TestExamples:
    def test_messages(self, write_jsonl, tokenizer, config):
        dataset = SFTDataset([write_jsonl([{"messages": TALK}, {"messages": LONGER}])], tokenizer, config)
        assert [learnt(tokenizer, dataset[i]) for i in range(2)] == ["4<|end|>", "4<|end|>5!<|end|>"]
        ids, mask = ChatRenderer(tokenizer).conversation(LONGER)
        assert (dataset[1].ids.tolist(), dataset[1].loss_mask.tolist()) == (ids, mask)

    def test_parquet_and_max_samples(self, tmp_path, tokenizer, config):
        rows = [{"messages": TALK}] * 6, [{"messages": LONGER}] * 3
        files = [str(write_parquet(part, tmp_path / f"{len(part)}.parquet")) for part in rows]
        assert len(SFTDataset(files, tokenizer, config)) == 9
        dataset = SFTDataset(files, tokenizer, config, max_samples=3)
        assert [learnt(tokenizer, dataset[i]) for i in range(len(dataset))] == ["4<|end|>"] * 2 + ["4<|end|>5!<|end|>"]

    def test_no_files(self, tokenizer, config):
        with pytest.raises(DataError, match=r"set data\.train_files"):
            SFTDataset([], tokenizer, config)

    @pytest.mark.parametrize("prompt", ["2+2?", TALK[:1]])
    def test_prompt_and_response_give_the_same_example(self, write_jsonl, tokenizer, config, prompt):
        whole = SFTDataset([write_jsonl([{"messages": TALK}], "a.jsonl")], tokenizer, config)[0]
        config.prompt_key, config.response_key = "q", "extra.answer"
        rows = [{"q": prompt, "extra": {"answer": "4"}}]
        parts = SFTDataset([write_jsonl(rows, "b.jsonl")], tokenizer, config)[0]
        assert np.array_equal(whole.ids, parts.ids) and np.array_equal(whole.loss_mask, parts.loss_mask)

    @pytest.mark.parametrize("as_text", [True, False])
    def test_tools_reach_the_template(self, write_jsonl, tokenizer, config, as_text):
        config.apply_chat_template_kwargs = {"chat_template": "{{ tools[0]['name'] }}" + tokenizer.chat_template}
        tools = [{"name": "add", "unused": None}]
        row = {"messages": TALK, "tools": json.dumps(tools) if as_text else tools}
        dataset = SFTDataset([write_jsonl([row])], tokenizer, config)
        assert tokenizer.decode(dataset[0].ids).startswith("add<|start|>user")


class TestTruncation:
    def test_error_names_row_length_limit_and_fix(self, write_jsonl, tokenizer, config):
        config.max_length = len(ChatRenderer(tokenizer).conversation(TALK)[0])
        with pytest.raises(DataError) as caught:
            SFTDataset([write_jsonl([{"messages": TALK}, {"messages": LONGER}])], tokenizer, config)
        assert "rows.jsonl, row 1 (the first is 0): the example has" in str(caught.value)
        assert f"over data.max_length={config.max_length}. Raise the limit" in str(caught.value)

    @pytest.mark.parametrize(("mode", "text"), [("left", "5!<|end|>"), ("right", "4<|end|>"), ("middle", "5!<|end|>")])
    def test_modes(self, write_jsonl, tokenizer, config, mode, text):
        config.max_length = len(ChatRenderer(tokenizer).conversation(TALK)[0])
        config.truncation = mode
        example = SFTDataset([write_jsonl([{"messages": LONGER}])], tokenizer, config)[0]
        assert len(example) == config.max_length
        assert learnt(tokenizer, example).endswith(text)

    def test_the_first_token_is_never_a_target(self, write_jsonl, tokenizer, config):
        config.max_length, config.truncation = 2, "left"
        example = SFTDataset([write_jsonl([{"messages": LONGER}])], tokenizer, config)[0]
        assert tokenizer.decode(example.ids) == "!<|end|>"
        assert example.loss_mask.tolist() == [0, 1]

    def test_examples_without_a_target_are_left_out_and_reported(self, write_jsonl, tokenizer, config):
        config.max_length, config.truncation = 40, "right"
        long = [{"role": "user", "content": "x" * 60}, TALK[1]]
        path = write_jsonl([{"messages": TALK}, {"messages": long}])
        dataset = SFTDataset([path], tokenizer, config)
        assert len(dataset) == 1
        assert dataset.notices == ["1 of 2 examples have no assistant token left after truncation; skipped"]
        with pytest.raises(DataError, match=r"no example of .* is left to learn from; raise data\.max_length"):
            SFTDataset([write_jsonl([{"messages": long}])], tokenizer, config)


class TestBadRows:
    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ({"messages": None}, "field 'messages' is missing or null"),
            ({"messages": TALK[:1]}, "no message is from the assistant"),
            ({"messages": [{"role": "user"}]}, r"field 'messages': message 0 \(user\) has the content"),
            ({"messages": [TALK[0], {"role": "assistant", "content": "\ud83d"}]}, "the text has a lone surrogate"),
            ({"messages": TALK, "tools": "{"}, "field 'tools' is not valid JSON"),
            ({"messages": TALK, "tools": {"a": 1}}, "field 'tools' is a dict, expected a list"),
        ],
    )
    def test_file_and_row_are_named(self, write_jsonl, tokenizer, config, row, message):
        path = write_jsonl([{"messages": TALK}, row])
        with pytest.raises(DataError, match=rf"rows\.jsonl, row 1 \(the first is 0\): .*{message}"):
            SFTDataset([path], tokenizer, config)

    @pytest.mark.parametrize(("answer", "message"), [(None, "is missing or null"), (4, "is a int, expected text")])
    def test_response(self, write_jsonl, tokenizer, config, answer, message):
        config.prompt_key, config.response_key = "q", "a"
        with pytest.raises(DataError, match=rf"row 0 .*field 'a' {message}"):
            SFTDataset([write_jsonl([{"q": "x", "a": answer}])], tokenizer, config)


class TestBatches:
    @pytest.fixture
    def dataset(self, write_jsonl, tokenizer, config):
        rows = [{"messages": [TALK[0], {"role": "assistant", "content": f"<{i}>"}]} for i in range(10)]
        return SFTDataset([write_jsonl(rows)], tokenizer, config)

    @staticmethod
    def contents(examples):
        return [tuple(example.ids.tolist()) for example in examples]

    def test_batches_depend_on_seed_and_step_only(self, dataset):
        one, other = Batches(dataset, 4, seed=1), Batches(dataset, 4, seed=1)
        one.batch(0), one.batch(7)
        assert self.contents(one.batch(3)) == self.contents(other.batch(3)) and len(one.batch(3)) == 4
        different = Batches(dataset, 4, seed=2)
        assert any(self.contents(one.batch(s)) != self.contents(different.batch(s)) for s in range(3))

    def test_the_stream_leaves_no_example_out(self, dataset):
        batches = Batches(dataset, 4, seed=1)
        drawn = [ids for step in range(5) for ids in self.contents(batches.batch(step))]
        assert len(batches) == 2 and len(drawn) == 20
        assert sorted(drawn) == sorted(2 * [tuple(dataset[i].ids.tolist()) for i in range(10)])
        assert [batches.epoch(step) for step in range(5)] == [0, 0, 0, 1, 1]

    def test_once_goes_through_all_in_order(self, dataset):
        batches = list(Batches(dataset, 4, seed=1).once())
        assert [len(batch) for batch in batches] == [4, 4, 2]
        everything = [ids for batch in batches for ids in self.contents(batch)]
        assert everything == self.contents(dataset[i] for i in range(10))
