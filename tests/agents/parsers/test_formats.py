"""The table of formats, and what the recorded figures do not cover: json, llama3_json, react, types by schema."""

import json

import pytest

from burnish.agents.parsers import FORMATS, OTHER_SPELLINGS, find_parser
from burnish.agents.parsers.reading import by_schema, guessed
from burnish.agents.tools.schema import function_schema
from burnish.config.rollout import CALL_FORMATS
from burnish.errors import ConfigError

TOOLS = [
    function_schema("search", "", {"topk": {"type": "integer"}, "query": {"type": "string"}}, ["query"]),
    function_schema("square", "", {"x": {"type": "number"}}, ["x"]),
    function_schema("now", "", {}, []),
]


def read(call_format, text, tools=TOOLS):
    """Content, calls as (name, arguments), reasons."""
    parsed = find_parser(call_format).parse(text, tools)
    calls = [(call.name, json.loads(call.arguments)) for call in parsed.calls]
    return parsed.content, calls, [one.reason for one in parsed.malformed]


CALL = '{"name": "search", "arguments": {"query": "a } b"}}'
SEARCH = ("search", {"query": "a } b"})
NO_CALL = '{"name": "Anna", "age": 3} and {"x": [{"y": 1}]}'
QUOTED = '{\n "query": "a"\n}'
LLAMA = '{"name": "square", "parameters": {"x": 2}}'
SQUARE = ("square", {"x": 2})


@pytest.mark.parametrize(
    ("call_format", "text", "content", "calls"),
    [
        ("json", CALL, "", [SEARCH]),
        ("json", f"I look it up.\n{CALL} Wait.", "I look it up.\n Wait.", [SEARCH]),
        ("json", f"See:\n```json\n{CALL}\n```\nDone", "See:\n\nDone", [SEARCH]),
        ("json", f"```\n[{CALL}, {CALL}]\n```", "", [SEARCH, SEARCH]),
        ("json", f"{CALL}\n{CALL}", "\n", [SEARCH, SEARCH]),
        ("json", '{"thought": "hm", "arguments": {}, "name": "now"}', "", [("now", {})]),
        ("json", '{"name": "search", "arguments": "{\\"query\\": 1}"}', "", [("search", {"query": 1})]),
        ("json", NO_CALL, NO_CALL, []),
        ("llama3_json", LLAMA, "", [SQUARE]),
        ("llama3_json", f"<|python_tag|>{LLAMA}", "", [SQUARE]),
        ("llama3_json", f"Well. <|python_tag|>{LLAMA}; {LLAMA}", "Well. ", [SQUARE] * 2),
        ("llama3_json", f"{LLAMA};{LLAMA}", "", [SQUARE] * 2),
        ("llama3_json", f"So: {LLAMA}", "So: ", [SQUARE]),
        ("llama3_json", LLAMA.replace("parameters", "arguments"), "", [SQUARE]),
        (
            "react",
            'Thought: I need it.\nAction: search\nAction Input: {"query": "a", "topk": 2}',
            "Thought: I need it.\n",
            [("search", {"query": "a", "topk": 2})],
        ),
        ("react", "Action: search\nAction Input: who is it?", "", [("search", {"query": "who is it?"})]),
        ("react", 'Action: search\nAction Input: "quoted"', "", [("search", {"query": "quoted"})]),
        ("react", "Action: search\nAction Input: 42", "", [("search", {"query": "42"})]),
        ("react", "Action: square\nAction Input: 42", "", [("square", {"x": 42})]),
        ("react", "Action: search[who [is] it?]", "", [("search", {"query": "who [is] it?"})]),
        ("react", f"Action: `search`\nAction Input:\n```json\n{QUOTED}\n```", "", [("search", {"query": "a"})]),
        ("react", "**Action:** now\n**Action Input:** {}", "", [("now", {})]),
        ("react", "Action: now", "", [("now", {})]),
        ("react", "Action: nope\nAction Input: a", "", [("nope", {"input": "a"})]),
        ("react", "Action: search\nAction Input: {a for a in b}", "", [("search", {"query": "{a for a in b}"})]),
        (
            "react",
            "Action: now\nAction Input: {}\nThought: and\nAction: search\nAction Input: b",
            "Thought: and\n",
            [("now", {}), ("search", {"query": "b"})],
        ),
        ("react", "Action: now\nAction Input: {}\nObservation: 5\nAction: square\nAction Input: 1", "", [("now", {})]),
        ("react", "Thought: x\nFinal Answer: 5\nAction: now", "Thought: x\nFinal Answer: 5\nAction: now", []),
        ("react", "I took Action: now", "I took Action: now", []),
    ],
)
def test_calls_are_found(call_format, text, content, calls):
    assert read(call_format, text) == (content, calls, [])


@pytest.mark.parametrize(
    ("call_format", "text", "reason"),
    [
        ("json", '{"name": "search", "arguments": {"query": }}', "not JSON: expecting value at line 1, column 43"),
        ("json", '{"name": "search", "arguments": {"query": "a"', "not JSON"),
        ("json", "{'name': 'search', 'arguments': {}}", "not JSON: expecting property name enclosed in double quotes"),
        ("json", '{"name": "now"}', 'no "arguments"; write {} if there are none'),
        ("json", '{"arguments": {"query": "a"}}', "names no tool"),
        ("json", '{"name": "\\ud800", "arguments": {}}', "names no tool"),
        ("json", '{"name": "search", "arguments": [1]}', '"arguments" are no JSON object'),
        ("json", '{"name": "search", "arguments": {"x": ' + "9" * 5000 + "}}", "too many digits"),
        ("json", '[{"name": "now", "arguments": {}}, 5]', "an entry of the list is no call"),
        ("react", "Action: search", "search has no Action Input: line"),
        ("react", "Action Input: {}", "without an Action:"),
        ("react", "Action:\nAction Input: {}", "name of one tool, on the same line"),
        ("react", "Action: search\nthen more\nAction Input: {}", "name of one tool, on the same line"),
        ("react", 'Action: search\nAction Input: {"query": "a', "not JSON: unterminated string"),
        ("react", "Action: search\nAction Input: {'query': 'a'}", "enclosed in double quotes"),
    ],
)
def test_text_that_is_no_call_is_reported(call_format, text, reason):
    _, calls, reasons = read(call_format, text)
    assert len(reasons) == 1 and reason in reasons[0]
    assert calls == ([("now", {})] if "entry" in reason else [])


def test_a_hermes_call_ends_at_its_own_tag():
    query = 'what is </tool_call> and <tool_call>{"name"?\\'
    text = find_parser("hermes").write("search", {"query": query})
    assert read("hermes", f"{text}{text}") == ("", [("search", {"query": query})] * 2, [])
    content, calls, reasons = read("hermes", f'<tool_call>{{"a</tool_call>x<tool_call>{CALL}</tool_call>')
    assert (content, calls, len(reasons)) == ("x", [SEARCH], 1)


@pytest.mark.parametrize("call_format", ["qwen3_coder", "glm", "seed", "minimax"])
def test_a_text_that_looks_like_a_number_stays_text_if_the_schema_asks_for_text(call_format):
    text = find_parser(call_format).write("search", {"query": "007", "topk": 7})
    assert read(call_format, text)[1] == [("search", {"query": "007", "topk": 7})]


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", {"type": "string"}, "5"),
        ("5", {"type": ["string", "integer"]}, 5),
        ("x", {"type": ["integer", "string"]}, "x"),
        ("5", {"anyOf": [{"type": "array"}, {"type": "string"}]}, "5"),
        ("null", {"type": ["string", "null"]}, None),
        ("null", {"type": "string"}, "null"),
        ("1_000", {"type": "integer"}, "1_000"),
        ("1e999", {"type": "number"}, "1e999"),
        ("9" * 5000, {"type": "integer"}, "9" * 5000),
        ("1e3", {"type": "float"}, 1000),
        ("(1, 'a', None)", {"type": "tuple"}, [1, "a", None]),
        ("{'a': {1, 2}}", {"type": "dict"}, "{'a': {1, 2}}"),
        ("[[1, 2], 'x'", {"type": "array"}, "[[1, 2], 'x'"),
        ('{"a": true}', {"$ref": "#/x"}, {"a": True}),
        ("word", {"type": "any"}, "word"),
        ("5", {}, "5"),
        ("5", None, "5"),
    ],
)
def test_types_by_schema(text, schema, value):
    got = by_schema(text, schema)
    assert got == value and type(got) is type(value)


def test_odd_values_and_calls_that_are_none():
    [call] = find_parser("json").parse('{"name": "now", "arguments": {"x": "\\ud800é"}}').calls
    assert call.arguments == '{"x": "\\ud800\\u00e9"}' and call.arguments.encode(), "half a pair stays an escape"
    content, calls, reasons = read("llama3_json", "a<|python_tag|>print(1)")
    assert (content, calls) == ("a", []) and "no call after <|python_tag|>" in reasons[0]
    assert [guessed(text) for text in ("NaN", "Infinity", "true", "5", "x")] == ["NaN", "Infinity", True, 5, "x"]


def test_every_format_of_the_configuration_has_a_parser_and_no_other():
    assert set(FORMATS) == set(CALL_FORMATS)
    assert len({type(find_parser(name)) for name in FORMATS}) == len(FORMATS)
    assert all(type(find_parser(spelling)) is type(find_parser(name)) for spelling, name in OTHER_SPELLINGS.items())
    assert [name for name in FORMATS if find_parser(name).keeps_end] == ["gpt-oss"]
    with pytest.raises(ConfigError, match="'hermse'.*did you mean hermes.*qwen3_coder"):
        find_parser("hermse")
    with pytest.raises(ConfigError, match="'xyzzy': there is no such format; There are hermes, json"):
        find_parser("xyzzy")
