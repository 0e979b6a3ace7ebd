"""The implicit process reward and its loss: the plain formulas, any cut, holes in the mask, sums that are far out."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.algorithms.aggregate import LossCounts
from burnish.algorithms.process_reward import outcome_loss, process_rewards
from burnish.algorithms.tally import merge
from tests.algorithms.helpers import ROWS, WIDTH, assert_not_read, assert_same_in_parts, gradient

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
