"""What a user can get wrong, through the command: agents, tools, interactions and retrievers."""

import pytest

from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from tests.bad_input.conftest import assert_says
from tests.trainer.scripted import BROKEN, answering

ROLLOUT = "actor_rollout_ref.rollout"
MULTI_TURN = f"{ROLLOUT}.multi_turn"
TOOL_AGENT = {"agent_name": "tool_agent"}
ROWS = {
    "an agent": ({"agent_name": "tool_agnet"}, ["agent_name=tool_agnet", "did you mean tool_agent", "@register"]),
    "a tool of tools_kwargs": (
        TOOL_AGENT | {"tools_kwargs": {"calculater": {"create_kwargs": {"a": 1}}}},
        ["the tool 'calculater', which does not exist", "did you mean calculator?", f"{MULTI_TURN}.tool_config_path"],
    ),
    "a tool of tool_config": (
        TOOL_AGENT | {"tool_config": {"available_tools": ["pyhton"]}},
        ["the tool 'pyhton'", "did you mean python?"],
    ),
    "tools that are no list": (
        TOOL_AGENT | {"tool_config": {"available_tools": "python"}},
        ["tool_config.available_tools='python'", "a list of names"],
    ),
    "settings of a tool": (
        TOOL_AGENT | {"tools_kwargs": {"calculator": {"creat_kwargs": {"a": 1}}}},
        ["tools_kwargs.calculator.creat_kwargs", "did you mean create_kwargs?"],
    ),
    "a format": (TOOL_AGENT | {"tool_config": {"tool_format": "jsn"}}, ["'jsn'", "did you mean json?"]),
    "an interaction": (
        TOOL_AGENT | {"interaction_kwargs": {"name": "gsm8", "query": "2+2"}},
        ["interaction_kwargs.name=gsm8", "did you mean gsm8k", f"{MULTI_TURN}.interaction_config_path"],
    ),
    "an interaction without a name": (
        TOOL_AGENT | {"interaction_kwargs": {"query": "2+2"}},
        ["interaction_kwargs.name=None", "gsm8k"],
    ),
}


@pytest.mark.parametrize(("changes", "parts"), ROWS.values(), ids=ROWS)
def test_rows(refuses, no_model, changes, parts):
    rows = arithmetic.rows("train", 4, seed=0)
    rows[2] |= changes
    write_parquet(rows, "rows.parquet")
    assert_says(refuses("ppo", "data.train_files=rows.parquet"), "rows.parquet, row 2", *parts)


@pytest.mark.parametrize("kind", ["train", "val"])
def test_rows_to_validate_on_are_checked_too(refuses, no_model, kind):
    rows = arithmetic.rows("train", 4, seed=0)
    write_parquet([row | {"agent_name": "nobody"} for row in rows], "rows.parquet")
    assert_says(refuses("ppo", f"data.{kind}_files=rows.parquet"), "rows.parquet, row 0 ", "agent_name=nobody")


TOOL_FILES = {
    "no file": (None, ["tools.yaml", "cannot be read"]),
    "no YAML": ("tools: [", ["tools.yaml", "cannot be read"]),
    "no tools": ("tools: []\n", ["tools.yaml", "expected `tools:` and a list"]),
    "an unknown tool": ("tools: [{name: calculater}]\n", ["tools.yaml, entry 0", "did you mean calculator?"]),
    "an unknown class": ("tools: [{class_name: 'mine.py:Dise'}]\n", ["tools.yaml, entry 0", "Dise"]),
    "a schema of another function": (
        "tools:\n  - class_name: mine.py:roll\n    tool_schema: {type: function, function: {name: roll, "
        "description: a, parameters: {type: object, properties: {faces: {type: integer}}, required: [faces]}}}\n",
        ["tools.yaml, entry 0", "mine.py:roll", "faces", "sides"],
    ),
    "a function that is no tool": ("tools: [{class_name: 'mine.py:plain'}]\n", ["is not a tool", "@function_tool"]),
}


@pytest.mark.parametrize(("text", "parts"), TOOL_FILES.values(), ids=TOOL_FILES)
def test_files_of_tools(refuses, no_model, place, text, parts):
    (place / "mine.py").write_text(
        "from burnish.agents.tools import function_tool\n\n@function_tool\ndef roll(sides: int) -> str:\n"
        '    """Rolls a die.\n\n    Args:\n        sides: how many\n    """\n    return "4"\n\n\n'
        "def plain():\n    ...\n"
    )
    if text is not None:
        (place / "tools.yaml").write_text(text)
    message = refuses("ppo", f"{MULTI_TURN}.enable=true", "tool_config_path=tools.yaml")
    assert_says(message, f"{MULTI_TURN}.tool_config_path", *parts)


def test_a_file_of_interactions_that_is_not_there(refuses, no_model):
    rows = [row | TOOL_AGENT | {"interaction_kwargs": {"name": "gsm8k"}} for row in arithmetic.rows("train", 4, seed=0)]
    write_parquet(rows, "rows.parquet")
    message = refuses("ppo", "data.train_files=rows.parquet", f"{MULTI_TURN}.interaction_config_path=users.yaml")
    assert_says(message, f"{MULTI_TURN}.interaction_config_path=users.yaml")


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://127.0.0.1:9/retrieve", ["unreachable", "burnish retriever serve --index FOLDER --port 9"]),
        ("127.0.0.1:9/retrieve", ["http://"]),
        ("http://127.0.0.1:9", ["the path is missing", "http://127.0.0.1:9/retrieve"]),
        ("http:///retrieve", ["no machine is named"]),
    ],
)
def test_an_unreachable_retriever_is_refused(refuses, no_model, url, parts):
    assert_says(refuses("ppo", "do_search=true", f"retriever.url={url}"), f"retriever.url={url}", *parts)


@pytest.mark.parametrize(("reply", "parts"), BROKEN.values(), ids=BROKEN)
def test_a_retriever_that_answers_nonsense(refuses, no_model, reply, parts):
    with answering(reply) as url:
        message = refuses("ppo", "do_search=true", f"retriever.url={url}", "retriever.timeout=0.3")
    assert_says(message, f"retriever.url={url}", "no retrieval server answers there", *parts)


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        (
            ["do_search=true", f"{MULTI_TURN}.enable=true"],
            ["do_search=true and", "name different agents", "default_agent_loop"],
        ),
        ([f"{ROLLOUT}.agent.default_agent_loop=serch_agent"], ["serch_agent", "did you mean search_agent"]),
        (
            ["actor_rollout_ref.actor.state_masking=false", f"{ROLLOUT}.calculate_log_probs=true"],
            ["actor_rollout_ref.actor.state_masking=false", "leave out"],
        ),
    ],
)
def test_keys(refuses, no_model, keys, parts):
    assert_says(refuses("ppo", *keys), *parts)
