"""What trajectories share: the tools and formats of a row, what is made and when, and how it ends."""

from pathlib import Path

import pytest

from burnish import waits
from burnish.agents.environment import CLOSE_S, Environment
from burnish.agents.settings import AgentSettings
from burnish.data.chat import ChatRenderer
from burnish.loop_thread import run_to_end
from burnish.search.client import RetrieverClient

TOOLS = "tools:\n  - name: calculator\n  - name: search\n"


@pytest.fixture
def environment(config, tokenizer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Environment(AgentSettings.of(config), tokenizer, ChatRenderer(tokenizer, {}))


@pytest.fixture
def with_file(environment, config):
    Path("tools.yaml").write_text(TOOLS)
    config.actor_rollout_ref.rollout.multi_turn.tool_config_path = "tools.yaml"
    return environment


@pytest.mark.parametrize(
    ("row", "offered"),
    [
        ({}, []),
        ({"tools_kwargs": {"calculator": {}, "python": None}}, ["calculator"]),
        ({"tools_kwargs": {"search": {}, "calculator": {}}}, ["search", "calculator"]),
        ({"tool_config": {"available_tools": ["python"]}, "tools_kwargs": {"calculator": {}}}, ["python"]),
        ({"tool_config": {"available_tools": []}, "tools_kwargs": {"calculator": {}}}, []),
        ({"tool_config": None, "tools_kwargs": None}, []),
    ],
)
def test_without_a_file_a_row_offers_what_it_names(environment, row, offered):
    assert list(environment.tools_of(row)) == offered


@pytest.mark.parametrize(
    ("row", "offered"),
    [
        ({}, ["calculator", "search"]),
        ({"tools_kwargs": {"search": {"create_kwargs": {}}}}, ["calculator", "search"]),
        ({"tool_config": {"available_tools": ["search"]}}, ["search"]),
        ({"tool_config": {"available_tools": None}}, ["calculator", "search"]),
    ],
)
def test_a_file_offers_its_tools_and_a_row_narrows_them(with_file, row, offered):
    assert list(with_file.tools_of(row)) == offered


@pytest.mark.parametrize(
    ("asked", "format"), [(None, "json"), ("function_calling", "json"), ("react", "react"), ("hermes", "hermes")]
)
def test_a_row_picks_the_format_of_its_calls(environment, config, asked, format):
    config.actor_rollout_ref.rollout.multi_turn.format = "json"
    assert environment.call_format({"tool_config": {"tool_format": asked}}) == format
    assert environment.call_format({}) == "json"


def test_an_interaction_is_the_one_of_its_name(environment):
    assert environment.interaction_of({"interaction_kwargs": {"name": "gsm8k"}}) is environment.interactions["gsm8k"]
    for kwargs in (None, {}, {"name": None, "query": None}):
        assert environment.interaction_of({"interaction_kwargs": kwargs}) is None


def test_nothing_is_made_before_it_is_asked_for(environment, config):
    config.actor_rollout_ref.rollout.multi_turn.tool_config_path = "no such file"
    config.retriever.url = "no address"
    assert environment.retriever_stats() == {}
    run_to_end(environment.close())


def test_all_share_one_retriever_made_as_configured(environment, config):
    config.retriever.url, config.retriever.topk = "http://127.0.0.1:9/retrieve", 7
    config.retriever.timeout, config.retriever.retries, config.retriever.cache = 2.5, 4, False
    client = environment.retriever
    assert isinstance(client, RetrieverClient) and environment.retriever is client
    assert (client._url, client._topk, client._timeout, client._retries) == (config.retriever.url, 7, 2.5, 4)
    assert environment.retriever_stats()["queries"] == 0


def test_all_that_was_made_is_closed(environment):
    closed = []

    class Part:
        def __init__(self, name, waits):
            self.name, self.waits = name, waits

        def close(self):
            async def later():
                closed.append(self.name)

            return later() if self.waits else closed.append(self.name)

    environment.tools = {"a": Part("a", True), "b": Part("b", False), "none": object()}
    environment.interactions = {"c": Part("c", True)}
    environment.retriever = Part("retriever", True)
    run_to_end(environment.close())
    assert closed == ["a", "b", "c", "retriever"]


def test_closing_is_waited_for_in_sight(environment):
    seen = []

    class Client:
        async def close(self):
            seen.extend((wait.kind, wait.subject, wait.seconds) for wait in waits.longest())

    environment.__dict__["retriever"] = Client()
    run_to_end(environment.close())
    assert seen == [("tool", "Client to close", CLOSE_S)]


def test_the_tags_of_the_search_agent_mean_something_in_observations(environment):
    said = "<think></think><search></search><answer></answer><information></information>"
    assert "<" in said and environment.observations.harmless(said) == said.replace("<", "< ")
