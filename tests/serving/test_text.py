"""Token ids to text: the same piece by piece as at once, no half characters, no stop strings, no special tokens."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from burnish.data.chat import special_ids
from burnish.models.tiny import EOS, START, byte_tokenizer
from burnish.openai_wire.text import TextStream
from burnish.rollout.stops import StopMatcher

TOKENIZER = byte_tokenizer()
HIDDEN = special_ids(TOKENIZER)
EOS_ID, START_ID = TOKENIZER.convert_tokens_to_ids([EOS, START])


def ids(text):
    return list(TOKENIZER(text, add_special_tokens=False)["input_ids"])


BYTE_IDS = [TOKENIZER.convert_tokens_to_ids(bytes_to_unicode()[byte]) for byte in range(256)]


def stream(tokens, stops=(), stop=None, tokenizer=TOKENIZER):
    """The pieces of a completion that `stop` ended."""
    text = TextStream(tokenizer, special_ids(tokenizer), tuple(stops))
    return [text.push(token) for token in tokens] + [text.finish(stop)]


def sampled(tokens, stops=()):
    """What an engine would make of these tokens: cut at the stop that it finds first, and what that is."""
    matcher = StopMatcher(TOKENIZER, tuple(stops)) if stops else None
    for place, token in enumerate(tokens):
        if token == EOS_ID:
            return tokens[: place + 1], token
        if matcher and (found := matcher.push(token)):
            return tokens[: place + 1], found
    return tokens, None


@given(st.lists(st.sampled_from([*BYTE_IDS, START_ID]), max_size=60))
@settings(max_examples=100, deadline=None)
def test_pieces_add_up_to_what_the_tokenizer_makes_of_all(tokens):
    """A special token ends what was before it, half a character too."""
    parts: list[list[int]] = [[]]
    for token in tokens:
        parts[-1:] = [parts[-1], []] if token == START_ID else [[*parts[-1], token]]
    assert "".join(stream(tokens)) == "".join(TOKENIZER.decode(part) for part in parts)


@given(st.text(max_size=30))
@settings(max_examples=100, deadline=None)
def test_no_piece_ends_in_half_a_character(text):
    text = text.replace("\ufffd", "").encode("utf-8", "ignore").decode()
    pieces = stream(ids(text))
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) == TOKENIZER.decode(ids(text))


@given(st.text("ab<|e", max_size=40), st.lists(st.text("ab<|e", min_size=1, max_size=4), min_size=1, max_size=3))
@settings(max_examples=200, deadline=None)
def test_the_text_ends_before_the_first_stop_string(text, stops):
    tokens, stop = sampled(ids(text), stops)
    pieces = stream(tokens, stops, stop)
    assert (stop is not None) == any(s in text for s in stops)
    seen = text[: len(tokens)]  # one token per character, and none after the stop string that was complete first
    found = [place for s in stops if (place := seen.find(s)) >= 0]
    assert "".join(pieces) == (seen[: min(found)] if found else text)


@given(
    st.lists(st.sampled_from([*(BYTE_IDS[byte] for byte in b"a\x98\xf0\x9f\x80"), START_ID]), max_size=24),
    st.lists(st.sampled_from(["😀", "a", "a😀", START]), min_size=1, max_size=3),
)
@settings(max_examples=200, deadline=None)
def test_the_engine_and_the_text_agree_on_stops_among_broken_bytes(tokens, stops):
    whole = "".join(
        TOKENIZER.decode(list(part)) for _, part in itertools.groupby(tokens, lambda token: token == START_ID)
    )
    tokens, stop = sampled(tokens, stops)
    assert (stop is not None) == any(s in whole for s in stops)
    if START_ID not in tokens:  # which hides what is between the parts of a stop string
        assert not any(s in "".join(stream(tokens, stops, stop)) for s in stops)


def test_text_that_may_begin_a_stop_string_waits_until_that_is_decided():
    pieces = stream(ids("one END, two"), ["END!"])
    assert pieces[:10] == ["", "o", "n", "e", " ", "", "", "", "END,", " "]


def test_special_tokens_are_hidden_but_stop_strings_see_them():
    tokens = [*ids("a"), START_ID, *ids("b")]
    assert "".join(stream(tokens)) == "ab"
    assert "".join(stream(tokens, ["ab"])) == "ab"  # not adjacent in what was sampled
    assert sampled(tokens, [START])[1] == START
    assert "".join(stream(tokens[:2], [START], START)) == "a"


def test_the_token_that_ends_by_its_id_is_left_out_and_half_a_character_shown_as_the_tokenizer_does():
    for token in (EOS_ID, *ids("x")):
        assert "".join(stream([*ids("text"), token], (), token)) == "text"
    tokens = ids("é")[:1]
    assert "".join(stream(tokens)) == TOKENIZER.decode(tokens) == "\ufffd"


def word_tokenizer(words):
    """Words that carry their space in front, which the decoder strips from the first."""
    bare = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    bare.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=bare)


def test_spaces_between_pieces_survive_and_a_stop_string_takes_the_rest_of_its_token_with_it():
    tokenizer = word_tokenizer(["▁the", "▁first", "▁word"])
    pieces = stream([0, 1, 2], tokenizer=tokenizer)
    assert pieces == ["", "the", " first", " word"]
    assert "".join(pieces) == tokenizer.decode([0, 1, 2])
    tokenizer = word_tokenizer(["▁one", "▁two;three", "▁four"])
    assert stream([0, 1], ["o;"], "o;", tokenizer) == ["", "one", " tw"]
