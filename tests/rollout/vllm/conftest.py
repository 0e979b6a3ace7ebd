"""One vLLM for all tests of a session, over a small model with the size of head that vLLM has kernels for on a CPU."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from burnish.config.rollout import RolloutConfig
from burnish.models.tiny import write_tiny_model
from burnish.rollout.hosted.group import members
from burnish.rollout.vllm.engine import VLLMEngine

CONTEXT = 4096  # a request without a limit lasts for seconds, also where tokens come late and many at once


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Not by importing it here, which would change torch for all other tests of this process."""
    if find_spec("vllm") is None:
        for item in items:
            if item.get_closest_marker("vllm"):
                item.add_marker(pytest.mark.skip(reason="needs vLLM"))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return write_tiny_model(folder, hidden_size=64, heads=2, context=CONTEXT, tie_word_embeddings=False)


@pytest.fixture(scope="session")
def start(module, tokenizer, tmp_path_factory) -> Callable[..., VLLMEngine]:
    """`start(heartbeat_s=…, **keys)` gives an engine without weights."""

    def make(heartbeat_s: float = 60.0, **keys) -> VLLMEngine:
        config = RolloutConfig(name="vllm", max_num_seqs=32, **keys)
        return VLLMEngine(module, tokenizer, config, tmp_path_factory.mktemp("logs"), heartbeat_s)

    return make


@pytest.fixture(scope="session")
def shared_engine(start) -> Iterator[VLLMEngine]:
    engine = start()
    yield engine
    engine.close()


@pytest.fixture
def engine(shared_engine, module, buckets) -> VLLMEngine:
    """With the weights of `module` as version 1."""
    shared_engine.wake()
    shared_engine.publish(buckets(module), 1)
    return shared_engine


@pytest.fixture(scope="session")
def pid_of():
    """`pid_of(engine, "EngineCore")`: the process of an engine with that in its title."""

    def find(engine: VLLMEngine, title: str) -> int:
        (pid,) = [
            pid for pid in members(engine.process.pid) if title.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        return pid

    return find
