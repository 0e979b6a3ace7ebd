"""What a scoring function may return."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from burnish.rewards.contract import BadResult, checked_result, plain


@pytest.mark.parametrize(
    ("value", "score"),
    [
        *[(1, 1.0), (0.5, 0.5), (True, 1.0), (np.float32(0.5), 0.5), (np.int64(2), 2.0), (np.bool_(True), 1.0)],
        *[(np.array(0.25), 0.25), (torch.tensor(0.25), 0.25), (Fraction(1, 4), 0.25)],
    ],
)
def test_numbers(value, score):
    result = checked_result(value)
    assert result == (score, {}) and type(result[0]) is float
    assert checked_result({"score": value}) == (score, {})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "my_score returned None; return a finite number"),
        ("1.0", "my_score returned '1.0' (str); return a finite number"),
        (float("nan"), "my_score returned nan; return a finite number"),
        (np.float32("nan"), "my_score returned nan;"),
        (-math.inf, "my_score returned -inf;"),
        (10**400, "my_score returned inf;"),
        ([1.0], "my_score returned [1.0] (list);"),
        ((1.0, {}), "my_score returned (1.0, {}) (tuple);"),
        (torch.tensor([1.0]), "my_score returned tensor([1.]) (Tensor);"),
        ({"reward": 1.0, "acc": 1}, "my_score returned a dict without \"score\" (keys: ['acc', 'reward']);"),
        ({"score": None}, 'my_score returned "score": None;'),
        ({"score": float("nan")}, 'my_score returned "score": nan;'),
        ({"score": "high"}, "my_score returned \"score\": 'high' (str);"),
    ],
)
def test_what_is_no_score_says_what_came_and_what_is_needed(value, said):
    with pytest.raises(BadResult) as error:
        checked_result(value, "my_score")
    assert str(error.value).startswith(said)
    assert str(error.value).endswith('return a finite number, or a dict with one under "score"')


def test_other_keys_become_info():
    value = {
        "score": 1,
        "acc": np.float64(0.5),
        "pred": "7",
        "parts": (1, np.arange(2)),
        "who": Fraction(1, 2),
        3: None,
    }
    assert checked_result(value) == (1.0, {"acc": 0.5, "pred": "7", "parts": [1, [0, 1]], "who": "1/2", "3": None})


def test_plain_keeps_text_of_what_json_lacks():
    assert plain({"a": {1}, "b": b"x", "c": {("k",): 1}}) == {"a": [1], "b": "b'x'", "c": {"('k',)": 1}}
