"""Samples as a person reads them: texts and figures of each trajectory, without padding."""

from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from burnish.models.tiny import byte_tokenizer
from burnish.protocol import DataProto
from burnish.trainer.report import TokenTexts, agent_metrics, sample_rows


def batch_of_two(**columns):
    """A prompt "a" with the answer "xy", and "bc" with "z"; the first prompt and the second answer are padded."""
    tokenizer = byte_tokenizer()
    a, b, c, x, y, z = tokenizer("abcxyz")["input_ids"]
    tensors = {
        "prompts": torch.tensor([[0, a], [b, c]]),
        "responses": torch.tensor([[x, y], [z, 0]]),
        "attention_mask": torch.tensor([[0, 1, 1, 1], [1, 1, 1, 0]]),
        "response_mask": torch.tensor([[0, 1], [1, 0]]),
        "token_level_scores": torch.tensor([[0.0, 1.0], [0.5, 0.0]]),
    }
    others = {
        "uid": [7, 8], "sample": [0, 1], "data_source": ["toy", "toy"], "reward_model": [{"ground_truth": "3"}, None],
        "num_turns": [2, 2], "finish_reason": ["stop", "length"], "reward_info": [{"acc": 1}, {}],
        "policy_version": [3, None],
    }  # fmt: skip
    return DataProto.from_dict(tensors | columns, non_tensors=others), tokenizer


def test_rows_hold_the_real_tokens_and_plain_values():
    log_probs = torch.tensor([[0.0, -1.23456789], [-0.00001, 9.0]])
    first, second = sample_rows(*batch_of_two(rollout_log_probs=log_probs, advantages=torch.full((2, 2), 1 / 3)))
    assert (first["prompt"], first["response"], second["prompt"], second["response"]) == ("a", "xy", "bc", "z")
    assert (first["score"], second["score"]) == (1.0, 0.5)
    assert (first["response_mask"], second["response_mask"]) == ([0, 1], [1])
    assert (first["rollout_log_probs"], second["rollout_log_probs"]) == ([0.0, -1.2346], [0.0])
    assert (first["advantages"], second["advantages"]) == ([0.3333, 0.3333], [0.3333])
    assert (first["ground_truth"], second["ground_truth"]) == ("3", None)
    values = [*first["rollout_log_probs"], *first["response_mask"], first["score"]]
    assert not any(isinstance(value, np.generic) for value in values)


def test_versions_of_the_weights_that_sampled_are_in_it_and_columns_that_a_run_has_not_are_left_out():
    first, _ = sample_rows(*batch_of_two())
    assert not {"rollout_log_probs", "advantages", "token_versions"} & first.keys()
    first, second = sample_rows(*batch_of_two(token_versions=torch.tensor([[0, 4], [3, 0]])))
    assert (first["policy_version"], second["policy_version"]) == (3, None)
    assert (first["token_versions"], second["token_versions"]) == ([0, 4], [3])


def test_gap_of_rollout_and_training_is_written_where_there_is_one():
    log_probs = torch.tensor([[0.0, -1.0], [-0.5, 0.0]])
    first, second = sample_rows(*batch_of_two(rollout_log_probs=log_probs, old_log_probs=log_probs + 0.25))
    assert (first["log_prob_gap"], second["log_prob_gap"]) == ([0.0, 0.25], [0.25]), "0 outside the mask"
    first, _ = sample_rows(*batch_of_two(rollout_log_probs=log_probs, old_log_probs=log_probs))
    assert "log_prob_gap" not in first


@pytest.mark.parametrize("text", ["plain", "3 日本 ⇒ é", "\U0001f600!", "", "\U0001f468\u200d\U0001f469 x"])
def test_token_lengths_cut_the_text_where_its_tokens_end(text, tiny_model):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    ids = tokenizer(text)["input_ids"]
    lengths = TokenTexts(tokenizer).lengths(np.array(ids, dtype=int), tokenizer.decode(ids))
    assert len(lengths) == len(ids) and sum(lengths) == len(text)
    if text == "plain":
        ends = list(accumulate(lengths, initial=0))
        assert [text[start:end] for start, end in pairwise(ends)] == [tokenizer.decode([token]) for token in ids]


def test_token_lengths_of_broken_characters_and_of_decoders_that_strip_spaces():
    tokenizer = byte_tokenizer()
    ids = tokenizer("日本")["input_ids"][:-1]  # ends inside of a character
    text = tokenizer.decode(ids)
    assert sum(TokenTexts(tokenizer).lengths(np.array(ids, dtype=int), text)) == len(text)

    class Stripping:
        def decode(self, ids):
            return "".join(["", " a", " b"][token] for token in ids).removeprefix(" ")

    assert TokenTexts(Stripping()).lengths(np.array([1, 2, 1]), "a b a") == [1, 2, 2]
    assert TokenTexts(Stripping()).lengths(np.array([1, 2]), "another text") is None


AGENTS_REPORT = {
    "whole numbers have a mean and extremes, others a mean": (
        [{"env/actions": 1, "env/ratio": 0.5}, {"env/actions": 4, "env/ratio": 1.0}],
        {"env/actions/mean": 2.5, "env/actions/max": 4.0, "env/actions/min": 1.0, "env/ratio": 0.75},
    ),
    "one that is sometimes a fraction is no count": ([{"a/b": 1}, {"a/b": 0.5}], {"a/b": 0.75}),
    "trajectories without it do not count": ([{"a/b": 3.0}, {}, {"c/d": 1.0}], {"a/b": 3.0, "c/d": 1.0}),
    "nothing": ([{}, {}], {}),
    "a name without a group": ([{"steps": 2.0}], {"agent/steps": 2.0}),
    "tool calls are counted elsewhere": ([{"num_tool_calls": 3, "tools/calls": 3.0}], {"tools/calls": 3.0}),
    "no numbers": ([{"a": "text", "b": None, "c": [1], "d": {"a": 1}, "c/d": 1.0}], {"c/d": 1.0}),
    "numbers of arrays": (
        [{"a/b": np.float32(0.5), "c/d": np.int64(2)}, {"a/b": torch.tensor(1.5), "c/d": torch.tensor(4)}],
        {"a/b": 1.0, "c/d/mean": 3.0, "c/d/max": 4.0, "c/d/min": 2.0},
    ),
}


@pytest.mark.parametrize(("reported", "metrics"), AGENTS_REPORT.values(), ids=AGENTS_REPORT)
def test_metrics_of_agent_loops(reported, metrics):
    assert agent_metrics(reported) == metrics
