"""What is rounding in the log-probs of a fixed sequence, and what is another computation."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from burnish.errors import RolloutError
from burnish.rollout.hosted.weights import proof, proof_by

CONTEXT = 64


def deep(dtype, **changes):
    """A model of 30 layers whose logits are spread like those of a trained one."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4096, hidden_size=128, intermediate_size=256, num_hidden_layers=30, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=False, max_position_embeddings=CONTEXT, **changes,
    )  # fmt: skip
    module = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, 1.0 if "embed" in name else parameter.shape[1] ** -0.5)
        module.lm_head.weight.mul_(2.5)
    return module.to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rounding_of_a_deep_model_is_no_difference(dtype):
    module = deep(dtype)
    wanted = proof_by(module, 1, CONTEXT, dtype)
    module.set_attn_implementation("eager")  # which rounds elsewhere
    found = proof_by(module, 1, CONTEXT, dtype).log_probs
    assert found != wanted.log_probs, "or else this shows nothing"
    wanted.check(found, "it")


@pytest.mark.parametrize(
    ("dtype", "changes"),
    [
        (torch.bfloat16, {"rms_norm_eps": 1.0}),
        (torch.bfloat16, {"attention_bias": True}),
        (torch.float32, {"rms_norm_eps": 1e-3}),
        (torch.float32, {"rope_theta": 1000.0}),
        (torch.float32, {"hidden_act": "gelu"}),  # as close to silu as rounding is in bfloat16
    ],
)
def test_another_computation_with_the_same_weights_is_found(dtype, changes):
    other = deep(dtype, **changes)
    if "attention_bias" in changes:
        with torch.no_grad():
            for layer in other.model.layers:
                layer.self_attn.o_proj.bias.fill_(1.0)
    found = proof_by(other, 1, CONTEXT, dtype).log_probs
    with pytest.raises(RolloutError, match="it does not compute what the actor does with version 1"):
        proof_by(deep(dtype), 1, CONTEXT, dtype).check(found, "it")


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_broken_policy_is_not_the_program_s_fault(value):
    with pytest.raises(RolloutError, match="the policy is broken"):
        proof(1, [5, 6, 7], torch.tensor([-1.0, value]), torch.bfloat16)
