"""Plain programs with the official client as agents: what they were sent is what is trained, token for token."""

import asyncio
import logging
import re
import textwrap
from types import SimpleNamespace

import pytest
import yaml

from burnish.agents.loops.openai_program import OpenAIProgramLoop
from burnish.agents.runner import TrajectoryRunner
from burnish.errors import AgentError, ConfigError, install_command
from burnish.rollout.base import Completion, Sampling
from burnish.workers.rollouts import agent_settings
from tests.processes import until

TARGET = f"{OpenAIProgramLoop.__module__}.{OpenAIProgramLoop.__name__}"
HEAD = """
import asyncio, pathlib, time
import numpy, openai


def connect(base_url, api_key):
    return openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=120)


def ask(client, messages, **fields):
    return client.chat.completions.create(model="any name", messages=messages, **fields).choices[0]


"""
MAIN = """
def main(base_url, api_key, row, calls=3):
    client, messages = connect(base_url, api_key), list(row["messages"])
"""
TURNS = """
    for _ in range(calls):
        messages += [ask(client, messages).message, {"role": "user", "content": "again"}]
"""


@pytest.fixture
def run(scripted, config, make_rows, tmp_path):
    """`run(body)` → (trajectories, engine): a program's trajectories over an engine that says `text`. The body is that
    of `MAIN`, or defines its own."""
    config.data.max_response_length = 400

    def run(source, text="42", answer=None, count=1, n=1, sampling=None, engine=None, **entry):
        source = textwrap.dedent(source)
        source = source if "def main" in source else MAIN + textwrap.indent(source, "    ")
        (tmp_path / "agent.py").write_text(HEAD + source)
        entries = [{"name": "program", "_target_": TARGET, "program": "agent.py:main", "timeout": 120, **entry}]
        (tmp_path / "loops.yaml").write_text(yaml.safe_dump(entries))
        config.actor_rollout_ref.rollout.agent.agent_loop_config_path = str(tmp_path / "loops.yaml")
        runner, own = scripted(text, answer)
        if engine is not None:
            runner = TrajectoryRunner(engine, runner.tokenizer, agent_settings(config))
        rows = make_rows(count, n, agent_name="program")
        try:
            return runner.run(rows, sampling or Sampling(), namespace="train", seed=1), engine or own
        finally:
            runner.close()

    return run


def failure(trajectories):
    (trajectory,) = trajectories
    return trajectory.output.extra_fields["failure"]


def test_trajectories_are_token_exact(run, tokenizer):
    """Replies hold a special token and half a character, which no text brings back: nothing can be tokenised again."""
    start, half = tokenizer.convert_tokens_to_ids("<|start|>"), tokenizer("é", add_special_tokens=False)["input_ids"][0]

    def answer(prompt_ids, sampling):
        digits = tokenizer(str(len(prompt_ids)), add_special_tokens=False)["input_ids"]
        return [start, *digits, half, tokenizer.eos_token_id]

    trajectories, engine = run(TURNS, answer=answer, count=4, n=2)
    assert len(trajectories) == 8
    between = "<|start|>user\nagain<|end|><|start|>assistant\n"
    between_ids = tokenizer(between, add_special_tokens=False)["input_ids"]
    for trajectory in trajectories:
        output, turns = trajectory.output, trajectory.completions
        assert tokenizer.decode(output.prompt_ids) == (
            f"<|start|>user\n{trajectory.row['uid']}+1=<|end|><|start|>assistant\n"
        )
        assert len(turns) == 3 and output.num_turns == 6
        expected, mask, log_probs = [], [], []
        for i, turn in enumerate(turns):
            expected += (between_ids if i else []) + turn.token_ids
            mask += [0] * (len(between_ids) if i else 0) + [1] * len(turn.token_ids)
            log_probs += [0.0] * (len(between_ids) if i else 0) + turn.log_probs
        assert (output.response_ids, output.response_mask) == (expected, mask)
        assert output.response_logprobs == log_probs
        own = [call for call in engine.calls if call["order"][:2] == (trajectory.row["uid"], trajectory.row["sample"])]
        assert [call["order"][2] for call in own] == [0, 1, 2]
        whole = output.prompt_ids + output.response_ids
        for call in own:
            assert call["prompt_ids"] == whole[: len(call["prompt_ids"])], "it continues from the tokens before it"
        assert output.metrics["openai/calls"] == 3 and output.metrics["openai/calls_not_trained"] == 0


def test_trajectories_run_at_the_same_time(run, scripted):
    class Together(type(scripted()[1])):
        """Answers when the calls of all trajectories are there."""

        async def generate(self, *args, **kwargs):
            completion = await super().generate(*args, **kwargs)
            async with asyncio.timeout(60):
                while len(self.calls) % 6:
                    await asyncio.sleep(0.001)
            return completion

    engine = Together(lambda prompt_ids, sampling: [7, 1])
    trajectories, _ = run(TURNS, engine=engine, count=6, arguments={"calls": 1})
    assert [t.output.policy_ids for t in trajectories] == [[7, 1]] * 6


def test_a_turn_that_was_cut_off_is_ended_by_the_template(run, tokenizer):
    reasons = ["length", "stop", "length"]

    async def generate(request, on_token=None):
        return Completion(tokenizer("4", add_special_tokens=False)["input_ids"], [-1.0], reasons.pop(0), None)

    source = TURNS + '    ask(client, [{"role": "user", "content": "judge"}])\n'
    ((trajectory,), _) = run(source, engine=SimpleNamespace(generate=generate, stats=dict), arguments={"calls": 2})
    text = tokenizer.decode(trajectory.output.response_ids)
    assert text == "4<|end|><|start|>user\nagain<|end|><|start|>assistant\n4"
    assert trajectory.output.extra_fields["finish_reason"] == "stop", "that of the trained conversation"


def test_what_it_returns_is_the_reward_and_a_coroutine_function_may_even_block(run):
    source = """
        ask(client, messages)
        return [0.25, None, numpy.float32(0.5)][row["uid"]]
        """
    assert [trajectory.output.reward_score for trajectory in run(source, count=3)[0]] == [0.25, None, 0.5]
    source = """
        async def main(base_url, api_key, row):
            async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
                reply = await client.chat.completions.create(model="m", messages=row["messages"])
            ask(connect(base_url, api_key), row["messages"])
            return len(reply.choices[0].message.content)
        """
    assert run(source, text="four")[0][0].output.reward_score == 4


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise KeyError('colour')", ["agent.py:main raised KeyError", "agent.py", "raise KeyError('colour')"]),
        ("raise SystemExit(3)", ["raised SystemExit"]),
        ("return 'good'", ["returned a str; expected the reward, a finite number, or None"]),
        ("return float('nan')", ["returned nan; expected the reward"]),
        (
            "ask(client, [{'role': 'user', 'content': 'x' * 100}])",
            ["118 tokens, over the limit of 64; raise data.max_prompt_length, or send less"],
        ),
    ],
)
def test_a_program_that_fails_is_reported_and_ends_its_trajectory_alone(run, body, words):
    source = f"""
        ask(client, messages)
        if row["uid"] == 1:
            {body}
        """
    trajectories, _ = run(source, count=3)
    assert [t.row["uid"] for t in trajectories if "failure" in t.output.extra_fields] == [1]
    told = failure(trajectories[1:2])
    assert all(word in told for word in words), told
    assert "burnish/agents" not in told, "frames of burnish are not the user's to read"


def test_a_program_that_asks_nothing_or_hangs_and_then_loses_its_key(run, tmp_path):
    told = failure(run("pass")[0])
    assert "ended without a reply from the policy" in told and "base_url" in told
    source = f"""
        try:
            while True:
                ask(client, messages)
                time.sleep(0.05)
        except openai.APIError:
            pass  # whatever was under way when its time was over
        try:
            ask(client, messages)
        except openai.APIError as error:
            pathlib.Path({str(tmp_path / "late.part")!r}).write_text(type(error).__name__)
            pathlib.Path({str(tmp_path / "late.part")!r}).rename({str(tmp_path / "late.txt")!r})
        """
    told = failure(run(source, timeout=0.3)[0])
    assert "not done after 0.3 s" in told
    until((tmp_path / "late.txt").exists)
    assert (tmp_path / "late.txt").read_text() in ("APIConnectionError", "AuthenticationError")


def test_a_broken_engine_ends_the_run_although_the_program_continues(run):
    def answer(prompt_ids, sampling):
        raise ValueError("no memory left")

    source = """
        try:
            ask(client, messages)
        except openai.InternalServerError:
            time.sleep(60)
        """
    with pytest.raises(AgentError, match="no memory left"):
        run(source, answer=answer)


def test_the_longest_conversation_is_trained_and_the_rest_is_reported(run, tokenizer, caplog):
    source = """
        first = ask(client, messages).message
        ask(client, [{"role": "user", "content": "summarise"}])
        ask(client, [*messages, first, {"role": "user", "content": "not this way"}])
        edited = {"role": "assistant", "content": "43"}  # which begins a new conversation
        ask(client, [*messages, edited, {"role": "user", "content": "sure?"}])
        messages += [first, {"role": "user", "content": "but this"}]
        messages += [ask(client, messages).message, {"role": "user", "content": "and this"}]
        ask(client, messages)
        ask(client, [{"role": "user", "content": "judge"}])
        """
    with caplog.at_level(logging.WARNING):
        trajectories, _ = run(source, count=2)
    for trajectory in trajectories:
        text = tokenizer.decode(trajectory.output.response_ids)
        assert text.count("42<|end|>") == 3 and "but this" in text and "and this" in text
        assert not any(word in text for word in ("summarise", "not this way", "judge", "43", "sure?"))
        assert trajectory.output.metrics["openai/calls_not_trained"] == 4
    told = [record.message for record in caplog.records if "not trained" in record.message]
    assert len(told) == 1 and "4 of the 7 calls" in told[0], "once, not for each trajectory"


def test_a_full_context_truncates_the_trajectory_unless_the_program_handles_it(run, config):
    config.data.max_response_length = 60
    (trajectory,) = run(TURNS, arguments={"calls": 9})[0]
    output = trajectory.output
    assert "failure" not in output.extra_fields and output.extra_fields["finish_reason"] == "length"
    assert 0 < len(output.response_ids) <= 60 and output.response_mask[-1] == 1
    assert output.metrics["openai/context_full"] == 1 and output.reward_score is None
    source = """
        try:
            while True:
                messages += [ask(client, messages).message, {"role": "user", "content": "again"}]
        except openai.BadRequestError as error:
            assert error.code == "context_length_exceeded" and "data.max_response_length" in str(error)
            return 0.5
        """
    assert run(source)[0][0].output.reward_score == 0.5


def test_the_run_samples_and_the_program_limits(run, caplog):
    source = """
        fields = dict(temperature=0.1, seed=5, stop=["!"], max_tokens=7, extra_body={"stop_token_ids": [9]})
        ask(client, messages, **fields)
        """
    with caplog.at_level(logging.WARNING):
        _, engine = run(source, count=2, sampling=Sampling(temperature=0.8, stop=("?",)))
    for call in engine.calls:
        sampling = call["sampling"]
        assert (sampling.temperature, sampling.max_tokens) == (0.8, 7)
        assert sampling.stop == ("?", "!") and sampling.stop_token_ids == (9,)
    assert engine.calls[0]["sampling"].seed != engine.calls[1]["sampling"].seed
    told = [record.message for record in caplog.records if "asks for" in record.message]
    assert len(told) == 1 and "temperature=0.1, seed=5" in told[0]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"program": "agent.py:mian"}, "did you mean main"),
        ({"program": "missing.py:main"}, "missing.py"),
        ({"timeout": 0}, "timeout=0: expected seconds above 0"),
        ({"timeout": float("inf")}, "timeout=inf: expected seconds above 0"),
        ({"time_out": 3}, "unexpected keyword argument 'time_out'"),
        ({"arguments": [3]}, "arguments=.3.: expected names and values"),
        ({"arguments": {"cals": 3}}, "unexpected keyword argument 'cals'"),
    ],
)
def test_a_wrong_entry_is_reported(run, entry, words):
    with pytest.raises(ConfigError, match=words) as caught:
        run(TURNS, **entry)
    assert "loops.yaml, entry 0 (program)" in str(caught.value), "told when the file is read, before any trajectory"


def test_a_package_that_is_missing_is_named(run, monkeypatch):
    monkeypatch.setattr(f"{OpenAIProgramLoop.__module__}.find_spec", lambda name: None if name == "uvicorn" else 1)
    with pytest.raises(ConfigError, match=re.escape(f"package uvicorn; install it with {install_command('serve')}")):
        run(TURNS)
