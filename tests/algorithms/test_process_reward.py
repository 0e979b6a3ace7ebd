"""The implicit process reward and its loss: the plain formulas, any cut, holes in the mask, sums that are far out."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.algorithms.aggregate import LossCounts
from burnish.algorithms.process_reward import outcome_loss, process_rewards
from burnish.algorithms.tally import merge

BETA = 0.05
ROWS, WIDTH = 6, 7


def make(seed=0):
    """Log-probs of model and start, a mask with holes, and hard and soft outcomes; float64."""
    random = torch.Generator().manual_seed(seed)
    log_prob, start = -torch.rand(2, ROWS, WIDTH, generator=random, dtype=torch.float64) * 30
    mask = (torch.rand(ROWS, WIDTH, generator=random) < 0.6).long()
    return log_prob, start, mask, torch.tensor([0.0, 1.0, 1.0, 0.0, 0.3, 0.8])


def evaluate(log_prob, start, mask, outcomes, counts=None):
    """Loss, metrics and ∂loss/∂log_prob of one micro-batch."""
    leaf = log_prob.clone().requires_grad_()
    rewards = process_rewards(leaf, start, mask, BETA)
    loss, metrics = outcome_loss(rewards, outcomes, mask, counts or LossCounts.of(mask))
    loss.backward()
    return loss.detach(), metrics, leaf.grad


def test_a_token_is_worth_its_log_ratio_to_the_start():
    log_prob, start = torch.tensor([[-1.0, -2.0, -3.0]]), torch.tensor([[-3.0, -1.0, -9.0]])
    rewards = process_rewards(log_prob, start, torch.tensor([[1, 1, 0]]), beta=0.5)
    assert rewards.tolist() == [[1.0, -0.5, 0.0]]


@pytest.mark.parametrize("seed", range(4))
def test_the_loss_is_the_plain_formula(seed):
    log_prob, start, mask, outcomes = make(seed)
    mask[0] = 0  # a row without policy tokens is no sequence
    loss, metrics, slope = evaluate(log_prob, start, mask, outcomes)
    total, right, rewards, gradient = 0.0, 0, [], torch.zeros_like(slope)
    for row in range(1, ROWS):
        tokens = [t for t in range(WIDTH) if mask[row, t]]
        rewards += [BETA * (log_prob[row, t] - start[row, t]).item() for t in tokens]
        score = 1 / (1 + math.exp(-sum(rewards[-len(tokens) :])))
        wanted = outcomes[row].item()
        total -= wanted * math.log(score) + (1 - wanted) * math.log(1 - score)
        right += (score > 0.5) == (wanted > 0.5)
        gradient[row, tokens] = BETA * (score - wanted) / (ROWS - 1)
    assert loss.item() == pytest.approx(total / (ROWS - 1))
    torch.testing.assert_close(slope, gradient)
    assert merge([metrics]) == pytest.approx(
        {"process_reward/accuracy": right / (ROWS - 1), "process_reward/reward_mean": sum(rewards) / len(rewards)}
    )


@given(seed=st.integers(0, 10**6), cut_of_row=st.lists(st.integers(0, 2), min_size=ROWS, max_size=ROWS))
@settings(max_examples=30, deadline=None)
def test_any_cut_gives_the_same_loss_gradient_and_metrics(seed, cut_of_row):
    batch = make(seed)
    counts = LossCounts.of(batch[2])
    loss, metrics, slope = evaluate(*batch)
    summed, parts, pieces = 0, [], torch.zeros_like(slope)
    for part in range(3):
        rows = torch.tensor([row for row, of in enumerate(cut_of_row) if of == part], dtype=torch.long)
        part_loss, part_metrics, pieces[rows] = evaluate(*(column[rows] for column in batch), counts)
        summed, parts = summed + part_loss, [*parts, part_metrics]
    torch.testing.assert_close(summed, loss)
    torch.testing.assert_close(pieces, slope)
    assert merge(parts) == pytest.approx(merge([metrics]), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("replaced", [(0,), (1,), (0, 1)], ids=["model", "start", "both"])
def test_observation_tokens_change_nothing(replaced, junk):
    batch = make(3)
    mask = batch[2]
    loss, metrics, slope = evaluate(*batch)
    assert not slope[mask == 0].any() and slope[mask == 1].all()
    changed = [c.masked_fill(mask == 0, junk) if place in replaced else c for place, c in enumerate(batch)]
    other_loss, other_metrics, other_slope = evaluate(*changed)
    assert torch.equal(loss, other_loss) and torch.equal(slope, other_slope)
    assert merge([metrics]) == merge([other_metrics])
    rewards = process_rewards(*batch[:3], BETA)
    assert torch.equal(process_rewards(*changed[:3], BETA), rewards)
    other_loss, other_metrics = outcome_loss(rewards.masked_fill(mask == 0, junk), batch[3], mask, LossCounts.of(mask))
    assert torch.equal(loss, other_loss) and merge([metrics]) == merge([other_metrics])


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


def test_untrained_the_model_knows_nothing():
    log_prob, _, mask, outcomes = make()
    loss, metrics, _ = evaluate(log_prob, log_prob, mask, outcomes)
    assert loss.item() == pytest.approx(math.log(2))
    assert merge([metrics])["process_reward/accuracy"] == pytest.approx(0.5)  # three of six outcomes are not above 0.5
