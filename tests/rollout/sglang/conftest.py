"""SGLang over a small model."""

import pytest

from burnish.models.tiny import write_tiny_model
from burnish.rollout.sglang.engine import SGLangEngine
from tests.rollout.hosted.programs import engine, shared_engine, start, supervised  # noqa: F401

CONTEXT = 512


@pytest.fixture(scope="session")
def engine_class():
    return SGLangEngine


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", context=CONTEXT, tie_word_embeddings=False)
