"""The search tool: what the retriever found, as the model reads it."""

import asyncio
from functools import partial

import pytest

from burnish.agents.tools.search import SearchTool
from burnish.errors import ToolFailure
from burnish.search.documents import Document

BONN = Document("1", '"Bonn"\nA city on the Rhine.\nOnce a capital.')
RHINE = Document("2", '"Rhine"\nA river.')


class Client:
    """Finds the documents whose text has the query's first word; waits, so that queries are seen to run at once."""

    def __init__(self):
        self.running = self.most = 0

    async def search(self, query):
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.05)
        self.running -= 1
        if query == "down":
            raise ToolFailure("http://127.0.0.1:1: unreachable")
        return [document for document in (BONN, RHINE) if query.split()[0].lower() in document.contents.lower()]


@pytest.fixture
def client():
    return Client()


@pytest.fixture
def search(call, client):
    return partial(call, SearchTool({}, SearchTool.SCHEMA, retriever=lambda: client))


def test_one_query(search):
    result = search(query=" rhine ")
    assert result.text == 'Doc 1(Title: "Bonn") A city on the Rhine.\nOnce a capital.\nDoc 2(Title: "Rhine") A river.'
    assert result.metrics["documents"] == 2 and 0.04 < result.metrics["seconds"] < 60
    assert search(query_list=["rhine"]).text == result.text


def test_several_queries_at_once(search, client):
    result = search(query_list=["river", "capital", "river", "nothing"])
    assert result.text == (
        "Results for 'river':\nDoc 1(Title: \"Rhine\") A river.\n\n"
        "Results for 'capital':\nDoc 1(Title: \"Bonn\") A city on the Rhine.\nOnce a capital.\n\n"
        "Results for 'nothing':\nNo documents were found."
    )
    assert client.most == 3 and result.metrics["documents"] == 2


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({}, "error", "there is nothing to search for: give query or query_list"),
        ({"query": "  "}, "error", "there is nothing to search for"),
        ({"query_list": []}, "error", "there is nothing to search for"),
        ({"query_list": ["a", ""]}, "error", "there is nothing to search for"),
        ({"query_list": [str(i) for i in range(11)]}, "error", "11 queries are too many: give at most 10"),
        ({"query": ["a"]}, "bad_arguments", "query must be a string"),
        ({"query_list": "a"}, "bad_arguments", "query_list must be an array"),
    ],
)
def test_a_query_that_is_none_is_reported(search, arguments, kind, words):
    result = search(**arguments)
    assert result.kind == kind and words in result.text


def test_a_retriever_that_fails_ends_the_trajectory(search):
    with pytest.raises(ToolFailure, match="tool search: execute: http://127.0.0.1:1: unreachable"):
        search(query="down")
