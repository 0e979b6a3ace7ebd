"""GAE and GRPO: the recorded figures, what holds beyond them, and masks with holes."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.algorithms.advantages.gae import discounted_sum_to_end, gae
from burnish.algorithms.advantages.grpo import grpo
from burnish.algorithms.advantages.inputs import Groups
from burnish.errors import BurnishError

CASES = json.loads((Path(__file__).parents[1] / "golden" / "advantages.json").read_text())
GAE = [case for case in CASES if case["params"]["estimator"] == "gae"]
GRPO = [case for case in CASES if case["params"]["estimator"] == "grpo"]


def inside(tensor, mask):
    return torch.as_tensor(tensor)[torch.as_tensor(mask).bool()]


@pytest.mark.parametrize("case", GAE, ids=lambda case: case["name"])
def test_gae_golden(case, make_advantage_inputs, assert_close):
    mask, params = case["inputs"]["response_mask"], case["params"]
    inputs = make_advantage_inputs(
        case["inputs"]["token_level_rewards"],
        mask,
        values=case["inputs"]["values"],
        gamma=params["gamma"],
        lam=params["lam"],
    )
    if "raises" in case["expected"]:
        with pytest.raises(BurnishError, match="at least two policy tokens"):
            gae(inputs)
        return
    for got, want in zip(gae(inputs), (case["expected"]["advantages"], case["expected"]["returns"]), strict=True):
        assert_close(inside(got, mask), inside(want, mask))
        assert not got[~torch.tensor(mask).bool()].any()  # the reference leaves numbers there


@pytest.mark.parametrize("case", GRPO, ids=lambda case: case["name"])
def test_grpo_golden(case, make_advantage_inputs, assert_close):
    rewards, mask = torch.tensor(case["inputs"]["token_level_rewards"]), case["inputs"]["response_mask"]
    if case["name"].endswith("dense_rewards_also_on_masked"):
        # The reference counts rewards on tokens the policy did not sample. Moved onto the first one it did sample,
        # they count for us too; where they were, they do not.
        moved = torch.zeros_like(rewards)
        moved[:, 0] = rewards.sum(-1)
        rewards = moved
    inputs = make_advantage_inputs(
        rewards, mask, case["inputs"]["uid"], norm_adv_by_std_in_grpo=case["params"]["norm_adv_by_std_in_grpo"]
    )
    advantages, returns = grpo(inputs, **{k: v for k, v in case["params"].items() if k == "epsilon"})
    assert_close(advantages, case["expected"]["advantages"])
    assert_close(returns, case["expected"]["returns"])


def test_grpo_ignores_rewards_the_policy_did_not_earn(make_advantage_inputs):
    mask = [[1, 0, 1], [1, 1, 0]]
    earned = grpo(make_advantage_inputs([[0, 0, 1], [0, 0, 0]], mask, ["a", "a"]))[0]
    padded = grpo(make_advantage_inputs([[0, 9, 1], [0, 0, float("nan")]], mask, ["a", "a"]))[0]
    assert torch.equal(earned, padded) and earned[0, 0] > 0


@given(
    reward=st.floats(-1e6, 1e6, width=32),
    size=st.integers(2, 40),
    norm=st.booleans(),
    where=st.lists(st.integers(0, 4)),
)
@settings(max_examples=60, deadline=None)
def test_grpo_gives_equal_rewards_exactly_zero(make_advantage_inputs, reward, size, norm, where):
    rewards = torch.zeros(size, 5)
    for row in range(size):
        rewards[row, where[row] if row < len(where) else 0] = reward
    inputs = make_advantage_inputs(rewards, torch.ones(size, 5), [7] * size, norm_adv_by_std_in_grpo=norm)
    assert not grpo(inputs)[0].any()


def test_grpo_gives_equal_sums_of_token_rewards_exactly_zero(make_advantage_inputs):
    tokens = [0.1, 0.7, -0.3, 0.2, 1e-4, 0.9]
    shuffled = [tokens[i:] + tokens[:i] for i in range(6)]  # float32 sums of these differ in the last digit
    assert not grpo(make_advantage_inputs(shuffled, torch.ones(6, 6), ["same"] * 6))[0].any()


def test_grpo_group_of_one_keeps_its_reward(make_advantage_inputs):
    inputs = make_advantage_inputs(
        [[0, 0.75], [1, 0], [0, 0]], torch.ones(3, 2), [1, 2, 2], norm_adv_by_std_in_grpo=False
    )
    assert grpo(inputs)[0].tolist() == [[0.75, 0.75], [0.5, 0.5], [-0.5, -0.5]]


def test_groups_do_not_depend_on_the_order_of_rows():
    values = torch.tensor([1.0, 10.0, 3.0, 30.0])
    assert Groups.of(np.array(["b", "a", "b", "a"], dtype=object)).mean(values).tolist() == [2.0, 20.0, 2.0, 20.0]


def plain_gae(rewards, values, mask, gamma, lam):
    """The recursion as it is written in the paper, on the policy's tokens one by one."""
    raw = torch.zeros_like(values)
    for row in range(len(values)):
        next_value = next_advantage = 0.0
        for t in reversed(range(values.shape[1])):
            if not mask[row, t]:
                continue
            delta = rewards[row, t] + gamma * next_value - values[row, t]
            next_advantage = delta + gamma * lam * next_advantage
            next_value = values[row, t]
            raw[row, t] = next_advantage
    return raw


@given(seed=st.integers(0, 10**6), width=st.integers(1, 20), gamma=st.floats(0, 1), lam=st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_gae_returns_equal_the_plain_recursion(make_advantage_inputs, assert_close, seed, width, gamma, lam):
    random = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, 4, width, generator=random)
    mask = torch.rand(4, width, generator=random) < 0.7
    mask[:2, 0] = True  # two policy tokens, so that there is a variance
    _, returns = gae(make_advantage_inputs(rewards, mask, values=values, gamma=gamma, lam=lam))
    want = (plain_gae(rewards.double(), values.double(), mask, gamma, lam) + values) * mask
    assert_close(returns, want)


def test_gae_without_values_says_what_is_missing(make_advantage_inputs):
    with pytest.raises(BurnishError, match=r"gae reads the critic's values.*Needs\(critic=True\)"):
        gae(make_advantage_inputs([[1.0, 0.0]], [[1, 1]]))


def test_discounted_sum_of_one_and_of_none():
    assert discounted_sum_to_end(torch.tensor([[3.0]]), 0.5).tolist() == [[3.0]]
    assert discounted_sum_to_end(torch.ones(1, 5), 0.5).tolist() == [[1.9375, 1.875, 1.75, 1.5, 1.0]]
    assert discounted_sum_to_end(torch.ones(1, 3), 0.0).tolist() == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize("estimate", [gae, grpo])
def test_observation_tokens_change_nothing(estimate, make_advantage_inputs, junk):
    random = torch.Generator().manual_seed(1)
    rewards, values = torch.randn(2, 6, 8, generator=random)
    mask = torch.rand(6, 8, generator=random) < 0.6
    inputs = make_advantage_inputs(rewards, mask, [0, 0, 0, 1, 1, 2], values=values, gamma=0.97, lam=0.9)
    replaced = dataclasses.replace(
        inputs,
        token_level_rewards=inputs.token_level_rewards.masked_fill(~mask, junk),
        values=values.masked_fill(~mask, junk),
    )
    for before, after in zip(estimate(inputs), estimate(replaced), strict=True):
        assert torch.equal(before, after)
        assert not before[~mask].any() and before[mask].any()


@pytest.mark.parametrize("estimate", [gae, grpo])
def test_observation_tokens_take_no_time(estimate, make_advantage_inputs):
    """Cutting the holes out of the responses gives the same numbers on the policy's tokens."""
    rewards, values = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(2))
    apart = torch.tensor([0, 1, 4, 5, 7])  # where the five tokens stand once there are holes between them
    wide = [torch.zeros(3, 9).index_copy(1, apart, tensor) for tensor in (rewards, values, torch.ones(3, 5))]
    config = {"uids": [1, 1, 1], "gamma": 0.9, "lam": 0.8}
    tight = estimate(make_advantage_inputs(rewards, torch.ones(3, 5), values=values, **config))
    holed = estimate(make_advantage_inputs(wide[0], wide[2], values=wide[1], **config))
    for want, got in zip(tight, holed, strict=True):
        torch.testing.assert_close(got[:, apart], want)
