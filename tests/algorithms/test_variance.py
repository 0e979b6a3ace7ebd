"""The variance proxies: the recorded results, the gradient they stand for, and what is not counted."""

import pytest
import torch
from tensordict import TensorDict

from burnish.algorithms.variance import logit_gradient_power, variance_proxy_metrics
from tests.algorithms.helpers import assert_close
from tests.recorded import each, golden

CASES = golden("data_metrics", function="compute_variance_proxy_metrics")
assert len(CASES) == 9
POWER, NOISE = "variance_proxy/proxy2_total_power", "variance_proxy/proxy3_pure_noise"


def batch_of(case):
    return {name: torch.tensor(values) for name, values in case["inputs"]["batch"].items()}


def random_batch(seed=0, rows=4, width=6, vocabulary=5):
    random = torch.Generator().manual_seed(seed)
    policy = torch.softmax(2 * torch.randn(rows, width, vocabulary, generator=random), -1)
    mask = torch.rand(rows, width, generator=random) < 0.6
    mask[:, 0] = True
    return {
        "old_log_probs": policy[..., 0].log(),
        "sum_pi_squared": (policy**2).sum(-1),
        "advantages": torch.randn(rows, width, generator=random),
        "rollout_is_weights": torch.rand(rows, width, generator=random) + 0.5,
        "response_mask": mask.long(),
    }


@each(CASES)
def test_golden(case):
    norm = case["params"]["gradient_norm"]
    assert_close(variance_proxy_metrics(batch_of(case), norm), case["expected"]["metrics"])
    columns = TensorDict(batch_of(case), batch_size=len(case["inputs"]["batch"]["advantages"]))
    assert_close(variance_proxy_metrics(columns, norm), case["expected"]["metrics"])


def test_power_is_the_squared_norm_of_the_gradient_at_the_logits():
    logits = torch.randn(3, 4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    log_probs = logits.log_softmax(-1)
    chosen = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 0], [3, 3, 3, 3]])
    log_prob = log_probs.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
    (gradient,) = torch.autograd.grad(log_prob.sum(), logits)
    sum_pi_squared = log_probs.exp().square().sum(-1)
    power = logit_gradient_power(log_prob, sum_pi_squared, torch.ones(3, 4))
    assert_close(power.detach(), gradient.square().sum(-1))
    certain = logit_gradient_power(torch.zeros(1, 2), torch.tensor([[1 - 1e-7, 1.0]]), torch.ones(1, 2))
    assert certain.tolist() == [[0, 0]], "not below 0"


@pytest.mark.parametrize("weighted", [False, True])
def test_what_stands_outside_the_mask_is_not_read(weighted, junk):
    batch = random_batch()
    if not weighted:
        del batch["rollout_is_weights"]
    outside = batch["response_mask"] == 0
    replaced = {name: values.masked_fill(outside, junk) for name, values in batch.items() if name != "response_mask"}
    got = variance_proxy_metrics({**replaced, "response_mask": batch["response_mask"]}, 0.1)
    assert got == variance_proxy_metrics(batch, 0.1)
    assert got[POWER] > 0


def test_samples_without_a_policy_token_are_not_counted_and_noise_needs_two():
    batch = random_batch()
    longer = {name: torch.cat([values, values[:2]]) for name, values in batch.items()}
    longer["response_mask"][4:] = 0
    assert variance_proxy_metrics(longer, 0.1) == variance_proxy_metrics(batch, 0.1)
    assert variance_proxy_metrics({**batch, "response_mask": torch.zeros(4, 6)}, 0.1) == {}
    metrics = variance_proxy_metrics({name: values[:1] for name, values in batch.items()}, 0.01)
    assert metrics[POWER] > 0.01**2 and metrics[NOISE] == 0
    metrics = variance_proxy_metrics(batch, 100.0)
    assert metrics["variance_proxy/proxy1_signal_strength"] == 100.0**2 and metrics[NOISE] == 0, "never negative"
