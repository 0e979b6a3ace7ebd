"""The endpoint over HTTP, with the official client: keys, shapes of replies, tools, and when it opens and closes."""

import asyncio

import httpx
import openai
import pytest

from burnish.agents.base import AgentLoopBase, register_agent_loop
from burnish.agents.endpoint.server import admit
from burnish.agents.endpoint.session import Session
from burnish.rollout.base import Completion, Sampling

TEMPLATE = (
    "{% if tools %}<|start|>tools\n{% for tool in tools %}{{ tool.function.name }} {% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}CALL {{ call.function.name }}{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}
QUESTION = [{"role": "user", "content": "1+1=?"}]


@pytest.fixture
def inside(scripted, config, make_rows):
    """`inside(body, …)`: await `body(client, session)` as the program of one trajectory; → (trajectory, engine)."""
    config.data.max_response_length = 400

    def inside(body, text="42", answer=None, **sampling):
        class Inside(AgentLoopBase):
            async def run(self, sampling_params, **row):
                session = Session(self, sampling_params, row)
                async with (
                    admit(session) as (base_url, api_key),
                    openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client,
                ):
                    await asyncio.wait_for(body(client, session), 120)
                return session.conversations.trained.transcript.output()

        register_agent_loop("inside", Inside)
        runner, engine = scripted(text, answer)
        try:
            (trajectory,) = runner.run(
                make_rows(1, agent_name="inside"), Sampling(**sampling), namespace="train", seed=1
            )
        finally:
            runner.close()
        return trajectory, engine

    return inside


def ask(client, messages=QUESTION, **fields):
    return client.chat.completions.create(model="policy", messages=messages, **fields)


def test_a_reply_has_text_usage_and_log_probs_and_a_stream_says_the_same(inside, tokenizer):
    async def body(client, session):
        assert [model.id for model in (await client.models.list()).data] == ["policy"]
        reply = await ask(client, logprobs=True)
        (choice,) = reply.choices
        assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "42", "stop")
        assert reply.usage.completion_tokens == 3 and reply.usage.prompt_tokens > 0 and reply.model == "policy"
        assert [entry.logprob for entry in choice.logprobs.content] == [-0.5, -1.5, -2.5]
        parts = [part async for part in await ask(client, stream=True, stream_options={"include_usage": True})]
        assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == "42"
        assert parts[0].choices[0].delta.role == "assistant"
        assert parts[-2].choices[0].finish_reason == "stop" and parts[-1].usage.completion_tokens == 3
        with pytest.raises(openai.BadRequestError, match="several replies"):
            await ask(client, n=2)
        with pytest.raises(openai.BadRequestError, match="not readable as JSON"):
            await client.post("/chat/completions", cast_to=object, content=b"{")
        assert not session.failed.done(), "what is wrong with a request is the client's error"
        four = tokenizer("4", add_special_tokens=False)["input_ids"]
        session._loop.environment.chat_turns.special_ids = frozenset(four)  # they are found once for the run
        assert (await ask(client)).choices[0].message.content == "2"

    trajectory, _ = inside(body)
    assert trajectory.text == "42"


@pytest.fixture
def sampled(monkeypatch):
    """`sampled(generate)`: `await generate(sampling)` is the completion of every turn."""

    def replace(generate):
        async def called(self, request_id="", *, prompt_ids, sampling_params=None, images=None):
            completion = await generate(Sampling.from_params(sampling_params))
            self._record[len(self._record)] = completion
            return completion

        monkeypatch.setattr("burnish.agents.server.ServerManager.generate", called)

    return replace


def test_a_stop_string_is_trained_but_not_in_the_text(inside, tokenizer, sampled):
    ids = tokenizer("4;", add_special_tokens=False)["input_ids"]

    async def body(client, session):
        first = (await ask(client, stop=[";"])).choices[0]
        assert first.message.content == "4" and first.finish_reason == "stop"
        await ask(client, [*QUESTION, first.message, {"role": "user", "content": "go on"}])

    async def generate(sampling):
        return Completion(list(ids), [-1.0] * len(ids), "stop", ";" if sampling.stop else None)

    sampled(generate)
    trajectory, _ = inside(body)
    text = tokenizer.decode(trajectory.output.response_ids)
    assert text == "4;<|end|><|start|>user\ngo on<|end|><|start|>assistant\n4;"


def test_keys_are_needed_and_end_with_their_trajectory(inside):
    kept = {}

    async def body(client, session):
        await ask(client)
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": client.api_key}):
            async with httpx.AsyncClient(base_url=str(client.base_url), trust_env=False, timeout=60) as http:
                for method, path in (("POST", "chat/completions"), ("GET", "models")):
                    answer = await http.request(method, path, headers=given, json={})
                    assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key"
                assert (await http.get("nowhere")).status_code == 404
        with pytest.raises(openai.AuthenticationError):
            await ask(client.with_options(api_key="trajectory-x"))
        kept["url"] = str(client.base_url)

    inside(body)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{kept['url']}models", trust_env=False)


def test_tools_are_shown_called_and_answered(inside, config, tokenizer):
    config.data.apply_chat_template_kwargs = {"chat_template": TEMPLATE}
    call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    bad = "<tool_call>{add}</tool_call>"
    texts = [f"Let me see.{call}{call}", "2", call + call, bad]

    def answer(prompt_ids, sampling):
        return [*tokenizer(texts.pop(0), add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]

    async def body(client, session):
        first = (await ask(client, tools=[TOOL])).choices[0]
        assert first.finish_reason == "tool_calls" and first.message.content == "Let me see."
        one, other = first.message.tool_calls
        assert (one.id, other.id) == ("call_0_0_0_0", "call_0_0_0_1"), "the same in every run"
        assert one.function.name == "add" and one.function.arguments == '{"a": 1}'
        results = [{"role": "tool", "tool_call_id": c.id, "content": f"2<|end|>{c.id[:4]}"} for c in (one, other)]
        second = (await ask(client, [*QUESTION, first.message, *results], tools=[TOOL])).choices[0]
        assert (second.finish_reason, second.message.content, second.message.tool_calls) == ("stop", "2", None)
        parts = [part async for part in await ask(client, tools=[TOOL], stream=True)]
        streamed, _ = parts[1].choices[0].delta.tool_calls
        assert (streamed.id, streamed.index, streamed.function.name) == ("call_0_0_2_0", 0, "add")
        assert parts[1].choices[0].finish_reason == "tool_calls"
        reply = (await ask(client, tools=[TOOL])).choices[0]  # a malformed call is text, and is counted
        assert (reply.message.content, reply.message.tool_calls, session.malformed) == (bad, None, 1)

    trajectory, _ = inside(body, answer=answer)
    output = trajectory.output
    assert tokenizer.decode(output.prompt_ids).startswith("<|start|>tools\nadd <|end|><|start|>user")
    result = "<|start|>tool\n2< |end|>call<|end|>"  # what a tool says cannot end its message
    assert tokenizer.decode(output.response_ids) == (
        f"Let me see.{call}{call}<|end|>{result}{result}<|start|>assistant\n2<|end|>"
    )
    turns = trajectory.completions
    assert output.policy_ids == turns[0].token_ids + turns[1].token_ids


@pytest.fixture
def hanging(sampled):
    """The first call hangs until it is ended; (an event that it was asked, one that it ended)."""
    asked, left = asyncio.Event(), asyncio.Event()

    async def generate(sampling):
        if not asked.is_set():
            asked.set()
            try:
                await asyncio.sleep(600)
            finally:
                left.set()
        return Completion([7, 1], [-1.0, -1.0], "stop", 1)

    sampled(generate)
    return asked, left


def test_a_client_that_leaves_ends_its_call(inside, hanging):
    asked, left = hanging

    async def body(client, session):
        call = asyncio.create_task(ask(client))
        await asked.wait()
        call.cancel()  # which closes its connection
        with pytest.raises(asyncio.CancelledError):
            await call
        await left.wait()
        await ask(client)
        assert len(session.conversations.turns) == 1

    inside(body)


def test_a_trajectory_that_ends_takes_its_calls_with_it(inside, hanging):
    """Although the endpoint stays open, for another trajectory."""
    asked, left = hanging

    async def body(client, session):
        async with admit(Session(session._loop, session._params, {})) as (base_url, api_key):
            assert base_url == str(client.base_url).rstrip("/")
            call = asyncio.create_task(ask(client.with_options(api_key=api_key)))
            await asked.wait()
        with pytest.raises(openai.APIStatusError):
            await call
        assert left.is_set()
        await ask(client)

    inside(body)
