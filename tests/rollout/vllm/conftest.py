"""vLLM over a small model with the size of head that it has kernels for on a CPU."""

from pathlib import Path

import pytest

from burnish.models.tiny import write_tiny_model
from burnish.rollout.hosted.keeper import members
from burnish.rollout.vllm.engine import VLLMEngine
from tests.rollout.hosted.programs import engine, shared_engine, start, supervised  # noqa: F401

CONTEXT = 4096  # a request without a limit lasts for seconds, also where tokens come late and many at once


@pytest.fixture(scope="session")
def engine_class():
    return VLLMEngine


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return write_tiny_model(folder, hidden_size=64, heads=2, context=CONTEXT, tie_word_embeddings=False)


@pytest.fixture(scope="session")
def pid_of():
    """`pid_of(engine, "EngineCore")`: the process of an engine with that in its title."""

    def find(of, title):
        pids = members(of.process.pid)
        (pid,) = [pid for pid in pids if title.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]
        return pid

    return find
