"""The tools of a YAML file: both forms, users' own code, and every mistake with its file and entry."""

import re
from pathlib import Path
from textwrap import dedent

import pytest

from burnish.agents.tools.load import BUILT_IN, load_tools
from burnish.config.reward import SandboxConfig
from burnish.errors import ConfigError

EXAMPLE = Path(__file__).parents[3] / "examples" / "tools" / "tools.yaml"

MINE = """
    from burnish.agents.tools import BaseTool, ToolResponse, function_tool

    @function_tool
    def add(a: int, b: int = 0) -> int:
        '''Add.'''
        return a + b

    def plain(a: int): ...

    class Echo(BaseTool):
        async def execute(self, instance_id, parameters, **kwargs):
            return ToolResponse(f"{self.config['prefix']}{parameters['text']}"), 0.0, {}

    class Asks(Echo):
        def __init__(self, config, tool_schema, retriever, *, sandbox):
            super().__init__(config, tool_schema)
            self.parts = retriever, sandbox

    class Abstract(BaseTool): ...

    class Breaks(Echo):
        def __init__(self, config, tool_schema):
            raise KeyError("api_key")

    class Other: ...
"""
TEXT = "{type: object, properties: {text: {type: string}}}"
ECHO = f"tool_schema: {{type: function, function: {{name: echo, parameters: {TEXT}}}}}"


def mine(entry):
    return f"tools:\n  - {{{entry}}}\n"


def test_the_built_in_tools_without_a_file_and_by_name_alone(load):
    tools = load_tools(None, retriever=None, sandbox=SandboxConfig())
    assert [*tools] == [*BUILT_IN] == ["calculator", "python", "search", "calc_gsm8k_reward", "calc_geo3k_reward"]
    for name, tool in tools.items():
        function = tool.tool_schema["function"]
        assert function["name"] == name and function["description"] and function["parameters"]["properties"]
    named = load("tools: [" + ", ".join(f"{{name: {name}}}" for name in tools) + "]")
    assert {name: tool.tool_schema for name, tool in named.items()} == {n: t.tool_schema for n, t in tools.items()}


def test_the_functions_of_a_python_file_are_tools_next_to_those_of_the_yaml_file(tmp_path):
    def load_functions(source, path=None):
        (tmp_path / "own.py").write_text(dedent(source))
        return load_tools(path, str(tmp_path / "own.py"), retriever=None, sandbox=SandboxConfig())

    (tmp_path / "tools.yaml").write_text("tools: [{name: calculator}]")
    assert [*load_functions(MINE)] == ["add"]
    assert [*load_functions(MINE, str(tmp_path / "tools.yaml"))] == ["calculator", "add"]
    with pytest.raises(ConfigError, match=r"function_tool_path=.*own.py: it has no function tool; put @function_tool"):
        load_functions("def plain(a: int): ...")
    with pytest.raises(ConfigError, match=r"own.py: the name calculator is taken by another tool"):
        load_functions(MINE.replace("def add", "def calculator"), str(tmp_path / "tools.yaml"))


def test_a_short_entry_in_other_words(load):
    tool = load("""
        tools:
          - name: calculator
            description: Sums.
            parameters:
              expression: {type: string, description: the sum}
    """)["calculator"]
    assert tool.tool_schema["function"] == {
        "name": "calculator",
        "description": "Sums.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "description": "the sum"}},
            "required": ["expression"],
        },
    }
    whole = "{type: object, properties: {query_list: {type: array, items: {type: string}}}, required: [query_list]}"
    tool = load(mine(f"name: search, parameters: {whole}"))["search"]
    assert [*tool.tool_schema["function"]["parameters"]["properties"]] == ["query_list"]


def test_a_class_a_function_and_a_built_in_class(load, run_calls):
    entries = f"""
        tools:
          - {{class_name: my_tools.py:Echo, config: {{type: native, prefix: ">"}}, {ECHO}}}
          - {{class_name: my_tools.py:add}}
          - {{class_name: burnish.agents.tools.calculator.CalculatorTool}}
    """
    tools = load(entries, my_tools=MINE)
    assert [*tools] == ["echo", "add", "calculator"]
    calls = [("echo", '{"text": "hi"}'), ("add", '{"a": 2, "b": 3}'), ("calculator", '{"expression": "2*3"}')]
    assert [result.text for result in run_calls(tools, *calls)] == [">hi", "5", "6"]


def test_a_function_in_other_words_and_a_constructor_that_asks_for_parts_of_the_run(load):
    function = (
        "{name: add, description: Plus., parameters: {type: object, properties: {a: {type: integer}}, required: [a]}}"
    )
    tool = load(mine(f"class_name: my_tools.py:add, tool_schema: {{function: {function}}}"), my_tools=MINE)["add"]
    assert tool.tool_schema["function"]["description"] == "Plus."
    assert [*tool.tool_schema["function"]["parameters"]["properties"]] == ["a"]

    def retriever(): ...

    tool = load(mine(f"class_name: my_tools.py:Asks, {ECHO}"), retriever=retriever, my_tools=MINE)["echo"]
    assert tool.parts == (retriever, SandboxConfig())


def test_a_file_next_to_the_yaml_goes_before_one_in_the_working_directory(load, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    for name in ("my_tools", "only_here"):
        (elsewhere / f"{name}.py").write_text(
            "from burnish.agents.tools import function_tool\n@function_tool\ndef add(): '''Elsewhere.'''\n"
        )
    assert load(mine("class_name: my_tools.py:add"), my_tools=MINE)["add"].__doc__ == "Add."
    assert load(mine("class_name: only_here.py:add"))["add"].__doc__ == "Elsewhere."


ADD = "tool_schema: {function: {name: add, parameters: {type: object, properties: {c: {}}}}}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected `tools:` and a list of entries, got None"),
        ("tools: []", "expected `tools:`"),
        ("tools: [", "cannot be read (while parsing"),
        ("tools: [{name: calculator}]\nformat: hermes", "unknown key 'format' next to tools"),
        ("tools: [calculator]", "entry 0: an entry has class_name and tool_schema, or name; got 'calculator'"),
        ("tools: [{name: calculator}, {name: calculater}]", "entry 1: name='calculater'"),
        ("tools: [{name: calculater}]", "did you mean calculator?"),
        ("tools: [{description: x}]", "entry 0: name=None: an entry without class_name is a built-in tool, one of"),
        ("tools: [{name: calculator, parameter: {}}]", "unknown key 'parameter'; it has name, description"),
        ("tools: [{name: calculator, parameters: {expr: {type: string}}}]", "has the parameter expr, which the tool c"),
        ("tools: [{name: calculator, parameters: {}}]", "calculator needs expression, which the schema does not have"),
        ("tools: [{name: calculator, parameters: 3}]", "parameters is not an object"),
        ("tools: [{name: calculator, description: [x]}]", "description=['x'] is not text"),
        ("tools: [{name: python}, {name: search}, {name: python}]", "entry 2: the name python is taken by entry 0"),
        ("tools: [{name: calculator, config: 3}]", "entry 0: config=3 is not a mapping"),
        ("tools: [{name: python, config: {type: natve}}]", "config.type='natve': it is one of mcp, native; did you"),
        (mine("class_name: 3"), "entry 0: class_name=3: write package.module.Class or file.py:Class"),
        (mine("class_name: my_tools.py:Ecko"), "it defines Abstract, Asks, Breaks, Echo, Other, add, plain; "),
        (mine("class_name: no_file.py:Echo"), "there is no file no_file.py in"),
        (mine("class_name: no_such_package.mod.Echo"), "no module of that name"),
        (mine("class_name: my_tools.py:Other"), "is not a tool; derive it from BaseTool"),
        (mine("class_name: my_tools.py:plain"), "is not a tool; put @function_tool above it"),
        (mine("class_name: my_tools.py:Echo"), "tool_schema is missing: Echo has no SCHEMA"),
        (mine(f"class_name: my_tools.py:Abstract, {ECHO}"), "could not be made with (config, tool_schema), config={}"),
        (mine(f"class_name: my_tools.py:Breaks, {ECHO}"), "KeyError: 'api_key'"),
        (mine(f"class_name: my_tools.py:Echo, {ECHO}, name: x"), "unknown key 'name'; it has class_name, config"),
        (mine("class_name: my_tools.py:Echo, tool_schema: {function: {}}"), "entry 0: tool_schema.function.name"),
        (mine("class_name: my_tools.py:add, config: {x: 1}"), "config has x, but a function takes none"),
        (mine(f"class_name: my_tools.py:add, {ECHO}"), "the schema's name is echo, and the function's add"),
        (mine(f"class_name: my_tools.py:add, {ADD}"), "parameter c, which the function add does not"),
    ],
)
def test_a_mistake_names_the_file_and_the_fix(load, text, words):
    with pytest.raises(ConfigError, match=re.escape(words)) as told:
        load(text, my_tools=MINE)
    assert "multi_turn.tool_config_path=" in str(told.value) and "tools.yaml" in str(told.value)


def test_a_file_that_is_missing_or_not_text(tmp_path):
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xff")
    for name in ("nowhere.yaml", "bytes.yaml"):
        with pytest.raises(ConfigError, match=f"{name}: cannot be read"):
            load_tools(str(tmp_path / name), retriever=None, sandbox=SandboxConfig())


def test_the_example_is_a_game_that_can_be_won(run_calls):
    tools = load_tools(str(EXAMPLE), retriever=None, sandbox=SandboxConfig())
    assert [*tools] == ["calculator", "convert", "guess"]
    assert tools["convert"].tool_schema["function"]["parameters"]["properties"]["to"] == {
        "type": "string", "enum": ["km", "m", "mile"], "description": "the unit that is wanted", "default": "km",
    }  # fmt: skip
    calls = [("guess", '{"number": 50}'), ("guess", '{"number": 42}'), ("guess", '{"number": 101}')]
    calls += [("convert", '{"value": 3, "unit": "mile"}'), ("convert", '{"value": -3, "unit": "m"}')]
    results, reward = run_calls(tools, *calls, reward=True, guess={"create_kwargs": {"secret": 42}})
    results = [(result.kind, result.text) for result in results]
    assert results[:2] == [("ok", "lower"), ("ok", "right")] and reward == 0.5
    assert results[2][0] == "bad_arguments" and "at most 100" in results[2][1]
    assert results[3:] == [("ok", "4.82803 km"), ("error", "a distance is not negative")]
    assert not tools["guess"].games
