"""Schemas that cannot be right are refused with their place and the fix; arguments reach the tool only if the schema
allows them, otherwise the model gets the reason."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.agents.tools.schema import BadArguments, check_agreement, check_schema, function_schema, read_arguments
from burnish.errors import ConfigError


def schema(**parameters):
    return {"type": "function", "function": {"name": "f", "description": "", "parameters": parameters}}


def test_what_may_be_left_out_is_filled_in():
    assert check_schema({"function": {"name": "now"}}, "here") == {
        "type": "function",
        "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}},
    }
    given = schema(type="object", properties={"x": {"anyOf": [{"type": "string"}]}}, title="T")
    assert check_schema(given, "here") == given


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "a tool_schema is {type: function, function: {name, description, parameters}}, got None"),
        ({"type": "tool", "function": {"name": "f"}}, "tool_schema.type='tool': it must be function"),
        ({"function": {}}, "tool_schema.function.name=None: a tool needs a name"),
        ({"function": {"name": "my tool"}}, "tool_schema.function.name='my tool'"),
        ({"function": {"name": "f", "description": 3}}, "description=3 is not text"),
        ({"function": {"name": "f", "parameters": []}}, "(f): tool_schema.function.parameters is not an object"),
        (schema(x={"type": "string"}), "parameters.type=None: it must be object; the arguments go below properties"),
        (schema(type="object", properties=["x"]), "parameters.properties=['x']: it must map"),
        (schema(type="object", properties={"x": "string"}), "parameters.properties.x='string': it must be a schema"),
        (schema(type="object", properties={"x": {}}, required="x"), "required='x': it must be a list"),
        (schema(type="object", properties={"city": {}}, required=["citi"]), "names citi, which is not in properties; "),
        (schema(type="object", required=["x"]), "required names x"),
        (schema(type="object", properties={"x": {"type": "int"}}), "did you mean integer?"),
        (schema(type="object", properties={"x": {"type": "float"}}), "did you mean number?"),
        (schema(type="object", properties={"x": {"type": ["string", 3]}}), "x.type=3"),
        (schema(type="object", properties={"x": {"type": {}}}), "x.type={}"),
        (schema(type="object", properties={"x": {"type": "array", "items": {"type": "str"}}}), "x.items.type='str'"),
        (schema(type="object", properties={"x": {"type": "object", "required": "y"}}), "x.required='y'"),
        (schema(type="object", properties={"x": {"enum": "a"}}), "x.enum='a': it must be a list"),
        (schema(type="object", properties={"x": {"type": "string", "enum": [True]}}), "needs quotes around text like"),
    ],
)
def test_a_malformed_schema_is_refused_with_its_place(given, words):
    with pytest.raises(ConfigError, match=re.escape(words)) as told:
        check_schema(given, "tools.yaml, entry 2")
    assert str(told.value).startswith("tools.yaml, entry 2")


OWN = function_schema("f", "", {"x": {"type": "number"}, "s": {"type": "string"}}, ["x"])


@pytest.mark.parametrize(
    ("properties", "required", "words"),
    [
        ({"x": {"type": "number"}, "y": {}}, ["x"], "parameter y, which the function f does not take; it takes s, x"),
        ({"s": {"type": "string"}}, ["s"], "the function f needs x, which the schema does not have"),
        ({"x": {"type": "number"}}, [], "the function f needs x, which the schema does not require; add it to its req"),
        ({"x": {"type": "string"}}, ["x"], "says that x is of type string, and the function f takes number"),
        ({"x": {"type": ["number", "null"]}}, ["x"], "x is of type null, number, and the function f takes number"),
    ],
)
def test_a_schema_that_is_not_narrower_names_both(properties, required, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        check_agreement(function_schema("f", "", properties, required), OWN, "the function f", "here")
    check_agreement(function_schema("f", "", {"x": {"type": "integer"}}, ["x"]), OWN, "the function f", "here")


PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer", "minimum": 1, "maximum": 14},
    "share": {"type": "number"},
    "metric": {"type": "boolean"},
    "unit": {"type": "string", "enum": ["c", "f"]},
    "tags": {"type": "array", "items": {"type": "string"}},
    "place": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
    "names": {"type": "object", "additionalProperties": {"type": "integer"}},
    "note": {"type": "string", "nullable": True},
    "either": {"type": ["integer", "null"]},
    "anything": {"description": "no type"},
    "odd": {"anyOf": [{"type": "string"}], "format": "date"},
    "side": {"enum": [1, "a"]},
}
PROPERTIES["place"]["additionalProperties"] = False
WEATHER = function_schema("weather", "", PROPERTIES, ["city"])


def read(**arguments):
    return read_arguments(json.dumps({"city": "Bonn", **arguments}), WEATHER)


def test_arguments_that_fit_are_handed_on_as_they_are():
    given = {"days": 3, "share": 2, "metric": True, "unit": "c", "tags": ["a"], "place": {"lat": 1.5}}
    given |= {"names": {"x": 1}, "note": None, "either": None, "anything": [1, {"b": None}], "odd": 5, "side": 1}
    assert read(**given) == {"city": "Bonn", **given}
    assert type(read(days=3)["days"]) is int and type(read(share=3)["share"]) is int


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"days": "3"}, 'argument days must be an integer, not "3"; write 3 without quotes'),
        ({"tags": '["a"]'}, 'write ["a"] without quotes'),
        ({"days": 3.0}, "must be an integer, not 3.0; write 3"),
        ({"days": 3.5}, "must be an integer, not 3.5. Its"),
        ({"days": True}, "must be an integer, not true"),
        ({"metric": 1}, "must be a boolean, not 1"),
        ({"city": None}, "argument city must be a string, not null"),
        ({"days": 0}, "argument days must be at least 1, not 0"),
        ({"days": 15}, "argument days must be at most 14, not 15"),
        ({"unit": "k"}, 'argument unit must be one of "c", "f", not "k"'),
        ({"tags": "a"}, 'must be an array, not "a"'),
        ({"tags": ["a", 2]}, "argument tags[1] must be a string, not 2"),
        ({"place": {}}, "argument place.lat is missing"),
        ({"place": {"lat": 1, "lon": 2}}, "there is no argument place.lon"),
        ({"names": {"x": "1"}}, "argument names.x must be an integer"),
        ({"either": "1"}, "must be an integer or null"),
        ({"citi": "Bonn"}, "there is no argument citi; did you mean city?"),
        ({"days": "3", "unit": 4}, "write 3 without quotes; argument unit must be a string, not 4. Its arguments: c"),
        ({"side": True}, 'one of 1, "a", not true'),
    ],
)
def test_what_does_not_fit_is_reported(arguments, words):
    with pytest.raises(BadArguments) as told:
        read(**arguments)
    assert words in str(told.value) and "city (string, required), days (integer)" in str(told.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON (Expecting value"),
        ("[]", "must be one JSON object, not []"),
        ("{}", "argument city is missing"),
        ('{"city": "Bonn", "share": NaN}', "not valid JSON"),
        ('{"city": "Bonn", "share": 1e999}', "a number that is too large"),
        ('{"city": "Bonn", "days": ' + "1" * 5000 + "}", "a number that is too large"),
        ('{"city": "\\ud800"}', "half a character"),
        ('{"city": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
    ],
)
def test_text_that_holds_no_arguments_is_reported(text, words):
    with pytest.raises(BadArguments) as told:
        read_arguments(text, WEATHER)
    assert words in str(told.value) and "weather" in str(told.value) and len(str(told.value)) < 1000


def test_further_names_pass_only_where_the_schema_lets_them():
    schema = function_schema("now", "", {}, [])
    assert read_arguments("{}", schema) == {}
    with pytest.raises(BadArguments, match="there is no argument zone"):
        read_arguments('{"zone": "utc"}', schema)
    schema = function_schema("open", "", {"a": {"type": "integer"}}, [])
    schema["function"]["parameters"]["additionalProperties"] = {"type": "string"}
    assert read_arguments('{"a": 1, "b": "x"}', schema) == {"a": 1, "b": "x"}
    with pytest.raises(BadArguments, match="argument b must be a string"):
        read_arguments('{"b": 1}', schema)
    del schema["function"]["parameters"]["properties"], schema["function"]["parameters"]["additionalProperties"]
    assert read_arguments('{"c": 1}', schema) == {"c": 1}


def test_of_many_problems_a_few_are_reported():
    with pytest.raises(BadArguments) as told:
        read(tags=list(range(1000)), **{"x" * 5000: 1})
    assert str(told.value).count("must be a string") == 5 and len(str(told.value)) < 1500


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*PROPERTIES, "lat"]), inner, max_size=5)
    ),
    max_leaves=15,
)


@given(
    st.text(max_size=100) | JSON.map(json.dumps) | st.dictionaries(st.sampled_from([*PROPERTIES]), JSON).map(json.dumps)
)
@settings(max_examples=400, deadline=None)
def test_any_text_gives_arguments_that_fit_or_a_reason(text):
    try:
        given = read_arguments(text, WEATHER)
    except BadArguments as told:
        assert "weather" in str(told)
        return
    assert isinstance(given["city"], str) and given.keys() <= PROPERTIES.keys()
    assert type(given.get("days", 1)) is int and 1 <= given.get("days", 1) <= 14
    assert all(isinstance(tag, str) for tag in given.get("tags", []))
