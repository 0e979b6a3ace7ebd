"""What a program may ask: every field is read, left to the run by name, or refused by name."""

import pytest

from burnish.agents.endpoint.requests import read_request
from burnish.openai_wire.fields import ApiError
from burnish.rollout.base import Sampling

MESSAGES = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
RUN = Sampling(temperature=0.7, top_k=5, max_tokens=50, stop=("END",), stop_token_ids=(3,))


def read(**fields):
    return read_request({"model": "policy", "messages": MESSAGES} | fields, RUN.to_params(), 100)


def test_the_run_samples_and_a_request_may_limit_and_stop_a_reply():
    request = read()
    assert request.sampling == {"stop": ("END",), "stop_token_ids": (3,), "max_tokens": 50}
    assert (request.tools, request.reads_calls, request.overruled, request.stream) == ([], False, [], False)
    request = read(max_completion_tokens=9, stop="now", stop_token_ids=[4])
    assert request.sampling == {"stop": ("END", "now"), "stop_token_ids": (3, 4), "max_tokens": 9}
    assert read(max_tokens=1000).sampling["max_tokens"] == 50
    assert read(temperature=0.7, top_k=5, min_p=0).overruled == []
    asked = read(temperature=1, top_p=0.5, top_k=-1, min_p=0.1, ignore_eos=True, seed=3)
    assert asked.overruled == ["temperature=1", "top_p=0.5", "top_k=-1", "min_p=0.1", "ignore_eos=True", "seed=3"]
    assert set(asked.sampling) == {"stop", "stop_token_ids", "max_tokens"}


def test_messages_of_tools_are_read():
    reply = {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "annotations": []}
    result = {"role": "tool", "tool_call_id": "1", "name": "add", "content": [{"type": "text", "text": "2"}]}
    request = read(messages=[*MESSAGES, reply, result], tools=[TOOL], tool_choice="auto", parallel_tool_calls=True)
    assert request.reads_calls and request.tools == [TOOL]
    call = CALL | {"function": {"name": "add", "arguments": {"a": 1}}}
    assert request.messages[1:] == [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "1", "name": "add"},
    ]
    assert not read(tools=[TOOL], tool_choice="none").reads_calls


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"n": 2}, "n=2: not supported here: several replies"),
        ({"tool_choice": "required"}, "calls that are forced"),
        ({"parallel_tool_calls": False}, "a limit of one call"),
        ({"chat_template_kwargs": {"a": 1}}, "set data.apply_chat_template_kwargs"),
        ({"stop_token_ids": [100]}, "from 0 to 99"),
        ({"model": None}, "model is missing"),
        ({"model": ""}, "model is missing"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0]"),
        ({"tools": "add"}, "a list of at most 128"),
        ({"tools": [{}] * 129}, "a list of at most 128"),
        ({"messages": [MESSAGES[0] | {"name": "Ann"}]}, "name: only in a message of the role tool"),
        ({"messages": [MESSAGES[0] | {"tool_calls": [CALL]}]}, "only in a message of the role assistant"),
        ({"messages": [{"role": "developer", "content": "x"}]}, "use one of system, user, assistant, tool"),
        ({"messages": [{"role": "assistant", "tool_calls": "add"}]}, "expected a list of objects"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": "add"}]}]}, "no function with a name"),
    ],
)
def test_invalid_or_unsupported_requests_get_400(fields, words):
    with pytest.raises(ApiError) as caught:
        read(**fields)
    assert words in str(caught.value) and caught.value.status == 400
