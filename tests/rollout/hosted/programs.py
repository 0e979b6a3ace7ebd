"""Fixtures for the folders of programs that are hosted; each has its own `engine_class` and `tiny_folder`."""

import pytest

from burnish.config.rollout import RolloutConfig
from burnish.rollout.replacing import ReplacingEngine


@pytest.fixture(scope="session")
def start(engine_class, module, tokenizer, tmp_path_factory):
    """`start(heartbeat_s=…, **keys)` gives an engine without weights."""

    def make(heartbeat_s=60.0, **keys):
        config = RolloutConfig(name=engine_class.spec.name, max_num_seqs=32, **keys)
        return engine_class(module, tokenizer, config, tmp_path_factory.mktemp("logs"), heartbeat_s)

    return make


@pytest.fixture(scope="session")
def shared_engine(start):
    """One for all tests of a session: to start it takes a minute."""
    engine = start()
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def supervised(start):
    """It stands still for long when it has not been heard for 20 s."""
    engine = ReplacingEngine(start(heartbeat_s=20.0))
    yield engine
    engine.close()


@pytest.fixture
def engine(shared_engine, module, buckets):
    shared_engine.wake()
    shared_engine.publish(buckets(module), 1)
    return shared_engine
