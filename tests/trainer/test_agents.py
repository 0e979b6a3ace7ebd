"""Agents inside training runs: what a run trains on, what it reports, and what becomes of a run whose tools fail."""

import shutil
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from burnish.agents.loops.search import NOTICE
from burnish.errors import RewardError
from burnish.models.tiny import byte_tokenizer
from tests.search.conftest import Words, serving
from tests.trainer.conftest import rollouts, same_weights, validated
from tests.trainer.scripted import FAUST, Reply, answering, call, question, write_echo

GRPO = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4"]
ROOM = ["data.max_prompt_length=64", "data.max_response_length=400"]
RULES = ["custom_reward_function.path=null"]
SEARCH = [*GRPO, *ROOM, *RULES, "do_search=true", "max_turns=2", "retriever.topk=2", "retriever.retries=0"]
TOOLS = [*GRPO, *ROOM, *RULES, "actor_rollout_ref.rollout.multi_turn.enable=true"]
TWO = "trainer.total_training_steps=2"
FOUND = '\n\n<information>Doc 1(Title: "Faust") A play by Goethe.</information>\n\n'


@pytest.fixture
def library():
    with serving(Words()) as running:
        yield running


def searches(asked):
    """Even samples look Faust up and answer right, odd ones guess."""
    if asked.sample % 2:
        return "<answer>Schiller</answer>"
    return "<think>a</think><search>Faust</search>" if not asked.turn else "<answer>Goethe</answer>"


def spoken(row):
    """(what the policy wrote, what it was told) of a written row."""
    tokenizer = byte_tokenizer()
    ids = tokenizer(row["response"], add_special_tokens=False)["input_ids"]
    pairs = list(zip(ids, row["response_mask"], strict=True))
    return tuple(tokenizer.decode([i for i, m in pairs if m == kind]) for kind in (1, 0))


QUESTIONS = [question(f"Who wrote Faust? {i}") for i in range(8)]


def test_the_search_agent_trains_against_a_real_server(agents, library, metrics_of):
    agents(searches, QUESTIONS, *SEARCH, f"retriever.url={library.url}/retrieve", TWO, "trainer.val_before_train=False")
    first, second = metrics_of("run")
    for line in (first, second):
        assert line["actor/grad_norm"] > 0 and line["critic/score/mean"] == 0.5
        assert (line["env/number_of_actions/mean"], line["env/number_of_actions/max"]) == (1.5, 2)
        assert (line["env/number_of_valid_search/mean"], line["env/number_of_valid_search/min"]) == (0.5, 0)
        assert line["env/searched"] == 0.5
        assert (line["env/finish_ratio"], line["env/ratio_of_valid_action"]) == (1, 1)
        assert line["state_tokens/total/max"] == len(FOUND) and line["state_tokens/total/mean"] == len(FOUND) / 2
        assert 0 < line["state_tokens/coverage"] < 1
        assert line["retrieval/queries"] == 8 and line["retrieval/failures"] == 0
    assert (first["retrieval/requests"], second["retrieval/cache_hits"]) == (1, 8), "asked once in the whole run"
    assert first["retrieval/seconds_per_request"] > 0
    assert (first["training/num_turns/mean"], first["tool_call_counts/mean"]) == (3, 0.5)
    assert second["val-env/searched"] == second["val-core/nq/acc/mean@1"] == 1
    assert [queries for queries, _ in library.retriever.calls] == [["Is anybody there?"], ["Faust"]]
    # What was found is masked, and not part of the text that is scored.
    rows = [*rollouts(1), *rollouts(2)]
    assert len(rows) == 32
    for row in rows:
        wrote, told = spoken(row)
        if row["sample"] % 2:
            assert (wrote, told) == ("<answer>Schiller</answer>", "")
        else:
            assert wrote == "<think>a</think><search>Faust</search><answer>Goethe</answer>" and told == FOUND
        assert row["score"] == (0 if row["sample"] % 2 else 1)
        assert all(a == 0 for a, m in zip(row["advantages"], row["response_mask"], strict=True) if not m)
        assert all(a != 0 for a, m in zip(row["advantages"], row["response_mask"], strict=True) if m)
        assert all(p == 0 for p, m in zip(row["rollout_log_probs"], row["response_mask"], strict=True) if not m)


def test_one_file_may_have_rows_for_different_agents(agents, library, metrics_of):
    """As parquet writes them: a field that one row has is null in the others."""
    rows = [
        question("search?", agent_name="search_agent"),
        question("tool?", agent_name="tool_agent", tools_kwargs={"calculator": {"create_kwargs": {"a": None}}}),
        question("react?", agent_name="react_agent_loop", tool_config={"available_tools": ["calculator"]}),
        question("alone?"),
    ]

    def write(asked):
        if asked.turn:
            return "Final Answer: 42" if "react?" in asked.prompt else "<answer>Goethe</answer>"
        if "search?" in asked.prompt:
            return "<search>Faust</search>"
        if "tool?" in asked.prompt:
            return call("6*7", "calculator", "expression")
        if "react?" in asked.prompt:
            return 'Thought: a\nAction: calculator\nAction Input: {"expression": "6*7"}\nObservation: 43'
        return "<answer>Goethe</answer>" if asked.sample else "<answer>no</answer>"

    keys = [f"retriever.url={library.url}/retrieve", "data.max_prompt_length=1200", "data.max_response_length=400"]
    agents(write, rows, *GRPO, *RULES, *keys, "trainer.total_training_steps=1")
    said = {row["prompt"].split("user\n")[-1].split("?")[0]: spoken(row) for row in rollouts(1)}
    assert said["search"] == ("<search>Faust</search><answer>Goethe</answer>", FOUND)
    wrote, told = said["tool"]
    assert wrote.startswith("<tool_call>") and told == "<|start|>tool\n42<|end|><|start|>assistant\n"
    wrote, told = said["react"]
    assert wrote.endswith("\nObservationFinal Answer: 42<|end|>") and told == ": 42\n" and "43" not in wrote
    assert said["alone"][1] == ""
    (line,) = [line for line in metrics_of("run") if line["step"] == 1]
    assert line["tools/calls"] == 1 and line["tools/malformed"] == 0, "means over the trajectories that have tools"
    assert line["env/number_of_valid_search/mean"] == 1 and line["tool_call_counts/mean"] == 0.75


def test_the_tool_agent_reports_what_its_tools_did(agents, metrics_of):
    def write(asked):
        answer = "<answer>Goethe</answer>" if asked.sample else "<answer>no</answer>"
        mistakes = [call("x", "ecko"), "<tool_call>{oops</tool_call>", call("b", argument="c")]
        return [call("a" * (1 + asked.sample)), *mistakes, answer][asked.turn]

    agents(write, QUESTIONS, *TOOLS, write_echo(), "data.max_response_length=1200", TWO, "trainer.test_freq=2")
    start, first, last = metrics_of("run")
    for line in (first, last):
        assert line["tools/calls"] == 3 and line["tools/unknown_tool"] == line["tools/bad_arguments"] == 1
        assert line["tools/malformed"] == 1 and line["tools/error"] == 0 and line["tools/echo/length"] == 2.5
        assert line["tools/seconds"] > 0 and line["actor/grad_norm"] > 0 and line["critic/score/mean"] == 0.75
    assert start["val-tools/unknown_tool"] == last["val-tools/unknown_tool"] == 1


def test_a_real_policy_without_any_action_trains_on(agents, library, metrics_of):
    """Random tokens: invalid turns until the searches are used up."""
    keys = [*SEARCH, f"retriever.url={library.url}/retrieve", "data.max_start_length=60", "data.max_prompt_length=1000",
            "data.max_response_length=8", "custom_reward_function.path=reward.py", "data.val_files=null"]  # fmt: skip
    agents(lambda asked: None, QUESTIONS, *keys, TWO)
    last = metrics_of("run")[-1]
    assert last["actor/grad_norm"] > 0 and last["env/ratio_of_valid_action"] == 0
    assert last["env/number_of_actions/min"] == 3, "two turns, and the one after them"
    for row in rollouts(2):
        assert row["response"].count("My previous action is invalid") == 2 and row["turns"] == 6
        assert 3 <= sum(row["response_mask"]) <= 24, "eight tokens a turn"
        assert row["response_mask"].count(0) >= 2 * len(NOTICE) - 4
    assert "actor/entropy" in last and last["rollout_corr/kl"] == pytest.approx(0, abs=1e-3), "log-probs are aligned"


def test_an_interrupted_run_resumes_identically(agents, library, metrics_of, monkeypatch):
    def write(asked):
        return searches(asked) if asked.sample < 2 else None  # those are sampled

    keys = [*SEARCH, f"retriever.url={library.url}/retrieve", TWO, "trainer.save_freq=1", "data.val_files=null"]
    agents(write, QUESTIONS, *keys)
    shutil.copytree("run", "again", symlinks=True)
    Path("again/global_step_2/manifest.json").unlink()
    agents(write, QUESTIONS, *keys, "trainer.default_local_dir=again")
    whole, resumed = metrics_of("run"), metrics_of("again")
    assert [line["step"] for line in resumed] == [1, 2] and whole[0]["retrieval/queries"] == 4
    for line in (*whole, *resumed):  # a resumed run asks again what the other has cached
        for name in [name for name in line if name.startswith("retrieval/")]:
            del line[name]
    assert whole == resumed
    assert same_weights(2, "run", "again")
    assert whole[1]["actor/grad_norm"] > 0


def breaks(where):
    """Calls of the tool that break it in the samples that `where(asked)` picks."""

    def write(asked):
        if asked.turn:
            return "<answer>Goethe</answer>" if asked.sample % 2 else "<answer>no</answer>"
        return call("boom" if where(asked) else "fine")

    return write


def first_two(asked):
    return asked.uid % 4 == 0 and asked.sample < 2 and not asked.is_validation


@pytest.mark.parametrize("on_error", ["drop", "zero"])
def test_broken_trajectories_are_dropped_and_counted(agents, metrics_of, caplog, on_error):
    keys = [*TOOLS, write_echo(), "reward.max_failure_ratio=0.2", f"reward.on_error={on_error}", "data.val_files=null"]
    agents(breaks(first_two), QUESTIONS, *keys, "trainer.total_training_steps=1")
    (line,) = metrics_of("run")
    assert line["failures/tool"] == 2 and line["failures/reward"] == 0
    assert line["failures/dropped_samples"] == 2 and line["failures/dropped_groups"] == 0
    kept = Counter(row["uid"] for row in rollouts(1))
    assert kept == {0: 2, 1: 4, 2: 4, 3: 4}, "a group stays while two remain"
    assert line["tools/calls"] == 1 and line["actor/grad_norm"] > 0
    (said,) = [record.getMessage() for record in caplog.records if "2 of 16 samples" in record.getMessage()]
    assert "are dropped" in said and "the echo is gone" in said and "first uid 0" in said


@pytest.mark.parametrize("at_once", [True, False], ids=["scored as they finish", "scored by a batch function"])
def test_too_many_broken_trajectories_stop_the_run_with_the_reason(agents, at_once):
    reward = [] if at_once else ["custom_reward_function.path=lists.py", "reward_model.reward_manager=batch"]
    Path("lists.py").write_text("def compute_score(solution_strs, **kwargs):\n    return [0.0] * len(solution_strs)\n")
    keys = [*TOOLS, write_echo(), "reward.max_failure_ratio=0.1", "data.val_files=null", *reward]
    with pytest.raises(RewardError) as error:
        agents(breaks(first_two), QUESTIONS, *keys)
    for part in ("reward.max_failure_ratio=0.1", "2 times", "data_source nq", "echo", "RuntimeError: the echo is gone"):
        assert part in str(error.value)


def test_validation_continues_without_broken_samples(agents, metrics_of):
    keys = [*TOOLS, write_echo(), "reward.max_failure_ratio=0.5", "trainer.val_only=true"]
    write = breaks(lambda asked: asked.is_validation and asked.uid == 0)
    agents(write, QUESTIONS, *keys, test=[question("one"), question("two"), question("three")])
    (line,) = metrics_of("run")
    assert line["val-failures/tool"] == 1 and line["val-core/nq/acc/mean@1"] == 0 and line["val-tools/calls"] == 1
    assert len(validated(0)) == 2


def test_a_server_that_goes_away_stops_the_run(agents):
    """Its first answers are cached: until another question comes, nothing is missed."""
    with ExitStack() as stack:
        running = stack.enter_context(serving(Words()))

        def write(asked):
            if asked.uid == 4:
                stack.close()
                return "<search>Hamlet</search>"
            return searches(asked)

        with pytest.raises(RewardError) as error:
            agents(write, QUESTIONS, *SEARCH, f"retriever.url={running.url}/retrieve", "data.val_files=null")
    said = str(error.value)
    assert "reward.max_failure_ratio=0.05" in said and f"retriever {running.url}/retrieve: " in said
    assert "first uid 4" in said and "start a server with `burnish retriever serve" in said
    assert len(rollouts(1)) == 16 and not Path("run/rollouts/2.jsonl").exists()


def test_a_server_that_breaks_now_and_then_is_asked_again(agents, metrics_of):
    keys = [*SEARCH, "retriever.retries=2", "data.val_files=null", "trainer.total_training_steps=1"]
    with answering(FAUST, Reply(500, "out of memory"), FAUST) as url:
        agents(searches, QUESTIONS, *keys, f"retriever.url={url}")
    (line,) = metrics_of("run")
    assert (line["retrieval/retries"], line["retrieval/failures"]) == (1, 0) and line["critic/score/mean"] == 0.5
