"""A small random model and a padded batch with uneven prompts and responses, as the rollout leaves them."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from burnish.models.tiny import write_tiny_model
from burnish.protocol import DataProto

PROMPTS = [5, 2, 7, 1, 3, 6]
RESPONSES = [4, 6, 1, 3, 5, 0]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("engine") / "model", hidden_size=32, heads=4)


@pytest.fixture
def causal_lm(model_folder):
    return AutoModelForCausalLM.from_pretrained(model_folder)


@pytest.fixture
def value_model(model_folder):
    torch.manual_seed(3)
    return AutoModelForTokenClassification.from_pretrained(model_folder, num_labels=1)


@pytest.fixture
def sequences():
    """(prompt, response) token lists without padding."""
    noise = torch.Generator().manual_seed(0)
    pairs = zip(PROMPTS, RESPONSES, strict=True)
    return [tuple(torch.randint(3, 90, (n,), generator=noise).tolist() for n in pair) for pair in pairs]


@pytest.fixture
def make_batch():
    def make(sequences, pad=0):
        width_p = max(len(p) for p, _ in sequences)
        width_r = max(len(r) for _, r in sequences)
        prompts = torch.tensor([[pad] * (width_p - len(p)) + p for p, _ in sequences])
        responses = torch.tensor([r + [pad] * (width_r - len(r)) for _, r in sequences])
        sizes = [(width_p - len(p), len(p) + len(r), width_r - len(r)) for p, r in sequences]
        attention = torch.tensor([[0] * before + [1] * there + [0] * after for before, there, after in sizes])
        return DataProto.from_dict(
            tensors={
                "prompts": prompts,
                "responses": responses,
                "input_ids": torch.cat([prompts, responses], 1),
                "attention_mask": attention,
                "position_ids": (attention.cumsum(-1) - 1).clamp(min=0),
                "response_mask": attention[:, width_p:].clone(),
            }
        )

    return make


@pytest.fixture
def batch(make_batch, sequences):
    return make_batch(sequences)
