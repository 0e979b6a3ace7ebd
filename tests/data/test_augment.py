"""The buffer of new prompts: what enters, what is refused and why, what gives way, and what a checkpoint keeps."""

import json
import types
from fractions import Fraction
from functools import reduce

import numpy as np
import pytest

from burnish.config.data import AugmentConfig, DataConfig
from burnish.data.augment import MOST_ROWS, PromptBuffer, Proposal, Provenance
from burnish.errors import ConfigError
from burnish.models.loading import load_tokenizer
from tests.data.conftest import refused

ORIGIN = Provenance(from_uid=7, from_index=3, step=2, by="reward")


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    return load_tokenizer(tiny_model)


@pytest.fixture
def make(tokenizer):
    def buffer(check=None, *, batch=4, **keys):
        data = {name: keys.pop(name) for name in list(keys) if name in ("truncation", "filter_overlong_prompts")}
        augment = AugmentConfig(enable=True, **keys)
        config = DataConfig(train_batch_size=batch, max_prompt_length=32, augment=augment, **data)
        return PromptBuffer(config, tokenizer, check)

    return buffer


def nested(levels):
    return reduce(lambda inner, _: [inner], range(levels), [])


CIRCLE = {}
CIRCLE["itself"] = CIRCLE


def proposal(*rows, origin=ORIGIN):
    return [Proposal(list(rows), origin)]


def asked(rows):
    return [row["raw_prompt"][0]["content"] for row in rows]


def test_rows_are_completed_in_values_of_json_and_carry_their_origin(make):
    buffer = make()
    given = {"prompt": "2+2=?", "extra_info": {"hard": True, "augmented": "stale"}, "uid": 9}
    assert buffer.add(proposal(given)).added == 1 and given["extra_info"]["augmented"] == "stale"
    (row,) = buffer.take(4)
    assert row["raw_prompt"] == [{"role": "user", "content": "2+2=?"}]
    augmented = {"from_uid": 7, "from_index": 3, "step": 2, "by": "reward", "depth": 1}
    assert row["extra_info"] == {"hard": True, "augmented": augmented}
    assert row["augmented"] == row["extra_info"]["augmented"], "what is handed out is marked"
    assert (row["data_source"], row["index"], row["row_uid"]) == ("unknown", 3, 9)
    assert row["reward_model"] == {"style": "rule", "ground_truth": None} and "uid" not in row
    buffer.add(proposal({"prompt": "a", "index": 5}, {"prompt": "b", "extra_info": {"index": "x"}}))
    assert [row["index"] for row in buffer.take(4)] == [5, "x"], "an index that the row brings is kept"
    buffer = make()
    given = {"array": np.arange(2), "number": np.float32(0.5), "set": {1}, "pair": (1, 2), "object": Fraction(1, 2)}
    messages = np.array([{"role": "user", "content": "a"}], dtype=object)
    buffer.add(proposal({"prompt": messages, "given": given, "extra_info": types.MappingProxyType({3: True})}))
    (row,) = buffer.take(4)
    assert row["given"] == {"array": [0, 1], "number": 0.5, "set": [1], "pair": [1, 2], "object": "1/2"}
    assert row["raw_prompt"] == [{"role": "user", "content": "a"}] and row["extra_info"]["3"] is True
    assert json.loads(json.dumps(row)) == row


@pytest.mark.parametrize(
    ("share", "size", "taken"), [(0.5, 5, 2), (0.5, 4, 2), (1.0, 4, 4), (0.29, 100, 29), (0.3, 3, 0), (0.9, 1000, 200)]
)
def test_a_batch_takes_at_most_its_share_oldest_first(make, share, size, taken):
    buffer = make(batch=1000, share=share)
    buffer.add(Proposal([{"prompt": str(i)}], ORIGIN) for i in range(200))
    assert asked(buffer.take(size)) == [str(i) for i in range(taken)]
    assert len(buffer) == 200 - taken


def test_a_prompt_waits_once_and_a_share_is_at_least_one_prompt(make):
    less = r"data\.augment\.share=0\.1 of data\.train_batch_size=4 .* raise it to 0\.25"
    refused(less, make, share=0.1, error=ConfigError)
    buffer = make()
    messages = [{"content": "a", "role": "user"}]
    intake = buffer.add(proposal({"prompt": "a"}, {"prompt": messages, "data_source": "other"}, {"prompt": "b"}))
    assert (intake.added, intake.duplicates, len(buffer)) == (2, 1, 2)
    buffer.take(2)
    assert buffer.add(proposal({"prompt": "a"})).added == 1, "what was drawn may come again"


@pytest.mark.parametrize(
    ("keys", "counts", "left"),
    [({}, (4, 2, 0), ["c", "a"]), ({"on_full": "drop_new"}, (2, 1, 1), ["a", "b"])],
)
def test_a_full_buffer_drops_the_oldest_or_the_new_rows(make, keys, counts, left):
    buffer = make(buffer_size=2, **keys)
    intake = buffer.add(proposal({"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}, {"prompt": "a"}))
    assert (intake.added, intake.dropped, intake.duplicates) == counts
    assert asked(buffer.take(4)) == left


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("2+2=?", "a new prompt is a str ('2+2=?'), expected a row"),
        ({"question": "2+2=?"}, "field 'prompt' is missing or null (the row has: question"),
        ({"prompt": []}, "field 'prompt': the list of messages is empty"),
        ({"prompt": "a", "extra_info": "hard"}, "field 'extra_info' is a str ('hard'), expected an object"),
        ({"prompt": "a", "images": ["a.png"]}, "not available yet: images in prompts (a new prompt)"),
        ({"prompt": "9" * 50}, "tokens, over data.max_prompt_length=32"),
        ({"prompt": "\ud800"}, "the text has a lone surrogate (\\ud800)"),
        ({"prompt": "a", "deep": nested(2000)}, "a new prompt is nested more than 64 levels deep"),
        ({"prompt": "a", "deep": nested(70)}, "a new prompt is nested more than 64 levels deep"),
        (nested(2000), "a new prompt is a list ([[[[[[[...]]]]]]]), expected a row"),
        ({"prompt": "a", "extra_info": CIRCLE}, "a new prompt holds what JSON cannot: Circular reference"),
        ({"prompt": "a", "extra_info": {("a", "b"): 1}}, "a new prompt holds what JSON cannot: keys must be str"),
        ({"prompt": "a", "large": 10**5000}, "a new prompt holds what JSON cannot: Exceeds the limit"),
        ({"prompt": "bad"}, "the checker says no"),
    ],
)
def test_bad_rows_are_refused_and_the_rest_enters(make, row, reason):
    buffer = make(lambda row: "the checker says no" if row["raw_prompt"][0]["content"] == "bad" else None)
    intake = buffer.add(proposal({"prompt": "first"}, row, row, {"prompt": "last"}))
    assert (intake.added, intake.refused) == (2, 2)
    ((said, origin),) = intake.reasons.items()
    assert reason in said and origin == ORIGIN
    assert asked(buffer.take(4)) == ["first", "last"]


def test_proposals_other_than_a_list_are_refused_and_long_prompts_enter_where_they_would_be_cut(make):
    for keys, kept in (({}, 1), ({"filter_overlong_prompts": True}, 0)):
        intake = make(truncation="left", **keys).add(proposal({"prompt": "9" * 50}))
        assert (intake.refused, intake.added) == (1 - kept, kept)
    given = {"dict ({'prompt': 'a'})": {"prompt": "a"}, "str ('a')": "a", "int (3)": 3}
    intake = make().add([Proposal(rows, ORIGIN) for rows in given.values()])
    assert intake.refused == 3
    assert list(intake.reasons) == [f"new_prompts is a {shown}, expected a list of rows" for shown in given]


def test_rows_over_the_limit_of_a_trajectory_are_dropped_and_not_rendered(make):
    seen = []
    buffer = make(lambda row: seen.append(row))
    intake = buffer.add([Proposal([{"prompt": f"{t}.{i}"} for i in range(100)], ORIGIN) for t in range(2)])
    assert (intake.added, intake.dropped, len(seen)) == (2 * MOST_ROWS, 2 * (100 - MOST_ROWS), 2 * MOST_ROWS)
    assert asked(buffer.take(4)) == ["0.0", "0.1"]
    seen.clear()
    buffer = make(lambda row: seen.append(row), buffer_size=2, on_full="drop_new")
    intake = buffer.add(proposal(*({"prompt": str(i)} for i in range(50))))
    assert (intake.added, intake.dropped, len(seen)) == (2, 48, 2)


def test_a_buffer_read_back_from_json_is_the_same(make):
    rows = [{"prompt": str(i), "extra_info": {"x": (1, 2.5), "nan": None}, "n": i} for i in range(6)]
    whole, again = make(), make()
    whole.add(proposal(*rows))
    whole.take(4)
    again.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert again.add(proposal(rows[0], rows[4])).duplicates == whole.add(proposal(rows[0], rows[4])).duplicates == 1
    assert again.take(10) == whole.take(10)
