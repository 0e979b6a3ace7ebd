"""Sampled frequencies against exact probabilities, and the edges of truncation."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from burnish.ops import sampling
from burnish.rollout.base import Sampling, uniforms
from burnish.rollout.in_process import sample

V = 12  # a small vocabulary, so that pairs of tokens are frequent enough to be counted


@pytest.fixture
def logits():
    return torch.randn(V, generator=torch.Generator().manual_seed(4)) * 1.5


def exact(logits, *, temperature=1.0, top_k=-1, top_p=1.0, min_p=0.0):
    """The distribution written down token by token."""
    p = torch.softmax(logits.double() / temperature, 0).numpy()
    order = np.argsort(-p)
    kept = list(order[:top_k] if top_k > 0 else order)
    if top_p < 1:
        mass, nucleus = 0.0, []
        for token in kept:
            if mass >= top_p * p[kept].sum():
                break
            nucleus.append(token)
            mass += p[token]
        kept = nucleus
    kept = [token for token in kept if p[token] >= min_p * p.max()]
    q = np.zeros(V)
    q[kept] = p[kept]
    return q / q.sum()


WAYS = [  # of sampling, and how many tokens are left where that is known
    ({}, V),
    ({"temperature": 0.6}, V),
    ({"temperature": 2.0}, V),
    ({"top_k": 4}, 4),
    ({"top_p": 0.7}, None),
    ({"min_p": 0.2}, None),
    ({"temperature": 1.4, "top_k": 6, "top_p": 0.8, "min_p": 0.15}, None),
]


@pytest.mark.parametrize("kind,support", WAYS)
def test_frequencies_match_exact_probabilities(logits, kind, support):
    draws = 20_000
    noise = torch.from_numpy(uniforms(range(draws), [3] * draws))
    ids, log_probs = sample(logits.expand(draws, V), [Sampling(**kind)] * draws, noise)
    expected = exact(logits, **kind) * draws
    counts = np.bincount(ids.numpy(), minlength=V)
    inside = expected > 0
    assert counts[~inside].sum() == 0
    assert inside.sum() == (support or inside.sum()) and (support or 1 < inside.sum() < V)
    chi_square = ((counts - expected)[inside] ** 2 / expected[inside]).sum()
    assert chi_square < 40  # at most 11 degrees of freedom: p < 1e-4
    untruncated = torch.log_softmax(logits / kind.get("temperature", 1.0), 0)
    torch.testing.assert_close(log_probs, untruncated[ids])


def test_greedy_takes_the_largest_and_reports_unscaled_log_probs(logits):
    ids, log_probs = sample(logits[None], [Sampling(temperature=0)], torch.tensor([0.999]))
    assert ids.item() == logits.argmax().item()
    torch.testing.assert_close(log_probs[0], torch.log_softmax(logits, 0).max())


def test_rows_do_not_depend_on_each_other_or_on_the_cut(monkeypatch):
    logits = torch.randn(9, V, generator=torch.Generator().manual_seed(0))
    kinds = [Sampling(), Sampling(top_k=2), Sampling(temperature=0)] * 3
    noise = torch.linspace(0, 0.999, 9, dtype=torch.float64)
    ids, log_probs = sample(logits, kinds, noise)
    alone = [sample(logits[i : i + 1], kinds[i : i + 1], noise[i : i + 1]) for i in range(9)]
    assert ids.tolist() == [one.item() for one, _ in alone]
    monkeypatch.setattr(sampling, "ELEMENTS_AT_ONCE", 2 * V)
    again, again_log_probs = sample(logits, kinds, noise)
    assert torch.equal(ids, again) and torch.equal(log_probs, again_log_probs)


@pytest.mark.parametrize("noise", [0.0, 1 - 2**-53])
def test_extreme_noise_stays_inside_the_allowed_set(noise):
    logits = torch.zeros(1, V)
    logits[0, 0] = logits[0, -1] = -1e4  # probability 0 at both ends of the vocabulary
    ids, log_probs = sample(logits, [Sampling()], torch.tensor([noise], dtype=torch.float64))
    assert ids.item() == (1 if noise == 0 else V - 2)
    assert log_probs.item() == pytest.approx(-np.log(V - 2), abs=1e-6)


def test_ties_keep_exactly_k_a_tiny_top_p_keeps_one_and_top_k_above_the_vocabulary_all(logits):
    noise = torch.from_numpy(uniforms(range(500), [0] * 500))
    for how, kept in (({"top_k": 3}, {0, 1, 2}), ({"top_p": 1e-9}, {0})):
        ids, _ = sample(torch.zeros(500, V), [Sampling(**how)] * 500, noise)
        assert set(ids.tolist()) == kept
    rows = logits.expand(500, V)
    assert torch.equal(sample(rows, [Sampling(top_k=1000)] * 500, noise)[0], sample(rows, [Sampling()] * 500, noise)[0])


class FloatSums(TorchDispatchMode):
    """Notes the device of every cumulative sum of floating numbers."""

    def __init__(self):
        super().__init__()
        self.devices = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        sums = (torch.ops.aten.cumsum, torch.ops.aten.cumsum_)
        if op.overloadpacket in sums and args[0].is_floating_point():
            self.devices.append(args[0].device.type)
        return op(*args, **(kwargs or {}))


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


MIXED = [Sampling(), Sampling(top_p=0.6), Sampling(temperature=0), Sampling(top_k=5, min_p=0.1)]


def test_deterministic_sums_run_on_the_cpu_wherever_the_logits_are(deterministic):
    # Tensors without data; "meta" stands for any device that is not the CPU.
    with FakeTensorMode(allow_non_fake_inputs=True), FloatSums() as sums:
        ids, log_probs = sample(torch.zeros(4, V, device="meta"), MIXED, torch.zeros(4, dtype=torch.float64))
    assert sums.devices == ["cpu", "cpu"]  # of top-k and top-p, and of the draw
    assert ids.device.type == log_probs.device.type == "meta"


@pytest.mark.gpu
def test_deterministic_tokens_on_a_gpu_are_those_of_the_cpu(deterministic):
    logits = torch.randn(400, 5000, generator=torch.Generator().manual_seed(1)) * 3
    noise = torch.from_numpy(uniforms(range(400), [7] * 400))
    with FloatSums() as sums:
        ids, log_probs = sample(logits.cuda(), MIXED * 100, noise)
    expected, expected_log_probs = sample(logits, MIXED * 100, noise)
    assert "cuda" not in sums.devices and ids.is_cuda
    assert ids.tolist() == expected.tolist()
    torch.testing.assert_close(log_probs.cpu(), expected_log_probs, atol=1e-5, rtol=0)
