"""What a format writes it reads back: any JSON where it carries JSON, what the schema can tell where it does not."""

import json

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from burnish.agents.parsers import FORMATS, find_parser
from burnish.agents.parsers.base import ToolCall
from burnish.agents.parsers.jsontext import same
from burnish.errors import DataError

OF_JSON = ("hermes", "json", "llama3_json", "react", "gpt-oss", "kimi")
OF_TEXT = ("qwen3_coder", "glm", "seed", "minimax", "deepseek_v4", "gemma4")
MARKS = [
    "<tool_call>",
    "</tool_call>",
    "</parameter>",
    '"}',
    "\n",
    "\\",
    "</think>",
    "Action: x\nAction Input: {}",
    ";",
    "```",
]

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,20}", fullmatch=True)
texts = st.text(st.characters(codec="utf-8"), max_size=20) | st.lists(
    st.sampled_from(MARKS) | st.text(st.characters(codec="utf-8"), max_size=4), max_size=5
).map("".join)
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    scalars | texts, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4)
)
few = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def schema(name, properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


def reads_back(call_format, call, tools=()):
    parser = find_parser(call_format)
    parsed = parser.parse(parser.render(call, tools), tools)
    assert not parsed.malformed and [one.name for one in parsed.calls] == [call.name]
    assert same(json.loads(parsed.calls[0].arguments), json.loads(call.arguments))
    assert not parsed.content.strip()


@pytest.mark.parametrize("call_format", OF_JSON)
def test_formats_of_json_carry_any_arguments(call_format):
    forbidden = {"gpt-oss": ("<|call|>",), "kimi": ("<|tool_call",)}.get(call_format, ())

    @few
    @given(names, st.dictionaries(texts, values, max_size=5))
    def check(name, arguments):
        written = json.dumps(arguments, ensure_ascii=False)
        assume(not any(mark in written for mark in forbidden))
        reads_back(call_format, ToolCall(name, written), [schema(name, {})])

    check()


def types(call_format):
    """A type of a schema with values that the format can carry for it."""
    plain = st.text(st.characters(codec="utf-8", exclude_characters="<>"), max_size=20)
    if call_format not in ("qwen3_coder", "deepseek_v4", "gemma4"):
        plain = plain.map(str.strip)
    if call_format == "qwen3_coder":
        plain = plain.filter(lambda text: text.lower() != "null")
    inner = st.recursive(scalars | plain, lambda one: st.lists(one, max_size=3))
    return st.one_of(
        st.tuples(st.just("string"), plain),
        st.tuples(st.just("integer"), st.integers(-(2**70), 2**70)),
        st.tuples(st.just("number"), st.floats(allow_nan=False, allow_infinity=False)),
        st.tuples(st.just("boolean"), st.booleans()),
        st.tuples(st.just("array"), st.lists(inner, max_size=4)),
        st.tuples(st.just("object"), st.dictionaries(names, inner, max_size=4)),
    )


@pytest.mark.parametrize("call_format", OF_TEXT)
def test_formats_of_text_carry_what_the_schema_tells(call_format):
    @few
    @given(names, st.dictionaries(names, types(call_format), max_size=5))
    def check(name, typed):
        tools = [schema(name, {key: {"type": kind} for key, (kind, _) in typed.items()})]
        arguments = {key: value for key, (_, value) in typed.items()}
        reads_back(call_format, ToolCall(name, json.dumps(arguments, ensure_ascii=False)), tools)

    check()


@pytest.mark.parametrize(
    ("call_format", "arguments"),
    [
        ("qwen3_coder", {"a": "null"}),
        ("qwen3_coder", {"a": "x</parameter>y"}),
        ("qwen3_coder", {"a": 5}),  # without a schema it would be the text 5
        ("glm", {"a": " x "}),
        ("glm", {"a": "5"}),  # without a schema it would be the number
        ("glm", {"a": "</think>"}),
        ("gemma4", {"a": '<|"|>'}),
        ("gemma4", {"a b": 1}),
        ("kimi", {"a": "<|tool_call_end|>"}),
    ],
)
def test_what_a_format_cannot_carry_is_refused(call_format, arguments):
    with pytest.raises(DataError, match="call of f with .* read it back as another"):
        find_parser(call_format).render(ToolCall("f", json.dumps(arguments)))


@pytest.mark.parametrize("call_format", FORMATS)
def test_arguments_that_are_no_object_are_refused(call_format):
    with pytest.raises(DataError, match="call of f: its arguments are not JSON"):
        find_parser(call_format).render(ToolCall("f", "{oops"))
    with pytest.raises(DataError, match="give a JSON object"):
        find_parser(call_format).render(ToolCall("f", "[1]"))


# As in a table of right answers: allowed values by argument; "" stands for an argument that may be left out.
ANSWERS = {
    "geometry.area": {"base": [10, 10.5], "unit": ["units", ""], "flags": [[True, None], []]},
    "book": {"who": ["Anna \"the\" Ω", "it's"], "when": [{"day": 3, "at": ["9:00"]}], "sure": [True, False]},
}  # fmt: skip
KINDS = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}


@pytest.mark.parametrize("call_format", FORMATS)
def test_every_allowed_answer_is_recovered(call_format):
    for name, allowed in ANSWERS.items():
        kinds = {key: {"type": "number" if key == "base" else KINDS[type(some[0])]} for key, some in allowed.items()}
        for key, some in allowed.items():
            for value in some:
                arguments = {other: rest[0] for other, rest in allowed.items()} | {key: value}
                arguments = {other: one for other, one in arguments.items() if one != ""}
                reads_back(call_format, ToolCall(name, json.dumps(arguments)), [schema(name, kinds)])
