"""The endpoint, through the official client: answers, streams, log-probs, errors, clients that leave, shutdown."""

import asyncio
import http.client
import json
import logging
import math
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
import torch

from burnish.rollout.base import Request, Sampling, request_seed
from burnish.rollout.native.engine import NativeEngine
from burnish.serving import app as app_module
from burnish.serving import server as server_module
from burnish.serving.loading import ModelOptions
from burnish.serving.server import ServeOptions, run
from burnish.web.requests import Limits
from burnish.web.server import listen
from tests.processes import until
from tests.serving.conftest import DEADLINE_S, before_each_pass, held, serving

QUESTION = [{"role": "user", "content": "347+586=?"}]
ENDLESS = {"model": "talkative", "prompt": "x", "max_tokens": 90_000, "ignore_eos": True}


def ask(client, **fields):
    return client.chat.completions.create(**{"model": "nano", "messages": QUESTION, "seed": 1} | fields)


def whole(chunks, index=0):
    """The text, finish reason and log-prob entries of one choice of a stream."""
    text, reason, entries = "", None, []
    for choice in (choice for chunk in chunks for choice in chunk.choices if choice.index == index):
        text += choice.delta.content or ""
        reason = choice.finish_reason or reason
        entries += choice.logprobs.content if choice.logprobs else []
    return text, reason, entries


def test_a_chat_answer_is_what_the_engine_samples(client, nano):
    answer = ask(client, temperature=0.7, max_tokens=60)
    prompt = nano.renderer.prompt_ids(QUESTION)
    sampling = Sampling(temperature=0.7, max_tokens=60, seed=request_seed(1, "serve", 0, 0, 0))
    engine = NativeEngine(nano.engine.module, nano.tokenizer)
    expected = asyncio.run(engine.generate(Request(prompt, sampling, request_id="x")))
    (choice,) = answer.choices
    assert choice.message.content == nano.tokenizer.decode(expected.token_ids, skip_special_tokens=True)
    assert "answer: " in choice.message.content and "<|end|>" not in choice.message.content
    assert (choice.message.role, choice.finish_reason, choice.logprobs) == ("assistant", "stop", None)
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), len(expected.token_ids))
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert answer.object == "chat.completion" and answer.model == "nano"


def test_several_answers_differ_and_are_counted_together(client, nano):
    answer = ask(client, n=4, logprobs=True)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len({choice.message.content for choice in answer.choices}) > 1
    assert answer.choices[0].message.content == ask(client).choices[0].message.content
    assert len({ask(client, seed=seed).choices[0].message.content for seed in (5, 6, 7)}) > 1
    assert answer.usage.completion_tokens == sum(len(choice.logprobs.content) for choice in answer.choices)
    assert answer.usage.prompt_tokens == len(nano.renderer.prompt_ids(QUESTION))


@pytest.mark.parametrize("fields", [{}, {"n": 3}, {"stop": ["=", "swer"]}, {"max_tokens": 7}, {"logprobs": True}])
def test_a_stream_adds_up_to_the_whole_answer(client, fields):
    answer = ask(client, **fields)
    chunks = list(ask(client, stream=True, **fields))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"} and len({chunk.id for chunk in chunks}) == 1
    for choice in answer.choices:
        entries = choice.logprobs.content if choice.logprobs else []
        assert whole(chunks, choice.index) == (choice.message.content, choice.finish_reason, entries)
    assert [c.choices[0].delta.role for c in chunks[: len(answer.choices)]] == ["assistant"] * len(answer.choices)
    assert all(chunk.usage is None for chunk in chunks)
    *chunks, last = ask(client, stream=True, stream_options={"include_usage": True}, **fields)
    assert last.choices == [] and last.usage == answer.usage and all(chunk.usage is None for chunk in chunks)


@pytest.mark.parametrize("place", [slice(3, 6), slice(4, 5), slice(0, 2), slice(-3, None)])
def test_stop_strings_are_not_part_of_the_text(client, place):
    free = ask(client)
    text = free.choices[0].message.content
    stop = text[place]  # each character is a token
    cut = ask(client, stop=["never there", stop])
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    assert cut.usage.completion_tokens == text.index(stop) + len(stop) < free.usage.completion_tokens


def test_length_is_said_and_the_context_is_never_left(another, running):
    assert ask(running.client(), max_tokens=3).choices[0].finish_reason == "length"
    full = ask(running.client(), max_completion_tokens=10**6, extra_body={"ignore_eos": True})
    assert full.choices[0].finish_reason == "length" and full.usage.total_tokens == another.context


def test_log_probs_of_a_chat_are_those_of_the_sampled_tokens(client, nano):
    choice = ask(client, logprobs=True, temperature=0.5).choices[0]
    entries, text = choice.logprobs.content, choice.message.content + "<|end|>"
    assert "".join(entry.token for entry in entries) == text
    assert bytes(b for entry in entries for b in entry.bytes).decode() == text
    assert all(entry.logprob <= 0 and entry.top_logprobs == [] for entry in entries)
    prompt, ids = nano.renderer.prompt_ids(QUESTION), nano.tokenizer(text, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logits = nano.engine.module(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1] / 0.5
    scaled = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids)[:, None]).squeeze(1).tolist()
    assert [entry.logprob for entry in entries] == pytest.approx(scaled, abs=1e-4)


def test_completions_of_text_and_of_ids(client, nano):
    text = "<|start|>347+586=?\n"
    ids = nano.tokenizer(text)["input_ids"]
    fields = {"model": "nano", "seed": 1, "max_tokens": 60, "logprobs": 0}
    by_text = client.completions.create(prompt=text, **fields)
    assert by_text.choices == client.completions.create(prompt=ids, **fields).choices
    assert by_text.choices[0].text == ask(client).choices[0].message.content
    both = client.completions.create(prompt=[text, "<|start|>12+34=?\n"], n=2, **fields)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3] and both.choices[0].text == by_text.choices[0].text
    alone = by_text.choices[0].logprobs.token_logprobs  # in another batch sums are rounded otherwise
    assert both.choices[0].logprobs.token_logprobs == pytest.approx(alone, abs=1e-4)
    assert client.completions.create(prompt=[ids, ids], **fields).usage.prompt_tokens == 2 * len(ids)
    assert client.completions.create(model="nano", prompt=text).usage.completion_tokens <= 16


@pytest.mark.parametrize("stop", [None, "nswe"])
def test_completions_with_log_probs_streamed_and_whole(client, stop):
    """Tokens of a stop string are where the text ends."""
    fields = {"model": "nano", "prompt": "<|start|>347+586=?\n", "seed": 1, "max_tokens": 60, "logprobs": 1}
    fields["stop"] = stop
    choice = client.completions.create(**fields).choices[0]
    found = choice.logprobs
    assert "".join(found.tokens) == choice.text + (stop or "<|end|>") and found.top_logprobs is None
    assert found.text_offset == [min(i, len(choice.text)) for i in range(len(found.tokens))]
    assert all(math.isfinite(value) and value <= 0 for value in found.token_logprobs)
    chunks = [chunk.choices[0] for chunk in client.completions.create(stream=True, **fields)]
    assert "".join(chunk.text for chunk in chunks) == choice.text
    assert [t for chunk in chunks if chunk.logprobs for t in chunk.logprobs.token_logprobs] == found.token_logprobs
    assert [t for chunk in chunks if chunk.logprobs for t in chunk.logprobs.text_offset] == found.text_offset
    assert chunks[-1].finish_reason == choice.finish_reason


def test_the_lines_of_a_stream_are_ascii_and_hold_whole_characters(talkative):
    """So that no client takes a character of the answer for the end of a line. A random model writes bytes."""
    body = {"model": "talkative", "prompt": "é", "seed": 3, "max_tokens": 100, "ignore_eos": True}
    with serving(talkative) as running:
        url = f"{running.url}/v1/completions"
        whole = httpx.post(url, json=body, timeout=DEADLINE_S).json()["choices"][0]["text"]
        answer = httpx.post(url, json=body | {"stream": True}, timeout=DEADLINE_S)
    assert answer.headers["content-type"].startswith("text/event-stream") and answer.content.isascii()
    *events, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "") and all(event.startswith("data: {") for event in events)
    assert "".join(json.loads(event[6:])["choices"][0]["text"] for event in events) == whole
    assert not whole.replace("\ufffd", "").isascii()


def test_models(client):
    (card,) = client.models.list().data
    assert (card.id, card.object, card.max_model_len) == ("nano", "model", 1024)
    assert client.models.retrieve("nano") == card
    with pytest.raises(openai.NotFoundError, match="unknown model 'other/model'"):
        client.models.retrieve("other/model")


@pytest.mark.parametrize("stream", [False, True])
def test_errors_reach_the_client_as_its_own(client, stream):
    with pytest.raises(openai.NotFoundError, match="unknown model 'gpt-4o'; this server has 'nano'"):
        ask(client, model="gpt-4o", stream=stream)
    with pytest.raises(openai.BadRequestError, match="3002 tokens") as caught:
        ask(client, messages=[{"role": "user", "content": "9" * 3000}], stream=stream)
    assert set(caught.value.body) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "message"),
    [
        ("GET", "/v1/nothing", {}, 404, "unknown address; use POST /v1/chat/completions"),
        ("GET", "/v1/completions", {}, 405, "GET is not allowed here"),
        ("POST", "/v1/completions", {"content": b"{", "headers": {"content-type": "application/json"}}, 400, "as JSON"),
        ("POST", "/v1/completions", {"data": {"model": "nano"}}, 415, "Content-Type: application/json"),
        ("POST", "/v1/completions", {"json": {"model": "nano", "prompt": "9" * (5 << 20)}}, 413, "larger than 4194304"),
    ],
)
def test_other_errors_have_openais_shape_too(nano_server, method, path, options, status, message):
    answer = httpx.request(method, nano_server.url + path, timeout=DEADLINE_S, **options)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and message in error["message"]


def test_a_key_is_asked_for(another):
    with serving(another, api_key="sésame") as running:
        with pytest.raises(openai.AuthenticationError, match="the API key is missing or wrong"):
            ask(running.client("wrong"))
        with pytest.raises(openai.AuthenticationError):
            running.client("wrong").models.list()
        right = {"Authorization": "Bearer sésame".encode()}
        answers = running.get("/v1/models"), running.get("/v1/models", headers=right), running.get("/health")
        assert [answer.status_code for answer in answers] == [401, 200, 200]


def test_health_answers_during_a_forward_pass_and_for_a_lost_engine(another, running, monkeypatch):
    with ThreadPoolExecutor() as pool, held(another) as waiting:
        answer = pool.submit(ask, running.client(), max_tokens=4)
        assert waiting.wait(DEADLINE_S)
        assert running.get("/health").json() == {"status": "ok", "answers_in_flight": 1}
    assert answer.result().usage.completion_tokens == 4
    assert running.get("/health").json()["answers_in_flight"] == 0
    monkeypatch.setattr(another.engine, "lost", lambda: "given up")
    given_up = running.get("/health")
    assert (given_up.status_code, given_up.json()["status"]) == (503, "lost")


def test_more_than_may_wait_are_refused_before_they_are_read(another, monkeypatch):
    read = []
    monkeypatch.setattr(app_module.http, "parse_json", lambda body: read.append(body) or json.loads(body))
    with serving(another, max_num_seqs=1, max_waiting=2) as running, ThreadPoolExecutor() as pool:
        client = running.client()
        with held(another) as waiting:
            answers = [pool.submit(ask, client, max_tokens=2) for _ in range(3)]
            assert waiting.wait(DEADLINE_S)
            until(lambda: running.server._service.engine.in_flight == 3)
            with pytest.raises(openai.InternalServerError, match="3 answers are being generated or wait") as caught:
                ask(client)
            assert caught.value.status_code == 503 and caught.value.response.headers["retry-after"] == "1"
            assert len(read) == 3
        assert [answer.result().usage.completion_tokens for answer in answers] == [2, 2, 2]
        with pytest.raises(openai.BadRequestError, match="4 answers in one request; this server holds at most 3"):
            ask(client, n=4)


def test_long_bodies_do_not_pile_up_before_the_reader(running, monkeypatch):
    reading, go = threading.Event(), threading.Event()

    def slow(body):
        reading.set()
        assert go.wait(DEADLINE_S)
        return json.loads(body)

    monkeypatch.setattr(app_module.http, "parse_json", slow)
    monkeypatch.setattr(app_module, "MAX_UNREAD_BYTES", 300)
    with ThreadPoolExecutor() as pool:
        try:
            answer = pool.submit(ask, running.client(), max_tokens=2, user="x" * 150)
            assert reading.wait(DEADLINE_S)
            with pytest.raises(openai.InternalServerError, match="too many long prompts wait to be read") as caught:
                ask(running.client(), user="x" * 150)
            assert caught.value.status_code == 503
        finally:
            go.set()
        assert answer.result().usage.completion_tokens == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_aborts_its_request(talkative, stream):
    before = talkative.engine.stats()["aborted"]
    with serving(talkative) as running:
        engine = running.server._service.engine
        connection = http.client.HTTPConnection(running.url.removeprefix("http://"))
        body = json.dumps(ENDLESS | {"stream": stream, "n": 2})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        until(lambda: engine.in_flight == 2)
        if stream:
            assert connection.getresponse().status == 200
        connection.close()
        until(lambda: engine.in_flight == 0)
    assert talkative.engine.stats()["aborted"] == before + 2


def test_the_access_log_has_short_lines_and_a_failing_engine_is_a_500_without_its_inside(another, running, caplog):
    caplog.set_level(logging.INFO, "burnish")
    ask(running.client(), max_tokens=3)
    list(ask(running.client(), max_tokens=4, stream=True))
    running.get("/v1/a%0Ab%1b")
    running.get("/health")

    def broken():
        raise MemoryError("secret inside")

    with before_each_pass(another, broken):
        with pytest.raises(openai.InternalServerError) as caught:
            ask(running.client())
        assert caught.value.body["message"] == "the server could not finish this request; its log says why"
        with pytest.raises(openai.APIError, match="its log says why"):
            list(ask(running.client(), stream=True))
    assert "secret inside" in caplog.text
    assert ask(running.client(), max_tokens=2).usage.completion_tokens == 2
    running.stop()
    lines = [r.getMessage() for r in caplog.records if r.name == "burnish.serving.app"]
    assert [line.rpartition(" tokens")[0] or line.rpartition(" 404 ")[0] for line in lines[:3]] == [
        "POST /v1/chat/completions 200 11+3",
        "POST /v1/chat/completions 200 11+4",
        "GET /v1/a%0Ab%1b",
    ]


def test_stopping_aborts_what_does_not_finish_in_time(talkative, monkeypatch):
    monkeypatch.setattr(server_module, "GRACE_S", 0)
    before = set(threading.enumerate())
    with serving(talkative) as running, ThreadPoolExecutor() as pool:
        url = f"{running.url}/v1/completions"
        answer = pool.submit(httpx.post, url, json=ENDLESS, timeout=DEADLINE_S)
        streamed = pool.submit(httpx.post, url, json=ENDLESS | {"stream": True}, timeout=DEADLINE_S)
        until(lambda: running.server._service.engine.in_flight == 2)
        assert running.stop() == 0
        told = answer.result()
        assert (told.status_code, told.json()["error"]["message"]) == (503, "the server is shutting down")
        last = streamed.result().text.strip().split("\n\n")[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"
    until(lambda: set(threading.enumerate()) <= before)


def test_stopping_lets_short_answers_finish(another, running, monkeypatch):
    monkeypatch.setattr(server_module, "GRACE_S", DEADLINE_S)
    with ThreadPoolExecutor() as pool:
        with held(another) as waiting:
            answer = pool.submit(ask, running.client(), max_tokens=5)
            assert waiting.wait(DEADLINE_S)
            running.server.should_exit = True
        assert answer.result().usage.completion_tokens == 5


def test_a_second_ctrl_c_does_not_wait(talkative, monkeypatch):
    monkeypatch.setattr(server_module, "GRACE_S", 10_000)
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/completions"

    def interrupt(server):
        with ThreadPoolExecutor() as pool:
            pool.submit(httpx.post, url, json=ENDLESS, timeout=DEADLINE_S)  # which fails, as nobody waits for it
            until(lambda: server._service.engine.in_flight == 1)
            signal.raise_signal(signal.SIGINT)
            until(lambda: not server.servers[0].is_serving())
            signal.raise_signal(signal.SIGINT)

    def ready(server):
        threading.Thread(target=interrupt, args=(server,)).start()

    assert asyncio.run(run(talkative, ServeOptions(ModelOptions("unused")), listener, ready)) == 130


def test_a_sigterm_after_two_ctrl_c_does_not_wait_again():
    server = server_module.ServeServer(None, lambda _: None, Limits())
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
        server.handle_exit(number, None)
    assert server.force_exit and server.stopped_by == signal.SIGINT


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signals_end_it_with_their_exit_code(another, number, code):
    before = signal.getsignal(number)
    listener = listen("127.0.0.1", 0)
    options = ServeOptions(ModelOptions("unused"))
    assert asyncio.run(run(another, options, listener, lambda _: signal.raise_signal(number))) == code
    assert signal.getsignal(number) is before
