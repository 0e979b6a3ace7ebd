"""Rows to SFT examples and preference pairs: forms, truncation, rows that are refused; and batches of them."""

import json

import numpy as np
import pytest

from burnish.config.supervised import RMDataConfig, SFTDataConfig
from burnish.data.chat import ChatRenderer
from burnish.data.examples import Batches, PreferenceDataset, SFTDataset
from burnish.data.files import read_rows, write_parquet
from burnish.data.tasks.preference import TASK
from burnish.errors import DataError
from tests.data.conftest import refused

ASKED = [{"role": "user", "content": "2+2?"}]
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("4", "five"))
TALK = [*ASKED, GOOD]
LONGER = [*TALK, {"role": "user", "content": "+1?"}, {"role": "assistant", "content": "5!"}]
RIGHT = {"prompt": "2+2?", "chosen": "4", "rejected": "five"}
LONG = RIGHT | {"prompt": "x" * 60}
EARLIER = [*ASKED, GOOD, {"role": "user", "content": "and 2+3?"}]


@pytest.fixture
def sft_config():
    return SFTDataConfig()


@pytest.fixture
def config():
    return RMDataConfig()


@pytest.fixture
def sft(write_jsonl, tokenizer, sft_config):
    return lambda *rows, **limit: SFTDataset([write_jsonl(list(rows))], tokenizer, sft_config, **limit)


@pytest.fixture
def pairs(write_jsonl, tokenizer, config):
    return lambda *rows, **limit: PreferenceDataset([write_jsonl(list(rows))], tokenizer, config, **limit)


def learnt(tokenizer, example):
    return tokenizer.decode(example.ids[example.loss_mask.astype(bool)])


def rendered(tokenizer, *messages):
    return str(tokenizer.decode(ChatRenderer(tokenizer).whole(list(messages))))


class TestSFT:
    def test_messages(self, sft, tokenizer):
        dataset = sft({"messages": TALK}, {"messages": LONGER})
        assert [learnt(tokenizer, dataset[i]) for i in range(2)] == ["4<|end|>", "4<|end|>5!<|end|>"]
        ids, mask = ChatRenderer(tokenizer).conversation(LONGER)
        assert (dataset[1].ids.tolist(), dataset[1].loss_mask.tolist()) == (ids, mask)

    def test_parquet_files_and_max_samples(self, tmp_path, tokenizer, sft_config):
        rows = [{"messages": TALK}] * 6, [{"messages": LONGER}] * 3
        files = [str(write_parquet(part, tmp_path / f"{len(part)}.parquet")) for part in rows]
        assert len(SFTDataset(files, tokenizer, sft_config)) == 9
        dataset = SFTDataset(files, tokenizer, sft_config, max_samples=3)
        assert [learnt(tokenizer, dataset[i]) for i in range(len(dataset))] == ["4<|end|>"] * 2 + ["4<|end|>5!<|end|>"]
        refused(r"set data\.train_files", SFTDataset, [], tokenizer, sft_config)

    def test_prompt_and_response_give_the_same_example(self, sft, sft_config):
        whole = sft({"messages": TALK})[0]
        sft_config.prompt_key, sft_config.response_key = "q", "extra.answer"
        for prompt in ("2+2?", ASKED):
            parts = sft({"q": prompt, "extra": {"answer": "4"}})[0]
            assert np.array_equal(whole.ids, parts.ids) and np.array_equal(whole.loss_mask, parts.loss_mask)
        for answer, message in ((None, "is missing or null"), (4, "is a int, expected text")):
            refused(rf"row 0 .*field 'extra\.answer' {message}", sft, {"q": "x", "extra": {"answer": answer}})

    @pytest.mark.parametrize("as_text", [True, False])
    def test_tools_reach_the_template(self, sft, tokenizer, sft_config, as_text):
        sft_config.apply_chat_template_kwargs = {"chat_template": "{{ tools[0]['name'] }}" + tokenizer.chat_template}
        tools = [{"name": "add", "unused": None}]
        dataset = sft({"messages": TALK, "tools": json.dumps(tools) if as_text else tools})
        assert tokenizer.decode(dataset[0].ids).startswith("add<|start|>user")

    def test_a_long_example_is_an_error_or_truncated(self, sft, tokenizer, sft_config):
        sft_config.max_length = len(ChatRenderer(tokenizer).conversation(TALK)[0])
        said = rf"rows.jsonl, row 1 .*: the example has .*over data.max_length={sft_config.max_length}. Raise the limit"
        refused(said, sft, {"messages": TALK}, {"messages": LONGER})
        for mode, text in (("left", "5!<|end|>"), ("right", "4<|end|>"), ("middle", "5!<|end|>")):
            sft_config.truncation = mode
            example = sft({"messages": LONGER})[0]
            assert len(example) == sft_config.max_length and learnt(tokenizer, example).endswith(text)

    def test_the_first_token_is_never_a_target_and_examples_without_one_are_left_out(self, sft, tokenizer, sft_config):
        sft_config.max_length, sft_config.truncation = 2, "left"
        example = sft({"messages": LONGER})[0]
        assert tokenizer.decode(example.ids) == "!<|end|>" and example.loss_mask.tolist() == [0, 1]
        sft_config.max_length, sft_config.truncation = 40, "right"
        long = {"messages": [{"role": "user", "content": "x" * 60}, GOOD]}
        dataset = sft({"messages": TALK}, long)
        assert len(dataset) == 1
        assert dataset.notices == ["1 of 2 examples have no assistant token left after truncation; skipped"]
        refused(r"no example of .* is left to learn from; raise data\.max_length", sft, long)

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ({"messages": None}, "field 'messages' is missing or null"),
            ({"messages": ASKED}, "no message is from the assistant"),
            ({"messages": [{"role": "user"}]}, r"field 'messages': message 0 \(user\) has the content"),
            ({"messages": TALK, "tools": "{"}, "field 'tools' is not valid JSON"),
            ({"messages": TALK, "tools": {"a": 1}}, "field 'tools' is a dict, expected a list"),
        ],
    )
    def test_bad_rows_are_named_with_their_file(self, sft, row, message):
        refused(rf"rows\.jsonl, row 1 \(the first is 0\): .*{message}", sft, {"messages": TALK}, row)


class TestBatches:
    @staticmethod
    def contents(examples):
        return [tuple(example.ids.tolist()) for example in examples]

    def test_batches_depend_on_seed_and_step_only_and_leave_no_example_out(self, sft):
        dataset = sft(*({"messages": [*ASKED, {"role": "assistant", "content": f"<{i}>"}]} for i in range(10)))
        one, other = Batches(dataset, 4, seed=1), Batches(dataset, 4, seed=1)
        one.batch(0), one.batch(7)
        assert self.contents(one.batch(3)) == self.contents(other.batch(3)) and len(one.batch(3)) == 4
        different = Batches(dataset, 4, seed=2)
        assert any(self.contents(one.batch(s)) != self.contents(different.batch(s)) for s in range(3))
        batches = Batches(dataset, 4, seed=1)
        drawn = [ids for step in range(5) for ids in self.contents(batches.batch(step))]
        assert len(batches) == 2 and len(drawn) == 20
        assert sorted(drawn) == sorted(2 * [tuple(dataset[i].ids.tolist()) for i in range(10)])
        assert [batches.epoch(step) for step in range(5)] == [0, 0, 0, 1, 1]
        batches = list(Batches(dataset, 4, seed=1).once())
        assert [len(batch) for batch in batches] == [4, 4, 2]
        everything = [ids for batch in batches for ids in self.contents(batch)]
        assert everything == self.contents(dataset[i] for i in range(10))


class TestPairs:
    @pytest.mark.parametrize(
        "row",
        [
            RIGHT,
            {"prompt": ASKED, "chosen": "4", "rejected": "five"},
            {"prompt": ASKED, "chosen": [GOOD], "rejected": [BAD]},
            {"prompt": "2+2?", "chosen": [*ASKED, GOOD], "rejected": [*ASKED, BAD]},
            {"chosen": [*ASKED, GOOD], "rejected": [*ASKED, BAD]},
            {"prompt": "2+2?", "chosen": "4", "rejected": [*ASKED, BAD]},
        ],
    )
    def test_every_form_gives_the_same_pair(self, pairs, tokenizer, row):
        pair = pairs(row)[0]
        assert tokenizer.decode(pair.chosen) == rendered(tokenizer, *ASKED, GOOD)
        assert tokenizer.decode(pair.rejected) == rendered(tokenizer, *ASKED, BAD)
        assert len(pair) == len(pair.chosen) + len(pair.rejected) and pair.margin == 0

    def test_whole_conversations_may_differ_before_the_answer_and_end_as_the_template_does(
        self, pairs, write_jsonl, tokenizer, merging_tokenizer, config
    ):
        pair = pairs({"chosen": [*EARLIER, BAD], "rejected": [*ASKED, BAD]})[0]
        assert tokenizer.decode(pair.chosen) == rendered(tokenizer, *EARLIER, BAD)
        assert tokenizer.decode(pair.rejected) == rendered(tokenizer, *ASKED, BAD)
        path = write_jsonl([{"prompt": "2+2?", "chosen": "4", "rejected": "5"}])
        pair = PreferenceDataset([path], merging_tokenizer, config)[0]
        assert merging_tokenizer.decode(pair.chosen).endswith("4<|end|>\n")

    def test_names_of_columns_and_tools(self, pairs, tokenizer, config):
        config.prompt_key, config.chosen_key, config.rejected_key = "q", "answers.best", "answers.worst"
        config.apply_chat_template_kwargs = {"chat_template": "{{ tools[0]['name'] }}" + tokenizer.chat_template}
        row = {"q": "2+2?", "answers": {"best": "4", "worst": "five"}, "tools": [{"name": "add"}]}
        assert tokenizer.decode(pairs(row)[0].chosen) == "add" + rendered(tokenizer, *ASKED, GOOD)

    def test_calls_of_tools_answers_that_begin_like_a_turn_and_margins(self, pairs, config):
        call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}]}
        assert len(pairs({"prompt": "2+2?", "chosen": [call], "rejected": "five"})) == 1
        # As some of Anthropic's do.
        assert len(pairs(RIGHT | {"chosen": "Human: Can you define that?", "rejected": "Assistant: no\n\nIt is."})) == 1
        config.margin_key = "extra.gap"
        dataset = pairs(RIGHT | {"extra": {"gap": 1}}, RIGHT | {"extra": {"gap": 0.5}})
        assert [dataset[i].margin for i in range(2)] == [1.0, 0.5]

    def test_rows_of_data_make_and_fields_that_parquet_fills_with_nulls(self, tmp_path, tokenizer, config):
        record = {"chosen": "\n\nHuman: 2+2?\n\nAssistant: 4", "rejected": "\n\nHuman: 2+2?\n\nAssistant: five"}
        made = write_parquet([TASK.row(record, {"data_source": "x"})], tmp_path / "made.parquet")
        pair = PreferenceDataset([str(made)], tokenizer, config)[0]
        assert tokenizer.decode(pair.rejected) == rendered(tokenizer, *ASKED, BAD)
        rows = [{"chosen": [*ASKED, {**GOOD, "name": "x"}], "rejected": [*ASKED, BAD]}] * 3
        path = write_parquet(rows, tmp_path / "pairs.parquet")
        assert "name" in read_rows(path)[0]["chosen"][0]
        dataset = PreferenceDataset([str(path)], tokenizer, config, max_samples=2)
        assert len(dataset) == 2 and tokenizer.decode(dataset[0].rejected) == rendered(tokenizer, *ASKED, BAD)

    def test_by_default_the_start_of_each_side_is_cut_and_the_answers_stay(self, pairs, tokenizer, config):
        config.max_length = 30
        dataset = pairs(LONG)
        pair = dataset[0]
        assert len(pair.chosen) == len(pair.rejected) == 30
        assert tokenizer.decode(pair.rejected).endswith("five<|end|>")
        assert dataset.notices == ["2 conversations are over data.max_length=30 and were cut (data.truncation=left)"]
        config.max_length = len(ChatRenderer(tokenizer).whole([*ASKED, GOOD]))
        pair = pairs(RIGHT)[0]
        assert tokenizer.decode(pair.chosen) == rendered(tokenizer, *ASKED, GOOD)
        assert pair.rejected.tolist() == ChatRenderer(tokenizer).whole([*ASKED, BAD])[-len(pair.chosen) :]

    def test_truncated_pairs_name_the_limit_or_are_left_out_where_they_become_equal(self, pairs, config):
        config.max_length, config.truncation = 60, "error"
        fix = r"Raise the limit, or set data.truncation=left\|right\|middle"
        said = rf"rows.jsonl, row 1 .*: field 'chosen': the conversation has .*over data.max_length=60. {fix}"
        refused(said, pairs, RIGHT, LONG)
        config.max_length, config.truncation = 50, "right"
        dataset = pairs(LONG, {"prompt": "2+2?", "chosen": "4", "rejected": "5"})
        assert len(dataset) == 1
        assert dataset.notices[0] == "1 of 2 pairs have the same tokens on both sides after truncation; skipped"
        refused(r"no example of .* is left to learn from; raise data\.max_length", pairs, LONG)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"chosen": None}, "field 'chosen' is missing or null"),
            ({"rejected": 5}, r"field 'rejected': expected a string or a list of messages, got a int \(5\)"),
            ({"rejected": " "}, "field 'rejected': the answer is empty"),
            ({"chosen": [*ASKED, {"role": "assistant", "content": ""}]}, "field 'chosen': the answer is empty"),
            ({"chosen": ASKED}, "field 'chosen': the last message is from user; it has to be the assistant's"),
            ({"chosen": "five"}, "fields 'chosen' and 'rejected' are equal, so neither is preferred; drop the row"),
            ({"chosen": [*ASKED, BAD]}, "fields 'chosen' and 'rejected' are equal"),
            ({"prompt": None}, r"field 'chosen' is only an answer, and field 'prompt' \(data.prompt_key\)"),
            ({"prompt": None, "chosen": [GOOD]}, "field 'chosen' is only an answer"),
            ({"prompt": " "}, "field 'prompt': the prompt is empty"),
            ({"chosen": "\ud83d"}, "field 'chosen': the text has a lone surrogate"),
        ],
    )
    def test_file_row_and_field_are_named(self, pairs, change, message):
        refused(rf"rows\.jsonl, row 1 \(the first is 0\): {message}", pairs, RIGHT, RIGHT | change)

    def test_a_dialogue_in_one_text_is_sent_to_data_make_and_margins_are_numbers(self, pairs, config):
        for field, change in [
            ("chosen", {"chosen": "\n\nHuman: a\n\nAssistant: b"}),
            ("chosen", {"chosen": "\n\nHuman: a\n\nAssistant: b", "prompt": None}),
            ("rejected", {"rejected": "Assistant: b\n\nHuman: no\n\nAssistant: c"}),
            ("prompt", {"prompt": "\n\nHuman: a\n\nAssistant:"}),
        ]:
            message = f"row 0 .*field '{field}' is a dialogue in one text .* with `burnish data make preference`"
            refused(message, pairs, RIGHT | change)
        config.margin_key = "gap"
        shown = {"is missing or null": None, "is '1', expected": "1", "is True, expected": True}
        for message, margin in (shown | {"is nan, expected": float("nan")}).items():
            with pytest.raises(DataError, match=rf"row 1 .*field 'gap' \(data.margin_key\) {message}"):
                pairs(RIGHT | {"gap": 1}, RIGHT | {"gap": margin})


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": '[{"a": ' + "9" * 5000 + "}]"}, "field 'tools' is not valid JSON: Exceeds the limit"),
        ({"tools": "[" * 10**5}, "field 'tools' is not valid JSON: maximum recursion"),
        ({"tools": '[{"a": ' + "[" * 300 + "]" * 300 + "}]"}, "a message or tool has more than 100 levels"),
        ({"tools": ["x"]}, "a tool is no object"),
        ({"messages": [*ASKED, {"role": "assistant", "content": "x" * 10**6}]}, "far over data.max_length=1024"),
        ({"messages": [*ASKED, {"role": "assistant", "content": "a\ud800"}]}, "lone surrogate"),
    ],
    ids=["digits", "brackets", "levels", "text for a tool", "long", "surrogate"],
)
def test_a_hostile_example_is_one_line_with_its_row(sft, fields, message):
    talk = {"messages": [*ASKED, GOOD]}
    with pytest.raises(DataError, match=message) as caught:
        sft(talk, talk | fields)
    assert "rows.jsonl, row 1 (the first is 0): " in str(caught.value) and len(str(caught.value)) < 500


def test_special_tokens_in_examples_are_warned_of_or_escaped(sft, pairs, sft_config, config, caplog, tokenizer):
    injected = {"role": "user", "content": "2?<|end|>"}
    sft({"messages": [injected, GOOD]}, {"messages": [*ASKED, GOOD]})
    pairs(RIGHT, RIGHT | {"prompt": [injected]})
    first, second = (record.message for record in caplog.records if record.levelname == "WARNING")
    assert "row 0 (the first is 0): message 0 (user) has the special token <|end|>" in first and "in 1 of" in first
    assert "row 1 (the first is 0)" in second
    sft_config.escape_special_tokens = True
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    (example,) = sft({"messages": [injected, GOOD]})
    assert example.ids.tolist().count(end) == 2, "one of each turn"
