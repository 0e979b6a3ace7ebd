"""What a scoring function may return."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from burnish.rewards.contract import (
    SHOWN_RESPONSE,
    BadResult,
    ScoreRequest,
    ScoreResult,
    checked_result,
    checked_results,
    plain,
    shortened,
)
from burnish.rewards.function import result_of


@pytest.mark.parametrize(
    ("value", "score"),
    [
        *[(1, 1.0), (0.5, 0.5), (True, 1.0), (np.float32(0.5), 0.5), (np.int64(2), 2.0), (np.bool_(True), 1.0)],
        *[(np.array(0.25), 0.25), (torch.tensor(0.25), 0.25), (Fraction(1, 4), 0.25)],
    ],
)
def test_numbers(value, score):
    result = checked_result(value)
    assert result == {"score": score, "info": {}} and type(result["score"]) is float
    assert checked_result({"score": value}) == result


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
    parts = {"acc": np.float64(0.5), "pred": "7", "parts": (1, np.arange(2)), "who": Fraction(1, 2), 3: None}
    info = {"acc": 0.5, "pred": "7", "parts": [1, [0, 1]], "who": "1/2", "3": None}
    assert checked_result({"score": 1, **parts}) == {"score": 1.0, "info": info}
    assert plain({"a": {1}, "b": b"x", "c": {("k",): 1}}) == {"a": [1], "b": "b'x'", "c": {"('k',)": 1}}
    numbers = {"n": "a whole number of 16610 bits", "m": 10**400, "l": ["a whole number of 20001 bits"]}
    assert plain({"n": 10**5000, "m": 10**400, "l": [-(2**20_000)]}) == numbers, "those that cannot be written"


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_results_of_a_batch(kind):
    assert checked_results(kind([0.5, 1.0]), 2, "it") == [{"score": score, "info": {}} for score in (0.5, 1.0)]


def test_one_bad_result_of_a_batch_is_its_own():
    good, more, bad, text = checked_results([1, {"score": 0, "acc": 1}, float("nan"), "x"], 4, "it")
    assert good == {"score": 1.0, "info": {}} and more == {"score": 0.0, "info": {"acc": 1}}
    assert bad["error"].startswith("it, for sample 2, returned nan;")
    assert text["error"].startswith("it, for sample 3, returned 'x' (str);")


@pytest.mark.parametrize(
    ("value", "count", "said"),
    [
        ([1.0], 2, "it returned 1 results for 2 samples; return a list with a result for each"),
        ([], 1, "it returned 0 results for 1 sample;"),
        (None, 2, "it returned None for 2 samples;"),
        (1.0, 2, "it returned 1.0 (float) for 2 samples;"),
        ("ab", 2, "it returned 'ab' (str) for 2 samples;"),
        ({"score": [1, 1]}, 2, "it returned {'score': [1, 1]} (dict) for 2 samples;"),
        (np.array(1.0), 1, "it returned array(1.) (ndarray) for 1 sample;"),
    ],
)
def test_a_result_that_is_not_a_list_is_refused(value, count, said):
    with pytest.raises(BadResult) as error:
        checked_results(value, count, "it")
    assert str(error.value).startswith(said)


def test_results_remember_their_request_where_it_failed():
    request = ScoreRequest("src", "a\x1b[2Jb\n" + "x" * 500, None, {}, index=7)
    good = result_of(request, {"score": 0.5, "info": {"acc": 1, "new_prompts": [{"prompt": "q"}]}}, 2.0)
    assert (good.score, good.info, good.new_prompts, good.seconds) == (0.5, {"acc": 1}, [{"prompt": "q"}], 2.0)
    assert (good.data_source, good.index, good.response) == ("src", None, "")
    bad = ScoreResult.failure(request, "why", 1.0)
    assert (bad.score, bad.error, bad.data_source, bad.index) == (None, "why", "src", 7)
    assert bad.response.startswith("a\\x1b[2Jb\\nxxx") and bad.response.endswith("x…")
    assert shortened("grüße 漢字 😀") == "grüße 漢字 😀"
    assert shortened("a\tb\r\u202e\ud800") == r"a\tb\r\u202e\ud800"
    assert shortened("y" * SHOWN_RESPONSE) == "y" * SHOWN_RESPONSE
    assert shortened("y" * 201) == "y" * 200 + "…"
