"""A small random model in float32, and engines of it."""

import copy
from importlib.util import find_spec

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.models.tiny import write_tiny_model
from burnish.rollout.hf.engine import HFEngine
from burnish.rollout.native.engine import NativeEngine

# So that a failure there shows the values.
pytest.register_assert_rewrite("tests.rollout.hosted.contract", "tests.rollout.hosted.supervised_contract")
SMALL = {"max_num_seqs": 64, "blocks": 160, "block_size": 8, "max_num_batched_tokens": 512}
SMALL_CUDA = SMALL | {"block_size": 16, "blocks": 128}


def pytest_collection_modifyitems(items):
    """Programs are not imported here: they would change torch for all other tests of this process."""
    for name in ("vllm", "sglang"):
        if find_spec(name) is None:
            for item in items:
                if item.get_closest_marker(name):
                    item.add_marker(pytest.mark.skip(reason=f"needs {name}"))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", context=64, tie_word_embeddings=False)


@pytest.fixture(scope="session")
def tokenizer(tiny_folder):
    return AutoTokenizer.from_pretrained(tiny_folder)


@pytest.fixture(scope="session")
def module(tiny_folder):
    return sharpened(AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32))


@pytest.fixture(scope="session")
def context(module):
    return module.config.max_position_embeddings


@pytest.fixture(scope="session")
def sharpen():
    return sharpened


def sharpened(model):
    """Scaled up, so that distributions are far from uniform and depend on what came before."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(10)
    return model


@pytest.fixture(scope="session")
def other(module):
    changed = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * parameter.std() * 0.5)
    return changed


@pytest.fixture(scope="session")
def buckets():
    """`buckets(module)`: its weights, in two of them."""

    def weights_of(module):
        parameters = list(module.named_parameters())
        return [dict(parameters[:5]), dict(parameters[5:])]

    return weights_of


@pytest.fixture(scope="session")
def teacher():
    """`teacher(module, ids, temperature)`: log-probs (n - 1, V) of what follows each token."""

    def log_probs(module, ids, temperature=1.0):
        with torch.no_grad():
            logits = module(input_ids=torch.tensor([list(ids)])).logits[0].float()
        return (logits[:-1] / (temperature or 1.0)).log_softmax(-1)

    return log_probs


@pytest.fixture(scope="session")
def expected(teacher):
    """`expected(module, prompt, completion, temperature)`: the log-probs that its tokens should have."""

    def values(module, prompt, completion, temperature=1.0):
        ids = [*prompt, *completion.token_ids]
        rows = teacher(module, ids, temperature)[len(prompt) - 1 :]
        return [row[i].item() for row, i in zip(rows, completion.token_ids, strict=True)]

    return values


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


@pytest.fixture
def swap_decoder(monkeypatch):
    """`swap_decoder(engine, wrap)` puts `wrap(function)` in the place of what computes an engine's logits."""

    def swap(engine, wrap):
        owner, name = (engine.module, "forward") if isinstance(engine, HFEngine) else (engine.runner, "decoder")
        monkeypatch.setattr(owner, name, wrap(getattr(owner, name)))

    return swap


@pytest.fixture(scope="session")
def one_by_one(tokenizer):
    """`one_by_one(module, requests)`: completions of the hf engine, which runs each request alone."""
    return lambda module, requests: HFEngine(module, tokenizer, max_num_seqs=1).run(requests)
