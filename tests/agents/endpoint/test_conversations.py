"""Which call continues which, and which path of the tree is trained."""

import copy

import pytest

from burnish.agents.endpoint.session import AnsweredCall, ConversationTree
from burnish.agents.server import Transcript
from burnish.rollout.base import Completion

USER = {"role": "user", "content": "question"}
REPLY = {"role": "assistant", "content": "answer"}
MORE = {"role": "user", "content": "more"}
TOOL = {"type": "function", "function": {"name": "add"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}


def turn(*messages, calls=1, tools=()):
    transcript = Transcript(None, [1], limit=100)
    transcript.turns = [Completion([7], [-1.0], "stop")] * calls
    return AnsweredCall(list(messages), list(tools), transcript, has_ended=True)


@pytest.fixture
def conversations():
    return ConversationTree()


def test_a_call_continues_the_longest_conversation_that_it_begins_with(conversations):
    short, long = turn(USER, REPLY), turn(USER, REPLY, MORE, REPLY, calls=2)
    conversations.turns = [short, long, turn(USER, {**REPLY, "content": "another"})]
    assert conversations.before([USER, REPLY, MORE, REPLY, MORE], []) is long
    assert conversations.before([USER, REPLY, {**MORE, "content": "else"}], []) is short
    assert conversations.before([USER, REPLY, MORE], []) is short
    conversations.turns = [turn(USER, REPLY), turn(USER, REPLY)]
    assert conversations.before([USER, REPLY, MORE], []) is conversations.turns[1]


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [USER, REPLY],  # nothing new
        [USER, {**REPLY, "content": "answer "}, MORE],
        [{**USER, "content": "other"}, REPLY, MORE],
        [{**USER, "role": "system"}, REPLY, MORE],
        [USER, REPLY, MORE, {**REPLY, "content": "never given"}, MORE],
    ],
)
def test_anything_else_begins_a_conversation(conversations, messages):
    conversations.turns = [turn(USER, REPLY)]
    assert conversations.before(messages, []) is None
    conversations.turns = [turn(USER, REPLY, tools=[TOOL])]  # other tools are another prompt
    assert conversations.before([USER, REPLY, MORE], []) is None
    assert conversations.before([USER, REPLY, MORE], [copy.deepcopy(TOOL)]) is conversations.turns[0]


def test_calls_are_the_same_whatever_clients_make_of_their_form(conversations):
    reply, result = {**REPLY, "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "3"}
    conversations.turns = [turn(USER, reply)]
    function = {"arguments": {"b": 2, "a": 1}, "name": "add"}
    assert conversations.before([USER, {**reply, "tool_calls": [{"id": "call_1", "function": function}]}, result], [])
    for changed in ({"id": "call_2"}, {"function": {**function, "name": "sub"}}, {"function": {"name": "add"}}):
        assert conversations.before([USER, {**reply, "tool_calls": [CALL | changed]}, result], []) is None
    assert conversations.before([USER, REPLY | {"content": ""}, result], []) is None


def test_most_calls_are_trained_and_of_equals_the_last(conversations):
    assert conversations.trained is None and conversations.left_out == 0
    conversations.turns = [turn(USER, REPLY), turn(USER, REPLY, MORE, REPLY, calls=2), turn(MORE, REPLY)]
    assert conversations.trained is conversations.turns[1] and conversations.left_out == 1
    conversations.turns.append(turn(USER, REPLY, MORE, REPLY, calls=2))
    assert conversations.trained is conversations.turns[3] and conversations.left_out == 2
