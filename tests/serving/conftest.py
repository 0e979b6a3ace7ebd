"""A real server on a free port in a thread, and the official client for it."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from burnish.models.tiny import write_tiny_model
from burnish.rollout.native.engine import NativeEngine
from burnish.serving.loading import ModelOptions, ServedModel, load
from burnish.serving.server import ServeOptions, ServeServer, run
from burnish.web.server import listen

NANO = Path(__file__).parents[2] / "burnish" / "models" / "nano"
DEADLINE_S = 60


@dataclass
class Running:
    """A server that runs, and what tests ask of it."""

    model: ServedModel
    server: ServeServer
    url: str
    thread: threading.Thread
    result: list[int]

    def client(self, api_key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, timeout=DEADLINE_S)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=DEADLINE_S, **options)

    def stop(self) -> int:
        self.server.should_exit = True
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()
        return self.result[0]


@contextmanager
def serving(model: ServedModel, **options: Any) -> Iterator[Running]:
    max_num_seqs = options.pop("max_num_seqs", 64)
    asked = ServeOptions(ModelOptions("unused", max_num_seqs=max_num_seqs), **options)
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    ready, servers, result = threading.Event(), list[ServeServer](), list[int]()

    def up(server: ServeServer) -> None:
        servers.append(server)
        ready.set()

    thread = threading.Thread(target=lambda: result.append(asyncio.run(run(model, asked, listener, up))))
    thread.start()
    assert ready.wait(DEADLINE_S)
    running = Running(model, servers[0], url, thread, result)
    try:
        yield running
    finally:
        running.stop()


@contextmanager
def before_each_pass(model: ServedModel, call: Callable[[], None]) -> Iterator[None]:
    """Inside this block `call` runs before every forward pass of the engine."""
    runner = model.engine.runner
    decoder = runner.decoder

    def called_first(*inputs: Any) -> Any:
        call()
        return decoder(*inputs)

    runner.decoder = called_first
    try:
        yield
    finally:
        runner.decoder = decoder


@contextmanager
def held(model: ServedModel) -> Iterator[threading.Event]:
    """Forward passes wait inside this block, until it ends; the event is set when one does."""
    waiting, go = threading.Event(), threading.Event()

    def wait() -> None:
        waiting.set()
        assert go.wait(DEADLINE_S)

    with before_each_pass(model, wait):
        try:
            yield waiting
        finally:
            go.set()


@pytest.fixture(scope="session")
def nano() -> ServedModel:
    return load(ModelOptions(str(NANO), device="cpu"))


@pytest.fixture(scope="session")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    """A random model with a long context and no chat template, so the plain one is used."""
    folder = write_tiny_model(tmp_path_factory.mktemp("models") / "talkative", context=100_000, chat_template=None)
    return load(ModelOptions(str(folder), device="cpu"), name="talkative")


@pytest.fixture(scope="session")
def nano_server(nano: ServedModel) -> Iterator[Running]:
    with serving(nano) as running:
        yield running


@pytest.fixture
def client(nano_server: Running) -> openai.OpenAI:
    return nano_server.client()


@pytest.fixture(scope="session")
def another(nano: ServedModel) -> ServedModel:
    """The same weights behind an engine of its own with a short context, for servers with other options."""
    return replace(nano, engine=NativeEngine(nano.engine.module, nano.tokenizer, max_model_len=64))


@pytest.fixture
def running(another: ServedModel) -> Iterator[Running]:
    with serving(another) as running:
        yield running
