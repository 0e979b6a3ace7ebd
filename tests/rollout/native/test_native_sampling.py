"""Sampling through the whole native engine: frequencies, every setting, extreme temperatures."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from burnish.rollout.base import Sampling
from tests.rollout.native.exact import check_exact, greedy, random_prompts, random_requests
from tests.rollout.native.models import CONTEXT, build
from tests.rollout.test_sampler import V, exact

DRAWS = 3000
PROMPT = random_prompts(1, seed=5, shortest=9, longest=9)[0]
FREE = Sampling(max_tokens=20, ignore_eos=True)
MIXED = random_requests(30, seed=7)
KINDS = {
    "plain": {},
    "cold": {"temperature": 0.6},
    "hot": {"temperature": 2.0},
    "top_k": {"top_k": 4},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.2},
    "top_k_top_p": {"top_k": 5, "top_p": 0.6},
    "all": {"temperature": 1.4, "top_k": 6, "top_p": 0.8, "min_p": 0.15},
}
SETTINGS = {
    "default": {},
    "ahead0": {"ahead": 0},
    "ahead1": {"ahead": 1},
    "ahead3": {"ahead": 3},
    "five at a time": {"max_num_seqs": 5},
    "one at a time": {"max_num_seqs": 1},
    "cut prompts": {"max_num_batched_tokens": 8, "max_num_seqs": 8},
    "whole prompts": {"max_num_batched_tokens": 24, "chunked_prefill": False, "max_num_seqs": 8},
    "small pool": {"blocks": 14},
    "small pool ahead3": {"blocks": 14, "ahead": 3, "prefix_caching": False},
    "no cache": {"prefix_caching": False},
    "module": {"fused": False},
    "large blocks": {"block_size": 16, "blocks": 90},
}


def chi_square_fits(counts, expected):
    """Whether counts follow from what is expected, but for a chance of about 1e-5. Rare cells are counted together."""
    counts, expected = np.asarray(counts, float).ravel(), np.asarray(expected, float).ravel()
    assert counts[expected == 0].sum() == 0, "a token of probability 0 was drawn"
    rare = expected < 8
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], max(expected[rare].sum(), 1e-9))
    if expected[-1] < 8:
        counts, expected = counts[:-1], expected[:-1]
    freedom = len(counts) - 1
    statistic = ((counts - expected) ** 2 / expected).sum()
    # Wilson and Hilferty: the cube root of chi-square over its degrees of freedom is nearly normal.
    limit = freedom * (1 - 2 / (9 * freedom) + 4.3 * (2 / (9 * freedom)) ** 0.5) ** 3
    return statistic < limit


def test_frequencies_match_exact_probabilities(native):
    """All kinds at once, so that rows with and without truncation share their batches; first and second token."""
    module = build("qwen2", {"vocab_size": V}, seed=3)
    small_prompt = random_prompts(1, seed=5, shortest=9, longest=9, vocabulary=V)[0]
    requests = [
        (small_prompt, Sampling(max_tokens=2, ignore_eos=True, seed=100_000 * i + draw, **kind))
        for draw in range(DRAWS)
        for i, kind in enumerate(KINDS.values())
    ]
    completions = native(module, max_num_seqs=512, blocks=1100, max_num_batched_tokens=4096).run(requests)
    with torch.no_grad():
        first_logits = module(torch.tensor([small_prompt])).logits[0, -1]
        second_logits = module(torch.tensor([[*small_prompt, token] for token in range(V)])).logits[:, -1]
    for i, (name, kind) in enumerate(KINDS.items()):
        tokens = np.array([completion.token_ids for completion in completions[i :: len(KINDS)]])
        first = exact(first_logits, **kind)
        pairs = first[:, None] * np.array([exact(row, **kind) for row in second_logits])
        assert (1 < (first > 0).sum() < V) == ("top" in name or "_p" in name or name == "all")
        assert chi_square_fits(np.bincount(tokens[:, 0], minlength=V), first * DRAWS), name
        assert chi_square_fits(np.bincount(tokens[:, 0] * V + tokens[:, 1], minlength=V * V), pairs * DRAWS), name
    # The check itself can fail: tokens of one kind do not follow another's probabilities.
    plain = np.bincount([c.token_ids[0] for c in completions[:: len(KINDS)]], minlength=V)
    assert not chi_square_fits(plain, exact(first_logits, temperature=2.0) * DRAWS)


@pytest.fixture(scope="module")
def expected(module, one_by_one):
    return one_by_one(module, MIXED)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_same_tokens_as_the_hf_engine_gives_one_by_one(native, module, expected, settings):
    engine = native(module, **settings)
    for _ in range(2):  # the second time the prompts are cached
        got = engine.run(MIXED)
        assert [c.token_ids for c in got] == [c.token_ids for c in expected]
        assert [(c.finish_reason, c.stop) for c in got] == [(c.finish_reason, c.stop) for c in expected]
        for one, other in zip(got, expected, strict=True):
            assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)
    check_exact(module, MIXED, got, context=CONTEXT)


def test_extreme_temperatures(native, module):
    requests = [
        (PROMPT, replace(FREE, temperature=temperature, seed=seed))
        for temperature in (0.001, 0.01, 50.0)
        for seed in range(3)
    ]
    completions = native(module).run(requests)
    assert [c.token_ids for c in completions[:3]] == [greedy(module, PROMPT, 20, eos_token_id=None)] * 3
    # Log-probs are of logits times 1,000 there, and so is what rounding does to them.
    check_exact(module, requests[6:], completions[6:], context=CONTEXT)
