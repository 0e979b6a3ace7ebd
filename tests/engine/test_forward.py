"""Packed, fused and padded passes against each sequence alone through the transformers module."""

from functools import cache
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from burnish.config.model import ModelConfig
from burnish.engine import forward
from burnish.engine.forward import Forward
from burnish.engine.packing import pack
from burnish.errors import ConfigError
from burnish.models.backbones import FusedBackbone, PackedBackbone, PaddedBackbone
from burnish.ops.varlen_attention import Sequences
from tests.models.helpers import shaken
from tests.recorded import each, golden
from tests.rollout.native.models import build

RECORDED = golden("entropy_loss")
FUNCTIONS = [case["params"]["function"] for case in RECORDED]
assert sorted(FUNCTIONS) == ["entropy_loss"] * 10 + ["logprobs_from_logits"] * 5
FAMILIES = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": 5},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "sliding_window": 6, "final_logit_softcapping": 2.0, "attn_implementation": "eager"},
    "gemma3_text": {"head_dim": 16, "sliding_window": 6},
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "granite": {"logits_scaling": 3.0},
    "cohere": {"logit_scale": 0.3},
}
WAYS = {
    "fused": ModelConfig(),
    "packed": ModelConfig(use_fused_kernels=False),
    "padded": ModelConfig(use_remove_padding=False),
    "plain": ModelConfig(use_remove_padding=False, use_fused_kernels=False),
}
FUSED = {"llama", "qwen2", "qwen3", "mistral"}
ALL = ("log_prob", "entropy", "sum_pi_squared")


class RecordedModel:
    """Gives these logits (B, R, V) for the tokens after the first: hidden states are the logits, the head is 1."""

    def __init__(self, logits):
        self.config, self.dtype = SimpleNamespace(get_text_config=lambda: SimpleNamespace()), torch.float32
        self.head = nn.Linear(logits.shape[-1], logits.shape[-1], bias=False)
        self.head.weight.data = torch.eye(logits.shape[-1])
        self.states = nn.functional.pad(logits, (0, 0, 0, 1)).flatten(0, 1)  # (T, V): none is asked of the last token

    def get_output_embeddings(self):
        return self.head

    get_input_embeddings = get_decoder = get_output_embeddings


@pytest.mark.parametrize("fused", [True, False])
@each(RECORDED)
def test_golden(case, fused, monkeypatch):
    logits, expected = torch.tensor(case["inputs"]["logits"]), case["expected"]
    tokens = torch.tensor(case["inputs"].get("labels", torch.zeros(logits.shape[:2]).long().tolist()))
    input_ids = nn.functional.pad(tokens, (1, 0))  # a prompt of one token
    packed = pack({"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids), "responses": tokens})
    model = RecordedModel(logits)
    monkeypatch.setattr(forward, "backbone_for", lambda *what, **how: (lambda *line: model.states, None))
    run = Forward(model, ModelConfig(use_fused_kernels="auto" if fused else False))
    result = run.log_probs(packed, outputs=("log_prob", "entropy"))
    wanted = {"log_prob": expected.get("log_probs"), "entropy": expected.get("entropy", expected.get("token_entropy"))}
    for name, figures in wanted.items():
        if figures is not None:  # of some cases only the entropy was recorded
            for row, want in zip(result[name].tolist(), figures, strict=True):
                assert row == pytest.approx(want, rel=1e-5, abs=1e-5)


def reference(module, sequences, temperature):
    """Each sequence alone and unpadded through the module itself: name → (B, R), as autograd sees it."""
    width = max(len(response) for _, response in sequences)
    rows = {name: [] for name in ALL}
    for prompt, response in sequences:
        logits = module(input_ids=torch.tensor([prompt + response])).logits[0]
        log_p = (logits[len(prompt) - 1 : len(prompt) + len(response) - 1].double() / temperature).log_softmax(-1)
        for name in ALL:
            figures = forward.OUTPUTS[name](log_p, torch.tensor(response, dtype=torch.long))
            rows[name].append(nn.functional.pad(figures, (0, width - len(response))))
    return {name: torch.stack(parts) for name, parts in rows.items()}


def gradients(module, outputs):
    """Of a sum that tells every token of every output apart."""
    weights = {name: torch.arange(1.0, out.numel() + 1).view_as(out).sin() for name, out in outputs.items()}
    module.zero_grad()
    sum((out * weights[name]).sum() for name, out in outputs.items()).backward()
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_way_gives_the_values_and_gradients_of_each_sequence_alone(family, way, batch, sequences):
    module = shaken(build(family, FAMILIES[family]).train(), seed=1, width=0.1)  # attention and caps are felt
    expected = reference(module, sequences, 0.7)
    wanted = gradients(module, expected)
    run = Forward(module, WAYS[way])
    kind = {"fused": FusedBackbone if family in FUSED else PackedBackbone, "packed": PackedBackbone}
    assert type(run.backbone) is kind.get(way, PaddedBackbone)
    for checkpointing in (False, True):
        if checkpointing:
            module.gradient_checkpointing_enable({"use_reentrant": False})
        result = run.log_probs(pack(batch.batch), 0.7, ALL)
        for name in ALL:
            torch.testing.assert_close(result[name], expected[name].float(), atol=1e-5, rtol=1e-5)
        found = gradients(module, result)
        assert found.keys() == wanted.keys()
        for name, gradient in wanted.items():
            atol = 1e-5 * float(gradient.abs().max()) + 1e-6
            torch.testing.assert_close(found[name], gradient, atol=atol, rtol=1e-4)


cached_build = cache(lambda family: build(family, {}))


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=6), data=st.data())
@pytest.mark.parametrize("way", ["fused", "packed"])
def test_no_sequence_sees_another(way, lengths, data):
    """Another token in one sequence changes nothing in the others, and nothing before it in its own."""
    backbone = Forward(cached_build("qwen2"), WAYS[way]).backbone
    positions = torch.cat([torch.arange(length) for length in lengths])
    row = data.draw(st.integers(0, len(lengths) - 1))
    place = data.draw(st.integers(0, lengths[row] - 1))
    ids = (torch.arange(len(positions)) * 7) % 80
    other = ids.clone()
    other[sum(lengths[:row]) + place] += 1
    with torch.no_grad():
        there = Sequences.of(lengths, "cpu")
        before, after = (backbone(line, positions, there).split(lengths) for line in (ids, other))
    for i, length in enumerate(lengths):
        same = place if i == row else length
        assert torch.equal(before[i][:same], after[i][:same])
    assert not torch.allclose(before[row][place], after[row][place])


def test_the_plain_output_layer_runs_in_chunks_and_bad_arguments_are_named(causal_lm, batch, monkeypatch):
    run = Forward(causal_lm, WAYS["plain"])
    whole = run.log_probs(pack(batch.batch), 0.9, ("log_prob", "entropy"))
    whole_gradients = gradients(causal_lm, whole)
    monkeypatch.setattr(forward, "CHUNK_ELEMENTS", 3 * causal_lm.config.vocab_size)
    cut = run.log_probs(pack(batch.batch), 0.9, ("log_prob", "entropy"))
    for name in whole:
        torch.testing.assert_close(cut[name], whole[name], atol=1e-6, rtol=1e-6)
    for name, gradient in gradients(causal_lm, cut).items():
        torch.testing.assert_close(gradient, whole_gradients[name], atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match=r"temperature=0"):
        run.log_probs(pack(batch.batch), 0)
    with pytest.raises(ValueError, match=r"logits.*log_prob"):
        run.log_probs(pack(batch.batch), 1.0, ("logits",))


@pytest.mark.parametrize("way", WAYS)
def test_values_sit_before_each_response_token(value_model, batch, sequences, way):
    with torch.no_grad():
        result = Forward(value_model, WAYS[way]).values(pack(batch.batch))
        for row, (p, r) in enumerate(sequences):
            alone = value_model(input_ids=torch.tensor([p + r])).logits[0, :, 0]
            expected = alone[len(p) - 1 : len(p) + len(r) - 1].tolist()
            assert result[row].tolist() == pytest.approx(expected + [0.0] * (result.shape[1] - len(r)), abs=1e-5)


@pytest.mark.parametrize("pad_token_id", [None, -1, 100_000])
def test_the_models_pad_token_is_never_looked_up(causal_lm, value_model, batch, pad_token_id):
    packed = pack(batch.batch)
    for way in WAYS.values():
        policy, critic = Forward(causal_lm, way), Forward(value_model, way)
        expected, expected_values = policy.log_probs(packed)["log_prob"], critic.values(packed)
        causal_lm.config.pad_token_id = value_model.config.pad_token_id = pad_token_id
        assert policy.log_probs(packed)["log_prob"].equal(expected)
        assert critic.values(packed).equal(expected_values)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("width", [0, 2])
def test_sequences_without_a_response_give_zeros(causal_lm, value_model, width, way):
    ids = torch.tensor([[5, 6, 7], [0, 0, 8]])
    input_ids = torch.nn.functional.pad(ids, (0, width))
    packed = pack({"input_ids": input_ids, "attention_mask": input_ids != 0, "responses": input_ids[:, 3:]})
    log_probs = Forward(causal_lm, WAYS[way]).log_probs(packed)["log_prob"]
    for result in (log_probs, Forward(value_model, WAYS[way]).values(packed)):
        assert result.tolist() == [[0.0] * width] * 2 and result.requires_grad


def test_a_model_that_takes_no_lines_is_padded_with_a_warning(batch, sequences, caplog):
    module = build("bloom", {})
    run = Forward(module)
    assert isinstance(run.backbone, PaddedBackbone)
    assert "BloomForCausalLM is run with padding: its attention is its own" in caplog.text
    result = run.log_probs(pack(batch.batch), outputs=ALL)
    for name, expected in reference(module, sequences, 1.0).items():
        torch.testing.assert_close(result[name], expected.float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "family, keys, words",
    [
        ("gemma", {}, "GemmaModel is not one of LlamaModel"),
        ("qwen2", {"use_remove_padding": False}, "fused kernels take packed sequences, use_remove_padding=True"),
    ],
)
def test_required_fused_kernels_that_do_not_fit_are_refused(family, keys, words):
    with pytest.raises(ConfigError, match=rf"model\.use_fused_kernels=True: {words}.*; leave the key out"):
        Forward(build(family, FAMILIES[family]), ModelConfig(use_fused_kernels=True, **keys))
