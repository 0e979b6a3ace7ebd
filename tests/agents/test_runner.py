"""Trajectories: order, seeds, scoring, limits, user loops, and failures that name the trajectory."""

import asyncio
import contextlib
import textwrap

import pytest
import torch

from burnish import waits
from burnish.agents import AgentLoopBase, AgentLoopOutput, register, register_agent_loop
from burnish.agents import runner as runner_module
from burnish.agents.environment import CLOSE_S
from burnish.agents.runner import TrajectoryRunner
from burnish.config.model import ModelConfig
from burnish.errors import AgentError, ConfigError, DataError, DeadlineError, ToolFailure
from burnish.models.loading import load_causal_lm, load_tokenizer
from burnish.rollout.base import Sampling, request_seed
from burnish.rollout.native.engine import NativeEngine
from burnish.workers.rollouts import agent_settings


def run(runner, rows, **options):
    return runner.run(rows, options.pop("sampling", Sampling()), namespace="train", seed=7, **options)


def loop_that(does):
    """A loop whose `run` awaits `does(loop, row)`."""

    class Loop(AgentLoopBase):
        async def run(self, sampling_params, **row):
            return await does(self, row)

    return Loop


def wordless(kind):
    """An error of this kind that cannot be made text."""
    return type("Wordless", (kind,), {"__str__": lambda self: 1 / 0})()


class TwoTurns(AgentLoopBase):
    """Asks, adds an observation, asks again; writes ids as tensors, and no log-probs."""

    async def run(self, sampling_params, **row):
        self.seen = row
        prompt = torch.tensor([self.chat.prompt_ids(row["messages"])])
        ids, mask = [], []
        for turn in range(row["max_turns"]):
            context = torch.cat([prompt, torch.tensor([ids], dtype=torch.long)], dim=1)
            completion = await self.server_manager.generate("mine", prompt_ids=context, sampling_params=sampling_params)
            ids += completion.token_ids
            mask += [1] * len(completion.token_ids)
            if turn + 1 < row["max_turns"]:
                ids += [10, 11]
                mask += [0, 0]
        return AgentLoopOutput(prompt, torch.tensor(ids), torch.tensor(mask), num_turns=2 * row["max_turns"])


def test_single_turn(scripted, tokenizer, make_rows):
    runner, engine = scripted("42")
    rows = make_rows(count=2, n=2)
    trajectories = run(runner, rows, sampling=Sampling(temperature=0.5, stop=("#",)))
    assert [t.row for t in trajectories] == rows
    first = trajectories[0].output
    assert tokenizer.decode(first.prompt_ids) == "<|start|>user\n0+1=<|end|><|start|>assistant\n"
    assert tokenizer.decode(first.response_ids) == "42<|end|>"
    assert (first.response_mask, first.response_logprobs) == ([1, 1, 1], [-0.5, -1.5, -2.5])
    assert (first.num_turns, first.extra_fields) == (2, {"finish_reason": "stop"})
    assert {t.text for t in trajectories} == {"42"}
    assert [c.policy_version for c in trajectories[0].completions] == [3]
    assert [call["order"] for call in engine.calls] == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]
    assert engine.calls[3]["sampling"] == Sampling(
        temperature=0.5, stop=("#",), max_tokens=16, seed=request_seed(7, "train", 1, 1, 0)
    )


def test_users_loops_by_both_ways_of_registering(scripted, make_rows):
    @register("decorated")
    class Decorated(TwoTurns):
        pass

    register_agent_loop("called", TwoTurns)
    runner, engine = scripted("ab")
    rows = [make_rows(1, agent_name=name, max_turns=2, extra={"k": 1})[0] for name in ("decorated", "called")]
    rows[1]["uid"] = 1
    for trajectory in run(runner, rows):
        output = trajectory.output
        assert output.response_mask == [1, 1, 1, 0, 0, 1, 1, 1]
        assert output.response_logprobs == [-0.5, -1.5, -2.5, 0, 0, -0.5, -1.5, -2.5]
        assert (trajectory.text, output.num_turns) == ("ab\nab", 4)
    seeds = [call["sampling"].seed for call in engine.calls]
    assert seeds == [request_seed(7, "train", uid, 0, turn) for turn in (0, 1) for uid in (0, 1)]
    assert engine.calls[2]["request_id"] == "train/0.0.1/mine"


def test_a_loop_gets_the_row_messages_and_max_turns(scripted, make_rows):
    seen = {}

    @register("looks")
    class Looks(TwoTurns):
        async def run(self, sampling_params, **row):
            seen.update(row, params=sampling_params)
            return await super().run({"temperature": 0.1, "seed": 5}, **row | {"max_turns": 1})

    runner, engine = scripted()
    run(runner, make_rows(1, agent_name="looks", extra_info={"a": 1}), sampling=Sampling(top_k=3))
    # What a call asks for goes over what is configured.
    assert engine.calls[0]["sampling"] == Sampling(temperature=0.1, top_k=3, max_tokens=16, seed=5)
    assert seen["messages"] == seen["raw_prompt"] == [{"role": "user", "content": "0+1="}]
    assert (seen["max_turns"], seen["extra_info"], seen["uid"]) == (10, {"a": 1}, 0)
    assert seen["params"]["temperature"] == 1.0 and seen["params"]["max_tokens"] == 16


def test_loops_from_a_yaml_file(scripted, tokenizer, config, make_rows, tmp_path, monkeypatch):
    source = textwrap.dedent("""
        from burnish.agents.loops.single_turn import SingleTurnAgentLoop
        class Marked(SingleTurnAgentLoop):
            def __init__(self, mark='none', **kwargs):
                super().__init__(**kwargs)
                self.mark = mark
            async def run(self, sampling_params, **row):
                output = await super().run(sampling_params, **row)
                output.extra_fields['mark'] = self.mark
                return output
    """)
    (tmp_path / "marked.py").write_text(source)
    (tmp_path / "marked_module.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "loops.yaml"
    file.write_text(
        "- {name: from_file, _target_: 'marked.py:Marked', mark: red}\n"
        "- {name: from_module, _target_: marked_module.Marked}\n"
    )
    config.actor_rollout_ref.rollout.agent.agent_loop_config_path = str(file)
    config.actor_rollout_ref.rollout.agent.default_agent_loop = "from_file"
    for _ in range(2):  # a second runner in the same process reads the file again
        runner, _engine = scripted()
        rows = [make_rows(1)[0], make_rows(1, agent_name="from_module")[0]]
        assert [t.output.extra_fields["mark"] for t in run(runner, rows)] == ["red", "none"]


@pytest.mark.parametrize(
    "text,message",
    [
        ("{name: x}", "expected a list of entries"),
        ("- {_target_: a.B}", "entry 0: an entry needs a name"),
        ("- {name: x}", r"entry 0 \(x\): _target_ is missing"),
        ("- {name: x, _target_: Alone}", "_target_=Alone: expected package.module:Name, package.module.Name or file"),
        ("- {name: x, _target_: nowhere_to_be.Found}", "_target_=nowhere_to_be.Found: no such file, and no module"),
        ("- {name: x, _target_: json.JSONDecoder}", "is not a subclass of AgentLoopBase"),
        ("- {name: x, _target_: 'missing.py:X'}", "there is no file missing.py"),
        ("- [", "cannot be read"),
    ],
)
def test_bad_yaml_files(scripted, config, tmp_path, text, message):
    file = tmp_path / "loops.yaml"
    file.write_text(text)
    config.actor_rollout_ref.rollout.agent.agent_loop_config_path = str(file)
    with pytest.raises(ConfigError, match=message) as caught:
        scripted()
    assert f"agent_loop_config_path={file}" in str(caught.value)


def test_unknown_loops_and_names_that_are_taken(scripted, config, make_rows):
    runner, _ = scripted()
    register_agent_loop("mine", TwoTurns)
    register_agent_loop("mine", TwoTurns)
    words = r"agent_name=singel: there is no such agent loop; did you mean mine\? \(there are mine, react_agent, "
    with pytest.raises(ConfigError, match=words):
        run(runner, make_rows(1, agent_name="singel"))
    config.actor_rollout_ref.rollout.agent.default_agent_loop = "other"
    with pytest.raises(ConfigError, match=r"rollout.agent.default_agent_loop=other: there is no such agent loop"):
        scripted()
    for name, cls, words in (
        ("mine", type("Other", (TwoTurns,), {}), r"'mine' is already registered \(.*TwoTurns\)"),
        ("single_turn_agent", TwoTurns, "'single_turn_agent' is already registered"),
        ("new", object, "not a subclass of AgentLoopBase"),
    ):
        with pytest.raises(AgentError, match=words):
            register_agent_loop(name, cls)


def test_long_prompts_follow_the_truncation(scripted, config, tokenizer, make_rows):
    rows = make_rows(1)
    rows[0]["raw_prompt"][0]["content"] = "x" * 100
    runner, engine = scripted()
    with pytest.raises(DataError, match=r"prompt of uid 0: \d+ tokens, over the limit of 64; raise data.max_prompt_"):
        run(runner, rows)
    config.data.truncation = "left"
    run(runner, rows)
    assert len(engine.calls[-1]["prompt_ids"]) == 64
    assert tokenizer.decode(engine.calls[-1]["prompt_ids"]).endswith("xx<|end|><|start|>assistant\n")


def test_responses_have_at_most_their_length(scripted, make_rows):
    assert run(scripted()[0], []) == []
    for asked, expected in [(None, 16), (5, 5), (99, 16)]:
        runner, engine = scripted()
        run(runner, make_rows(1), sampling=Sampling(max_tokens=asked))
        assert engine.calls[0]["sampling"].max_tokens == expected
    register_agent_loop("two", TwoTurns)
    output = run(scripted("123456789")[0], make_rows(1, agent_name="two", max_turns=2))[0].output
    assert len(output.response_ids) == len(output.response_logprobs) == 16
    assert output.response_mask == [1] * 10 + [0, 0] + [1] * 4
    assert output.extra_fields["finish_reason"] == "length"


def test_scoring_one_does_not_delay_the_others(scripted, make_rows):
    scored, release = [], asyncio.Event()

    async def score(row, output, text):
        scored.append((row["uid"], text, list(output.response_mask)))
        if row["uid"] == 0:
            await release.wait()  # the second row, which takes longer to generate, lets the first go on
        else:
            release.set()
        return {"score": row["uid"] * 1.0}

    register_agent_loop("two", TwoTurns)
    rows = make_rows(2)
    rows[1] |= {"agent_name": "two", "max_turns": 3}
    trajectories = run(scripted("a")[0], rows, score=score, deadline_s=30)
    assert scored == [(0, "a", [1, 1]), (1, "a\na\na", [1, 1, 0, 0, 1, 1, 0, 0, 1, 1])]
    assert [t.score_result for t in trajectories] == [{"score": 0.0}, {"score": 1.0}]


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize(
    "result,message",
    [
        (KeyError("no such thing"), "KeyError: 'no such thing'"),
        (SystemExit(7), "SystemExit: 7"),
        (wordless(AgentError), r"Wordless: \(its text cannot be shown: __str__ raised ZeroDivisionError\)"),
        ("nothing", "run returned a str; expected an AgentLoopOutput"),
        ({"response_mask": [0, 0]}, r"no token of the response \(its first 16 count\) was sampled"),
        ({"response_mask": [1, 1]}, "response_logprobs is missing, and the tokens with mask 1 are not exactly"),
        ({"response_mask": [1]}, "response_mask has 1 entries and response_ids has 2"),
    ],
)
def test_a_loop_that_fails_or_breaks_the_contract_is_named(scripted, make_rows, config, staleness, result, message):
    async def one(loop, row):
        if row["sample"] != 1:
            await asyncio.sleep(3600)
        if isinstance(result, BaseException):
            raise result
        return result if isinstance(result, str) else AgentLoopOutput([5], [6, 7], **result)

    register_agent_loop("odd", loop_that(one))
    config.trainer.async_rollout.enable, config.trainer.async_rollout.staleness = bool(staleness), staleness
    runner = scripted()[0]
    with pytest.raises(AgentError, match=rf"agent loop odd failed for uid 0, sample 1: .*{message}") as caught:
        run(runner, make_rows(1, n=3, agent_name="odd"), deadline_s=60.0)
    runner.close()
    assert not isinstance(result, BaseException) or caught.value.__cause__ is result


def test_a_failure_without_words_drops_its_trajectory_alone(scripted, make_rows):
    async def fail(loop, row):
        raise wordless(ToolFailure)

    register_agent_loop("failing", loop_that(fail))
    rows = make_rows(2)
    rows[1]["agent_name"] = "failing"
    good, bad = run(scripted()[0], rows)
    assert good.text == "42" and "its text cannot be shown" in bad.output.extra_fields["failure"]


def test_a_deadline_names_what_is_waited_for(scripted, make_rows):
    async def never(row, output, text):
        if row["uid"] == 1:
            await asyncio.sleep(3600)
        raise ZeroDivisionError("score")

    late = r"1 of 1 trajectories were not done after 0.2 s: uid 1, sample 0 being scored"
    with pytest.raises(DeadlineError, match=late):
        run(scripted()[0], make_rows(2)[1:], score=never, deadline_s=0.2)
    with pytest.raises(ZeroDivisionError):  # a failing scorer rises as it is
        run(scripted()[0], make_rows(2), score=never)
    ended = []

    async def wait(loop, row):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(row["uid"])

    register_agent_loop("stuck", loop_that(wait))
    rows = make_rows(2)
    rows[1]["agent_name"] = "stuck"
    with pytest.raises(DeadlineError, match=r"1 of 2 .* not done after 0.2 s: uid 1, sample 0 in agent loop stuck"):
        run(scripted()[0], rows, deadline_s=0.2)
    assert ended == [1]


def test_a_trajectory_that_takes_too_long_is_dropped_and_the_others_are_not(scripted, make_rows, config):
    done = []

    async def score(row, output, text):
        done.append(row["uid"])

    async def wait(loop, row):
        if row["uid"] == 0:
            raise TimeoutError("of its own")
        while len(done) < 2:
            await asyncio.sleep(0)
        events = asyncio.get_running_loop()
        later = events.time() + 1000
        events.time = lambda: later
        await asyncio.Event().wait()

    register_agent_loop("late", loop_that(wait))
    config.actor_rollout_ref.rollout.trajectory_timeout = 999.0
    rows = make_rows(3)
    rows[1]["agent_name"] = "late"
    first, late, last = run(scripted()[0], rows, score=score)
    assert "agent loop late did not end in 999 s; raise" in late.output.extra_fields["failure"]
    assert not any(late.output.response_mask) and first.text == last.text == "42"
    with pytest.raises(AgentError, match="TimeoutError: of its own"):
        run(scripted()[0], make_rows(1, agent_name="late"))


def test_progress_of_a_batch_is_known_from_its_first_tokens_on(scripted, make_rows, config):
    """At first a trajectory may have as many tokens as are allowed; then it is expected to be as long as the last."""
    runner, engine = scripted()
    engine.stats, seen = lambda: {"generated_tokens": 3.0 * len(engine.calls)}, []

    async def look(row, output, text):
        if not seen:
            (batch,) = waits.batches()
            seen.append(batch)

    left = []
    for _ in range(2):
        seen.clear()
        run(runner, make_rows(4), score=look, doing="validating")
        doing, done, total, speed, left_s, seconds = seen[0]
        assert (doing, done, total) == ("validating", 0, 4) and speed > 0
        left.append(round(left_s * 12 / seconds))  # tokens: 12 took so many seconds
    assert left == [4 * config.data.response_limit - 12, 6] and not waits.batches()


def test_trajectories_in_a_thread_of_their_own_are_waited_for_in_sight(scripted, make_rows, config):
    config.trainer.async_rollout.enable, config.trainer.async_rollout.staleness = True, 1
    runner, seen, subject = scripted()[0], [], "1 trajectories of train, in thread agent-loops"
    # What is slow to close is given up by the environment with a warning, never by the thread with an error.
    assert runner._loop.close_s > runner_module.CANCELLED_S + CLOSE_S

    async def look(row, output, text):
        while not seen:  # the caller waits once it has handed over the work, which may be this far by then
            seen.extend((wait.owner, wait.seconds) for wait in waits.longest() if wait.subject == subject)
            await asyncio.sleep(0.01)

    run(runner, make_rows(1), score=look, deadline_s=60.0)
    runner.close()
    assert seen == [("MainThread", 60.0)]


def test_a_loop_that_catches_its_cancellation_is_left_behind(scripted, make_rows, monkeypatch, caplog):
    monkeypatch.setattr(runner_module, "CANCELLED_S", 0.5)
    seen, release = [], []

    async def cling(loop, row):
        while not release:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
            seen.extend(wait.subject for wait in waits.longest())

    register_agent_loop("deaf", loop_that(cling))
    with pytest.raises(DeadlineError, match=r"1 of 1 trajectories were not done after 0.2 s"):
        run(scripted()[0], make_rows(1, agent_name="deaf"), deadline_s=0.2)
    release.append(True)
    assert "1 cancelled trajectories to end" in seen
    assert "1 cancelled trajectories did not stop and were abandoned: uid 0, sample 0" in caplog.text


def test_inside_a_running_event_loop(scripted, make_rows):
    async def in_a_notebook(**columns):
        return run(scripted("42")[0], make_rows(2, **columns))

    assert [t.text for t in asyncio.run(in_a_notebook())] == ["42", "42"]
    with pytest.raises(ConfigError, match="agent_name=absent"):
        asyncio.run(in_a_notebook(agent_name="absent"))


def test_a_loop_that_changes_its_row_changes_no_other(scripted, make_rows):
    seen = []

    @register("writes")
    class Writes(TwoTurns):
        async def run(self, sampling_params, **row):
            seen.append((list(row["extra_info"]["notes"]), len(row["messages"])))
            row["extra_info"]["notes"].append(row["sample"])
            output = await super().run(sampling_params, **row | {"max_turns": 1})
            row["messages"].append({"role": "assistant", "content": "done"})
            row["raw_prompt"].clear()
            return output

    shared = {"extra_info": {"notes": []}, "raw_prompt": [{"role": "user", "content": "q"}]}
    rows = [row | shared for row in make_rows(1, n=3, agent_name="writes")]
    trajectories = run(scripted()[0], rows)
    assert seen == [([], 1)] * 3
    assert all(t.row["extra_info"] == {"notes": []} and len(t.row["raw_prompt"]) == 1 for t in trajectories)


def test_over_a_real_engine_runs_repeat_and_do_not_depend_on_company(tiny_model, config, make_rows):
    tokenizer = load_tokenizer(tiny_model)
    engine = NativeEngine(load_causal_lm(tiny_model, ModelConfig()), tokenizer, max_num_seqs=3)
    register_agent_loop("two", TwoTurns)
    runner = TrajectoryRunner(engine, tokenizer, agent_settings(config))
    rows = make_rows(3, n=2)
    rows[2] |= {"agent_name": "two", "max_turns": 2}
    once, again = run(runner, rows), run(runner, rows)
    assert [t.output for t in once] == [t.output for t in again]
    alone = [run(runner, [row])[0] for row in rows]
    assert [t.output.response_ids for t in alone] == [t.output.response_ids for t in once]
    other = runner.run(rows, Sampling(), namespace="val", seed=7)
    assert other[0].output.response_ids != once[0].output.response_ids
    assert len({tuple(t.output.response_ids) for t in once}) == 6
    runner.close()
    engine.close()
