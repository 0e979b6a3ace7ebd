"""Rows to pairs: the forms of answers and prompts, truncation, and rows that are refused."""

import pytest

from burnish.config.rm import RMDataConfig
from burnish.data.chat import ChatRenderer
from burnish.data.files import read_rows, write_parquet
from burnish.data.preference import PreferenceDataset
from burnish.data.tasks.preference import TASK
from burnish.errors import DataError

ASKED = [{"role": "user", "content": "2+2?"}]
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("4", "five"))
RIGHT = {"prompt": "2+2?", "chosen": "4", "rejected": "five"}
LONG = RIGHT | {"prompt": "x" * 60}
EARLIER = [*ASKED, GOOD, {"role": "user", "content": "and 2+3?"}]


@pytest.fixture
def config():
    return RMDataConfig()


@pytest.fixture
def pairs(write_jsonl, tokenizer, config):
    def make(*rows, **kwargs):
        return PreferenceDataset([write_jsonl(list(rows))], tokenizer, config, **kwargs)

    return make


def rendered(tokenizer, *messages):
    """Text, so that a difference can be read."""
    return str(tokenizer.decode(ChatRenderer(tokenizer).whole(list(messages))))


class TestForms:
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

    def test_whole_conversations_may_differ_before_the_answer(self, pairs, tokenizer):
        pair = pairs({"chosen": [*EARLIER, BAD], "rejected": [*ASKED, BAD]})[0]
        assert tokenizer.decode(pair.chosen) == rendered(tokenizer, *EARLIER, BAD)
        assert tokenizer.decode(pair.rejected) == rendered(tokenizer, *ASKED, BAD)

    def test_rows_of_data_make(self, tmp_path, tokenizer, config):
        record = {"chosen": "\n\nHuman: 2+2?\n\nAssistant: 4", "rejected": "\n\nHuman: 2+2?\n\nAssistant: five"}
        row = TASK.row(record, {"data_source": "x"})
        path = write_parquet([row], tmp_path / "pairs.parquet")
        pair = PreferenceDataset([str(path)], tokenizer, config)[0]
        assert tokenizer.decode(pair.rejected) == rendered(tokenizer, *ASKED, BAD)

    def test_names_of_columns_and_tools(self, pairs, tokenizer, config):
        config.prompt_key, config.chosen_key, config.rejected_key = "q", "answers.best", "answers.worst"
        config.apply_chat_template_kwargs = {"chat_template": "{{ tools[0]['name'] }}" + tokenizer.chat_template}
        row = {"q": "2+2?", "answers": {"best": "4", "worst": "five"}, "tools": [{"name": "add"}]}
        assert tokenizer.decode(pairs(row)[0].chosen) == "add" + rendered(tokenizer, *ASKED, GOOD)

    def test_an_answer_that_only_calls_a_tool(self, pairs):
        call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}]}
        assert len(pairs({"prompt": "2+2?", "chosen": [call], "rejected": "five"})) == 1

    def test_what_the_template_writes_after_the_answer_is_kept(self, write_jsonl, merging_tokenizer, config):
        path = write_jsonl([{"prompt": "2+2?", "chosen": "4", "rejected": "5"}])
        pair = PreferenceDataset([path], merging_tokenizer, config)[0]
        assert merging_tokenizer.decode(pair.chosen).endswith("4<|end|>\n")

    def test_fields_that_parquet_fills_with_nulls(self, tmp_path, tokenizer, config):
        rows = [{"chosen": [*ASKED, {**GOOD, "name": "x"}], "rejected": [*ASKED, BAD]}] * 3
        path = write_parquet(rows, tmp_path / "pairs.parquet")
        assert "name" in read_rows(path)[0]["chosen"][0]
        dataset = PreferenceDataset([str(path)], tokenizer, config, max_samples=2)
        assert len(dataset) == 2 and tokenizer.decode(dataset[0].rejected) == rendered(tokenizer, *ASKED, BAD)

    def test_margin(self, pairs, config):
        config.margin_key = "extra.gap"
        dataset = pairs(RIGHT | {"extra": {"gap": 1}}, RIGHT | {"extra": {"gap": 0.5}})
        assert [dataset[i].margin for i in range(2)] == [1.0, 0.5]


class TestTruncation:
    def test_by_default_the_start_is_cut_and_the_answers_stay(self, pairs, tokenizer, config):
        config.max_length = 30
        dataset = pairs(LONG)
        pair = dataset[0]
        assert len(pair.chosen) == len(pair.rejected) == 30
        assert tokenizer.decode(pair.rejected).endswith("five<|end|>")
        assert dataset.notices == ["2 conversations are over data.max_length=30 and were cut (data.truncation=left)"]

    def test_each_side_is_truncated_separately(self, pairs, tokenizer, config):
        config.max_length = len(ChatRenderer(tokenizer).whole([*ASKED, GOOD]))
        pair = pairs(RIGHT)[0]
        assert tokenizer.decode(pair.chosen) == rendered(tokenizer, *ASKED, GOOD)
        assert pair.rejected.tolist() == ChatRenderer(tokenizer).whole([*ASKED, BAD])[-len(pair.chosen) :]

    def test_error_names_row_field_length_limit_and_fix(self, pairs, config):
        config.max_length, config.truncation = 60, "error"
        with pytest.raises(DataError) as caught:
            pairs(RIGHT, LONG)
        assert "rows.jsonl, row 1 (the first is 0): field 'chosen': the conversation has" in str(caught.value)
        assert "over data.max_length=60. Raise the limit, or set data.truncation=left|right|middle" in str(caught.value)

    def test_pairs_that_become_equal_are_left_out_and_reported(self, pairs, config):
        config.max_length, config.truncation = 50, "right"
        dataset = pairs(LONG, {"prompt": "2+2?", "chosen": "4", "rejected": "5"})
        assert len(dataset) == 1
        assert dataset.notices[0] == "1 of 2 pairs have the same tokens on both sides after truncation; skipped"
        with pytest.raises(DataError, match=r"no example of .* is left to learn from; raise data\.max_length"):
            pairs(LONG)


class TestBadRows:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"chosen": None}, "field 'chosen' is missing or null"),
            ({"rejected": 5}, r"field 'rejected': expected a string or a list of messages, got a int \(5\)"),
            ({"rejected": []}, "field 'rejected': the list of messages is empty"),
            ({"rejected": " "}, "field 'rejected': the answer is empty"),
            ({"chosen": [*ASKED, {"role": "assistant", "content": ""}]}, "field 'chosen': the answer is empty"),
            ({"chosen": ASKED}, "field 'chosen': the last message is from user; it has to be the assistant's"),
            ({"chosen": [{"role": "assistant"}]}, r"field 'chosen': message 0 \(assistant\) has the content"),
            ({"chosen": "five"}, "fields 'chosen' and 'rejected' are equal, so neither is preferred; drop the row"),
            ({"chosen": [*ASKED, BAD]}, "fields 'chosen' and 'rejected' are equal"),
            ({"prompt": None}, r"field 'chosen' is only an answer, and field 'prompt' \(data.prompt_key\)"),
            ({"prompt": None, "chosen": [GOOD]}, "field 'chosen' is only an answer"),
            ({"prompt": 3}, "field 'prompt': expected a string or a list of messages"),
            ({"prompt": " "}, "field 'prompt': the prompt is empty"),
            ({"chosen": "\ud83d"}, "field 'chosen': the text has a lone surrogate"),
            ({"tools": "{"}, "field 'tools' is not valid JSON"),
        ],
    )
    def test_file_row_and_field_are_named(self, pairs, change, message):
        with pytest.raises(DataError, match=rf"rows\.jsonl, row 1 \(the first is 0\): {message}"):
            pairs(RIGHT, RIGHT | change)

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"chosen": "\n\nHuman: a\n\nAssistant: b"}, "chosen"),
            ({"chosen": "\n\nHuman: a\n\nAssistant: b", "prompt": None}, "chosen"),
            ({"rejected": "Assistant: b\n\nHuman: no\n\nAssistant: c"}, "rejected"),
            ({"prompt": "\n\nHuman: a\n\nAssistant:"}, "prompt"),
        ],
    )
    def test_a_dialogue_in_one_text_is_sent_to_data_make(self, pairs, change, field):
        with pytest.raises(
            DataError, match=f"row 0 .*field '{field}' is a dialogue in one text .* with `burnish data make preference`"
        ):
            pairs(RIGHT | change)

    def test_an_answer_may_begin_like_a_turn(self, pairs):
        """As some of Anthropic's do."""
        assert len(pairs(RIGHT | {"chosen": "Human: Can you define that?", "rejected": "Assistant: no\n\nIt is."})) == 1

    @pytest.mark.parametrize(
        ("margin", "message"),
        [
            (None, "is missing or null"),
            ("1", "is '1', expected"),
            (True, "is True, expected"),
            (float("nan"), "is nan, expected"),
        ],
    )
    def test_margin(self, pairs, config, margin, message):
        config.margin_key = "gap"
        with pytest.raises(DataError, match=rf"row 1 .*field 'gap' \(data.margin_key\) {message}"):
            pairs(RIGHT | {"gap": 1}, RIGHT | {"gap": margin})
