"""A rollout engine for whole runs whose policy writes what a test says, and the small things that agents are given."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from burnish.rollout import make_engine
from tests.agents.conftest import WritingEngine

WORKER = "burnish.workers.replica.make_engine"
SAMPLED = 8
ECHO = '''
import asyncio
from burnish.agents.tools import BaseTool, ToolResponse

class Echo(BaseTool):
    """Says again what it was told; each call earns 0.25. "boom" breaks it, and "hang" it does not answer."""

    SCHEMA = {"type": "function", "function": {"name": "echo", "description": "Says it again.", "parameters": {
        "type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}}}

    async def execute(self, instance_id, parameters, **kwargs):
        if "boom" in parameters["text"]:
            raise RuntimeError("the echo is gone")
        if parameters["text"] == "hang":
            await asyncio.sleep(1000)
        return ToolResponse(parameters["text"].upper()), 0.25, {"length": len(parameters["text"])}
'''


@dataclass(frozen=True)
class Asked:
    uid: int
    sample: int
    turn: int
    prompt: str  # all that stands before it
    is_validation: bool


class Script(WritingEngine):
    """Writes `write(asked)`, and where that is None, a few tokens that the engine of the run samples."""

    def __init__(self, tokenizer: Any, write: Any, engine: Any):
        super().__init__(tokenizer, None)
        self.write, self.engine = write, engine

    async def generate(self, request, on_token=None):
        order, sampling = request.order, request.sampling
        asked = Asked(*order, self.tokenizer.decode(request.prompt_ids), request.request_id.startswith("val/"))
        text = self.write(asked)
        if text is None:
            few = replace(sampling, max_tokens=min(sampling.max_tokens, SAMPLED))
            done = await self.engine.generate(replace(request, sampling=few))
        else:
            done = replace(self.completion(text, sampling), policy_version=self.engine.version)
        self.record.setdefault((asked.is_validation, *order[:2]), []).append(done)
        return done

    def publish(self, weights, version):
        self.engine.publish(weights, version)

    def sleep(self):
        self.engine.sleep()

    def wake(self):
        self.engine.wake()

    def stats(self):
        return self.engine.stats()


def follow(monkeypatch: Any, write: Any) -> None:
    """All runs of this test have a policy that writes `write(asked)`."""

    def make(name, module, tokenizer, rollout, logs):
        return Script(tokenizer, write, make_engine(name, module, tokenizer, rollout, logs))

    monkeypatch.setattr(WORKER, make)


def write_echo() -> str:
    """The key of a file with the tool `echo`, in the working directory."""
    Path("echo.py").write_text(ECHO)
    Path("tools.yaml").write_text("tools:\n  - class_name: echo.py:Echo\n")
    return "tool_config_path=tools.yaml"


def call(text: str, name: str = "echo", argument: str = "text") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {{"{argument}": "{text}"}}}}</tool_call>'


def question(content: str, **columns: Any) -> dict[str, Any]:
    truth = {"style": "rule", "ground_truth": {"target": ["Goethe"]}}
    return {"data_source": "nq", "prompt": [{"role": "user", "content": content}], "reward_model": truth, **columns}


@dataclass(frozen=True)
class Reply:
    """What a retrieval server sends. An `answer` is one for each query."""

    status: int = 200
    body: str = ""
    answer: Any = None
    seconds: float = 0.0


FAUST = Reply(answer=[{"document": {"id": "0", "contents": '"Faust"\nA play by Goethe.'}, "score": 1.0}])


@contextmanager
def answering(*replies: Reply) -> Iterator[str]:
    """The URL of a server that sends the replies one after another, the last one for ever."""
    left, is_over = list(replies), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            reply = left.pop(0) if len(left) > 1 else left[0]
            is_over.wait(reply.seconds)
            body = reply.body if reply.answer is None else json.dumps({"result": [reply.answer] * len(queries)})
            with suppress(OSError):  # the client may have gone
                self.send_response(reply.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/retrieve"
        finally:
            is_over.set()
            server.shutdown()
            thread.join()
