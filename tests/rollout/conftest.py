"""A small random model in float32, and requests run one by one or all at once."""

import asyncio

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.models.tiny import write_tiny_model
from burnish.rollout.hf import HFEngine


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
def sharpen():
    return sharpened


def sharpened(model):
    """Scaled up, so that distributions are far from uniform and depend on what came before."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(10)
    return model


@pytest.fixture
def engine(module, tokenizer):
    return HFEngine(module, tokenizer)


@pytest.fixture(scope="session")
def generate_all():
    """`generate_all(engine, [(prompt_ids, sampling), …])` awaits all requests together, in one event loop."""

    def run(engine, requests):
        async def main():
            calls = [
                engine.generate(ids, sampling, request_id=str(i), order=(i,))
                for i, (ids, sampling) in enumerate(requests)
            ]
            return await asyncio.gather(*calls)

        return asyncio.run(main())

    return run
