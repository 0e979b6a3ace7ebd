"""Agents in the configuration: which loop rows run by default, the limits on their length, and state masking."""

import pytest

from burnish.config import Needs
from tests.config.conftest import refused, told

LOOP = "actor_rollout_ref.rollout.agent.default_agent_loop"
ENABLE = "actor_rollout_ref.rollout.multi_turn.enable"
MASKING = "actor_rollout_ref.actor.state_masking"
LOG_PROBS = "actor_rollout_ref.rollout.calculate_log_probs"
CORRECTION = "algorithm.rollout_correction"
REJECT = {f"{CORRECTION}.rollout_rs": "token_k1", f"{CORRECTION}.rollout_rs_threshold": 2.0}


@pytest.mark.parametrize(
    ("keys", "loop", "said"),
    [
        ({}, "single_turn_agent", None),
        ({"do_search": True}, "search_agent", f"{LOOP}=search_agent, because do_search=true"),
        ({ENABLE: True}, "tool_agent", f"{LOOP}=tool_agent, because {ENABLE}=true"),
        ({"do_search": True, LOOP: "search_agent_loop"}, "search_agent_loop", None),
        ({"do_search": True, LOOP: "mine"}, "mine", f"do_search=true has no effect: {LOOP}=mine"),
        ({ENABLE: True, LOOP: "react_agent"}, "react_agent", f"{ENABLE}=true has no effect: {LOOP}=react_agent"),
        ({"do_search": True, ENABLE: True, LOOP: "tool_agent"}, "tool_agent", f"do_search=true has no effect: {LOOP}="),
        ({LOOP: "search_agent"}, "search_agent", None),
    ],
)
def test_switches_name_the_loop_of_rows_that_name_none(finish, keys, loop, said):
    config, notices = finish(keys)
    assert config.actor_rollout_ref.rollout.agent.default_agent_loop == loop
    reported = told(notices, LOOP)
    assert len(reported) == bool(said) and all(notice.startswith(said) for notice in reported)


def test_two_switches_for_different_agents_are_refused(finish):
    words = f"do_search=true and {ENABLE}=true name different agents.*or set {LOOP}"
    refused(words, finish, {"do_search": True, ENABLE: True})


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
    assert data.start_limit_key == key and data.response_limit_key.endswith(response_key)


def test_without_state_masking_there_are_no_log_probs_of_the_rollout(finish):
    config, notices = finish({MASKING: False})
    assert not config.actor_rollout_ref.rollout.calculate_log_probs
    (said,) = told(notices, MASKING)
    assert said.startswith(f"warning: {MASKING}=false: what was retrieved and what tools said is trained on")
    assert f"{LOG_PROBS}=false with it" in said
    finish({MASKING: False, LOG_PROBS: False})
    config, notices = finish({MASKING: True})
    assert config.actor_rollout_ref.rollout.calculate_log_probs and not told(notices, MASKING)


@pytest.mark.parametrize(
    ("keys", "reader"),
    [
        ({f"{CORRECTION}.rollout_is": "token"}, f"the keys of {CORRECTION}"),
        ({f"{CORRECTION}.bypass_mode": True}, f"the keys of {CORRECTION}"),
        ({f"{CORRECTION}.mode": "auto"}, f"the keys of {CORRECTION}"),
        (REJECT, f"the keys of {CORRECTION}"),
    ],
)
def test_what_reads_those_log_probs_needs_state_masking(finish, keys, reader):
    refused(f"{MASKING}=false trains on text.*leave out {reader}", finish, {MASKING: False, **keys}, Needs(ratio=True))
    finish(keys, Needs(ratio=True))
