"""Whatever a model writes: no exception, no time without bounds, no call from nothing, nothing lost in silence;
and what a format writes it reads back."""

import json
import time

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from burnish.agents.parsers import FORMATS, find_parser
from burnish.agents.parsers.reading import MAX_DEPTH
from burnish.agents.tools.schema import function_schema

PROPERTIES = {
    "query": {"type": "string"}, "topk": {"type": "integer"}, "weight": {"type": ["number", "null"]},
    "opts": {"type": "object"}, "ids": {"anyOf": [{"type": "array"}, {"type": "boolean"}]},
}  # fmt: skip
TOOLS = [function_schema("search", "", PROPERTIES, ["query"])]
ARGUMENTS = {"query": "needle", "topk": 3, "weight": 2.5, "opts": {"a": [1, "b"]}, "ids": [True, None]}
ANYTHING = st.text(st.characters(), max_size=30)  # lone surrogates too
CPU_S = 10  # where time grows with the square of the length it is far more, also on a fast core
few = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
some = settings(few, max_examples=50)


def valid(call_format):
    return find_parser(call_format).write("search", ARGUMENTS)


def check(parsed):
    assert isinstance(parsed.content, str)
    for call in parsed.calls:
        assert call.name.strip() and isinstance(call.arguments, str)
    for malformed in parsed.malformed:
        assert malformed.text and 0 < len(malformed.reason) < 400


@pytest.mark.parametrize("call_format", FORMATS)
def test_plain_text_holds_no_call(call_format):
    parser = find_parser(call_format)

    @few
    @given(ANYTHING)
    def any_text(text):
        parsed = parser.parse(text, TOOLS)
        check(parsed)
        assert not parsed.calls

    any_text()
    prose = 'The set {1, 2}, the object {"name": "Anna", "age": 3} and a list [{"x": 1}]; in action: done. <b>x</b>'
    parsed = parser.parse(prose, TOOLS)
    assert (parsed.content, parsed.calls, parsed.malformed) == (prose, [], [])


@pytest.mark.parametrize("call_format", FORMATS)
def test_mutated_calls_are_read_or_reported(call_format):
    text = valid(call_format)
    cuts = st.integers(0, len(text))
    odd = st.sampled_from(["\\", '"', "<", ">", "{", "}", "[" * 2000, "\ud800"])
    edit = st.one_of(
        st.tuples(st.sampled_from(["delete", "double", "cut"]), cuts, cuts),
        st.tuples(st.just("nest"), cuts, st.just(text)),
        st.tuples(st.just("insert"), cuts, ANYTHING | odd),
    )
    parser = find_parser(call_format)

    @few
    @given(st.lists(edit, min_size=1, max_size=4), st.booleans())
    def mutated(edits, knows_tools):
        changed = text
        for kind, at, other in edits:
            if kind == "cut":
                changed = changed[:at]
            elif kind in ("insert", "nest"):
                changed = changed[:at] + other + changed[at:]
            else:
                low, high = sorted((at, other))
                changed = changed[:low] + changed[low:high] * (2 if kind == "double" else 0) + changed[high:]
        parsed = parser.parse(changed, TOOLS if knows_tools else ())
        check(parsed)
        if "needle" in changed and changed.count('"query"') < 2:  # else JSON takes the last of the values of one key
            told = parsed.content + "".join(one.text for one in parsed.malformed)
            told += "".join(call.name + call.arguments for call in parsed.calls)
            assert "needle" in told or call_format in DROPPING

    mutated()


# Formats that hand on nothing of what stands after a call, or before the end of a thought.
DROPPING = ("qwen3_coder", "glm", "seed", "minimax", "kimi", "deepseek_v4", "react")


@pytest.mark.parametrize("call_format", FORMATS)
def test_every_truncation_of_a_call_is_a_call_or_reported_or_text(call_format):
    parser, text = find_parser(call_format), valid(call_format)
    whole = parser.parse(text, TOOLS)
    assert [json.loads(call.arguments) for call in whole.calls] == [ARGUMENTS]
    for end in range(len(text)):
        parsed = parser.parse("So. " * 3 + "\n" + text[:end], TOOLS)
        check(parsed)
        for call in parsed.calls:  # what was cut off is not made up
            assert call.name == "search" or call_format == "react"
            assert set(json.loads(call.arguments)) <= {*ARGUMENTS, "input"}


@pytest.mark.parametrize("call_format", FORMATS)
def test_deep_nesting_is_reported(call_format):
    parser = find_parser(call_format)
    fine, deep = nested(MAX_DEPTH - 3), nested(20_000)
    marked = parser.write("search", {"opts": "MARK"})
    quoted = next(mark for mark in ('"MARK"', '<|"|>MARK<|"|>', "MARK") if mark in marked)
    marked = marked.replace('string="true"', 'string="false"')
    parsed = parser.parse(marked.replace(quoted, fine), TOOLS)
    assert not parsed.malformed and json.loads(parsed.calls[0].arguments) == {"opts": json.loads(fine)}
    for much in (nested(MAX_DEPTH + 5), deep):
        parsed = parser.parse(marked.replace(quoted, much), TOOLS)
        check(parsed)
        if parsed.calls:  # formats of text: it stays text, which is not the type that the schema asks for
            assert json.loads(parsed.calls[0].arguments) == {"opts": much}
        else:
            assert "levels deep" in parsed.malformed[0].reason


def nested(depth):
    return "[" * depth + "]" * depth


COMMON = ['{"', "{", "[", '[{"', '"', "\\", " ", "\n", "<", "</think>"]
HERMES = ['"</tool_call>"', '\\"</tool_call>', "", "</think>", '{"a</tool_call>', '{"name": ', '{"a": "']
HERMES += ['{"</tool_call>"']
CODER = ["<function=", "<function=f>", "<function=f><parameter=a>", ""]
HARMONY, ANALYSIS = "<|start|>assistant", "<|channel|>analysis<|message|>"
OSS = [HARMONY + ANALYSIS, f"{ANALYSIS}x<|end|>", "<|channel|> to=functions."]
OSS += [f"{HARMONY}<|channel|>c to=functions.f <|constrain|>json<|message|>"]
REACT = ["Action: f", "Action: f[", 'Action Input: {"', "Thought: ", "Action:\n"]
GLM = ["f<arg_key>", "", "</tool_call>"]
MINIMAX = "<minimax:tool_call><invoke name="
GEMMA = [":", ':<|"|>', " <tool_call|>", ":[{b:["]
DSML = ["<｜DSML｜tool_calls><｜DSML｜invoke name=", '<｜DSML｜parameter name="']
# Texts that a parser which starts anew at every mark looks through again and again: repeated, and what ends them.
PIECES = {
    "hermes": (["<tool_call>" + piece for piece in HERMES], ["", "</tool_call>"]),
    "json": (['{"name": ', '{"name": "f", "arguments": {"a": "', "```", "```{'"], ["", '"}', "}}}"]),
    "llama3_json": (['{"name": "f", "parameters": {', "<|python_tag|>", ";", "{};"], ["", '"}']),
    "qwen3_coder": (
        [*("<tool_call>" + piece for piece in CODER), "<function=<>", "<parameter=", "<parameter=a></function>"],
        ["", "</tool_call>", ">"],
    ),
    "react": (["\n" + line for line in REACT] + ["*", "\t"], ["", "]"]),
    "gpt-oss": (OSS, ["", "<|end|>", "<|call|>"]),
    "glm": (["<tool_call>" + piece for piece in GLM] + ["<arg_key>a</arg_key><arg_value>"], [""]),
    "seed": (["<seed:tool_call><function=f>", "<function=<>", "<parameter="], ["", "</seed:tool_call>", ">"]),
    "minimax": ([MINIMAX, '<invoke name="f"><parameter name=<'], ["", "</minimax:tool_call>"]),
    "kimi": (["<|tool_calls_section_begin|><|tool_call_begin|>", "functions.:1:1"], ["", "<|tool_call_end|>"]),
    "deepseek_v4": (DSML, ["", "</｜DSML｜invoke>"]),
    "gemma4": (["<|tool_call>call:f{a" + piece for piece in GEMMA], ["", "<tool_call|>"]),
}


@pytest.mark.parametrize("call_format", FORMATS)
def test_long_turns_take_time_in_proportion(call_format):
    """200,000 characters: a fraction of a second each, where the square of the length would take very long."""
    parser = find_parser(call_format)
    pieces, tails = PIECES[call_format]
    opening = valid(call_format).partition("search")[0]
    texts = [piece * (200_000 // len(piece)) + tail for piece in pieces for tail in tails]
    for text in [*texts, *(opening + piece * (200_000 // len(piece)) for piece in COMMON)]:
        began = time.process_time()
        check(parser.parse(text, TOOLS))
        assert time.process_time() - began < CPU_S, (text[:80], text[-20:])


@pytest.mark.parametrize(
    ("call_format", "piece", "tail"),
    [
        ("hermes", "<tool_call></think>", "</tool_call>"),
        ("gpt-oss", "<|start|>assistant<|channel|>analysis<|message|>", "<|end|>"),
    ],
)
def test_an_end_that_is_far_away_is_looked_for_once(call_format, piece, tail):
    began = time.process_time()
    check(find_parser(call_format).parse(piece * (2_000_000 // len(piece)) + tail, TOOLS))
    assert time.process_time() - began < CPU_S


@pytest.mark.parametrize("call_format", FORMATS)
def test_a_megabyte_in_one_argument_is_carried(call_format):
    parser = find_parser(call_format)
    began = time.process_time()
    text = "lorem ipsum " * 90_000 + "end"
    parsed = parser.parse(parser.write("search", {"query": text}), TOOLS)
    assert json.loads(parsed.calls[0].arguments) == {"query": text}
    assert time.process_time() - began < CPU_S


OF_JSON = ("hermes", "json", "llama3_json", "react", "gpt-oss", "kimi")
OF_TEXT = ("qwen3_coder", "glm", "seed", "minimax", "deepseek_v4", "gemma4")
MARKS = ["<tool_call>", "</tool_call>", "</parameter>", "</think>", "Action: x\nAction Input: {}"]
MARKS += ['"}', "\n", "\\", ";", "```"]

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,20}", fullmatch=True)
texts = st.text(st.characters(codec="utf-8"), max_size=20) | st.lists(
    st.sampled_from(MARKS) | st.text(st.characters(codec="utf-8"), max_size=4), max_size=5
).map("".join)
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    scalars | texts, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4)
)


def schema(name, properties):
    return function_schema(name, "", properties, list(properties))


def same(one, other):
    """Whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def reads_back(call_format, name, arguments, tools=()):
    parser = find_parser(call_format)
    parsed = parser.parse(parser.write(name, arguments), tools)
    assert not parsed.malformed and [one.name for one in parsed.calls] == [name]
    assert same(json.loads(parsed.calls[0].arguments), arguments)
    assert not parsed.content.strip()


@pytest.mark.parametrize("call_format", OF_JSON)
def test_formats_of_json_carry_any_arguments(call_format):
    forbidden = {"gpt-oss": ("<|call|>",), "kimi": ("<|tool_call",)}.get(call_format, ())

    @some
    @given(names, st.dictionaries(texts, values, max_size=5))
    def check(name, arguments):
        assume(not any(mark in json.dumps(arguments, ensure_ascii=False) for mark in forbidden))
        reads_back(call_format, name, arguments, [schema(name, {})])

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
    @some
    @given(names, st.dictionaries(names, types(call_format), max_size=5))
    def check(name, typed):
        tools = [schema(name, {key: {"type": kind} for key, (kind, _) in typed.items()})]
        arguments = {key: value for key, (_, value) in typed.items()}
        reads_back(call_format, name, arguments, tools)

    check()
