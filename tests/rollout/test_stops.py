"""Stop strings over token boundaries, split characters and special tokens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.models.tiny import byte_tokenizer
from burnish.rollout.stops import Detokenizer, StopMatcher

TOKENIZER = byte_tokenizer()


def byte_ids(data):
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return [TOKENIZER.convert_tokens_to_ids(bytes_to_unicode()[byte]) for byte in data]


def first_match(text, stops):
    """(tokens pushed when a stop was found, the stop) or None."""
    matcher = StopMatcher(TOKENIZER, tuple(stops))
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    pushed = ((count, matcher.push(token_id)) for count, token_id in enumerate(ids, start=1))
    return next(((count, found) for count, found in pushed if found is not None), None)


@pytest.mark.parametrize(
    "text,stops,expected",
    [
        ("ab</search>cd", ["</search>"], (11, "</search>")),
        ("abc", ["d"], None),
        ("aab", ["ab", "b"], (3, "ab")),
        ("né. x", ["é."], (4, "é.")),  # é is two tokens
        ("né", ["n"], (1, "n")),
        ("x\n\ny", ["\n\n"], (3, "\n\n")),
        ("  a b", [" b"], (5, " b")),
        ("go<|end|>", ["<|end|>"], (3, "<|end|>")),
        ("日本語です", ["語で"], (12, "語で")),
    ],
)
def test_found_at_the_completing_token(text, stops, expected):
    assert first_match(text, stops) == expected


def test_broken_bytes_do_not_hide_a_later_stop():
    for broken, stop in ((b"\xc3" * 50 + b"a ", "stop"), (b"\x98\x98", "😀")):
        matcher, ids = StopMatcher(TOKENIZER, (stop,)), byte_ids(broken + stop.encode())
        assert [matcher.push(i) for i in ids] == [None] * (len(ids) - 1) + [stop]


@settings(deadline=None)
@given(st.text("aé日 \n<", max_size=12), st.lists(st.text("aé日 \n<", min_size=1, max_size=3), min_size=1, max_size=3))
def test_agrees_with_searching_the_whole_text(text, stops):
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    prefixes = [TOKENIZER.decode(ids[:n]) for n in range(len(ids) + 1)]
    expected = next((n for n, prefix in enumerate(prefixes) if any(stop in prefix for stop in stops)), None)
    match = first_match(text, stops)
    assert (match and match[0]) == expected
    assert match is None or match[1] in prefixes[match[0]]


def test_a_stop_string_before_half_a_character_is_found_at_once():
    """In one token, as merges over whole bytes make them."""

    class Words:
        def decode(self, ids, **_):
            return b"".join([b"stop\xf0", b"\x9f\x98\x80"][i] for i in ids).decode(errors="replace")

    assert StopMatcher(Words(), ("stop",)).push(0) == "stop"
    text = Detokenizer(Words())
    assert [text.push(0), text.rest, text.push(1), text.rest] == ["stop", "\ufffd", "😀", ""]


@settings(deadline=None)
@given(st.binary(max_size=30))
def test_pieces_and_rest_are_what_the_tokenizer_makes_of_all(data):
    text, ids, given_out = Detokenizer(TOKENIZER), byte_ids(data), ""
    for count, token_id in enumerate(ids, start=1):
        given_out += text.push(token_id)
        assert given_out + text.rest == TOKENIZER.decode(ids[:count])
    assert given_out + text.flush() == TOKENIZER.decode(ids) and text.rest == ""
