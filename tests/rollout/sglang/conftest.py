"""One SGLang for all tests of a session: to start it takes a minute."""

from importlib.util import find_spec

import pytest

from burnish.config.rollout import RolloutConfig
from burnish.models.tiny import write_tiny_model
from burnish.rollout.sglang.engine import SGLangEngine

CONTEXT = 512


def pytest_collection_modifyitems(items):
    """Not by importing it here, which would change torch for all other tests of this process."""
    if find_spec("sglang") is None:
        for item in items:
            if item.get_closest_marker("sglang"):
                item.add_marker(pytest.mark.skip(reason="needs SGLang"))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", context=CONTEXT, tie_word_embeddings=False)


@pytest.fixture(scope="session")
def start(module, tokenizer, tmp_path_factory):
    """`start(heartbeat_s=…, **keys)` gives an engine without weights."""

    def make(heartbeat_s=60.0, **keys):
        config = RolloutConfig(name="sglang", max_num_seqs=32, **keys)
        return SGLangEngine(module, tokenizer, config, tmp_path_factory.mktemp("logs"), heartbeat_s)

    return make


@pytest.fixture(scope="session")
def shared_engine(start):
    engine = start()
    yield engine
    engine.close()


@pytest.fixture
def engine(shared_engine, module, buckets):
    """With the weights of `module` as version 1."""
    shared_engine.wake()
    shared_engine.publish(buckets(module), 1)
    return shared_engine
