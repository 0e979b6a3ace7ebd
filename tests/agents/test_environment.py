"""What trajectories share: the tools and formats of a row, what is made and when, and how it ends."""

from pathlib import Path

import pytest

from burnish import waits
from burnish.agents.environment import CLOSE_S, Environment
from burnish.data.chat import ChatRenderer
from burnish.loop_thread import run_to_end
from burnish.search.client import RetrieverClient
from burnish.workers.rollouts import agent_settings

TOOLS = "tools:\n  - name: calculator\n  - name: search\n"


@pytest.fixture
def environment(config, tokenizer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Environment(agent_settings(config), tokenizer, ChatRenderer(tokenizer, {}))


@pytest.mark.parametrize(
    ("row", "offered", "of_the_file"),
    [
        ({}, [], ["calculator", "search"]),
        ({"tools_kwargs": {"calculator": {}, "search": None}}, ["calculator"], ["calculator", "search"]),
        ({"tools_kwargs": {"search": {}, "calculator": {}}}, ["search", "calculator"], ["calculator", "search"]),
        ({"tool_config": {"available_tools": ["search"]}, "tools_kwargs": {"calculator": {}}}, ["search"], ["search"]),
        ({"tool_config": {"available_tools": []}, "tools_kwargs": {"calculator": {}}}, [], []),
        ({"tool_config": {"available_tools": None}, "tools_kwargs": None}, [], ["calculator", "search"]),
        ({"tool_config": None, "tools_kwargs": None}, [], ["calculator", "search"]),
    ],
)
def test_a_row_offers_what_it_names_and_a_file_its_tools_which_a_row_narrows(
    environment, config, row, offered, of_the_file
):
    assert list(environment.tools_of(row)) == offered
    Path("tools.yaml").write_text(TOOLS)
    config.actor_rollout_ref.rollout.multi_turn.tool_config_path = "tools.yaml"
    environment.__dict__.pop("tools", None)
    assert list(environment.tools_of(row)) == of_the_file


def test_a_row_offers_the_functions_of_a_python_file(environment, config):
    Path("own.py").write_text(
        "from burnish.agents.tools import function_tool\n\n@function_tool\ndef add(a: int) -> int: return a\n"
    )
    config.actor_rollout_ref.rollout.multi_turn.function_tool_path = "own.py"
    assert list(environment.tools_of({})) == ["add"]


def test_a_row_picks_the_format_of_its_calls_and_its_interaction(environment, config):
    config.actor_rollout_ref.rollout.multi_turn.format = "json"
    assert environment.call_format({}) == "json"
    formats = {None: "json", "function_calling": "json", "react": "react", "hermes": "hermes"}
    for asked, call_format in formats.items():
        assert environment.call_format({"tool_config": {"tool_format": asked}}) == call_format
    assert environment.interaction_of({"interaction_kwargs": {"name": "gsm8k"}}) is environment.interactions["gsm8k"]
    for kwargs in (None, {}, {"name": None, "query": None}):
        assert environment.interaction_of({"interaction_kwargs": kwargs}) is None


def test_nothing_is_made_before_it_is_asked_for_and_all_share_one_retriever(environment, config):
    config.actor_rollout_ref.rollout.multi_turn.tool_config_path, config.retriever.url = "no such file", "no address"
    assert environment.retriever_stats() == {}
    run_to_end(environment.close())
    config.retriever.url, config.retriever.topk = "http://127.0.0.1:9/retrieve", 7
    config.retriever.timeout, config.retriever.retries, config.retriever.cache = 2.5, 4, False
    client = environment.retriever
    assert isinstance(client, RetrieverClient) and environment.retriever is client
    assert (client._url, client._topk, client._timeout, client._retries) == (config.retriever.url, 7, 2.5, 4)
    assert environment.retriever_stats()["queries"] == 0


def test_all_that_was_made_is_closed(environment):
    closed, seen = [], []

    class Part:
        def __init__(self, name, is_async=True):
            self.name, self.is_async = name, is_async

        def close(self):
            async def later():
                closed.append(self.name)
                seen.extend((wait.kind, wait.subject, wait.seconds) for wait in waits.longest()[:1])

            return later() if self.is_async else closed.append(self.name)

    environment.tools = {"a": Part("a"), "b": Part("b", is_async=False), "none": object()}
    environment.interactions = {"c": Part("c")}
    environment.retriever = Part("retriever")
    run_to_end(environment.close())
    assert closed == ["a", "b", "c", "retriever"]
    assert seen == [("tool", "Part to close", CLOSE_S)] * 3, "closing is waited for in sight"


def test_the_tags_of_the_search_agent_mean_something_in_observations(environment):
    said = "<think></think><search></search><answer></answer><information></information>"
    assert "<" in said and environment.observations.harmless(said) == said.replace("<", "< ")
