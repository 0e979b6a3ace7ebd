"""PRIME: against a plain loop, and groups of one. Equal rewards, and what all estimators share: test_advantages.py."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.algorithms.advantages.prime import prime
from burnish.errors import BurnishError
from tests.algorithms.helpers import assert_close, make_advantage_inputs


def make_inputs(rewards, process_rewards, mask, uids, **config):
    inputs = make_advantage_inputs(rewards, mask, uids, **config)
    return dataclasses.replace(inputs, process_rewards=torch.as_tensor(process_rewards, dtype=torch.float32))


def random_inputs(seed, uids=(0, 0, 0, 1, 1, 2), width=8, filled=0.6, **config):
    random = torch.Generator().manual_seed(seed)
    rewards, process = torch.randn(2, len(uids), width, generator=random)
    mask = torch.rand(len(uids), width, generator=random) < filled
    return make_inputs(rewards, process, mask, list(uids), **config)


def plain_loop(inputs):
    """The paper's formula, sample by sample and token by token, on the policy's tokens."""
    config, rows = inputs.config, range(len(inputs.uids))
    columns = [[t for t in range(inputs.response_mask.shape[1]) if inputs.response_mask[i, t]] for i in rows]
    outcome = [sum(float(inputs.token_level_rewards[i, t]) for t in columns[i]) for i in rows]
    process = [[float(inputs.process_rewards[i, t]) for t in columns[i]] for i in rows]
    means = [sum(steps) / max(len(steps), 1) for steps in process]
    advantages = torch.zeros_like(inputs.token_level_rewards, dtype=torch.float64)
    for i in rows:
        others = [j for j in rows if j != i and inputs.uids[j] == inputs.uids[i]]
        outcome_baseline = sum(outcome[j] for j in others) / max(len(others), 1)
        process_baseline = sum(means[j] for j in others) / max(len(others), 1)
        for k, t in enumerate(columns[i]):
            to_go = sum(config.gamma**s * (r - process_baseline) for s, r in enumerate(process[i][k:]))
            advantages[i, t] = config.reward_gt_coef * (outcome[i] - outcome_baseline) + config.reward_dpo_coef * to_go
    return advantages


@given(
    seed=st.integers(0, 10**6),
    uids=st.lists(st.integers(0, 3), min_size=1, max_size=9),
    width=st.integers(1, 12),
    filled=st.sampled_from([0.3, 0.7, 1.0]),
    gamma=st.floats(0, 1),
    coefficients=st.tuples(st.floats(0, 5), st.floats(0, 5)),
)
@settings(max_examples=60, deadline=None)
def test_equal_to_a_plain_loop(seed, uids, width, filled, gamma, coefficients):
    outcome, process = coefficients
    config = {"gamma": gamma, "reward_gt_coef": outcome, "reward_dpo_coef": process}
    inputs = random_inputs(seed, uids, width, filled, **config)
    advantages, returns = prime(inputs)
    assert_close(advantages, plain_loop(inputs))
    assert torch.equal(advantages, returns)


def test_a_group_of_one_keeps_its_rewards_and_a_sample_without_policy_tokens_counts_with_zero():
    inputs = make_inputs([[0, 0.75]], [[0.5, 0.25]], [[1, 1]], ["a"])
    assert prime(inputs)[0].tolist() == [[1.5, 1.0]]
    inputs = make_inputs([[0, 1.0], [5, 5]], [[0.5, 0.25], [7, 7]], [[1, 1], [0, 0]], ["a", "a"])
    assert prime(inputs)[0].tolist() == [[1.75, 1.25], [0, 0]]
    assert not prime(dataclasses.replace(inputs, response_mask=torch.zeros(2, 2)))[0].any(), "no step at all"
    with pytest.raises(BurnishError, match=r"prime needs a reward for each token.*Needs\(process_reward=True\)"):
        prime(dataclasses.replace(inputs, process_rewards=None))
