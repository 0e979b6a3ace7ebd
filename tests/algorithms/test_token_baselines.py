"""The optimal token baselines: recorded results, a plain loop, lone positions. See also test_advantages.py."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.algorithms.advantages.optimal_token_baseline import optimal_token_baseline, tir_optimal_token_baseline
from burnish.errors import BurnishError
from tests.algorithms.helpers import assert_close, make_advantage_inputs
from tests.recorded import each, golden

ESTIMATORS = {function.__name__: function for function in (optimal_token_baseline, tir_optimal_token_baseline)}
BY_COLUMN, BY_TOKEN = ESTIMATORS
CASES = [case for case in golden("advantages") if case["params"]["estimator"] in ESTIMATORS]
either = pytest.mark.parametrize("name", ESTIMATORS)


def make_inputs(rewards, mask, uids, log_probs, sum_pi_squared, weights=None):
    return dataclasses.replace(
        make_advantage_inputs(rewards, mask, uids),
        old_log_probs=torch.as_tensor(log_probs),
        outputs={"sum_pi_squared": torch.as_tensor(sum_pi_squared)},
        rollout_is_weights=None if weights is None else torch.as_tensor(weights),
    )


def random_inputs(seed, uids=(0, 0, 0, 1, 1, 2), width=8, filled=0.6, weighted=True):
    """A batch with holes in its masks, of distributions over five tokens."""
    random, size = torch.Generator().manual_seed(seed), (len(uids), width)
    policy = torch.softmax(2 * torch.randn(*size, 5, generator=random), -1)
    return make_inputs(
        torch.randn(size, generator=random),
        torch.rand(size, generator=random) < filled,
        list(uids),
        policy[..., 0].log(),
        (policy**2).sum(-1),
        torch.rand(size, generator=random) + 0.5 if weighted else None,
    )


def plain_loop(inputs, name, handle_zero_tail):
    """Advantages and returns by the formulas, one token at a time, in float64."""
    mask, rewards = inputs.response_mask.bool(), inputs.token_level_rewards.double()
    rows, width = mask.shape
    tokens = {}  # (group, position) → [(row, column, return, weight)]
    returns, advantages = torch.zeros(rows, width).double(), torch.zeros(rows, width).double()
    for i in range(rows):
        power, columns = 0.0, [t for t in range(width) if mask[i, t]]
        for position, t in enumerate(columns):
            rho = 1.0 if inputs.rollout_is_weights is None else float(inputs.rollout_is_weights[i, t])
            pi = float(inputs.old_log_probs[i, t].double().exp())
            power += (1 - 2 * pi + float(inputs.outputs["sum_pi_squared"][i, t])) * rho**2
            returns[i, t] = sum(rewards[i, s] for s in columns[position:])
            place = (inputs.uids[i], position if name == BY_TOKEN else t)
            tokens.setdefault(place, []).append((i, t, returns[i, t], power))
    for (uid, _), here in tokens.items():
        baseline = sum(g * w for *_, g, w in here) / sum(w for *_, w in here)
        if list(inputs.uids).count(uid) == 1 or (handle_zero_tail and len(here) == 1):
            baseline = 0.0
        for i, t, g, _ in here:
            advantages[i, t] = g - baseline
    return advantages, returns


def recorded_tails(mask, uids):
    """Where the reference takes 0 for a baseline: in the longest response of a group (by count of policy tokens), from
    the column on that equals the count of the second longest."""
    tails, counts = torch.zeros_like(mask), mask.sum(-1)
    for uid in set(uids):
        rows = sorted((i for i in range(len(uids)) if uids[i] == uid), key=lambda i: -counts[i])
        if len(rows) > 1 and counts[rows[0]] > counts[rows[1]]:
            tails[rows[0], counts[rows[1]] :] = True
    return tails & mask


@each(CASES)
def test_golden(case):
    given_, name, tail = case["inputs"], case["params"]["estimator"], case["params"]["handle_zero_tail"]
    keys = ("token_level_rewards", "response_mask", "uid", "old_log_probs", "sum_pi_squared", "rollout_is_weights")
    inputs = make_inputs(*(given_.get(key) for key in keys))
    mask = inputs.response_mask.bool()
    want = {key: torch.tensor(case["expected"][key]) for key in ("advantages", "returns")}
    advantages, returns = ESTIMATORS[name](inputs, handle_zero_tail=tail)
    assert_close(returns[mask], want["returns"][mask])
    if tail and name == BY_COLUMN:
        # By column, the reference misses the positions with one sample as soon as there are holes.
        theirs = recorded_tails(mask, uids := given_["uid"])
        same = torch.tensor([[a == b for b in uids] for a in uids])
        ours = mask & ((same.long() @ mask.long()) == 1) & (same.sum(-1, keepdim=True) > 1)  # in a larger group
        assert torch.equal(theirs, ours) == ("multi" not in case["name"])
        want["advantages"][ours] = want["returns"][ours]
        shared = theirs & ~ours
        want["advantages"][shared] = plain_loop(inputs, name, tail)[0][shared].float()
    assert_close(advantages[mask], want["advantages"][mask])
    assert not advantages[~mask].any() and not returns[~mask].any()


@either
@given(
    seed=st.integers(0, 10**6),
    uids=st.lists(st.integers(0, 3), min_size=1, max_size=9),
    width=st.integers(1, 12),
    filled=st.sampled_from([0.3, 0.7, 1.0]),
    weighted=st.booleans(),
    tail=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_equal_to_a_plain_loop(name, seed, uids, width, filled, weighted, tail):
    inputs = random_inputs(seed, uids, width, filled, weighted)
    for got, want in zip(ESTIMATORS[name](inputs, tail), plain_loop(inputs, name, tail), strict=True):
        assert_close(got, want)


@either
@given(
    reward=st.floats(-1e6, 1e6, width=32),
    lengths=st.lists(st.integers(0, 6), min_size=2, max_size=20),
    tail=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_equal_rewards_give_exactly_zero(name, reward, lengths, tail):
    mask = torch.arange(6) < torch.tensor(lengths)[:, None]
    rewards = torch.zeros(mask.shape)
    for row, length in enumerate(lengths):
        rewards[row, length - 1] = reward
    inputs = dataclasses.replace(
        random_inputs(5, [7] * len(lengths), width=6), response_mask=mask, token_level_rewards=rewards
    )
    advantages, returns = ESTIMATORS[name](inputs, tail)
    lone = mask & (mask.sum(0) == 1)
    assert not advantages[~lone].any()
    assert torch.equal(advantages[lone], returns[lone] if tail else torch.zeros(int(lone.sum())))
    rewards = reward * torch.tensor([0.1, 0.7, -0.3, 0.2, 1e-4, 0.9]).expand(7, 6)  # on every token
    inputs = dataclasses.replace(random_inputs(6, [1] * 7, width=6, filled=1.0), token_level_rewards=rewards)
    assert not ESTIMATORS[name](inputs)[0].any()


@either
@pytest.mark.parametrize("rounding", [0.0, -1e-7, 1e-30])
def test_a_certain_policy_is_compared_with_the_plain_mean_and_missing_inputs_are_named(name, rounding):
    rewards = [[0, 1.0], [0, 3.0], [0, 8.0]]
    ones = torch.ones(3, 2)
    advantages, _ = ESTIMATORS[name](make_inputs(rewards, ones, [1, 1, 1], 0 * ones, ones + rounding))
    torch.testing.assert_close(advantages[:, 0], torch.tensor([-3.0, -1.0, 4.0]))
    inputs = random_inputs(11)
    needs = r'Needs\(groups=True, outputs=\("sum_pi_squared",\)\)'
    with pytest.raises(BurnishError, match=f"sum_pi_squared of the log-prob pass, which is missing.*{needs}"):
        ESTIMATORS[name](dataclasses.replace(inputs, outputs={}))
    with pytest.raises(BurnishError, match=f"old_log_probs, which are missing.*{needs}"):
        ESTIMATORS[name](dataclasses.replace(inputs, old_log_probs=None))
