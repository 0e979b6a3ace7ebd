"""Every recorded case of nine call formats, and where ours deliberately reads another thing."""

import json
from pathlib import Path

import pytest

from burnish.agents.parsers import FORMATS, find_parser

CASES = json.loads((Path(__file__).parents[2] / "golden" / "tool_parsers.json").read_text())
# Where the recorded figure loses or makes up what the model wrote: content, calls, and a word of the reason.
OURS = {
    "hermes/think": ("<think>call <tool_call> later</think>", [("search", {"query": "who is 李白?"}, None)], None),
    "qwen3_coder/bad_bool": ("", [("search", {"strict": "yes"}, None)], None),
    "qwen3_coder/array_json_true": ("", [("calc_gsm8k_reward", {"ids": [True, None]}, None)], None),
    "gpt-oss/no_start": ("", [("search", {}, None)], None),
    "kimi/bad_json": ("", [], "not JSON"),
    "kimi/bad_json_no_tools": ("", [], "not JSON"),
    "kimi/list_args": ("", [], "no JSON object"),
    "kimi/list_args_no_tools": ("", [], "no JSON object"),
    "gemma4/nested_obj": ("", [("calc_gsm8k_reward", {"opts": {"x": 1}}, None)], None),
    "gemma4/list": ("", [("calc_gsm8k_reward", {"ids": [1, 2]}, None)], None),
    "gemma4/newline_string": ("", [("calc_gsm8k_reward", {"answer": "a\nb"}, None)], None),
}
# Cases whose figure has no call, or less than was written: the model is told why.
TOLD = {
    "hermes/bad_json": "line 2, column 2", "hermes/missing_args": "write \"arguments\": {}",
    "hermes/missing_name": "names no tool", "hermes/name_int": "names no tool",
    "hermes/unclosed": "no closing </tool_call>",
    "hermes/unopened": "without a <tool_call>", "hermes/nested": "inside a <tool_call>", "hermes/empty": "not JSON",
    "hermes/multi_in_one": "extra data", "hermes/json_list": "no JSON object",
    "qwen3_coder/truncated_header": "no name that ends in >", "qwen3_coder/param_no_gt": "no name that ends in >",
    "qwen3_coder/no_tool_call_tag": "not inside <tool_call>", "qwen3_coder/empty_tool_call": "no <function=name>",
    "qwen3_coder/json_hermes": "no <function=name>", "gpt-oss/no_call": "no closing <|call|>",
    "gpt-oss/no_constrain": "not of the form", "glm/unclosed": "no closing </tool_call>",
    "seed/no_function": "no <function=name>", "seed/unclosed": "no closing </seed:tool_call>",
    "seed/two_functions_one_call": "one function between", "minimax/empty_call": "<invoke name=",
    "minimax/unclosed": "no closing </minimax:tool_call>", "kimi/no_section": "not inside",
    "kimi/unclosed": "no closing <|tool_call_end|>", "deepseek_v4/unclosed": "no closing </｜DSML｜tool_calls>",
    "deepseek_v4/missing_string_attr": "string=\"true|false\"", "gemma4/unclosed": "no closing <tool_call|>",
}  # fmt: skip


def read(arguments):
    """What JSON text says, as text again, so that true is not 1 and NaN is NaN; 3.0 is 3."""
    try:
        value = json.loads(
            arguments, parse_float=lambda text: int(float(text)) if float(text) % 1 == 0 else float(text)
        )
    except ValueError:
        return arguments
    return json.dumps(value, sort_keys=True)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_golden(case):
    want, parser = case["expected"], find_parser(case["params"]["parser"])
    got = parser.parse(case["inputs"]["text"], case["inputs"].get("tools") or ())
    calls = [(call.name, read(call.arguments), call.call_id) for call in got.calls]
    recorded = [(one["name"], read(one["arguments"]), one["tool_call_id"]) for one in want["calls"]]
    if case["name"] in OURS:
        content, ours, reason = OURS[case["name"]]
        assert (got.content, calls) == (content, [(name, read(json.dumps(given)), i) for name, given, i in ours])
        assert [reason in one.reason for one in got.malformed] == ([] if reason is None else [True])
        assert calls != recorded
        return
    assert (got.content, calls) == (want["content"], recorded)
    if case["name"] in TOLD:
        assert any(TOLD[case["name"]] in one.reason for one in got.malformed), got.malformed


def test_golden_is_complete():
    names = {case["name"] for case in CASES}
    assert len(names) == len(CASES) == 157 and set(OURS) | set(TOLD) <= names
    assert {case["params"]["parser"] for case in CASES} == set(FORMATS) - {"json", "llama3_json", "react"}
