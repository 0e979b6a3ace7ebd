import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from burnish.engine import forward
from burnish.engine.forward import log_probs, values
from burnish.engine.packing import pack

RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "entropy_loss.json").read_text())


class RecordedModel:
    """Gives these logits (B, R, V) for the tokens after the first, whatever it is asked."""

    config = SimpleNamespace(final_logit_softcapping=1.0)  # any: its own logits are taken

    def __init__(self, logits):
        self.logits = torch.nn.functional.pad(logits, (0, 0, 0, 1))  # what comes after the last token is not asked for

    def __call__(self, **inputs):
        return self

    def get_output_embeddings(self):
        return SimpleNamespace(weight=self.logits[0, :1].T)  # (V, 1)


def test_the_recorded_figures_are_complete():
    functions = [case["params"]["function"] for case in RECORDED]
    assert sorted(functions) == ["entropy_loss"] * 10 + ["logprobs_from_logits"] * 5


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["name"])
def test_golden(case):
    logits, expected = torch.tensor(case["inputs"]["logits"]), case["expected"]
    tokens = torch.tensor(case["inputs"].get("labels", torch.zeros(logits.shape[:2]).long().tolist()))
    input_ids = torch.nn.functional.pad(tokens, (1, 0))  # a prompt of one token
    packed = pack({"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids), "responses": tokens})
    result = log_probs(RecordedModel(logits), packed, outputs=("log_prob", "entropy"))
    wanted = {"log_prob": expected.get("log_probs"), "entropy": expected.get("entropy", expected.get("token_entropy"))}
    for name, figures in wanted.items():
        if figures is not None:  # of some cases only the entropy was recorded
            for row, want in zip(result[name].tolist(), figures, strict=True):
                assert row == pytest.approx(want, rel=1e-5, abs=1e-5)


def reference_log_probs(model, prompt, response, temperature):
    """One unpadded sequence through the model, read off by hand."""
    logits = model(input_ids=torch.tensor([prompt + response])).logits[0].double() / temperature
    log_p = logits.log_softmax(-1)
    rows = range(len(prompt) - 1, len(prompt) + len(response) - 1)
    picked = [log_p[row, token].item() for row, token in zip(rows, response, strict=True)]
    entropy = [-(log_p[row].exp() * log_p[row]).sum().item() for row in rows]
    return picked, entropy


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_equal_each_sequence_alone(causal_lm, batch, sequences, temperature):
    with torch.no_grad():
        result = log_probs(causal_lm, pack(batch.batch), temperature, ("log_prob", "entropy"))
        for row, (p, r) in enumerate(sequences):
            picked, entropy = reference_log_probs(causal_lm, p, r, temperature)
            rest = result["log_prob"].shape[1] - len(r)
            assert result["log_prob"][row].tolist() == pytest.approx(picked + [0.0] * rest, abs=1e-5)
            assert result["entropy"][row].tolist() == pytest.approx(entropy + [0.0] * rest, abs=1e-5)
    assert result["log_prob"].dtype == torch.float32


def test_sum_pi_squared(causal_lm, batch, sequences):
    with torch.no_grad():
        result = log_probs(causal_lm, pack(batch.batch), 1.0, ("sum_pi_squared",))["sum_pi_squared"]
        p, r = sequences[0]
        probabilities = causal_lm(input_ids=torch.tensor([p + r])).logits[0, len(p) - 1].softmax(-1)
    assert result[0, 0].item() == pytest.approx(probabilities.square().sum().item(), abs=1e-6)


def test_chunks_change_neither_result_nor_gradient(causal_lm, batch, monkeypatch):
    def run():
        causal_lm.zero_grad()
        out = log_probs(causal_lm, pack(batch.batch), 0.9, ("log_prob", "entropy"))
        (out["log_prob"].sum() + out["entropy"].square().sum()).backward()
        return out, [p.grad.clone() for p in causal_lm.parameters()]

    whole, whole_gradients = run()
    monkeypatch.setattr(forward, "CHUNK_ELEMENTS", 3 * causal_lm.config.vocab_size)
    cut, cut_gradients = run()
    for name in whole:
        torch.testing.assert_close(cut[name], whole[name], atol=1e-6, rtol=1e-6)
    for a, b in zip(cut_gradients, whole_gradients, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_a_model_that_changes_its_logits_computes_them_itself(causal_lm, batch, monkeypatch):
    plain = log_probs(causal_lm, pack(batch.batch))["log_prob"]
    own = type(causal_lm).forward

    def capped(self, *args, **kwargs):
        out = own(self, *args, **kwargs)
        out.logits = out.logits * 3
        return out

    monkeypatch.setattr(type(causal_lm), "forward", capped)
    causal_lm.config.final_logit_softcapping = 30.0
    tempered = log_probs(causal_lm, pack(batch.batch), temperature=3.0)["log_prob"]
    torch.testing.assert_close(tempered, plain, atol=1e-5, rtol=0)


def test_values_sit_before_each_response_token(value_model, batch, sequences):
    with torch.no_grad():
        result = values(value_model, pack(batch.batch))
        for row, (p, r) in enumerate(sequences):
            alone = value_model(input_ids=torch.tensor([p + r])).logits[0, :, 0]
            expected = alone[len(p) - 1 : len(p) + len(r) - 1].tolist()
            assert result[row].tolist() == pytest.approx(expected + [0.0] * (result.shape[1] - len(r)), abs=1e-5)


@pytest.mark.parametrize("pad_token_id", [None, -1, 100_000])
def test_the_models_pad_token_is_never_looked_up(causal_lm, value_model, batch, pad_token_id):
    packed = pack(batch.batch)
    expected, expected_values = log_probs(causal_lm, packed)["log_prob"], values(value_model, packed)
    causal_lm.config.pad_token_id = value_model.config.pad_token_id = pad_token_id
    assert log_probs(causal_lm, packed)["log_prob"].equal(expected)
    assert values(value_model, packed).equal(expected_values)


@pytest.mark.parametrize("width", [0, 2])
def test_sequences_without_a_response_give_zeros(causal_lm, value_model, width):
    ids = torch.tensor([[5, 6, 7], [0, 0, 8]])
    input_ids = torch.nn.functional.pad(ids, (0, width))
    packed = pack({"input_ids": input_ids, "attention_mask": input_ids != 0, "responses": input_ids[:, 3:]})
    for result in (log_probs(causal_lm, packed)["log_prob"], values(value_model, packed)):
        assert result.tolist() == [[0.0] * width] * 2 and result.requires_grad


def test_bad_arguments_are_named(causal_lm, batch):
    packed = pack(batch.batch)
    with pytest.raises(ValueError, match=r"temperature=0"):
        log_probs(causal_lm, packed, 0)
    with pytest.raises(ValueError, match=r"logits.*log_prob"):
        log_probs(causal_lm, packed, 1.0, ("logits",))
