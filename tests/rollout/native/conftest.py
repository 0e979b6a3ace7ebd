"""A tiny Qwen2 from its configuration alone; `native` makes engines with small pools."""

import pytest
import torch

from burnish.models.tiny import byte_tokenizer
from tests.rollout.native import models


@pytest.fixture(autouse=True)
def exact_products():
    """On a GPU, products in float32 are computed in float32, not in TF32."""
    if not torch.cuda.is_available():
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.fixture(scope="session")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="session")
def module():
    """No test may change it; `models.family` gives one that may be changed."""
    return models.family("qwen2")
