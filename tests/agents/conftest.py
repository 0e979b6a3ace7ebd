"""A scripted engine that answers without a model, and runners over it."""

import asyncio

import pytest

from burnish.agents.runner import TrajectoryRunner
from burnish.config import PPOConfig
from burnish.models.tiny import byte_tokenizer
from burnish.rollout.base import Completion, RolloutEngine
from burnish.rollout.stops import StopMatcher
from burnish.workers.rollouts import agent_settings


class ScriptedEngine(RolloutEngine):
    """Answers each prompt with `answer(prompt_ids, sampling)` ids after one pass of the loop, and keeps the calls."""

    def __init__(self, answer):
        self.answer = answer
        self.calls = []

    async def generate(self, request, on_token=None):
        self.calls.append(vars(request))
        await asyncio.sleep(0)
        ids = self.answer(request.prompt_ids, request.sampling)
        return Completion(ids, [-0.5 - i for i in range(len(ids))], "stop", ids[-1] if ids else None, 3)

    def publish(self, weights, version): ...
    def sleep(self): ...
    def wake(self): ...
    def abort(self, request_id): ...
    @property
    def in_flight(self):
        return 0

    def stats(self):
        return {}


class WritingEngine(ScriptedEngine):
    """Writes the next of `texts[(uid, sample)]` in each turn, as an engine does: up to a stop string, then no further;
    otherwise to its end, with an end token; or to `max_tokens`. The texts of a trajectory may be a function of its
    prompt's text."""

    def __init__(self, tokenizer, texts):
        super().__init__(None)
        self.tokenizer, self.texts = tokenizer, texts
        self.record = {}  # (uid, sample) → the completions, by turn
        self.context, self.vocabulary = 10_000, len(tokenizer)

    async def generate(self, request, on_token=None):
        self.calls.append(vars(request))
        await asyncio.sleep(0)
        uid, sample, turn = request.order
        script = self.texts[uid, sample] if isinstance(self.texts, dict) else self.texts
        text = script(self.tokenizer.decode(request.prompt_ids)) if callable(script) else script[turn]
        done = self.completion(text, request.sampling)
        self.record.setdefault((uid, sample), []).append(done)
        return done

    def completion(self, text, sampling):
        ids, reason, stop = [], "stop", self.tokenizer.eos_token_id
        matcher = StopMatcher(self.tokenizer, sampling.stop) if sampling.stop else None
        for token in [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]:
            ids.append(token)
            found = matcher.push(token) if matcher else None
            if found is not None or token in sampling.stop_token_ids:
                stop = token if found is None else found
                break
            if len(ids) == sampling.max_tokens and token != self.tokenizer.eos_token_id:
                reason, stop = "length", None
                break
        return Completion(ids, [-1.0 - i / 100 for i in range(len(ids))], reason, stop, 3)


def observed_text(tokenizer, output):
    """The text of a trajectory that the policy did not write."""
    return tokenizer.decode([t for t, m in zip(output.response_ids, output.response_mask, strict=True) if not m])


@pytest.fixture(scope="session")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture
def config():
    config = PPOConfig()
    config.data.max_prompt_length = 64
    config.data.max_response_length = 16
    return config


@pytest.fixture
def scripted(tokenizer, config):
    """`scripted("text")` → (runner, engine): every request is answered with the text and an end token."""

    def make(text="42", answer=None):
        ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        engine = ScriptedEngine(answer or (lambda prompt_ids, sampling: list(ids)))
        return TrajectoryRunner(engine, tokenizer, agent_settings(config)), engine

    return make


@pytest.fixture
def writing(tokenizer, config):
    """`writing(texts)` → (runner, engine): see `WritingEngine`."""
    runners = []

    def make(texts, tokenizer=tokenizer):
        engine = WritingEngine(tokenizer, texts)
        runners.append(TrajectoryRunner(engine, tokenizer, agent_settings(config)))
        return runners[-1], engine

    yield make
    for runner in runners:
        runner.close()


@pytest.fixture
def make_rows():
    def rows(count=2, n=1, **columns):
        return [
            {"uid": uid, "sample": sample, "raw_prompt": [{"role": "user", "content": f"{uid}+1="}], **columns}
            for uid in range(count)
            for sample in range(n)
        ]

    return rows


@pytest.fixture(autouse=True)
def _own_table(monkeypatch):
    """Loops registered by one test are gone in the next."""
    from burnish.agents import base

    monkeypatch.setattr(base, "_registered", dict(base._registered))
