"""The implicit process reward with its loss, and PRIME's advantages: plain formulas, any cut, holes in the mask."""

import dataclasses
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.algorithms.advantages.prime import prime
from burnish.algorithms.aggregate import LossCounts
from burnish.algorithms.process_reward import outcome_loss, process_rewards
from burnish.algorithms.tally import merge
from burnish.errors import BurnishError
from tests.algorithms.helpers import (
    ROWS,
    WIDTH,
    assert_close,
    assert_not_read,
    assert_same_in_parts,
    gradient,
    make_advantage_inputs,
)

BETA = 0.05


@dataclass(frozen=True)
class Batch:
    log_prob: torch.Tensor
    start: torch.Tensor
    response_mask: torch.Tensor
    outcomes: torch.Tensor
    counts: LossCounts


def batch_of(*columns):
    return Batch(*columns, LossCounts.of(columns[2]))


def make(seed=0):
    """Log-probs of model and start, a mask with holes, and hard and soft outcomes; float64."""
    random = torch.Generator().manual_seed(seed)
    log_prob, start = -torch.rand(2, ROWS, WIDTH, generator=random, dtype=torch.float64) * 30
    mask = (torch.rand(ROWS, WIDTH, generator=random) < 0.6).long()
    return log_prob, start, mask, torch.tensor([0.0, 1.0, 1.0, 0.0, 0.3, 0.8])


def loss_of(batch):
    rewards = process_rewards(batch.log_prob, batch.start, batch.response_mask, BETA)
    return outcome_loss(rewards, batch.outcomes, batch.response_mask, batch.counts)


def evaluate(*columns):
    """Loss, metrics and ∂loss/∂log_prob of a mini-batch."""
    return gradient(loss_of, batch_of(*columns), "log_prob")


def test_a_token_is_worth_its_log_ratio_to_the_start():
    log_prob, start = torch.tensor([[-1.0, -2.0, -3.0]]), torch.tensor([[-3.0, -1.0, -9.0]])
    rewards = process_rewards(log_prob, start, torch.tensor([[1, 1, 0]]), beta=0.5)
    assert rewards.tolist() == [[1.0, -0.5, 0.0]]
    log_prob, _, mask, outcomes = make()
    loss, metrics, _ = evaluate(log_prob, log_prob, mask, outcomes)
    assert loss.item() == pytest.approx(math.log(2)), "untrained the model knows nothing"
    assert merge([metrics])["process_reward/accuracy"] == pytest.approx(0.5)  # three of six outcomes are not above 0.5


@pytest.mark.parametrize("seed", range(4))
def test_the_loss_is_the_plain_formula(seed):
    log_prob, start, mask, outcomes = make(seed)
    mask[0] = 0  # a row without policy tokens is no sequence
    loss, metrics, slope = evaluate(log_prob, start, mask, outcomes)
    total, right, rewards, expected = 0.0, 0, [], torch.zeros_like(slope)
    for row in range(1, ROWS):
        tokens = [t for t in range(WIDTH) if mask[row, t]]
        rewards += [BETA * (log_prob[row, t] - start[row, t]).item() for t in tokens]
        score = 1 / (1 + math.exp(-sum(rewards[-len(tokens) :])))
        wanted = outcomes[row].item()
        total -= wanted * math.log(score) + (1 - wanted) * math.log(1 - score)
        right += (score > 0.5) == (wanted > 0.5)
        expected[row, tokens] = BETA * (score - wanted) / (ROWS - 1)
    assert loss.item() == pytest.approx(total / (ROWS - 1))
    torch.testing.assert_close(slope, expected)
    assert merge([metrics]) == pytest.approx(
        {"process_reward/accuracy": right / (ROWS - 1), "process_reward/reward_mean": sum(rewards) / len(rewards)}
    )


@given(seed=st.integers(0, 10**6), cut_of_row=st.lists(st.integers(0, 2), min_size=ROWS, max_size=ROWS))
@settings(max_examples=30, deadline=None)
def test_any_cut_gives_the_same_loss_gradient_and_metrics(seed, cut_of_row):
    parts = [[row for row, of in enumerate(cut_of_row) if of == part] for part in range(3)]
    assert_same_in_parts(loss_of, batch_of(*make(seed)), "log_prob", parts)


def test_observation_tokens_change_nothing(junk):
    batch = batch_of(*make(3))
    assert_not_read(loss_of, batch, ["log_prob", "start"], junk)
    mask = batch.response_mask
    rewards = process_rewards(batch.log_prob, batch.start, mask, BETA)
    (loss, metrics), (other_loss, other_metrics) = (
        outcome_loss(given, batch.outcomes, mask, batch.counts)
        for given in (rewards, rewards.masked_fill(mask == 0, junk))
    )
    assert not rewards[mask == 0].any() and torch.equal(loss, other_loss)
    assert merge([metrics]) == merge([other_metrics])


def test_padding_rows_teach_nothing(junk):
    """Copies that fill a batch up have a mask of 0; whatever their outcome is, they are not counted."""
    batch = make(1)
    loss, metrics, slope = evaluate(*batch)
    padded = [torch.cat([column, column[:2]]) for column in batch]
    padded[2][ROWS:] = 0
    padded[3][ROWS:] = junk
    other_loss, other_metrics, other_slope = evaluate(*padded)
    assert other_loss.item() == pytest.approx(loss.item()) and merge([other_metrics]) == pytest.approx(merge([metrics]))
    torch.testing.assert_close(other_slope[:ROWS], slope)
    assert not other_slope[ROWS:].any()
    loss, metrics, slope = evaluate(*batch[:2], torch.zeros_like(batch[2]), batch[3])
    assert loss.item() == 0 and not slope.any(), "of nothing but such rows"
    assert merge([metrics]) == {"process_reward/accuracy": 0, "process_reward/reward_mean": 0}


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_far_on_the_wrong_side_keeps_its_loss_and_gradient(sign):
    """σ(±500) is 0 or 1 in float32, where a cross-entropy of probabilities has no logarithm and no gradient."""
    mask = torch.ones(1, 10, dtype=torch.long)
    log_prob = torch.full((1, 10), sign * 1000.0)  # Σ r = ±500
    loss, metrics, slope = evaluate(log_prob, torch.zeros(1, 10), mask, torch.tensor([float(sign < 0)]))
    assert loss.item() == pytest.approx(500)
    torch.testing.assert_close(slope, torch.full((1, 10), sign * BETA))
    assert merge([metrics])["process_reward/accuracy"] == 0


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
