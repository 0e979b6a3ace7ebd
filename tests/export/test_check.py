"""The proof itself: probes that are fixed and fit the model, measures that tell models apart."""

from pathlib import Path

import pytest
import torch

from burnish.config.model import ModelConfig
from burnish.errors import ModelError
from burnish.export.check import (
    ROUNDING,
    Difference,
    behaviour,
    count_zeros,
    difference,
    fingerprints,
    make_probes,
    measure,
    note_on_zeros,
    require_finite,
    require_near,
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


def test_log_probs_are_those_of_the_next_tokens_and_one_changed_bit_is_seen(module):
    probe = [5, 9, 200, 7]
    (found,) = measure(module, [probe], values=False, what=Path("m"))
    with torch.no_grad():
        everything = module(torch.tensor([probe])).logits[0].log_softmax(-1)
    assert torch.allclose(found, everything[[0, 1, 2], probe[1:]], atol=1e-6)
    before = fingerprints(module)
    module.model.norm.weight.data[3] += 1e-7
    after = fingerprints(module)
    assert {name for name in before if before[name] != after[name]} == {"model.norm.weight"}
    assert before["model.norm.weight"].startswith("torch.float32 (32,)")


def test_a_chat_template_that_cannot_render_the_probe(tokenizer, tiny_model):
    other = read_tokenizer(tiny_model)
    other.chat_template = "{{ raise_exception('only tools') }}"
    assert behaviour(other)["chat"] == "not rendered: only tools"
    assert behaviour(other) == behaviour(other) != behaviour(tokenizer)
    other.chat_template = None
    assert behaviour(other)["chat"].startswith("What is 347+586?")


def test_differences_and_weights_that_a_type_cannot_hold():
    found = difference([torch.tensor([1.0, 2.0])], [torch.tensor([1.0, 2.5])])
    assert found == Difference(0.25, 0.5)
    require_near(found, Difference(0.25, 0.5), "x")
    for allowed in (Difference(0.2, 0.5), Difference(0.25, 0.4)):
        with pytest.raises(ModelError, match=r"x differ by 0\.25 on average and 0\.5 at most, where"):
            require_near(found, allowed, "x")
    assert ROUNDING["float32"].mean < ROUNDING["float16"].mean < ROUNDING["bfloat16"].mean
    before = torch.tensor([0.0, 1e-9, 3.0, 1.0])
    after = before.half()
    assert count_zeros([after]) - count_zeros([before]) == 1
    assert note_on_zeros(1, 4, "float16") == ["1 weights (25%) are too small for float16 and became 0"]
    assert note_on_zeros(0, 4, "float16") == []
    require_finite([("w", after)], Path("m"))
    with pytest.raises(ModelError, match=r"m: weights of v are not finite, .*too large for the dtype; .*--dtype"):
        require_finite([("w", after), ("v", torch.tensor([1e9]).half())], Path("m"))
