"""Text from outside: broken-up marks, and cutting by tokens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.agents.observation import Observations
from burnish.models.tiny import byte_tokenizer

TOKENIZER = byte_tokenizer(words=["<tool_call>", "</tool_call>", "plain"])
MARKS = ["<tool_call>", "</tool_call>", "<answer>", "</answer>", "<|end|>", "<|start|>", "<|pad|>"]
OBSERVATIONS = Observations(TOKENIZER, ("<answer>", "</answer>"))


@settings(deadline=None)
@given(st.lists(st.one_of(st.sampled_from([*MARKS, "<", ">", "/", "|end|>", "answer", " "]), st.text(max_size=5))))
def test_no_mark_is_left_and_nothing_is_lost(parts):
    text = "".join(parts)
    safe = OBSERVATIONS.harmless(text)
    assert not any(mark in safe for mark in MARKS)
    assert not set(OBSERVATIONS.ids(safe)) & {*TOKENIZER.all_special_ids, *TOKENIZER("<tool_call>")["input_ids"]}
    assert safe.replace(" ", "") == text.encode("utf-8", "replace").decode().replace(" ", "")


@pytest.mark.parametrize(("side", "kept"), [("right", "abcd"), ("left", "ghij"), ("middle", "ab…ij")])
def test_cutting(side, kept):
    assert OBSERVATIONS.cut("abcdefghij", 4, side) == (kept, True)
    assert OBSERVATIONS.cut("abcd", 4, side) == ("abcd", False)
    assert OBSERVATIONS.cut("aé", 2, "right") == ("a", True), "no half characters"


def test_ordinary_words_that_were_added_and_special_tokens_of_blanks_alone_are_no_marks():
    assert OBSERVATIONS.harmless("a plain word") == "a plain word"
    assert OBSERVATIONS.harmless("a\ud800b") == "a?b", "lone surrogates are replaced"
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["  "]})
    assert Observations(tokenizer).harmless("a   b") == "a   b"
