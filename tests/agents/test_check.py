"""What is told before a run starts: agents, tools, formats, interactions, programs, retrievers that are not there."""

import pytest

from burnish.agents.base import AgentLoopBase, register
from burnish.agents.check import AgentCheck
from burnish.data.files import read_rows, write_parquet
from burnish.errors import ConfigError, DataError
from burnish.workers.rollouts import agent_settings
from tests.search.conftest import Words, serving

MULTI_TURN = "actor_rollout_ref.rollout.multi_turn"
QUESTION = [{"role": "user", "content": "2+2?"}]


@pytest.fixture
def check(config, tokenizer, tmp_path, monkeypatch):
    """`check(*rows)`: all of a file's rows, and what is asked at the end."""
    monkeypatch.chdir(tmp_path)
    config.data.max_prompt_length = 2000

    def run(*rows):
        found = AgentCheck(agent_settings(config), tokenizer)
        for i, row in enumerate(rows):
            found.row({"raw_prompt": QUESTION, **row}, lambda i=i: f"rows.parquet, row {i}")
        found.finish()
        return found

    return run


def tool(**columns):
    return {"agent_name": "tool_agent", **columns}


GOOD = [
    {},
    {"agent_name": None},
    {"agent_name": "single_turn_agent_loop"},
    tool(),
    tool(tools_kwargs={"calculator": {"create_kwargs": {"a": 1}}}),
    tool(tools_kwargs={"calculator": None, "no such tool": None}),
    tool(tools_kwargs={"calculator": {"create_kwargs": None}}),
    tool(tool_config={"available_tools": ["calculator"], "tool_format": "function_calling"}),
    tool(tool_config={"available_tools": None, "tool_format": None}),
    tool(tool_config={"available_tools": []}),
    tool(tool_config={"max_tool_calls": 2.0, "timeout": 5, "of another row": None}),
    {"tool_config": {"own": "of a loop that reads it"}},
    tool(interaction_kwargs={"name": "gsm8k", "query": "2+2", "ground_truth": "4"}),
    tool(interaction_kwargs={"name": None, "query": None}),
    {"agent_name": "react_agent", "tool_config": {"available_tools": ["calculator"]}},
]
BAD = {
    "an agent": ({"agent_name": "serch_agent"}, ["agent_name=serch_agent", "did you mean search_agent", "@register"]),
    "a tool that is set up": (
        tool(tools_kwargs={"calculater": {"create_kwargs": {}}}),
        ["'calculater', which does not exist", "did you mean calculator?", f"Add it to the file of {MULTI_TURN}"],
    ),
    "a tool that is named": (
        tool(tool_config={"available_tools": ["calculator", "serch"]}),
        ["'serch', which does not exist", "did you mean search?"],
    ),
    "tools as text": (tool(tool_config={"available_tools": "calculator"}), ["available_tools='calculator'", "a list"]),
    "tools as numbers": (tool(tool_config={"available_tools": [3]}), ["available_tools=[3]", "a list of names"]),
    "tools without their key": (tool(tool_config=["calculator"]), ["tool_config=['calculator']", "available_tools"]),
    "an unknown key": (
        tool(tool_config={"max_tool_call": 3}),
        ["tool_config: unknown key 'max_tool_call'", "did you mean max_tool_calls?"],
    ),
    "an unknown key further in": (
        tool(extra_info={"tool_config": {"tools": []}}),
        ["tool_config: unknown key 'tools'"],
    ),
    "half a call": (tool(tool_config={"max_tool_calls": 1.5}), ["max_tool_calls=1.5: it must be a whole number"]),
    "no time": (tool(tool_config={"timeout": 0}), ["tool_config.timeout=0: it must be a number of seconds above 0"]),
    "a format": (tool(tool_config={"tool_format": "hermess"}), ["'hermess'", "did you mean hermes?", "qwen3_coder"]),
    "an interaction": (
        tool(interaction_kwargs={"name": "gsm9k"}),
        ["interaction_kwargs.name=gsm9k", "did you mean gsm8k", f"{MULTI_TURN}.interaction_config_path"],
    ),
    "an interaction without a name": (
        tool(interaction_kwargs={"name": None, "query": "2+2"}),
        ["interaction_kwargs.name=None", "gsm8k"],
    ),
    "an interaction that is a list": (tool(interaction_kwargs={"name": ["gsm8k"]}), ["name=['gsm8k']"]),
}


@pytest.mark.parametrize("row", GOOD, ids=str)
def test_rows_that_are_right(check, row):
    check(row, row)


@pytest.mark.parametrize("truncation", ["error", "left"])
@pytest.mark.parametrize(("row", "parts"), BAD.values(), ids=BAD)
def test_a_row_with_an_unknown_name_is_refused(check, config, row, parts, truncation):
    config.data.truncation = truncation
    with pytest.raises(ConfigError) as error:
        check({}, tool(), row)
    for part in ("rows.parquet, row 2: ", *parts):
        assert part in str(error.value)


def test_every_row_is_shown_to_its_interaction(check, config, tmp_path):
    (tmp_path / "own.py").write_text(
        "from burnish.agents.interactions import BaseInteraction\n\n"
        "class Picky(BaseInteraction):\n"
        "    async def generate_response(self, instance_id, messages, **kwargs): ...\n"
        "    def check_row(self, level, **kwargs): 1 / level\n"
    )
    (tmp_path / "users.yaml").write_text("interaction: [{name: picky, class_name: 'own.py:Picky'}]")
    config.actor_rollout_ref.rollout.multi_turn.interaction_config_path = str(tmp_path / "users.yaml")
    good, bad = ({"name": "gsm8k", "ground_truth": answer} for answer in ("4", "four"))
    with pytest.raises(DataError, match=r"row 1: interaction_kwargs.ground_truth='four': the gsm8k interaction needs"):
        check(tool(interaction_kwargs=good), tool(interaction_kwargs=bad))
    good, bad = ({"name": "picky", "level": level} for level in (1, 0))
    with pytest.raises(DataError, match=r"row 1: interaction picky: check_row failed\n(?s:.*)own.py\", line 5"):
        check(tool(interaction_kwargs=good), tool(interaction_kwargs=bad))


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"calculator": "x"}, "tools_kwargs.calculator='x': it must hold create_kwargs"),
        ({"calculator": {"creat_kwargs": {}}}, "tools_kwargs.calculator.creat_kwargs.*did you mean create_kwargs"),
        ({"calculator": {"create_kwargs": [1]}}, r"create_kwargs=\[1\]: it must hold values by name"),
        ({"calculator": {"create_kwargs": {1: 2}}}, "it must hold values by name"),
    ],
)
def test_settings_of_a_tool_that_are_none(check, kwargs, says):
    with pytest.raises(DataError, match=f"rows.parquet, row 1: .*{says}"):
        check(tool(tools_kwargs={"calculator": {"create_kwargs": {"a": 1}}}), tool(tools_kwargs=kwargs))


def test_a_row_of_a_table_is_not_taken_for_another_and_rows_that_ask_alike_are_looked_at_once(check, monkeypatch):
    """Parquet writes the names of all tools into all rows, null where a row has none."""
    rows = [tool(tools_kwargs={name: {"create_kwargs": {"a": 1}}}) for name in ("calculator", "abacus")]
    kept = read_rows(write_parquet(rows, "rows.parquet"))
    assert list(kept[0]["tools_kwargs"]) == list(kept[1]["tools_kwargs"]) == ["calculator", "abacus"]
    with pytest.raises(ConfigError, match="rows.parquet, row 1: the row names the tool 'abacus'"):
        check(*kept)
    asked = []
    monkeypatch.setattr(
        AgentCheck, "_check_agent", lambda self, row, loop: asked.append(row["tools_kwargs"]["calculator"])
    )
    check(*[tool(tools_kwargs={"calculator": {"create_kwargs": {"a": i}}}) for i in range(5)])
    assert asked == [{"create_kwargs": {"a": 0}}]


def test_other_loops_may_read_these_columns_and_the_default_loop_is_checked_whatever_the_rows_name(check, config):
    @register("own_of_check")
    class Own(AgentLoopBase):
        async def run(self, sampling_params, **row): ...

    found = check({"agent_name": "own_of_check", "tools_kwargs": {"hammer": {}}, "tool_config": "mine"})
    with pytest.raises(ConfigError, match="^agent_name=x_agent"):  # without a place the message stands alone
        found.row({"agent_name": "x_agent"})
    config.actor_rollout_ref.rollout.agent.default_agent_loop = "tol_agent"
    with pytest.raises(ConfigError, match=r"actor_rollout_ref\.rollout\.agent\.default_agent_loop=tol_agent"):
        check({"agent_name": "tool_agent"})
    config.actor_rollout_ref.rollout.agent.default_agent_loop = "search_agent"
    config.retriever.url = "http://127.0.0.1:9/retrieve"
    with pytest.raises(ConfigError, match="no retrieval server answers there"):
        check()  # rows that are made as they are drawn have the default loop


def test_the_tools_that_a_prompt_shows_count(check, config):
    """ReAct explains them in the prompt, which the row's own text would have fitted."""
    react = {"agent_name": "react_agent", "tool_config": {"available_tools": ["calculator"]}}
    config.data.max_prompt_length = 100
    check(tool(tool_config={"available_tools": ["calculator"]}))
    with pytest.raises(DataError, match=r"rows.parquet, row 1: .* over data\.max_prompt_length=100.*truncation"):
        check({}, react)
    config.data.truncation = "left"
    check(react)


@pytest.mark.parametrize(
    "row",
    [
        {"agent_name": "search_agent"},
        {"agent_name": "search_agent_loop"},
        tool(tool_config={"available_tools": ["search"]}),
        tool(tools_kwargs={"search": {"create_kwargs": {}}}),
    ],
    ids=["the agent", "its other name", "the tool", "the tool set up"],
)
def test_a_retriever_that_is_missing(check, config, row):
    config.retriever.url = "http://127.0.0.1:9/retrieve"
    with pytest.raises(ConfigError) as error:
        check({}, row)
    for part in ("retriever.url=http://127.0.0.1:9/retrieve", "`burnish retriever serve FOLDER --port 9`"):
        assert part in str(error.value)
    check({}, tool(tool_config={"available_tools": ["calculator"]}))


def test_a_retriever_that_is_there_is_asked_once(check, config):
    words = Words()
    with serving(words) as running:
        config.retriever.url = f"{running.url}/retrieve"
        check({"agent_name": "search_agent"}, tool(tool_config={"available_tools": ["search"]}))
    assert len(words.calls) == 1


def test_an_observation_has_room_for_its_tags(check, config, monkeypatch):
    monkeypatch.setattr("burnish.agents.check.probe", lambda url, timeout, topk: None)
    tags = len("\n\n<information></information>\n\n")
    config.data.max_obs_length = tags
    with pytest.raises(ConfigError, match=rf"data\.max_obs_length={tags}.*need {tags + 1} tokens; raise it"):
        check({"agent_name": "search_agent"})
    config.data.max_obs_length = tags + 1
    check({"agent_name": "search_agent"})


PYTHON = tool(tool_config={"available_tools": ["python"]})


def test_programs_can_be_run_and_end_before_their_call(check, config, monkeypatch):
    reason = "the kernel allows no namespaces"

    async def unavailable_reason(self):
        return reason

    monkeypatch.setattr("burnish.agents.tools.python.PythonTool.unavailable_reason", unavailable_reason)
    with pytest.raises(ConfigError, match="the tool python runs programs.*the kernel allows no namespaces"):
        check(PYTHON)
    check(tool(tool_config={"available_tools": ["calculator"]}))
    reason, limits = None, config.actor_rollout_ref.rollout.multi_turn
    config.reward_model.sandbox.timeout = limits.tool_timeout = 5.0
    with pytest.raises(ConfigError, match=rf"{MULTI_TURN}\.tool_timeout=5 .*reward_model\.sandbox\.timeout=5"):
        check(PYTHON)
    limits.tool_timeout = 5.1
    with pytest.raises(ConfigError, match=r"tool_config\.timeout=4 is not more than reward_model\.sandbox\.timeout=5"):
        check(PYTHON, tool(tool_config={"available_tools": ["python"], "timeout": 4}))
    check(PYTHON)
