"""A schema that cannot be right is refused when it is read, with its place and the fix."""

import re

import pytest

from burnish.agents.tools.schema import check_agreement, check_schema, function_schema
from burnish.errors import ConfigError


def schema(**parameters):
    return {"type": "function", "function": {"name": "f", "description": "", "parameters": parameters}}


def test_what_may_be_left_out_is_filled_in():
    assert check_schema({"function": {"name": "now"}}, "here") == {
        "type": "function",
        "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}},
    }


def test_keywords_it_does_not_know_stay():
    given = schema(type="object", properties={"x": {"anyOf": [{"type": "string"}]}}, title="T")
    assert check_schema(given, "here") == given


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "a tool_schema is {type: function, function: {name, description, parameters}}, got None"),
        ({"name": "f"}, "a tool_schema is {type: function"),
        ({"type": "tool", "function": {"name": "f"}}, "tool_schema.type='tool': it must be function"),
        ({"function": {}}, "tool_schema.function.name=None: a tool needs a name"),
        ({"function": {"name": "my tool"}}, "tool_schema.function.name='my tool'"),
        ({"function": {"name": ""}}, "a tool needs a name"),
        ({"function": {"name": "f", "description": 3}}, "description=3 is not text"),
        ({"function": {"name": "f", "parameters": []}}, "(f): tool_schema.function.parameters is not an object"),
        (schema(x={"type": "string"}), "parameters.type=None: it must be object; the arguments go below properties"),
        (schema(type="string"), "parameters.type='string': it must be object"),
        (schema(type="object", properties=["x"]), "parameters.properties=['x']: it must map"),
        (schema(type="object", properties={"x": "string"}), "parameters.properties.x='string': it must be a schema"),
        (schema(type="object", properties={"x": {}}, required="x"), "required='x': it must be a list"),
        (
            schema(type="object", properties={"city": {}}, required=["citi"]),
            "names citi, which is not in properties; did",
        ),
        (schema(type="object", required=["x"]), "required names x"),
        (schema(type="object", properties={"x": {"type": "int"}}), "x.type='int': a type is one of"),
        (schema(type="object", properties={"x": {"type": "int"}}), "did you mean integer?"),
        (schema(type="object", properties={"x": {"type": "float"}}), "did you mean number?"),
        (schema(type="object", properties={"x": {"type": ["string", 3]}}), "x.type=3"),
        (schema(type="object", properties={"x": {"type": {}}}), "x.type={}"),
        (schema(type="object", properties={"x": {"type": "array", "items": {"type": "str"}}}), "x.items.type='str'"),
        (schema(type="object", properties={"x": {"type": "object", "required": "y"}}), "x.required='y'"),
        (schema(type="object", properties={"x": {"enum": "a"}}), "x.enum='a': it must be a list"),
        (
            schema(type="object", properties={"x": {"type": "string", "enum": [True]}}),
            "needs quotes around text like yes",
        ),
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
        (
            {"x": {"type": "number"}, "y": {}},
            ["x"],
            "has the parameter y, which the function f does not take; it takes s, x",
        ),
        ({"s": {"type": "string"}}, ["s"], "the function f needs x, which the schema does not have"),
        (
            {"x": {"type": "number"}},
            [],
            "the function f needs x, which the schema does not require; add it to its required",
        ),
        ({"x": {"type": "string"}}, ["x"], "says that x is of type string, and the function f takes number"),
        ({"x": {"type": ["number", "null"]}}, ["x"], "x is of type null, number, and the function f takes number"),
    ],
)
def test_a_schema_that_does_not_match_names_both(properties, required, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        check_agreement(function_schema("f", "", properties, required), OWN, "the function f", "here")


def test_a_narrower_schema_matches():
    check_agreement(function_schema("f", "", {"x": {"type": "integer"}}, ["x"]), OWN, "the function f", "here")
