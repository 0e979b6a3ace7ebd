"""The proof itself: probes that are fixed and fit the model, measures that tell models apart."""

from pathlib import Path

import pytest
import torch

from burnish.config.model import ModelConfig
from burnish.errors import ModelError
from burnish.export.check import (
    behaviour,
    make_probes,
    measure,
)
from burnish.models.loading import load_causal_lm, read_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    return read_tokenizer(tiny_model)


@pytest.fixture
def module(tiny_model):
    return load_causal_lm(tiny_model, ModelConfig()).eval()


def test_probes_are_a_chat_and_random_tokens_that_fit_the_model(tokenizer):
    probes = make_probes(tokenizer, 259, 512)
    assert probes == make_probes(tokenizer, 259, 512)
    assert tokenizer.decode(probes[0]).startswith("<|start|>user\nWhat is 347+586?")
    assert [len(probe) for probe in probes[1:]] == [2, 17, 64, 160]
    assert len({token for probe in probes for token in probe}) > 150
    assert {len(probe) for probe in make_probes(tokenizer, 259, 40)} == {40, 2, 17}
    with pytest.raises(ModelError, match=r"the tokenizer gives the token \d+, but the model knows only 50 tokens"):
        make_probes(tokenizer, 50, 512)


def test_log_probs_are_those_of_the_next_tokens(module):
    probe = [5, 9, 200, 7]
    (found,) = measure(module, [probe], values=False, what=Path("m"))
    with torch.no_grad():
        everything = module(torch.tensor([probe])).logits[0].log_softmax(-1)
    assert torch.allclose(found, everything[[0, 1, 2], probe[1:]], atol=1e-6)


def test_a_chat_template_that_cannot_render_the_probe(tokenizer, tiny_model):
    other = read_tokenizer(tiny_model)
    other.chat_template = "{{ raise_exception('only tools') }}"
    assert behaviour(other)["chat"] == "not rendered: only tools"
    assert behaviour(other) == behaviour(other) != behaviour(tokenizer)
    other.chat_template = None
    assert behaviour(other)["chat"].startswith("What is 347+586?")
