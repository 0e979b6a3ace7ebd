"""Native engines with small pools, which must be whole when the test that made them ends."""

import pytest

from burnish.models.tiny import byte_tokenizer
from burnish.rollout.hf.engine import HFEngine
from burnish.rollout.native.engine import NativeEngine
from tests.rollout.native import models

SMALL = {"max_num_seqs": 64, "blocks": 160, "block_size": 8, "max_num_batched_tokens": 512}
SMALL_CUDA = SMALL | {"block_size": 16, "blocks": 128}


@pytest.fixture(scope="session")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="session")
def module():
    """A tiny Qwen2 that no test may change; `models.family` gives one that may."""
    return models.family("qwen2")


@pytest.fixture
def native(tokenizer):
    """`native(module, **settings)` makes an engine. When the test ends, none of them may hold a block for anybody."""
    engines = []

    def make(module, **settings):
        small = SMALL_CUDA if next(module.parameters()).is_cuda else SMALL
        engines.append(NativeEngine(module, tokenizer, **(small | settings)))
        return engines[-1]

    yield make
    for engine in engines:
        stats = engine.stats()
        assert (stats["running"], stats["waiting"], stats["kv_blocks_used"]) == (0, 0, 0), stats


@pytest.fixture(scope="session")
def one_by_one(tokenizer, generate_all):
    """`one_by_one(module, requests)`: completions of the hf engine, which runs each request alone."""
    return lambda module, requests: generate_all(HFEngine(module, tokenizer, max_num_seqs=1), requests)


@pytest.fixture
def swap_decoder(monkeypatch):
    """`swap_decoder(engine, wrap)` puts `wrap(decoder)` in the place of what computes an engine's logits."""

    def swap(engine, wrap):
        monkeypatch.setattr(engine.runner, "decoder", wrap(engine.runner.decoder))

    return swap
