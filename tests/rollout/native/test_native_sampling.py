"""Sampling through the whole native engine: every setting, every way to sample, extreme temperatures."""

from dataclasses import replace

import pytest

from burnish.rollout.base import Sampling
from tests.rollout.native.exact import check_exact, greedy, random_prompts, random_requests
from tests.rollout.native.models import CONTEXT
from tests.rollout.test_sampler import WAYS

PROMPT = random_prompts(1, seed=5, shortest=9, longest=9)[0]
FREE = Sampling(max_tokens=20, ignore_eos=True)
MIXED = random_requests(30, seed=7)
SETTINGS = {
    "cut prompts": {"max_num_batched_tokens": 8, "max_num_seqs": 8},
    "whole prompts": {"max_num_batched_tokens": 24, "chunked_prefill": False, "max_num_seqs": 8},
    "small pool": {"blocks": 14},
    "small pool ahead3": {"blocks": 14, "ahead": 3, "prefix_caching": False},
    "no cache": {"prefix_caching": False},
    "module": {"fused": False},
    "large blocks": {"block_size": 16, "blocks": 90},
}


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


def test_every_way_to_sample(native, module):
    """That `sample` draws by these probabilities is shown in `test_sampler.py`; all at once, so that rows with and
    without truncation share their batches."""
    ways = [way for way, _ in WAYS]
    kinds = [*ways, *({"temperature": temperature} for temperature in (50.0, 0.01, 0.001))]
    requests = [(PROMPT, replace(FREE, seed=seed, **kind)) for kind in kinds for seed in range(3)]
    completions = native(module).run(requests)
    assert [c.token_ids for c in completions[-3:]] == [greedy(module, PROMPT, 20, eos_token_id=None)] * 3
    # With the cold ones log-probs are of logits times 1,000, and so is what rounding does to them.
    check_exact(module, requests[:-6], completions[:-6], context=CONTEXT)
