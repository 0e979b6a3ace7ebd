"""Agents in the configuration: which loop rows run by default, the limits on their length, and state masking."""

import pytest

from burnish.config import Needs
from burnish.errors import ConfigError

LOOP = "actor_rollout_ref.rollout.agent.default_agent_loop"
MULTI_TURN = "actor_rollout_ref.rollout.multi_turn"
ENABLE = f"{MULTI_TURN}.enable"
MASKING = "actor_rollout_ref.actor.state_masking"
LOG_PROBS = "actor_rollout_ref.rollout.calculate_log_probs"


def loop_of(config):
    return config.actor_rollout_ref.rollout.agent.default_agent_loop


# --- the default loop -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "loop", "said"),
    [
        ({}, "single_turn_agent", None),
        ({"do_search": True}, "search_agent", f"{LOOP}=search_agent, because do_search=true"),
        ({ENABLE: True}, "tool_agent", f"{LOOP}=tool_agent, because {ENABLE}=true"),
        ({"do_search": True, LOOP: "search_agent_loop"}, "search_agent_loop", None),
        ({"do_search": True, LOOP: "mine"}, "mine", f"do_search=true has no effect: {LOOP}=mine"),
        ({ENABLE: True, LOOP: "react_agent"}, "react_agent", f"{ENABLE}=true has no effect: {LOOP}=react_agent"),
        ({LOOP: "search_agent"}, "search_agent", None),
        ({"actor_rollout_ref.rollout.agent_loop": "tool_agent_loop"}, "tool_agent", None),
    ],
)
def test_switches_name_the_loop_of_rows_that_name_none(finish, keys, loop, said):
    config, notices = finish(keys)
    assert loop_of(config) == loop
    told = [notice for notice in notices if LOOP in notice and "is read as" not in notice]
    assert told == ([said] if said else [])


def test_two_switches_for_different_agents_are_refused(finish):
    with pytest.raises(ConfigError, match=f"do_search=true and {ENABLE}=true name different agents.*or set {LOOP}"):
        finish({"do_search": True, ENABLE: True})


def test_two_switches_with_a_named_loop(finish):
    config, notices = finish({"do_search": True, ENABLE: True, LOOP: "tool_agent"})
    assert loop_of(config) == "tool_agent" and f"do_search=true has no effect: {LOOP}=tool_agent" in notices


# --- other spellings --------------------------------------------------------------------------------------------------


def test_other_spellings_reach_their_keys(load):
    loaded = load(
        "tool_config_path=tools.yaml", "tool_config.max_tool_calls=7", "tool_config.timeout=12",
        f"{MULTI_TURN}.max_turns=4", "actor_rollout_ref.rollout.agent_loop=search_agent_loop",
        "sampling_params.timeout=99",
    )  # fmt: skip
    rollout = loaded.config.actor_rollout_ref.rollout
    turns = rollout.multi_turn
    assert (turns.tool_config_path, turns.max_tool_calls, turns.tool_timeout) == ("tools.yaml", 7, 12.0)
    assert (turns.max_assistant_turns, rollout.agent.default_agent_loop, rollout.timeout) == (4, "search_agent", 99.0)
    assert any(f"tool_config.timeout is read as {MULTI_TURN}.tool_timeout=12" in notice for notice in loaded.notices)


# --- lengths ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "limit", "response", "key", "response_key"),
    [
        (None, 100, 50, "data.max_prompt_length", "data.max_response_length"),
        (30, 30, 120, "data.max_start_length", "max_prompt_length + data.max_response_length - data.max_start_length"),
        (100, 100, 50, "data.max_prompt_length", "data.max_response_length"),
        (500, 100, 50, "data.max_prompt_length", "data.max_response_length"),
    ],
)
def test_the_prompt_all_turns_and_observations_share_one_context(finish, start, limit, response, key, response_key):
    keys = {"data.max_prompt_length": 100, "data.max_response_length": 50, "data.max_start_length": start}
    data = finish(keys)[0].data
    assert (data.start_limit, data.response_limit) == (limit, response)
    assert data.start_limit + data.response_limit == 150
    assert data.start_limit_key == key and data.response_limit_key.endswith(response_key)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.max_start_length", 0),
        ("data.max_obs_length", 0),
        ("max_turns", -1),
        ("retriever.topk", 0),
        ("retriever.topk", 101),
        ("retriever.timeout", 0),
        ("retriever.retries", -1),
        (f"{MULTI_TURN}.max_parallel_calls", 0),
        (f"{MULTI_TURN}.tool_timeout", 0),
        (f"{MULTI_TURN}.max_tool_calls", -1),
        (f"{MULTI_TURN}.rewards", "turns"),
        (f"{MULTI_TURN}.format", "hermess"),
        (f"{MULTI_TURN}.tool_response_truncate_side", "centre"),
    ],
)
def test_values_that_mean_nothing_are_refused(make, key, value):
    with pytest.raises(ConfigError, match=f"{key}={value}"):
        make({key: value})


# --- state masking ----------------------------------------------------------------------------------------------------


def test_without_state_masking_there_are_no_log_probs_of_the_rollout(finish):
    config, notices = finish({MASKING: False})
    assert not config.actor_rollout_ref.rollout.calculate_log_probs
    (said,) = [notice for notice in notices if MASKING in notice]
    assert said.startswith(f"warning: {MASKING}=false: what was retrieved and what tools said is trained on")
    assert f"{LOG_PROBS}=false with it" in said


def test_state_masking_says_nothing(finish):
    config, notices = finish({MASKING: True})
    assert config.actor_rollout_ref.rollout.calculate_log_probs and not [n for n in notices if MASKING in n]


def test_log_probs_that_are_asked_for_need_state_masking(finish):
    with pytest.raises(ConfigError, match=f"{MASKING}=false trains on text.*leave out {LOG_PROBS}=true"):
        finish({MASKING: False, LOG_PROBS: True})
    finish({MASKING: False, LOG_PROBS: False})


@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm.rollout_correction.rollout_is": "token"},
        {"algorithm.rollout_correction.bypass_mode": True},
        {"algorithm.rollout_correction.mode": "auto"},
        {
            "algorithm.rollout_correction.rollout_rs": "token_k1",
            "algorithm.rollout_correction.rollout_rs_threshold": 2.0,
        },
    ],
    ids=["weights", "bypass", "auto", "rejection"],
)
def test_a_correction_needs_those_log_probs(finish, keys):
    with pytest.raises(ConfigError, match=f"{MASKING}=false.*leave out the keys of algorithm.rollout_correction"):
        finish({MASKING: False, **keys}, Needs(ratio=True))
    finish(keys, Needs(ratio=True))
